"""What naiad perf says of servers that hang, die, lie or fail: the right number, and the right verdict."""

import asyncio
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from naiad.cli.perf.command import run
from naiad.tools.perf.measuring import level
from support.generator_verdict import check_generator
from support.scripted_server import Answer, Script, ScriptedServer, hang, right, scripted_server

SHORT = ("-p", "1000", "-r", "2", "-q")
PATIENCE_S = 4.0
"""How long a response is waited for here, in place of 10 s."""


@pytest.fixture(autouse=True)
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for responses that never come as long as a test needs."""
    monkeypatch.setattr(level, "_DRAIN_S", PATIENCE_S)
    monkeypatch.setattr(level, "_NO_PROGRESS_S", PATIENCE_S)


def perf(
    server: ScriptedServer, folder: Path, capsys: pytest.CaptureFixture[str], *flags: str
) -> tuple[int, dict[str, Any], str]:
    """Run naiad perf; return its exit status, its only row, and all of its text."""
    file = folder / "result.json"
    status = run(["-m", "echo", "-u", server.url, "--json", str(file), *SHORT, *flags])
    (row,) = json.loads(file.read_text())["rows"]
    text = capsys.readouterr()
    return status, row, text.out + text.err


def errors_of(row: dict[str, Any]) -> dict[str, int]:
    return {error["kind"]: error["count"] for error in row["errors"]}


def answering(other: Answer, share: Sequence[int] = (0,), of: int = 1) -> Script:
    """Return a script that gives another answer to some of each `of` requests."""

    async def script(number: int) -> Answer:
        await asyncio.sleep(0.002)
        return other if number % of in share else right()

    return script


_OUTPUT = right().body.partition(b'"outputs": [')[2].removesuffix(b"]}")
WRONG = {
    "another shape": right(shape=[2, 4], data=[0.0] * 8),
    "another rank": right(shape=[4]),
    "data too short": right(data=[1.0]),
    "another datatype": right(datatype="INT32", data=[1, 2, 3, 4]),
    "another name": right(name="OTHER"),
    "no outputs": Answer(b'{"model_name": "echo", "outputs": []}'),
    "a page": Answer(b"<html>busy</html>", content_type="text/html"),
    "a page that says it is JSON": Answer(b"<html>busy</html>"),
    "an error": Answer(b'{"error": "overloaded"}'),
    "another model": Answer(right().body.replace(b'"echo"', b'"other"')),
    "an output twice": Answer(right().body.replace(b'"outputs": [', b'"outputs": [' + _OUTPUT + b", ")),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_wrong_answers_are_no_successes(wrong: Answer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with scripted_server(answering(wrong)) as server:
        status, row, text = perf(server, tmp_path, capsys, "--request-count", "20")
    assert status == 1
    assert (row["request_count"], errors_of(row)) == (0, {"wrong_answer": 20})
    assert "no request succeeded" in text


def test_wrong_answers_after_right_ones_are_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = answering(WRONG["no outputs"], share=(149,), of=200)
    with scripted_server(script) as server:
        status, row, text = perf(server, tmp_path, capsys, "--request-count", "200")
    assert status == 1
    assert (row["request_count"], errors_of(row)) == (199, {"wrong_answer": 1})
    assert "had a wrong answer" in text


def test_errors_as_long_as_right_answers_are_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    length = len(right().body) - len(b'{"error": ""}')
    script = answering(Answer(b'{"error": "%b"}' % (b"x" * length)), share=(5,), of=10)
    with scripted_server(script) as server:
        status, row, text = perf(server, tmp_path, capsys, "--request-count", "100")
    assert (status, row["request_count"], errors_of(row)) == (1, 90, {"wrong_answer": 10})
    assert "status 200 with an error: xxx" in text


FAULTY = {
    "two responses": Answer(right().body, copies=2),
    "a length that is too short": Answer(right().body, declared_bytes=len(right().body) - 4),
    "no body": Answer(b""),
    "status 204": Answer(b"", status=204),
    "status 302": Answer(b"", status=302),
}


@pytest.mark.parametrize("faulty", FAULTY.values(), ids=FAULTY)
def test_faulty_responses_are_counted_one_by_one(
    faulty: Answer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with scripted_server(answering(faulty, share=(5,), of=20)) as server:
        status, row, _ = perf(server, tmp_path, capsys, "--request-count", "100")
    assert (status, row["request_count"], sum(errors_of(row).values())) == (1, 95, 5)


def test_last_byte_ends_the_latency(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slow = Answer(right().body, last_bytes_after_s=0.2)
    with scripted_server(answering(slow)) as server:
        status, row, _ = perf(server, tmp_path, capsys, "--request-count", "20")
    assert (status, row["request_count"]) == (0, 20)
    assert row["latency"]["percentiles"]["50"]["value"] > 200_000


@pytest.mark.parametrize(
    ("flags", "status"),
    [((), 1), (("--max-errors", "5%"), 0), (("--max-errors", "4.9%"), 1), (("--max-errors", "10"), 0)],
)
def test_errors_over_the_limit_fail_the_run(
    flags: tuple[str, ...], status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = answering(Answer(b'{"error": "busy"}', status=503), of=20)
    with scripted_server(script) as server:
        found, row, _ = perf(server, tmp_path, capsys, "--request-count", "200", *flags)
    assert (row["request_count"], errors_of(row)) == (190, {"unavailable": 10})
    assert found == status


def test_right_answers_pass(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with scripted_server(answering(right())) as server:
        status, row, _ = perf(server, tmp_path, capsys, "--request-count", "100")
    assert (status, row["request_count"], row["errors"]) == (0, 100, [])


def test_stuck_slots_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def script(number: int) -> Answer:
        await asyncio.sleep(0.002)
        if number in (40, 80, 120):
            await hang()
        return right()

    with scripted_server(script) as server:
        status, row, text = perf(server, tmp_path, capsys, "--concurrency-range", "4", "-s", "0.001")
    assert status == 1
    assert errors_of(row) == {"unanswered": 3}
    assert "NOT STABLE: 3 of 4 slots wait since " in text
    assert row["latency"]["percentiles"]["99"]["value"] > PATIENCE_S * 1e6


def test_hanging_requests_of_an_open_loop_are_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[int] = []

    async def script(number: int) -> Answer:
        seen.append(number)
        if number % 2:
            await hang()
        return right()

    with scripted_server(script) as server:
        status, row, text = perf(server, tmp_path, capsys, "--request-rate-range", "40", "-s", "0.001")
    assert status == 1
    # However late the server answers on a busy machine, and however long the warm-up took.
    (silent,) = row["errors"]
    assert (silent["kind"], silent["count"]) == ("unanswered", sum(number % 2 for number in seen))
    assert silent["count"] / silent["among"] == pytest.approx(0.5, abs=0.05)
    assert f"errors ({100 * silent['count'] / silent['among']:.3g} %)" in text
    assert "NOT STABLE" in text
    assert row["latency"]["percentiles"]["90"]["value"] > PATIENCE_S * 1e6


def test_server_that_answers_nothing_fails_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def script(number: int) -> None:
        await hang()

    with scripted_server(script) as server:
        status, row, text = perf(server, tmp_path, capsys, "--concurrency-range", "2")
    assert (status, row["request_count"], errors_of(row)) == (1, 0, {"unanswered": 2})
    assert "2 of 2 slots wait since" in text


@pytest.mark.parametrize("load", [("--concurrency-range", "4"), ("--request-rate-range", "100")])
def test_death_in_the_middle_accounts_for_every_request(
    load: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def script(number: int) -> Answer:
        await asyncio.sleep(0.002)
        if number == 60:
            server.die()
        return right()

    with scripted_server(script) as server:
        status, row, text = perf(server, tmp_path, capsys, "--request-count", "400", *load)
    assert status in (1, 99)
    assert row["request_count"] <= 61
    assert row["request_count"] + sum(errors_of(row).values()) == 400
    check_generator(row, text)


def test_stall_is_in_the_percentiles(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ends_s = [0.0]

    async def script(number: int) -> Answer:
        ends_s[0] = time.monotonic() + 1 if number == 60 else ends_s[0]
        await asyncio.sleep(ends_s[0] - time.monotonic())  # The whole server stands still.
        return right()

    with scripted_server(script) as server:
        _, row, text = perf(server, tmp_path, capsys, "--request-rate-range", "100", "--request-count", "200")
    assert row["request_count"] == 200
    assert row["latency"]["percentiles"]["99"]["value"] == pytest.approx(1e6, rel=0.2)
    check_generator(row, text)


def test_duration_ends_a_load_that_is_not_stable(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with scripted_server(answering(right())) as server:
        _, row, text = perf(server, tmp_path, capsys, "-p", "60000", "-s", "0.001", "--duration", "1.2")
    assert 1 < row["duration_s"] < 30
    assert row["verdict"]  # tests/unit/tools/perf/statistics has the verdicts on trends, stalls and two modes
    assert f"NOT STABLE: {row['verdict']}" in text
