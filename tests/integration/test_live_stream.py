"""The live stream of real servers: its events, several processes, rights, slow clients, many models, the end."""

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest

from naiad.options.network.access_options import digest_of
from support.bls_models import run_code, write_script
from support.live_reader import reading
from support.model_repository import write_identity, write_model
from support.server_process import ServerProcess
from support.waiting import wait_until

StartServer = Callable[..., ServerProcess]
EVIL = "<img src=x onerror=alert(1)>\x1b[2J"


def body(value: float = 1.0, request_id: str = "") -> dict[str, object]:
    tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [value]}
    return {"id": request_id, "inputs": [tensor]}


def infer(server: ServerProcess, model: str = "identity", request_id: str = "") -> None:
    assert server.post(f"/v2/models/{quote(model)}/infer", body(request_id=request_id)).status == 200


@pytest.mark.parametrize("processes", [1, 2])
def test_events_are_of_the_whole_server(start_server: StartServer, tmp_path: Path, processes: int) -> None:
    write_identity(tmp_path / "models")
    server = start_server(tmp_path / "models", f"--processes={processes}")
    server.wait_ready()
    with reading(server.http_url, "interval_ms=250&model=identity&log=true") as live:
        facts = live.next("server")
        assert (facts["process_count"], facts["ready"], facts["model_control_mode"]) == (processes, True, "none")
        assert all(each["allowed"] for each in facts["allowed"].values())
        (row,) = live.next("models")["models"]
        assert (row["name"], row["versions"]) == ("identity", [{"version": "1", "state": "READY", "reason": ""}])
        for number in range(6):  # each over a connection of its own, so both processes get some
            infer(server, request_id=f"{EVIL}{number}")
        counted = live.version("identity/1", lambda counts: counts["success"] == 6)
        assert sum(counted["latency_counts"]) == 6
        assert len(counted["latency_counts"]) == len(counted["bounds_us"]) + 1
        assert server.post("/v2/models/identity/infer", {"id": EVIL, "inputs": []}).status == 400
        failure = live.next("failures")["failures"][0]
        assert (failure["model"], failure["code"], failure["id"]) == (
            "identity",
            "INVALID_ARG",
            EVIL.replace("\x1b", "\\x1b"),
        )
        assert any("expected 1 inputs" in line["text"] for event in [live.next("log")] for line in event["lines"])
        detail = [event.data for event in live.events if event.name == "detail"][-1]
        shown = EVIL.replace("\x1b", "\\x1b")  # as the log has them
        assert {times["id"] for times in detail["recent"]} == {f"{shown}{number}" for number in range(6)}
        assert detail["batches"][0]["reason"]
        numbers = [instance.get("process") for instance in detail["instances"]]
        assert numbers == ([None] if processes == 1 else [1, 2])
    again = server.get("/v2/models/stats").json["model_stats"][0]
    assert again["inference_stats"]["success"]["count"] == 6


_CALLS = """
tensor = np.ones((1, 1), np.float32)
call("identity", INPUT0=tensor)
call("missing", INPUT0=tensor)
call("identity", INPUT0=np.ones(1, np.int8))
list(call("repeat", decoupled=True, IN=np.arange(3, dtype=np.int32), DELAY=np.zeros(3, np.uint32),
          WAIT=np.zeros(1, np.uint32)))
"""
_ASYNC_CALLS = """
await asyncio.gather(*(ask("identity", INPUT0=np.ones((1, 1), np.float32)) for _ in range(3)))
"""


@pytest.mark.parametrize("processes", [1, 2])
def test_calls_of_models_are_counted(start_server: StartServer, tmp_path: Path, processes: int) -> None:
    write_identity(tmp_path / "models")
    (write_model(tmp_path / "models", "repeat", 'backend: "repeat"\n') / "1").mkdir(exist_ok=True)
    write_script(tmp_path / "models", "script")
    write_script(tmp_path / "models", "coroutines", kind="coroutines")
    server = start_server(tmp_path / "models", f"--processes={processes}")
    server.wait_ready()

    def calls(model: str, *expected: tuple[str, int, int]) -> None:
        """Wait for the counts of a model: the called one, successes, failures."""
        with reading(server.http_url, f"interval_ms=250&model={model}") as live:
            found = live.read_until(
                lambda event: (
                    event.name == "detail"
                    and {(name, row["success"], row["failure"]) for name, row in event.data["calls"].items()}
                    == set(expected)
                )
            ).data["calls"]
            assert all(row["duration_ns"] > 0 for row in found.values())

    for _ in range(4):  # each over a connection of its own, so both processes get some
        run_code(server, _CALLS)
        run_code(server, _ASYNC_CALLS, "coroutines")
    calls("script", ("identity", 4, 4), ("missing", 0, 4), ("repeat", 4, 0))
    calls("coroutines", ("identity", 12, 0))


def test_same_events_over_http2(server: ServerProcess) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    command = [
        "curl",
        "-sN",
        "--http2-prior-knowledge",
        "-m",
        "3",
        f"http://{server.http_url}/v2/live?interval_ms=250",
    ]
    text = subprocess.run(command, capture_output=True, check=False).stdout.decode()
    names = [line.removeprefix("event: ") for line in text.splitlines() if line.startswith("event: ")]
    assert names[:3] == ["server", "models", "sample"]
    assert len(names) > 4


def test_mistakes_in_the_query_are_refused(server: ServerProcess) -> None:
    answer = server.get("/v2/live?interval_ms=1")
    assert (answer.status, "from 250 to 60000" in answer.json["error"]) == (400, True)
    head = server.request("HEAD", "/v2/live")
    assert (head.status, head.headers["Content-Type"]) == (200, "text/event-stream; charset=utf-8")


def test_names_and_reasons_are_plain_text(start_server: StartServer, tmp_path: Path) -> None:
    name = "<script>alert(1)</script>".replace("/", "-")
    write_identity(tmp_path / "models", name)
    broken = tmp_path / "models" / "broken"
    (broken / "1").mkdir(parents=True)
    (broken / "config.pbtxt").write_text('backend: "<b>none</b>"\n')
    server = start_server(tmp_path / "models", "--exit-on-error=false")
    server.wait_started()
    with reading(server.http_url) as live:
        rows = {row["name"]: row for row in live.next("models")["models"]}
        assert rows[name]["versions"][0]["state"] == "READY"
        assert "<b>none</b>" in json.dumps(rows["broken"])
        infer(server, name)
        assert live.version(f"{name}/1", lambda counts: counts["success"] == 1)


def test_keys_decide_what_a_stream_shows(start_server: StartServer, tmp_path: Path) -> None:
    write_identity(tmp_path / "models")
    write_identity(tmp_path / "models", "unloaded")
    keys = tmp_path / "keys"

    def write_keys(*names: str) -> None:
        grants = {"viewer": "statistics", "operator": "all"}
        lines = [f"{name} {grants[name]} {digest_of(name.encode()).hex()}" for name in names]
        keys.write_text("\n".join([*lines, "public health,metadata,inference -\n"]))

    write_keys("viewer", "operator")
    flags = ["--model-control-mode=explicit", "--load-model=identity", f"--api-key-file={keys}"]
    server = start_server(tmp_path / "models", *flags)
    server.wait_ready()
    assert server.get("/v2/live").status == 401
    page = server.get("/")
    assert (page.status, b"<html" in page.body) == (200, True)
    with (
        reading(server.http_url, "interval_ms=250&log=true&model=identity", Authorization="Bearer viewer") as viewer,
        reading(server.http_url, "interval_ms=250&log=true", Authorization="Bearer operator") as operator,
    ):
        allowed = viewer.next("server")["allowed"]
        assert allowed["statistics"] == {"allowed": True}
        assert "is not for 'logging'" in allowed["logging"]["reason"]
        assert not allowed["rollout"]["allowed"]
        assert all(each["allowed"] for each in operator.next("server")["allowed"].values())
        assert [row["name"] for row in viewer.next("models")["models"]] == ["identity"]
        assert [row["name"] for row in operator.next("models")["models"]] == ["identity", "unloaded"]
        infer(server, request_id="secret")
        assert server.post("/v2/models/identity/infer", {"id": "secret", "inputs": []}).status == 400
        failure = viewer.next("failures")["failures"][0]
        assert (failure["code"], failure["id"], failure["message"]) == ("INVALID_ARG", "", "")
        assert operator.next("failures")["failures"][0]["id"] == "secret"
        detail = [event.data for event in viewer.events if event.name == "detail"][-1]
        assert [times["id"] for times in detail["recent"]] in ([], [""], ["", ""])
        assert not any(event.name == "log" for event in viewer.events)
        write_keys("operator")
        assert "no longer read statistics" in viewer.next("gone")["reason"]


def test_slow_client_skips_samples_and_catches_up(start_server: StartServer, tmp_path: Path) -> None:
    for number in range(300):
        write_identity(tmp_path / "models", f"identity_{number:03}")
    server = start_server(tmp_path / "models")
    server.wait_ready()
    with reading(server.http_url) as live, reading(server.http_url) as other:
        live.next("sample")
        # The first client reads nothing while versions change again and again.
        for _ in range(12):
            for number in range(0, 300, 3):
                infer(server, f"identity_{number:03}")
            other.version("identity_297/1", lambda counts: counts["success"] > 0)
        counted = live.version("identity_297/1", lambda counts: counts["success"] == 12)
        assert counted["executions"] == 12
        taken = sum(event.name == "sample" for event in live.events)
        sent = sum(event.name == "sample" for event in other.events)
        assert taken <= sent + 2


@pytest.mark.long
def test_thousand_models_are_shown_without_delay_of_requests(start_server: StartServer, tmp_path: Path) -> None:
    for number in range(1000):
        write_identity(tmp_path / "models", f"m{number:04}")
    server = start_server(tmp_path / "models")
    server.wait_ready()
    with reading(server.http_url) as live:
        assert len(live.next("models")["models"]) == 1000
        assert len(live.next("sample")["versions"]) == 1000
        infer(server, "m0999")
        assert set(live.read_until(lambda e: e.name == "sample" and bool(e.data["versions"])).data["versions"]) == {
            "m0999/1"
        }


def test_stream_ends_with_gone_when_the_server_drains(start_server: StartServer, tmp_path: Path) -> None:
    write_identity(tmp_path / "models")
    server = start_server(tmp_path / "models", "--processes=2")
    server.wait_ready()
    with reading(server.http_url, "interval_ms=60000") as live:
        live.next("sample")
        server.signal()
        assert live.next("gone") == {"reason": "the server shuts down"}
        while not live.response.is_complete:
            live.response.feed(live.connection.recv(4096) or b"\0")  # a response that is cut short is none
        assert server.wait_exit() == 0


def test_streams_are_bounded(start_server: StartServer, tmp_path: Path) -> None:
    write_identity(tmp_path / "models")
    keys = "\n".join(f"{name} statistics {digest_of(name.encode()).hex()}" for name in ("greedy", "modest"))
    (tmp_path / "keys").write_text(f"{keys}\npublic health -\n")
    server = start_server(tmp_path / "models", f"--api-key-file={tmp_path / 'keys'}")
    server.wait_ready()
    greedy = {"Authorization": "Bearer greedy"}
    peers = [reading(server.http_url, **greedy) for _ in range(64)]
    opened = [peer.__enter__() for peer in peers]
    for live in opened:
        live.next("server")
    answer = server.request("GET", "/v2/live", headers=greedy)
    assert answer.status == 503
    assert (
        "64 live streams are open, which is the maximum, and 64 of them belong to this client" in answer.json["error"]
    )
    with reading(server.http_url, Authorization="Bearer modest") as modest:
        modest.next("sample")
    assert "another client needed one" in opened[0].next("gone")["reason"]
    for peer in peers:
        peer.__exit__(None, None, None)

    def is_open() -> bool:
        with reading(server.http_url, **greedy) as live:
            return b"200 OK" in live.connection.recv(64)

    wait_until(is_open, "streams of clients that have left still count")
