"""Questions and commands about a model on demand that is not loaded now: its rollout, its trace settings."""

from pathlib import Path
from typing import Any

import pytest

from support.model_repository import write_identity
from support.server_process import ServerProcess, serving
from support.waiting import wait_until

FLAGS = (
    "--model-control-mode=explicit",
    "--load-model=*",
    "--model-load-policy=on-demand",
    "--model-min-residence-secs=0",
    "--model-idle-unload-secs=1",
)
COLD = "on demand: not loaded now, the next request loads it"
ROLLOUT = "/v2/models/identity/rollout"
TRACE = "/v2/models/identity/trace/setting"


def _is_cold(server: ServerProcess) -> bool:
    rows: list[dict[str, Any]] = server.post("/v2/repository/index").json
    return all(row.get("reason") == COLD for row in rows)


def _split(server: ServerProcess) -> tuple[int, int, float]:
    answer = server.get(ROLLOUT)
    assert answer.status == 200, answer.body
    rollout = answer.json["rollout"]
    return rollout["stable"], rollout["canary"], rollout["weight"]


@pytest.mark.parametrize("processes", [1, 2])
def test_cold_model_has_its_rollout_and_settings(tmp_path: Path, processes: int) -> None:
    root = tmp_path / "models"
    for version in (1, 2):
        (write_identity(root) / str(version)).mkdir(exist_ok=True)
    flags = (f"--model-repository={root}", *FLAGS, *([f"--processes={processes}"] if processes > 1 else []))
    with serving(tmp_path / "log", *flags) as server:
        assert _is_cold(server)
        changed = server.post(TRACE, {"trace_rate": "7"})
        assert (changed.status, changed.json["trace_rate"]) == (200, "7")
        assert _is_cold(server)
        missing = server.get(ROLLOUT)
        assert (missing.status, b"has no rollout" in missing.body) == (404, True)
        wait_until(lambda: _is_cold(server), "the model did not leave after a question")
        begun = server.post(ROLLOUT, {"stable": 1, "canary": 2, "weight": 30})
        assert begun.status == 200, begun.body
        # Both versions, one of which no version_policy selects, leave in all processes when nothing uses them.
        wait_until(lambda: _is_cold(server), "the versions of the rollout did not leave")
        assert _split(server) == (1, 2, 30)
        assert server.get(TRACE).json["trace_rate"] == "7"
        ended = server.post(ROLLOUT, {"action": "rollback"})
        assert ended.json["refused"] == {"2": "rolled back by a client"}
    with serving(tmp_path / "log", *flags) as server:
        assert _is_cold(server)
        assert _split(server) == (1, 2, 0)
        assert server.post("/v2/repository/models/identity/unload").status == 200
        unloaded = server.get(ROLLOUT)
        assert (unloaded.status, b"has no available versions" in unloaded.body) == (404, True)
