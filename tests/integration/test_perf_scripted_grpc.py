"""What naiad perf says of gRPC servers that hang, die, lie or fail."""

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from naiad.cli.perf.command import run
from naiad.tools.perf.measuring import level
from support.generator_verdict import check_generator
from support.long_run import mostly_long
from support.scripted_grpc_server import (
    GrpcAnswer,
    GrpcScript,
    StreamScript,
    in_stream,
    right,
    scripted_grpc_server,
)
from support.scripted_server import hang

SHORT = ("-p", "1000", "-r", "2", "-q")
PATIENCE_S = 4.0
"""How long a response is waited for here, in place of 10 s."""
Perf = Callable[..., tuple[int, dict[str, Any], str]]


@pytest.fixture(autouse=True)
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for responses that never come as long as a test needs."""
    monkeypatch.setattr(level, "_DRAIN_S", PATIENCE_S)
    monkeypatch.setattr(level, "_NO_PROGRESS_S", PATIENCE_S)


@pytest.fixture
def perf(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Perf:
    """Run naiad perf; return its exit status, its only row, and all of its text."""

    def perf(url: str, *flags: str, protocol: str = "grpc") -> tuple[int, dict[str, Any], str]:
        file = tmp_path / "result.json"
        status = run(["-m", "echo", "-u", url, "-i", protocol, "--json", str(file), *SHORT, *flags])
        (row,) = json.loads(file.read_text())["rows"]
        text = capsys.readouterr()
        return status, row, text.out + text.err

    return perf


def errors_of(row: dict[str, Any]) -> dict[str, int]:
    return {error["kind"]: error["count"] for error in row["errors"]}


def answering(other: GrpcAnswer, share: int = 0, of: int = 1) -> GrpcScript:
    """Return a script that gives another answer to one of each `of` requests."""

    async def script(number: int) -> GrpcAnswer:
        await asyncio.sleep(0.002)
        return other if number % of == share else right()

    return script


WRONG: dict[str, GrpcAnswer] = {
    "another shape": right(shape=[2, 4], data=bytes(32)),
    "another rank": right(shape=[4]),
    "data too short": right(data=bytes(4)),
    "another datatype": right(datatype="INT32"),
    "another name": right(name="OTHER"),
    "no outputs": b"\x0a\x04echo",
    "another model": right(model="other"),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_wrong_answers_are_no_successes(wrong: GrpcAnswer, perf: Perf) -> None:
    with scripted_grpc_server(answering(wrong)) as server:
        status, row, text = perf(server.url, "--request-count", "20")
    assert status == 1
    assert (row["request_count"], errors_of(row)) == (0, {"wrong_answer": 20})
    assert "no request succeeded" in text


def test_bytes_that_are_no_message_are_errors(perf: Perf) -> None:
    with scripted_grpc_server(answering(b"\xff\xff\xff")) as server:
        status, row, text = perf(server.url, "--request-count", "20")
    assert (status, row["request_count"], sum(errors_of(row).values())) == (1, 0, 20)
    assert "no request succeeded" in text


def test_wrong_answers_after_right_ones_are_found(perf: Perf) -> None:
    with scripted_grpc_server(answering(WRONG["no outputs"], share=149, of=200)) as server:
        status, row, text = perf(server.url, "--request-count", "200")
    assert (status, row["request_count"], errors_of(row)) == (1, 199, {"wrong_answer": 1})
    assert "had a wrong answer" in text


@pytest.mark.parametrize(("flags", "status"), [((), 1), (("--max-errors", "5%"), 0), (("--max-errors", "4.9%"), 1)])
def test_errors_over_the_limit_fail_the_run(flags: tuple[str, ...], status: int, perf: Perf) -> None:
    with scripted_grpc_server(answering(grpc.StatusCode.UNAVAILABLE, of=20)) as server:
        found, row, _ = perf(server.url, "--request-count", "200", *flags)
    assert (row["request_count"], errors_of(row)) == (190, {"unavailable": 10})
    assert found == status


def test_right_answers_pass(perf: Perf) -> None:
    with scripted_grpc_server(answering(right())) as server:
        status, row, _ = perf(server.url, "--request-count", "100")
    assert (status, row["request_count"], row["errors"]) == (0, 100, [])


@pytest.mark.parametrize("numbers", mostly_long([(80,), (40, 80), (40, 80, 120, 121)], lambda case: len(case) > 2))
def test_stuck_slots_are_named(numbers: tuple[int, ...], perf: Perf) -> None:
    async def script(number: int) -> GrpcAnswer:
        await asyncio.sleep(0.002)
        if number in numbers:
            await hang()
        return right()

    with scripted_grpc_server(script) as server:
        status, row, text = perf(server.url, "--concurrency-range", "4", "-s", "0.001")
    assert status == 1
    assert errors_of(row) == {"unanswered": len(numbers)}
    assert f"NOT STABLE: {len(numbers)} of 4 slots wait" in text.replace("slots waits", "slots wait")
    assert row["latency"]["percentiles"]["99"]["value"] > PATIENCE_S * 1e6


def test_hanging_requests_of_an_open_loop_are_errors(perf: Perf) -> None:
    seen: list[int] = []

    async def script(number: int) -> GrpcAnswer:
        seen.append(number)
        if number % 2:
            await hang()
        return right()

    with scripted_grpc_server(script) as server:
        status, row, text = perf(server.url, "--request-rate-range", "40", "-s", "0.001")
    assert status == 1
    # However late the server answers on a busy machine, and however long the warm-up took.
    (silent,) = row["errors"]
    assert (silent["kind"], silent["count"]) == ("unanswered", sum(number % 2 for number in seen))
    assert silent["count"] / silent["among"] == pytest.approx(0.5, abs=0.05)
    assert f"errors ({100 * silent['count'] / silent['among']:.3g} %)" in text
    assert "NOT STABLE" in text
    assert row["latency"]["percentiles"]["90"]["value"] > PATIENCE_S * 1e6


def test_server_that_answers_nothing_fails_the_run(perf: Perf) -> None:
    async def script(number: int) -> GrpcAnswer:
        await hang()
        return right()

    with scripted_grpc_server(script) as server:
        status, row, text = perf(server.url, "--concurrency-range", "2")
    assert (status, row["request_count"], errors_of(row)) == (1, 0, {"unanswered": 2})
    assert "2 of 2 slots wait since" in text


@pytest.mark.parametrize("load", [("--concurrency-range", "4"), ("--request-rate-range", "100")])
def test_death_in_the_middle_accounts_for_every_request(load: tuple[str, ...], perf: Perf) -> None:
    async def script(number: int) -> GrpcAnswer:
        await asyncio.sleep(0.002)
        if number == 60:
            server.die()
        return right()

    with scripted_grpc_server(script) as server:
        status, row, text = perf(server.url, "--request-count", "400", *load)
    assert status in (1, 99)
    assert row["request_count"] <= 64
    assert row["request_count"] + sum(errors_of(row).values()) == 400
    check_generator(row, text)


def test_stall_is_in_the_percentiles(perf: Perf) -> None:
    ends_s = [0.0]

    async def script(number: int) -> GrpcAnswer:
        ends_s[0] = time.monotonic() + 1 if number == 60 else ends_s[0]
        await asyncio.sleep(ends_s[0] - time.monotonic())  # The whole server stands still.
        return right()

    with scripted_grpc_server(script) as server:
        _, row, text = perf(server.url, "--request-rate-range", "100", "--request-count", "200")
    assert row["request_count"] == 200
    assert row["latency"]["percentiles"]["99"]["value"] == pytest.approx(1e6, rel=0.2)
    check_generator(row, text)


# --- streams --------------------------------------------------------------------------------------------------------


def twice(number: int, request_id: str) -> list[bytes]:
    return [in_stream(right(request_id=request_id))] * (2 if number % 20 == 5 else 1)


def twice_before_the_end(number: int, request_id: str) -> list[bytes]:
    message = right(request_id=request_id)
    copies = [in_stream(message, is_final=False)] if number % 20 == 5 else []
    return [*copies, in_stream(message, is_final=True)]


def to_no_request(number: int, request_id: str) -> list[bytes]:
    return [in_stream(right(request_id="none" if number % 20 == 5 else request_id))]


WRONG_STREAMS: dict[str, StreamScript] = {
    "twice": twice,
    "twice before the end": twice_before_the_end,
    "to no request": to_no_request,
}


@pytest.mark.parametrize("script", WRONG_STREAMS.values(), ids=WRONG_STREAMS)
def test_stream_with_other_responses_than_due_fails(script: StreamScript, perf: Perf) -> None:
    with scripted_grpc_server(answering(right()), script) as server:
        status, row, text = perf(server.url, "--streaming", "--request-count", "100", "--concurrency-range", "2")
    assert status == 1
    assert row["request_count"] < 100
    assert sum(errors_of(row).values()) == 100 - row["request_count"]
    assert "response" in row["errors"][0]["message"]
    assert "had a wrong answer" in text or "are more than --max-errors 1%" in text


def test_stream_with_one_response_for_each_request_passes(perf: Perf) -> None:
    for is_final in (None, True):
        with scripted_grpc_server(
            answering(right()), lambda _, key, end=is_final: [in_stream(right(request_id=key), is_final=end)]
        ) as server:
            status, row, _ = perf(server.url, "--streaming", "--request-count", "100", "--concurrency-range", "4")
        assert (status, row["request_count"], row["errors"]) == (0, 100, [])
