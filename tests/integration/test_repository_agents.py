"""Agents of a running server: digests, and a decrypting agent that an installed package brings."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

from support import onnx_models
from support.model_repository import add_sub_config, write_model
from support.server_process import ServerProcess

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

StartServer = Callable[..., ServerProcess]

AGENT = """
from pathlib import Path
from naiad.repository.agents.api import RepositoryAgent

class Flip(RepositoryAgent):
    name = "flip"

    def load(self, context):
        directory = context.new_directory()
        self._note(context, f"load {directory}")
        mask = int(context.parameters["mask"])
        (directory / "1").mkdir()
        (directory / "config.pbtxt").write_bytes((context.model_dir / "config.pbtxt").read_bytes())
        secret = (context.model_dir / "1" / "model.flipped").read_bytes()
        (directory / "1" / "model.onnx").write_bytes(bytes(byte ^ mask for byte in secret))
        return directory

    def load_failed(self, context):
        self._note(context, "failed")

    def unload_complete(self, context):
        self._note(context, "unloaded")

    def _note(self, context, text):
        with open(context.parameters["log"], "a") as file:
            file.write(text + "\\n")
"""


def install(site: Path) -> None:
    (site / "flip-1.0.dist-info").mkdir(parents=True)
    (site / "flip_agent.py").write_text(AGENT)
    (site / "flip-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: flip\nVersion: 1.0\n")
    points = "[naiad.repository_agents]\nflip = flip_agent:Flip\n"
    (site / "flip-1.0.dist-info" / "entry_points.txt").write_text(points)


def agents(name: str, **parameters: str) -> str:
    entries = "".join(f'parameters {{ key: "{key}" value: "{value}" }} ' for key, value in parameters.items())
    return f'model_repository_agents {{ agents [ {{ name: "{name}" {entries} }} ] }}'


def infer(client: httpclient.InferenceServerClient, name: str) -> np.ndarray:
    inputs = []
    for tensor in ("INPUT0", "INPUT1"):
        inputs.append(httpclient.InferInput(tensor, [1, 16], "FP32"))
        inputs[-1].set_data_from_numpy(np.ones((1, 16), np.float32))
    result: np.ndarray = client.infer(name, inputs).as_numpy("OUTPUT0")
    return result


def test_digests_and_decryption(start_server: StartServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path / "site")
    root, log = tmp_path / "models", tmp_path / "log"
    content = onnx_models.add_sub()
    digest = {"MD5:1/model.onnx": hashlib.md5(content).hexdigest()}
    checked = write_model(
        root, "checked", add_sub_config("onnxruntime", extra=agents("checksum", **digest)), {"1/model.onnx": content}
    )
    secret = agents("flip", mask="90", log=str(log))
    flipped = bytes(byte ^ 90 for byte in content)
    hidden = write_model(root, "hidden", add_sub_config("onnxruntime", extra=secret), {"1/model.flipped": flipped})
    server = start_server(
        root,
        "--model-control-mode=explicit",
        "--load-model=*",
        environment={"PYTHONPATH": f"{tmp_path / 'site'}:{Path(__file__).parents[2] / 'src'}"},
    )
    server.wait_ready()
    with httpclient.InferenceServerClient(server.http_url) as client:
        for name in ("checked", "hidden"):
            np.testing.assert_array_equal(infer(client, name), np.full((1, 16), 2, np.float32))
        client.load_model("hidden")
        assert len(log.read_text().splitlines()) == 1  # nothing has changed: no agent is called
        (hidden / "1" / "model.flipped").write_bytes(b"half" + flipped[:40])
        with pytest.raises(InferenceServerException, match="cannot be loaded"):
            client.load_model("hidden")
        assert log.read_text().split("\n")[2] == "failed"
        (checked / "1" / "model.onnx").write_bytes(content + b" ")
        with pytest.raises(InferenceServerException, match="refuses model 'checked': MD5 digest of"):
            client.load_model("checked")
        for name in ("checked", "hidden"):
            assert infer(client, name) is not None
        rows = {row["name"]: row for row in client.get_model_repository_index()}
        for name in ("checked", "hidden"):
            assert rows[name]["state"] == "READY"
            assert rows[name]["reason"].startswith("serving what was loaded before, its update failed")
        first, second = [Path(line.split()[1]) for line in log.read_text().splitlines() if line.startswith("load")]
        assert first.is_dir()
        assert not second.exists()
        client.unload_model("hidden")
        assert not first.exists()
        assert log.read_text().split("\n")[3] == "unloaded"


def test_model_with_another_digest_is_refused_at_start(start_server: StartServer, tmp_path: Path) -> None:
    root = tmp_path / "models"
    config = add_sub_config("onnxruntime", extra=agents("checksum", **{"MD5:1/model.onnx": "0" * 32}))
    write_model(root, "m", config, {"1/model.onnx": onnx_models.add_sub()})
    server = start_server(root)
    assert server.wait_exit(60) == 1
    assert "MD5 digest of" in server.log_text()
