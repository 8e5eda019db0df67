"""The manifests for KServe and Seldon."""

import copy
from collections.abc import Sequence
from pathlib import Path

import jsonschema
import pytest

from naiad.options.sources.command_line import parse_options
from support.custom_resources import validate_custom
from support.kubernetes_manifests import DEPLOY, Manifest, container_of_kserve, read_manifests
from support.serving_commands import KSERVE, SELDON_1, SELDON_2

RUNTIMES = ("servingruntime", "clusterservingruntime")
FILES = sorted([*(DEPLOY / "kserve").glob("*.yaml"), *(DEPLOY / "seldon").glob("*.yaml")])


def manifest_of(path: Path) -> Manifest:
    (manifest,) = read_manifests(path.read_text())
    return manifest


def runtime(name: str) -> Manifest:
    return manifest_of(DEPLOY / "kserve" / f"{name}.yaml")


@pytest.mark.parametrize(
    ("command", "http_port", "grpc_port"),
    [(KSERVE, 8080, 9000), (SELDON_1, 9000, 9500), (SELDON_2, 9000, 9500)],
    ids=["kserve", "seldon-1", "seldon-2"],
)
def test_command_line_is_accepted_unchanged(command: Sequence[str], http_port: int, grpc_port: int) -> None:
    options = parse_options(command[1:])
    assert list(options.repository.paths) in (["/mnt/models"], ["/mnt/agent/models"])
    assert (options.http.port, options.grpc.port) == (http_port, grpc_port)


@pytest.mark.parametrize("name", RUNTIMES)
def test_runtime_starts_with_the_command_of_kserve(name: str) -> None:
    server = container_of_kserve(runtime(name))
    words = [*server["command"], *server["args"]]
    assert tuple(words[: len(KSERVE)]) == KSERVE
    options = parse_options(words[1:])
    assert options.drain_s + options.exit_timeout_s < 30  # the default grace period of a pod
    assert server["readinessProbe"]["httpGet"]["port"] == options.http.port


def test_runtimes_differ_by_kind_only() -> None:
    assert runtime(RUNTIMES[0])["spec"] == runtime(RUNTIMES[1])["spec"]


@pytest.mark.parametrize("name", ["inferenceservice", "inferenceservice-grpc"])
def test_inference_services_match_the_runtime(name: str) -> None:
    spec = runtime("servingruntime")
    model = runtime(name)["spec"]["predictor"]["model"]
    assert model["runtime"] == spec["metadata"]["name"]
    assert model["modelFormat"] in spec["spec"]["supportedModelFormats"]
    assert model["protocolVersion"] in spec["spec"]["protocolVersions"]


def test_grpc_port_is_that_of_the_runtime() -> None:
    model = runtime("inferenceservice-grpc")["spec"]["predictor"]["model"]
    options = parse_options(container_of_kserve(runtime("servingruntime"))["args"])
    assert [port["containerPort"] for port in model["ports"]] == [options.grpc.port]


def test_server_of_seldon_has_its_arguments() -> None:
    (server,) = manifest_of(DEPLOY / "seldon" / "server.yaml")["spec"]["podSpec"]["containers"]
    values = {"SERVER_MODELS_DIR": "/mnt/agent/models", "SERVER_HTTP_PORT": "9000", "SERVER_GRPC_PORT": "9500"}
    words = [*server["command"], *server["args"]]
    for name, value in values.items():
        words = [word.replace(f"$({name})", value) for word in words]
    assert set(words) == {word for word in SELDON_2 if not word.startswith(("--log-verbose", "--backend-config"))}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_manifest_is_valid_for_its_definition(path: Path) -> None:
    manifest = manifest_of(path)
    validate_custom(manifest)
    broken = copy.deepcopy(dict(manifest))
    broken["spec"]["modelStore"] = "/mnt/models"
    with pytest.raises(jsonschema.ValidationError, match="modelStore"):
        validate_custom(broken)
