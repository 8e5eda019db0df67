"""The containers of the Helm chart as servers here: their arguments, and their probes in the states of a pod."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from support.certificates import Certificates
from support.kubernetes_manifests import ROOT, Manifest, container, read_manifests
from support.model_repository import write_identity, write_model
from support.server_process import ServerProcess, serving
from support.waiting import wait_until

BODY = json.dumps({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [1]}]}).encode()
GATED = """
import os, time

class TritonPythonModel:
    def initialize(self, args):
        while os.path.exists(os.path.join(args["model_repository"], "gate")):
            time.sleep(0.01)

    def execute(self, requests):
        return []
"""
TENSORS = """
backend: "python"
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] } ]
"""


def golden(name: str) -> list[Manifest]:
    return read_manifests((ROOT / "tests" / "deploy" / "golden" / f"{name}.yaml").read_text())


def flags_of(server: Manifest, directories: dict[str, Path]) -> list[str]:
    """The arguments with directories of the test and without the ports, for which free ones are taken."""
    flags = [flag for flag in server["args"] if not flag.partition("=")[0].endswith("-port")]
    for directory, local in directories.items():
        flags = [flag.replace(f"={directory}", f"={local}") for flag in flags]
    return flags


def probed(running: ServerProcess, server: Manifest, names: Sequence[str]) -> list[int]:
    """The statuses of probes, asked as the kubelet does: without a key."""
    return [running.get(server[f"{name}Probe"]["httpGet"]["path"]).status for name in names]


def test_probes_survive_a_long_load(tmp_path: Path) -> None:
    model = write_model(tmp_path / "models", "slow", TENSORS, {"1/model.py": GATED})
    (model / "gate").touch()
    server = container(golden("defaults"))
    running = ServerProcess(tmp_path / "server.log", *flags_of(server, {"/models": tmp_path / "models"}))
    try:
        running.wait_log("Started HTTPService")
        assert probed(running, server, ("startup", "liveness", "readiness")) == [200, 200, 400]
        (model / "gate").unlink()
        wait_until(lambda: probed(running, server, ("readiness",)) == [200], "the server never was ready")
    finally:
        (model / "gate").unlink(missing_ok=True)
        running.stop()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


def test_probes_need_no_key_behind_tls(tmp_path: Path, certificates: Certificates) -> None:
    write_identity(tmp_path / "models")
    manifests = golden("tls-keys-hpa")
    (secret,) = [manifest for manifest in manifests if manifest["kind"] == "Secret"]
    (tmp_path / "keys").write_text(secret["stringData"]["keys"])
    mounts: dict[str, Any] = {
        "/models": tmp_path / "models",
        "/etc/naiad/keys/keys": tmp_path / "keys",
        "/etc/naiad/tls/tls.crt": certificates.server_cert,
        "/etc/naiad/tls/tls.key": certificates.server_key,
        "/etc/naiad/tls/ca.crt": certificates.root,
    }
    server = container(manifests)
    flags = flags_of(server, mounts)
    with serving(tmp_path / "server.log", *flags, tls=certificates.client_context()) as running:
        assert probed(running, server, ("startup", "liveness", "readiness")) == [200, 200, 200]
        assert running.request("POST", "/v2/models/identity/infer", BODY).status == 401
        key = {"Authorization": "Bearer hello"}  # the key of the value set, whose SHA-256 is in the Secret
        assert running.request("POST", "/v2/models/identity/infer", BODY, key).status == 200
