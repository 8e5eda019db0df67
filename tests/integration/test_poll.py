"""Control mode POLL with a real server: what is served follows the repository, and nothing half-written is loaded."""

import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

from support import onnx_models
from support.ensemble_models import tensor, write_ensemble
from support.model_repository import add_sub_config, write_identity, write_scale

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

FLAGS = ("--model-control-mode=poll", "--repository-poll-secs=1", "--repository-settle-secs=0.6")


def until(holds: Callable[[], bool], what: str, timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


class Client:
    def __init__(self, url: str) -> None:
        self.stub = grpcclient.InferenceServerClient(url)

    def scale(self, name: str = "scale") -> float:
        given = grpcclient.InferInput("IN", [1], "FP32")
        given.set_data_from_numpy(np.ones(1, np.float32))
        return float(self.stub.infer(name, [given]).as_numpy("OUT")[0])

    def is_ready(self, name: str, version: str = "") -> bool:
        try:
            return self.stub.is_model_ready(name, version)
        except InferenceServerException:
            return False

    def reason(self, name: str) -> str:
        rows = self.stub.get_model_repository_index().models
        return next((row.reason for row in rows if row.name == name), "absent")


@pytest.fixture
def polled(tmp_path: Path, start_server):
    root = tmp_path / "models"
    write_scale(root, 2)
    server = start_server(root, *FLAGS)
    server.wait_ready()
    client = Client(server.grpc_url)
    yield root, client, server
    client.stub.close()


def test_models_come_change_and_go(polled) -> None:
    root, client, _ = polled
    assert client.scale() == 2
    write_scale(root, 5, name="more")
    until(lambda: client.is_ready("more"), "the new model is loaded")
    assert client.scale("more") == 5
    write_scale(root, 3)
    until(lambda: client.scale() == 3, "the change is served")
    write_scale(root, 4, version=2)
    until(lambda: client.scale() == 4, "the new version is served")
    assert not client.is_ready("scale", "1")
    shutil.rmtree(root / "more")
    until(lambda: not client.is_ready("more"), "the removed model is unloaded")
    until(lambda: client.reason("more") == "absent", "the index forgets it")
    assert client.scale() == 4


def test_commands_are_refused(polled) -> None:
    _, client, _ = polled
    with pytest.raises(InferenceServerException, match="load / unload is not allowed if polling is enabled"):
        client.stub.load_model("scale")
    with pytest.raises(InferenceServerException, match="load / unload is not allowed if polling is enabled"):
        client.stub.unload_model("scale")


def test_failed_update_keeps_old_version_and_gives_reason(polled) -> None:
    root, client, server = polled
    (root / "scale" / "1" / "model.py").write_text("raise RuntimeError('not finished')\n")
    until(lambda: "not finished" in client.reason("scale"), "the index has the reason")
    assert "serving what was loaded before, its update failed" in client.reason("scale")
    assert client.scale() == 2
    time.sleep(3)
    assert server.log_text().count("failed to load 'scale' version 1") == 1, "it is tried once for each change"
    (root / "scale" / "config.pbtxt").write_text("backend: [")
    until(lambda: "config.pbtxt:1" in client.reason("scale"), "a configuration that cannot be read is a reason, too")
    assert client.scale() == 2
    write_scale(root, 2)
    until(lambda: client.reason("scale") == "", "the undone update is no failure any more")
    (root / "scale" / "2").mkdir()
    (root / "scale" / "2" / "model.py").write_text("raise RuntimeError('not finished')\n")
    until(lambda: not server.is_ready(), "a new version has failed")
    shutil.rmtree(root / "scale" / "2")
    until(server.is_ready, "nothing is left of what has failed")
    (root / "scale" / "config.pbtxt").unlink()
    until(lambda: "neither inputs nor outputs" in client.reason("scale"), "files are removed before their model")
    assert client.scale() == 2
    write_scale(root, 7)
    until(lambda: client.scale() == 7, "the repaired model is served")
    assert client.reason("scale") == ""


def test_nothing_half_written_is_loaded(tmp_path: Path, start_server) -> None:
    root = tmp_path / "models"
    root.mkdir()
    # A writer may pause for a while without having finished.
    server = start_server(root, *FLAGS, "--repository-settle-secs=4")
    server.wait_ready()
    client = Client(server.grpc_url)
    model = onnx_models.add_sub()
    directory = root / "slow_copy" / "1"
    directory.mkdir(parents=True)
    (root / "slow_copy" / "config.pbtxt").write_text(add_sub_config("onnxruntime"))
    with (directory / "model.onnx").open("wb") as file:
        for at in range(0, len(model), len(model) // 6):
            file.write(model[at : at + len(model) // 6])
            file.flush()
            assert not client.is_ready("slow_copy")
            time.sleep(0.3)
    until(lambda: client.is_ready("slow_copy"), "the complete model is loaded")
    assert "failed to load" not in server.log_text()
    client.stub.close()


def test_a_mark_keeps_a_model_from_being_loaded(polled) -> None:
    root, client, _ = polled
    (root / "marked").mkdir()
    (root / "marked" / ".uploading").touch()
    write_scale(root, 9, name="marked")
    time.sleep(3)
    assert not client.is_ready("marked")
    (root / "marked" / ".uploading").unlink()
    until(lambda: client.is_ready("marked"), "without the mark it is loaded")


def test_touched_model_is_not_reloaded(polled) -> None:
    root, client, server = polled
    os.utime(root / "scale" / "1" / "model.py")
    server.wait_log("model 'scale' was touched, its files hold what is loaded")
    assert server.log_text().count("successfully loaded 'scale'") == 1
    # The same size and the same time, other bytes.
    path = root / "scale" / "1" / "model.py"
    before = path.stat()
    path.write_text(path.read_text().replace("* 2", "* 8"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    until(lambda: client.scale() == 8, "what the file holds counts")


def test_one_bad_model_does_not_keep_others_waiting(polled) -> None:
    root, client, _ = polled
    slow = "import time\ntime.sleep(600)\n"
    write_scale(root, 1, name="slow")
    path = root / "slow" / "1" / "model.py"
    path.write_text(slow + path.read_text())
    write_scale(root, 6, name="quick")
    until(lambda: client.is_ready("quick"), "the quick one is loaded first")
    assert not client.is_ready("slow")


def test_no_request_fails_while_a_model_is_replaced(polled) -> None:
    root, client, _ = polled
    failures: list[Exception] = []
    seen: set[float] = set()
    done = threading.Event()

    def ask() -> None:
        mine = Client(client.stub._channel._channel.target().decode().removeprefix("ipv4:"))
        while not done.is_set():
            try:
                seen.add(mine.scale())
            except Exception as error:
                failures.append(error)
        mine.stub.close()

    askers = [threading.Thread(target=ask) for _ in range(4)]
    for asker in askers:
        asker.start()
    for factor in (3, 4):
        write_scale(root, factor)
        until(lambda factor=factor: client.scale() == factor, "the change is served")
    done.set()
    for asker in askers:
        asker.join()
    assert not failures
    assert seen == {2, 3, 4}


def test_an_ensemble_follows_its_members(tmp_path: Path, start_server) -> None:
    root = tmp_path / "models"
    write_identity(root, "member")
    steps = [("member", {"INPUT0": "A"}, {"OUTPUT0": "B"})]
    write_ensemble(root, "pair", [tensor("A", dims="-1")], [tensor("B", dims="-1")], steps)
    server = start_server(root, *FLAGS)
    server.wait_ready()
    client = Client(server.grpc_url)
    assert client.is_ready("pair")
    write_identity(root, "member", datatype="INT32")
    until(lambda: "inconsistent data type" in client.reason("pair"), "the ensemble says that it does not fit")
    assert not client.is_ready("pair")
    assert server.is_ready()
    body = {"inputs": [{"name": "A", "datatype": "FP32", "shape": [1, 1], "data": [1]}]}
    answer = server.post("/v2/models/pair/infer", body)
    assert answer.status == 503
    assert "it does not fit its members any more; the repository index says why" in answer.json["error"]
    write_identity(root, "member")
    until(lambda: client.is_ready("pair"), "it fits again")
    assert client.reason("pair") == ""
    assert server.post("/v2/models/pair/infer", body).status == 200
    client.stub.close()


@pytest.mark.long
def test_ensemble_older_than_member_loads_with_it(tmp_path: Path, start_server) -> None:
    root = tmp_path / "models"
    root.mkdir()
    server = start_server(root, *FLAGS, "--strict-readiness=false")
    server.wait_ready()
    client = Client(server.grpc_url)
    steps = [("member", {"INPUT0": "A"}, {"OUTPUT0": "B"})]
    write_ensemble(root, "pair", [tensor("A", dims="-1")], [tensor("B", dims="-1")], steps)
    until(lambda: "not available or ambiguous: member" in server.log_text(), "the ensemble has no member")
    write_identity(root, "member")
    until(lambda: client.is_ready("pair"), "it has one now")
    client.stub.close()


def test_repository_that_is_away_for_while_unloads_nothing(polled) -> None:
    root, client, server = polled
    root.rename(root.with_name("away"))
    server.wait_log("the model repositories cannot be read, what is loaded stays")
    time.sleep(2)
    assert client.scale() == 2
    root.with_name("away").rename(root)
    server.wait_log("the model repositories can be read again")
    assert client.scale() == 2


def test_writer_of_model_sees_changes_at_once(tmp_path: Path, start_server) -> None:
    root = tmp_path / "models"
    write_scale(root, 2)
    server = start_server(root, "--dev")
    server.wait_ready()
    client = Client(server.grpc_url)
    assert client.scale() == 2
    path = root / "scale" / "1" / "model.py"
    path.write_text(path.read_text().replace("* 2", "* 3"))
    until(lambda: client.scale() == 3, "the change is served")
    client.stub.close()
