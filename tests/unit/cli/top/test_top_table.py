"""The table of `naiad top`: rows, orders, bounds, and names that would control a terminal."""

from typing import Any

import pytest

from naiad.cli.top.top_table import SORT_KEYS, ServerState, as_tree, format_table
from naiad.client.live_events import LiveEvent
from naiad.client.live_view import LiveView

BOUNDS = [100, 200]
EVIL = "<b>\x1b[2J\nevil"
SERVER = {"name": "naiad", "version": "1", "ready": True, "process_count": 2, "core_count": 4, "started_ms": 1}


def counts(success: int, failure: int = 0, pending: int = 0, bucket: int = 0) -> dict[str, Any]:
    names = ("executions", "inferences", "request_ns", "queue_ns", "compute_input_ns", "compute_ns")
    names += ("compute_output_ns", "cache_hits", "cache_misses", "executing")
    latencies = [0, 0, 0]
    latencies[bucket] = success
    more = {"success": success, "failure": failure, "pending": pending, "latency_counts": latencies}
    return dict.fromkeys(names, 0) | more | {"bounds_us": BOUNDS, "failures": {}, "batch_sizes": {}}


def sample(time_ms: int, versions: dict[str, Any]) -> LiveEvent:
    process = {"cpu_s": time_ms / 2000, "resident_bytes": 1 << 30, "in_flight": 3}
    gpus = [{"index": 0, "utilization": 0.5, "used_bytes": 1 << 30, "total_bytes": 8 << 30}]
    return LiveEvent("sample", {"time_ms": time_ms, "process": process, "versions": versions, "gpus": gpus})


@pytest.fixture
def server() -> ServerState:
    view = LiveView()
    view.apply(LiveEvent("server", SERVER))
    names = ["a", "b", EVIL, "failed", "never"]
    states = {"failed": "UNAVAILABLE", "never": "UNKNOWN"}
    rows = [
        {"name": n, "backend": "x", "versions": [{"version": "1", "state": states.get(n, "READY"), "reason": "r"}]}
        for n in names
    ]
    view.apply(LiveEvent("models", {"models": rows}))
    view.apply(sample(1000, {f"{name}/1": counts(0) for name in names[:3]}))
    view.apply(sample(2000, {"a/1": counts(10), "b/1": counts(5, 9, 4, bucket=1), f"{EVIL}/1": counts(20)}))
    return ServerState("http://one:8000", view, problem="")


def models(lines: list[str]) -> list[str]:
    start = next(number for number, line in enumerate(lines) if "MODEL" in line) + 1
    return [line.split()[0] for line in lines[start:]]


@pytest.mark.parametrize(
    ("order", "first"), [("rate", "<b>"), ("name", "<b>"), ("p99", "b"), ("errors", "b"), ("queue", "b")]
)
def test_rows_are_sorted(server: ServerState, order: str, first: str) -> None:
    assert models(format_table([server], order))[0].startswith(first)
    assert set(SORT_KEYS) == {"rate", "name", "p99", "errors", "queue"}


def test_text_of_others_controls_no_terminal(server: ServerState) -> None:
    text = format_table([server], "rate")
    assert all(line.isprintable() for line in text)
    assert "http://one:8000: naiad 1, ready, 2 processes, 0.50 of 4 cores, 1024 MiB, 3 in flight" in text[0]
    assert "GPU 0 50%, 1.0 of 8 GiB" in text[0]
    shown = models(text)
    assert "failed" in shown
    assert "never" not in shown


def test_table_fits_the_terminal(server: ServerState) -> None:
    text = format_table([server], "rate", columns=30, lines=7)
    assert max(map(len, text)) == 30
    assert len(text) == 6  # the last line is the footer's
    assert text[-1] == "and 2 more"
    assert len(format_table([server], "rate", lines=8)) == 7
    assert not format_table([server], "rate", lines=8)[-1].startswith("and")
    for lines in range(1, 9):
        assert len(format_table([server] * 3, "rate", lines=lines)) <= max(1, lines - 1)


def test_messages_of_servers_control_no_terminal(server: ServerState) -> None:
    known = ServerState("http://one:8000", server.view, problem="gone: \x1b]0;title\x07\r\nnew line")
    away = ServerState("http://two:8000", LiveView(), problem="\x1b[2J <html>\n")
    for lines in (0, 6):
        assert all(line.isprintable() for line in format_table([known, away], "rate", lines=lines))


def test_servers_stand_side_by_side(server: ServerState) -> None:
    away = ServerState("http://two:8000", LiveView(), problem="no connection")
    text = format_table([server, away], "rate")
    assert text[1] == "http://two:8000: no connection"
    assert "http://one:8000" in text[-1]
    tree = as_tree([server, away], "rate")
    assert tree[0]["versions"][0]["requests_per_s"] == 20.0
    assert tree[1] == {**tree[1], "problem": "no connection", "versions": []}
