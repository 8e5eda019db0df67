"""The endpoint of the Model Context Protocol in front of a thousand models: pages, rights, and where clients are."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import not_found
from naiad.core.limits.request_limits import unlimited
from naiad.core.model import IndexEntry, ModelState, ServerMetadata
from naiad.engine.on_demand.held_requests import ColdModelError
from naiad.engine.regions.regions import SharedMemory
from naiad.frontend.access.access import Restrictions
from naiad.frontend.rest.mcp.mcp_routes import McpRoutes
from naiad.frontend.rest.routes import RestApi
from naiad.operations.mcp import MCP
from naiad.operations.openai import RERANK
from naiad.options.network.access_options import RequiredHeader
from support.recording_engine import RecordingEngine

MODELS = 1000


class Engine(RecordingEngine):
    """A thousand ready models."""

    is_draining = False
    shared_memory = SharedMemory()
    request_limits = staticmethod(unlimited)

    def __init__(self):
        super().__init__()
        tensors = [{"name": "T", "data_type": "TYPE_FP32", "dims": [4]}]
        names = [f"model {number}" for number in range(MODELS)]
        self.configs = {name: ModelConfig(name=name, input=tensors, output=tensors) for name in names}

    def repository_index(self, ready_only=False):
        return [IndexEntry(name, "1", ModelState.READY) for name in self.configs]

    def server_metadata(self):
        return ServerMetadata("triton", "1.0", [])

    def model_config(self, name, version=""):
        if name not in self.configs:
            raise not_found(f"Request for unknown model: '{name}' is not found")
        return self.configs[name]

    def is_decoupled(self, name, version=""):
        return False


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine()


def post(engine: Engine, method: str, *, restricted: str = "", is_local: bool = False, **params: Any) -> Any:
    router = RestApi(engine, mcp_is_local=is_local).router()
    if restricted:
        router.restrict(Restrictions({restricted: RequiredHeader("key", "secret")}, "API"))
    answers = []
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
    context = SimpleNamespace(method="POST", path="/mcp", body=body, client=None, headers={})
    context.respond = lambda status, fields, parts: answers.append((status, b"".join(parts)))
    router.handle(context)
    ((status, answer),) = answers
    return SimpleNamespace(status=status, json=json.loads(answer))


def test_a_thousand_models_are_ten_pages(engine: Engine) -> None:
    names: list[str] = []
    cursor: dict[str, str] = {}
    for page in range(10):
        result = post(engine, "tools/list", **cursor).json["result"]
        assert len(result["tools"]) == 100
        names += [tool["name"] for tool in result["tools"]]
        assert ("nextCursor" in result) == (page < 9)
        cursor = {"cursor": result.get("nextCursor", "")}
    assert len(set(names)) == MODELS


def test_models_that_came_and_went_are_seen() -> None:
    engine = Engine()
    assert post(engine, "tools/list").json["result"]["tools"][0]["name"].startswith("model_0-")
    del engine.configs["model 0"]
    engine.configs["a"] = ModelConfig(name="a")
    assert post(engine, "tools/list").json["result"]["tools"][0]["name"] == "a"
    gone = post(engine, "tools/call", name="model 0", arguments={}).json["error"]
    assert gone["message"] == "there is no tool 'model 0': no ready model has this name"


def test_call_waits_for_a_cold_model() -> None:
    engine = Engine()
    engine.configs["a"] = ModelConfig(name="a")
    held: list[str] = []
    loads = SimpleNamespace(hold=lambda cold, *parts, **times: held.append(cold.key))

    def evicted(name: str, version: str = "") -> ModelConfig:
        raise ColdModelError(loads, name)

    engine.model_config = evicted
    assert post(engine, "tools/list").json["result"]["tools"] == []
    call = {"name": "a", "arguments": {}}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}).encode()
    context = SimpleNamespace(method="POST", path="/mcp", body=body, client=None, headers={}, arrival_ns=1)
    RestApi(engine).router().handle(context)
    assert held == ["a"]


def test_clients_of_other_machines_are_refused(engine: Engine) -> None:
    found = post(engine, "ping", is_local=True)
    assert found.status == 403
    assert "--allow-mcp=true" in found.json["error"]


def test_list_needs_the_right_to_metadata(engine: Engine) -> None:
    assert post(engine, "tools/list", restricted="metadata").status == 403
    assert post(engine, "ping", restricted="metadata").status == 200
    assert post(engine, "ping", restricted="inference").status == 403


def test_documents_are_ranked_by_the_operation_for_it() -> None:
    engine = Engine()
    config = ModelConfig(name="judge")
    config.input.add(name="text", data_type="TYPE_STRING", dims=[1])
    config.input.add(name="text_pair", data_type="TYPE_STRING", dims=[1])
    config.output.add(name="score", data_type="TYPE_FP32", dims=[1])
    config.parameters["openai"].string_value = "rerank"
    engine.configs["judge"] = config
    bodies = []

    def rank(context: Any, arguments: Any) -> None:
        bodies.append(json.loads(context.body))
        context.respond(200, (), [b'{"results": [{"index": 0, "relevance_score": 0.5}]}'])

    routes = McpRoutes(engine, SimpleNamespace(), {RERANK: rank})
    arguments = {"query": "a", "documents": ["b"]}
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "judge", "arguments": arguments}}
    context = SimpleNamespace(method="POST", path="/mcp", query="", body=json.dumps(call).encode(), headers={})
    context.client = context.on_disconnect = None
    context.arrival_ns = 0
    answers = []
    context.respond = lambda status, fields, parts: answers.append(json.loads(b"".join(parts)))

    async def handle() -> None:
        routes.actions()[MCP](context, {})

    asyncio.run(handle())
    assert bodies == [{**arguments, "model": "judge"}]
    assert answers[0]["result"]["structuredContent"]["results"][0]["index"] == 0
