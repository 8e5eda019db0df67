"""Versions that an update does not concern stay loaded; instance groups change while requests run."""

import json
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as httpclient

from support.model_repository import write_model
from support.model_zoo import python_source
from support.server_process import ServerProcess

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

StartServer = Callable[..., ServerProcess]

NOTE = """
with open(os.path.join(args["model_repository"], "..", "..", "initialized"), "a") as file:
    file.write(args["model_version"] + "\\n")
"""
MODEL = python_source({"OUT": "IN"}, inputs=["IN"], each="time.sleep(0.005)", initialize=NOTE)
CONFIG = {
    "name": "m",
    "backend": "python",
    "max_batch_size": 8,
    "input": [{"name": "IN", "data_type": "TYPE_FP32", "dims": [-1]}],
    "output": [{"name": "OUT", "data_type": "TYPE_FP32", "dims": [-1]}],
    "version_policy": {"all": {}},
}
PBTXT = """
backend: "python"
max_batch_size: 8
version_policy { all { } }
input [ { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""


class Traffic:
    """Asks without a pause until it is stopped; the first failure is kept."""

    def __init__(self, server: ServerProcess, version: str) -> None:
        self.count = 0
        self.failure: Exception | None = None
        self._server, self._version = server, version
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Traffic":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        assert self.failure is None
        assert self.count

    def _run(self) -> None:
        tensor = httpclient.InferInput("IN", [1, 2], "FP32")
        tensor.set_data_from_numpy(np.ones((1, 2), np.float32))
        try:
            with httpclient.InferenceServerClient(self._server.http_url) as client:
                while not self._stop.is_set():
                    client.infer("m", [tensor], model_version=self._version)
                    self.count += 1
        except Exception as error:
            self.failure = error


def instances(client, version: str) -> int:
    return sum(group["count"] for group in client.get_model_config("m", version)["instance_group"])


def test_nothing_but_what_has_changed_is_loaded(start_server: StartServer, tmp_path: Path) -> None:
    root = tmp_path / "models"
    write_model(root, "m", PBTXT, {"1/model.py": MODEL.encode()})
    initialized = tmp_path / "initialized"
    server = start_server(root, "--model-control-mode=explicit", "--load-model=m")
    server.wait_ready()
    client = httpclient.InferenceServerClient(server.http_url, network_timeout=60)
    with client, Traffic(server, "1"), Traffic(server, "1"), Traffic(server, "1"):
        assert initialized.read_text().split() == ["1"]
        (root / "m" / "2").mkdir()
        (root / "m" / "2" / "model.py").write_text(MODEL)
        client.load_model("m")
        assert initialized.read_text().split() == ["1", "2"]
        for count in (3, 1, 2):
            client.load_model("m", config=json.dumps({**CONFIG, "instance_group": [{"count": count}]}))
            assert instances(client, "1") == instances(client, "2") == count
        # What stays is not initialized again: 2 + 2 new, then none, then 1 + 1.
        assert sorted(initialized.read_text().split()) == ["1"] * 4 + ["2"] * 4
        (root / "m" / "config.pbtxt").write_text(PBTXT.replace("all { }", "specific { versions: [ 1 ] }"))
        client.load_model("m")
        assert not client.is_model_ready("m", "2")
        assert client.get_model_config("m", "1")["version_policy"] == {"specific": {"versions": [1]}}
        assert len(initialized.read_text().split()) == 8
        # The statistics of a version that stays go on.
        statistics = client.get_inference_statistics("m", "1")["model_stats"][0]
        assert statistics["inference_stats"]["fail"]["count"] == 0
        client.load_model("m", config=json.dumps({**CONFIG, "max_batch_size": 4}))
        assert initialized.read_text().split().count("1") == 5
    assert server.process.poll() is None


@pytest.mark.parametrize(
    "fields",
    [
        {"instance_group": [{"count": 1, "rate_limiter": {"resources": [{"name": "R", "count": 2}]}}]},
        {"instance_group": [{"count": 1}], "dynamic_batching": {"preserve_ordering": True}},
    ],
    ids=["rate limits", "ordered responses"],
)
def test_removed_instances_are_finalized_before_the_answer(
    start_server: StartServer, tmp_path: Path, fields: dict[str, list[dict[str, object]]]
) -> None:
    """Also where the version is loaded again because its instances cannot change in place."""
    finalized = tmp_path / "finalized"
    finalize = f"""
    def finalize(self):
        time.sleep(0.5)
        open({str(finalized)!r}, "a").write("x")
    """
    write_model(tmp_path / "models", "m", PBTXT, {"1/model.py": (MODEL + finalize).encode()})
    server = start_server(tmp_path / "models", "--model-control-mode=explicit", "--rate-limit=execution_count")
    server.wait_ready()
    before = {**CONFIG, **fields}
    with httpclient.InferenceServerClient(server.http_url, network_timeout=60) as client:
        client.load_model("m", config=json.dumps(before))
        assert not finalized.exists()
        group = before["instance_group"][0]
        client.load_model("m", config=json.dumps({**before, "instance_group": [{**group, "count": 2}]}))
        client.load_model("m", config=json.dumps(before))
        # One and then two instances have been replaced.
        assert len(finalized.read_text()) == 3
