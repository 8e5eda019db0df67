"""Short forms of `bench.soak.updates`: the same calls and checks, fewer of them; and many models."""

from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from bench import start_up
from bench.soak import updates

from support.server_process import ServerProcess

StartServer = Callable[..., ServerProcess]
EXPLICIT = "--model-control-mode=explicit"


def left_in_shared_memory() -> set[str]:
    """Return what servers have there; clients of other tests, which may run beside this one, make `naiad_test`."""
    return {name for name in updates.shared_memory_files() if not name.startswith(("naiad_test", "naiad-test"))}


def port_of(server: ServerProcess) -> int:
    return int(server.http_url.rpartition(":")[2])


def test_no_request_fails_while_models_are_reloaded(start_server: StartServer, tmp_path: Path) -> None:
    root = tmp_path / "models"
    updates.write_reloads(root, seconds=0.3, megabytes=50)
    server = start_server(root, EXPLICIT, "--load-model=*")
    server.wait_ready()
    found = updates.reloads(port_of(server), root, 5, rest_s=0.5, rate=50)
    assert (found.rest.failed, found.during.failed, found.refused) == (0, 0, 0)
    assert len(found.during.seconds) > 20


@pytest.mark.long
def test_random_calls_end_as_the_last_commands_say(start_server: StartServer, tmp_path: Path) -> None:
    root = tmp_path / "models"
    names = updates.write_random(root)
    before = left_in_shared_memory()
    server = start_server(root, EXPLICIT)
    server.wait_ready()
    found = updates.random_calls(port_of(server), names, 120)
    assert (found.unexpected, found.wrong_states) == ([], [])
    children = psutil.Process(server.process.pid).children(recursive=True)
    server.signal()
    assert server.wait_exit(60) == 0
    assert psutil.wait_procs(children, 60)[1] == []
    assert left_in_shared_memory() <= before


def test_loading_and_unloading_again_and_again_leaves_nothing(start_server: StartServer, tmp_path: Path) -> None:
    root = tmp_path / "models"
    updates.write_onnx(root, "onnx")
    updates.write_onnx(root, "heavy", mebibytes=64)
    updates.write_python(root, "python")
    server = start_server(root, EXPLICIT)
    server.wait_ready()
    for name, count in (("onnx", 30), ("heavy", 6), ("python", 6)):
        found = updates.cycles(server.process.pid, port_of(server), name, count, warm_up=2 if name == "heavy" else 5)
        assert found.is_met(), found


def test_hundreds_of_models_in_one_repository(start_server: StartServer, tmp_path: Path) -> None:
    """Bounds that only what grows with the square of the models would miss."""
    server = start_server(start_up.write_repository(tmp_path / "models", 400))
    server.wait_ready(100)
    assert len(server.post("/v2/repository/index").json) == 400
    used = psutil.Process(server.process.pid).cpu_times()
    assert used.user + used.system < 20
    assert server.post("/v2/models/model_0399/infer", updates.REQUEST).status == 200
    server.signal()
    assert server.wait_exit(60) == 0
