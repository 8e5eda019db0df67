"""The official client of the Model Context Protocol against a server: models as tools."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from mcp import MCPError
from mcp.client.client import Client

from naiad.cli.key import new_key
from support.model_repository import write_identity, write_model
from support.openai_models import ECHO, ECHO_CONFIG, EMBEDDING, EMBEDDING_CONFIG
from support.sequence_models import write_running_sum
from support.server_process import ServerProcess, serving
from support.waiting import wait_until

MODES = ("legacy", "2026-07-28")
LABELLED = """
backend: "identity"
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ 3 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 3 ] label_filename: "labels.txt" } ]
parameters { key: "description" value { string_value: "Knows three animals." } }
"""
MANY = 120


def write_models(repository: Path) -> None:
    for number in range(MANY):
        write_identity(repository, f"many_{number:03}")
    write_identity(repository, "identity")
    write_identity(repository, "two words", datatype="STRING")
    write_identity(repository, "slow", parameters={"execute_delay_ms": "60000"})
    write_model(repository, "labelled", LABELLED, {"labels.txt": "cat\ndog\neel\n"})
    write_running_sum(repository, "sums", "direct { }")
    write_model(repository, "repeat", 'backend: "repeat"\n')
    write_model(repository, "echo", ECHO_CONFIG, {"1/model.py": ECHO})
    write_model(repository, "vectors", EMBEDDING_CONFIG, {"1/model.py": EMBEDDING})


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("mcp")
    write_models(repository)
    with serving(tmp_path_factory.mktemp("server") / "log", f"--model-repository={repository}") as running:
        yield running


def talk(server: ServerProcess, conversation: Callable[[Client], Awaitable[Any]], mode: str = MODES[-1]) -> Any:
    """Return the result of a conversation with the server."""

    async def run() -> Any:
        async with Client(f"http://{server.http_url}/mcp", mode=mode) as client:
            return await conversation(client)

    return asyncio.run(run())


def call(server: ServerProcess, name: str, arguments: dict[str, Any], mode: str = MODES[-1]) -> Any:
    return talk(server, lambda client: client.call_tool(name, arguments), mode)


@pytest.fixture
def raw(server: ServerProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"http://{server.http_url}", timeout=120, verify=False) as opened:
        yield opened


def message(method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


# --- tools ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_every_ready_model_is_a_tool(server: ServerProcess, mode: str) -> None:
    async def list_all(client: Client) -> list[Any]:
        page = await client.list_tools()
        tools = list(page.tools)
        while page.next_cursor is not None:
            page = await client.list_tools(cursor=page.next_cursor)
            tools += page.tools
        return tools

    tools = {tool.name: tool for tool in talk(server, list_all, mode)}
    assert len(tools) == MANY + 8
    assert tools["labelled"].description == "Knows three animals."
    assert tools["identity"].input_schema["required"] == ["INPUT0"]
    assert tools["echo"].input_schema["required"] == ["messages"]
    assert any(name.startswith("two_words-") for name in tools)


@pytest.mark.parametrize("mode", MODES)
def test_outputs_are_text_and_structured_content(server: ServerProcess, mode: str) -> None:
    async def list_and_call(client: Client) -> Any:
        await client.list_tools()  # the client then checks results by their schemas
        return await client.call_tool("identity", {"INPUT0": [[1.5, 2], [3, 4]]})

    found = talk(server, list_and_call, mode)
    assert not found.is_error
    assert found.structured_content == {"OUTPUT0": [[1.5, 2], [3, 4]]}
    assert json.loads(found.content[0].text) == found.structured_content


def test_labels_texts_and_large_tensors(server: ServerProcess) -> None:
    classes = call(server, "labelled", {"INPUT0": [0.25, 0.75, 0.5]}).structured_content["OUTPUT0"]
    assert [each["label"] for each in classes] == ["dog", "eel", "cat"]
    large = call(server, "identity", {"INPUT0": [0] * 5000}).structured_content["OUTPUT0"]
    assert large == {"shape": [1, 5000], "datatype": "FP32", "first_elements": [0] * 16}
    name = "two_words-a03f1d61"
    assert call(server, name, {"INPUT0": "a text"}).content[0].text == "a text"


def test_language_models_take_messages_and_texts(server: ServerProcess) -> None:
    messages = [{"role": "user", "content": "one two three"}]
    found = call(server, "echo", {"messages": messages, "max_tokens": 2})
    assert (found.content[0].text, found.structured_content["finish_reason"]) == ("three two", "stop")
    vectors = call(server, "vectors", {"input": ["a b", "c"]}).structured_content
    assert vectors == {"count": 2, "dimensions": 4, "embeddings": [[3, 2, 3, 4], [1, 1, 3, 4]]}


@pytest.mark.parametrize("mode", MODES)
def test_several_responses_are_one_result_with_progress(server: ServerProcess, mode: str) -> None:
    seen: list[float] = []

    async def on_progress(done: float, total: float | None, text: str | None) -> None:
        seen.append(done)

    arguments = {"IN": [4, 5, 6], "DELAY": [0, 0, 0], "WAIT": [0]}
    found = talk(server, lambda client: client.call_tool("repeat", arguments, progress_callback=on_progress), mode)
    assert [each["OUT"] for each in found.structured_content["responses"]] == [4, 5, 6]
    assert seen == [1, 2, 3]


def test_requests_of_a_sequence_share_their_state(server: ServerProcess) -> None:
    async def add(client: Client) -> list[float]:
        steps = [{"sequence_start": True}, {}, {"sequence_end": True}]
        found = [await client.call_tool("sums", {"INPUT": 2, "sequence_id": 7, **step}) for step in steps]
        return [each.structured_content["OUTPUT"] for each in found]

    assert talk(server, add) == [2, 4, 6]


# --- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "arguments", "text"),
    [
        ("identity", {}, "expected 1 inputs but got 0"),
        ("identity", {"INPUT0": "a"}, "INPUT0"),
        ("echo", {"messages": []}, "messages"),
        ("sums", {"INPUT": 1, "sequence_id": 1.5}, "expected a whole number or a text"),
        ("sums", {"INPUT": 1, "sequence_id": 1, "sequence_end": "no"}, "expected true or false"),
        ("echo", {"messages": [{"role": "user", "content": "a"}], "stream": True}, "unknown argument 'stream'"),
        ("vectors", {"input": ["a"] * 65}, "at most 64"),
        ("vectors", {"input": "a", "dimensions": 9}, "the model has 4"),
    ],
)
def test_failure_of_a_tool_is_a_result(server: ServerProcess, name: str, arguments: Any, text: str) -> None:
    found = call(server, name, arguments)
    assert found.is_error
    assert text in found.content[0].text


def test_unknown_tool_is_an_error_of_the_protocol(server: ServerProcess, raw: httpx.Client) -> None:
    async def call_unknown(client: Client) -> str:
        with pytest.raises(MCPError) as raised:
            await client.call_tool("nonesuch", {})
        return raised.value.error.message

    assert talk(server, call_unknown) == "there is no tool 'nonesuch': no ready model has this name"
    assert raw.post("/mcp", json=message("resources/list")).status_code == 404
    assert raw.post("/mcp", json=message("tools/list", cursor="*")).json()["error"]["code"] == -32602
    assert raw.post("/mcp", json=message("tools/call", name="identity", arguments=[])).status_code == 400
    deep = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"identity","arguments":{"INPUT0":%s}}}'
    answer = raw.post("/mcp", content=deep % (b"[" * 500 + b"]" * 500))
    assert answer.json()["error"]["message"] == "'arguments' is nested too deeply"
    assert raw.post("/mcp", content=b" " * (5 << 20)).status_code == 400
    assert raw.post("/mcp", json={"jsonrpc": "2.0", "method": "notifications/initialized"}).status_code == 202
    assert raw.get("/mcp").status_code == 405
    assert raw.post("/mcp", json=message("ping")).json()["result"] == {}


def test_client_that_leaves_cancels_its_call(server: ServerProcess, raw: httpx.Client) -> None:
    before = server.log.read_text().count("the client disconnected")
    with pytest.raises(httpx.ReadTimeout):
        raw.post("/mcp", json=message("tools/call", name="slow", arguments={"INPUT0": [1]}), timeout=2)
    wait_until(lambda: server.log.read_text().count("the client disconnected") > before)


# --- access ---------------------------------------------------------------------------------------------------------


def test_foreign_web_pages_are_refused(raw: httpx.Client) -> None:
    for fields in ({"origin": "https://evil.example"}, {"sec-fetch-site": "cross-site"}):
        assert raw.post("/mcp", json=message("ping"), headers=fields).status_code == 403
    assert raw.post("/mcp", json=message("ping"), headers={"host": "evil.example"}).status_code == 403


def test_keys_and_the_flag_restrict_tools(tmp_path: Path) -> None:
    write_identity(tmp_path / "models")
    keys = {}
    lines = ["probe health -"]
    for name, categories in (("all", "inference,metadata"), ("narrow", "inference"), ("other", "statistics")):
        line, keys[name] = new_key(name, categories)
        lines.append(line)
    (tmp_path / "keys").write_text("\n".join(lines) + "\n")
    flags = [f"--model-repository={tmp_path / 'models'}", f"--api-key-file={tmp_path / 'keys'}"]
    with serving(tmp_path / "log", *flags) as running, httpx.Client(base_url=f"http://{running.http_url}") as client:

        def status(key: str, method: str, **params: Any) -> int:
            fields = {"authorization": f"Bearer {keys[key]}"} if key else {}
            return client.post("/mcp", json=message(method, **params), headers=fields, timeout=120).status_code

        assert status("", "ping") == 401
        assert status("other", "ping") == 403
        assert status("narrow", "tools/list") == 403
        assert status("narrow", "tools/call", name="identity", arguments={"INPUT0": [1]}) == 200
        assert status("all", "tools/list") == 200
    with serving(tmp_path / "log2", flags[0], "--allow-mcp=false") as running:
        assert httpx.post(f"http://{running.http_url}/mcp", json=message("ping"), timeout=120).status_code == 404
