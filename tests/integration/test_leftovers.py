"""A start removes what servers have left that were killed, and nothing of those that live."""

import json
from base64 import b64encode
from pathlib import Path

import psutil
import pytest

from support.model_repository import write_identity
from support.model_zoo import python_source
from support.server_process import ServerProcess

CONFIG = {
    "backend": "python",
    "input": [{"name": "INPUT0", "data_type": "TYPE_FP32", "dims": [-1]}],
    "output": [{"name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": [-1]}],
}


def load_uploaded(server: ServerProcess) -> None:
    source = python_source({"OUTPUT0": "INPUT0"}, inputs=["INPUT0"]).encode()
    parameters = {"config": json.dumps(CONFIG), "file:1/model.py": b64encode(source).decode()}
    answer = server.post("/v2/repository/models/uploaded/load", {"parameters": parameters})
    assert answer.status == 200, answer.body


@pytest.mark.parametrize("processes", [1, 2])
def test_start_removes_what_killed_servers_left(start_server, tmp_path: Path, processes: int) -> None:
    write_identity(tmp_path / "models")
    directory = tmp_path / "tmp"
    directory.mkdir()
    flags = (
        "--model-control-mode=explicit",
        "--load-model=identity",
        "--allow-client-model-files=true",
        f"--processes={processes}",
    )

    def start() -> ServerProcess:
        server: ServerProcess = start_server(tmp_path / "models", *flags, environment={"TMPDIR": str(directory)})
        server.wait_ready()
        return server

    alive = start()
    load_uploaded(alive)
    killed = start()
    load_uploaded(killed)
    children = psutil.Process(killed.process.pid).children(recursive=True)
    before = set(directory.iterdir())
    # All at once: a process that outlives the supervisor for a moment may remove what it has.
    for process in children:
        process.suspend()
    for process in (killed.process, *children):
        process.kill()
    psutil.wait_procs(children, timeout=60)
    third = start()
    third.wait_log("removed . temporary directories of processes that were killed")
    left = set(directory.iterdir())
    assert len(before & left) == len(before) // 2, "what the living server holds stays"
    assert alive.get("/v2/models/uploaded/ready").status == 200
    for server in (alive, third):
        server.signal()
        assert server.wait_exit() == 0
    assert not [path for path in directory.iterdir() if path.name.startswith("naiad-")]
