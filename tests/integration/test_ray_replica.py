"""A replica of Ray Serve without Ray: requests and responses pass unchanged. Serve itself is replaced."""

import asyncio
import json
import sys
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from naiad.core.errors import InferError
from naiad.integrations.ray.queue_scaling import PENDING
from naiad.integrations.ray.serve_replica import ServeReplica
from support.model_repository import write_identity

requests = pytest.importorskip("starlette.requests")


class Scene:
    """A replica, and the loop that Serve has for it."""

    def __init__(self, repository: str) -> None:
        self.model_id = ""
        self.loop = asyncio.new_event_loop()
        self.replica = ServeReplica(repository, ["--model-load-policy=on-demand"], has_model_ids=True)

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(asyncio.wait_for(work, 60))

    def call(self, method: str, path: str, body: bytes = b"", headers=(), root_path: str = "") -> Any:
        async def receive() -> dict[str, object]:
            return {"type": "http.request", "body": body}

        path, _, query = path.partition("?")
        scope = {"type": "http", "method": method, "path": path, "raw_path": path.encode(), "root_path": root_path}
        scope |= {"query_string": query.encode(), "headers": [(b"host", b"example.com"), *headers]}
        return self.run(self.replica(requests.Request(scope, receive)))


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    write_identity(folder, "one")
    write_identity(folder, "two")
    with pytest.MonkeyPatch.context() as patch:
        serve = SimpleNamespace(get_multiplexed_model_id=lambda: made.model_id)
        patch.setitem(sys.modules, "ray", SimpleNamespace(serve=serve))
        patch.setitem(sys.modules, "ray.serve", serve)
        made = Scene(str(folder))
    yield made
    made.loop.close()


def infer_body(*values: float) -> bytes:
    data = {"name": "INPUT0", "datatype": "FP32", "shape": [1, len(values)], "data": values}
    return json.dumps({"inputs": [data]}).encode()


def states(scene: Scene) -> dict[str, str]:
    rows = json.loads(scene.call("POST", "/v2/repository/index").body)
    return {row["name"]: row.get("state", "") for row in rows}


def test_requests_pass_through(scene: Scene) -> None:
    found = scene.call("POST", "/v2/models/one/infer", infer_body(1, 2), [(b"triton-request-id", b"7")])
    assert found.status_code == 200
    assert found.headers["content-type"] == "application/json"
    assert json.loads(found.body)["outputs"][0]["data"] == [1, 2]
    assert scene.call("GET", "/app/v2/health/ready", root_path="/app").status_code == 200


def test_errors_pass_through(scene: Scene) -> None:
    found = scene.call("POST", "/v2/models/none/infer", infer_body(1))
    assert found.status_code in (400, 404)
    assert "none" in json.loads(found.body)["error"]
    assert scene.call("POST", "/v2/models/one/infer", b"no JSON").status_code == 400


def test_a_model_id_loads_the_model(scene: Scene) -> None:
    assert states(scene)["two"] != "READY"
    scene.model_id = "two"
    try:
        assert scene.call("GET", "/v2/health/live").status_code == 200
        assert states(scene)["two"] == "READY"
        with pytest.raises(InferError, match="model 'a/b' cannot be loaded"):
            scene.run(scene.replica.open_model("a/b"))
    finally:
        scene.model_id = ""


def test_serve_gets_the_queue_and_health(scene: Scene) -> None:
    assert scene.run(scene.replica.record_autoscaling_stats()) == {PENDING: 0.0}
    scene.run(scene.replica.check_health())


def test_a_replica_whose_server_has_ended(scene: Scene) -> None:
    directory = scene.replica._directory.path
    scene.replica.__del__()
    assert not directory.exists()
    with pytest.raises(InferError, match="has ended"):
        scene.run(scene.replica.check_health())
    assert scene.call("GET", "/v2/health/live").status_code == 503
