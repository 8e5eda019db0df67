"""Log lines in Triton's form, one for every failed request."""

import io
import json
import logging
import re
import threading
from pathlib import Path

import pytest

from naiad.core.errors import ErrorCode, InferError, excerpt
from naiad.options.options import LogOptions
from naiad.telemetry.logs import log
from naiad.telemetry.logs.failures import FailureLog, FloodGate, RepeatFilter
from naiad.telemetry.logs.log_output import BackgroundHandler, TritonFormatter, format_table, make_formatter


def record(message="text", level=logging.INFO, created=1716235409.25, **extra):
    made = logging.LogRecord("naiad.x", level, "/src/naiad/file.py", 12, message, (), None)
    made.created, made.process = created, 3355
    made.__dict__.update(extra)
    return made


class TestFormatter:
    @pytest.mark.parametrize(
        ("level", "letter"),
        [
            (logging.DEBUG, "I"),
            (logging.INFO, "I"),
            (logging.WARNING, "W"),
            (logging.ERROR, "E"),
            (logging.CRITICAL, "E"),
        ],
    )
    def test_default_form(self, level, letter):
        line = TritonFormatter().format(record(level=level))
        assert line == f'{letter}0520 20:03:29.250000 3355 file.py:12] "text"'

    def test_iso_form(self):
        assert TritonFormatter("ISO8601").format(record()) == '2024-05-20T20:03:29Z I 3355 file.py:12] "text"'

    def test_a_fraction_that_rounds_up_carries_over(self):
        line = TritonFormatter().format(record(created=1716235409.9999998))
        assert line.startswith("I0520 20:03:30.000000 ")

    def test_messages_are_json_strings_on_one_line(self):
        line = TritonFormatter().format(record('say "hi"\n\x1b[31m\\ é'))
        assert line.endswith(r'] "say \"hi\"\n\u001b[31m\\ é"')

    @pytest.mark.parametrize("form", ["default", "json"])
    def test_lines_are_bounded(self, form):
        line = make_formatter(form).format(record("begin" + "x" * 10_000_000 + "end"))
        assert len(line) < 70_000
        assert re.search(r'"begin.*characters are left out.*end"', line)

    def test_escaping_can_be_switched_off(self):
        assert TritonFormatter(escapes=False).format(record('say "hi"')).endswith('] say "hi"')

    def test_a_traceback_is_part_of_the_line(self):
        made = record("bad")
        try:
            raise ValueError("thirteen")
        except ValueError as error:
            made.exc_info = (ValueError, error, error.__traceback__)
        line = TritonFormatter().format(made)
        assert "\n" not in line
        assert "test_log.py" in line
        assert "ValueError: thirteen" in line

    def test_tables_stand_below_their_line(self):
        assert TritonFormatter().format(record("", table="+-+")).endswith("file.py:12] \n+-+\n")

    def test_an_unknown_form_is_rejected(self):
        with pytest.raises(ValueError, match="'xml' is not known; known are default, ISO8601, json"):
            make_formatter("xml")

    @pytest.mark.parametrize("form", ["default", "ISO8601", "json"])
    @pytest.mark.parametrize("hostile", ["\n", "\r", "\x1b[2J", "\x7f", "\x9b2J", "\u2028", "\x85"])
    def test_no_text_of_a_client_forges_a_line(self, form, hostile):
        line = make_formatter(form).format(record(f"id {hostile}E0520 forged", fields={"model": hostile}))
        assert line.isprintable()
        assert line.splitlines() == [line]


class TestJsonFormatter:
    def shown(self, made):
        return json.loads(make_formatter("json").format(made))

    def test_a_line_is_one_object(self):
        made = record('say "hi"', logging.WARNING, fields={"model": "m", "request_id": "a"})
        assert self.shown(made) == {
            "time": "2024-05-20T20:03:29.250000Z",
            "level": "WARNING",
            "message": 'say "hi"',
            "logger": "naiad.x",
            "pid": 3355,
            "place": "file.py:12",
            "model": "m",
            "request_id": "a",
        }

    @pytest.mark.parametrize(
        ("level", "name"),
        [(logging.CRITICAL, "ERROR"), (logging.ERROR, "ERROR"), (logging.INFO, "INFO"), (logging.DEBUG, "VERBOSE")],
    )
    def test_levels(self, level, name):
        assert self.shown(record(level=level))["level"] == name

    def test_fields_never_replace_time_and_message(self):
        shown = self.shown(record("text", fields={"message": "forged", "time": "never"}))
        assert (shown["message"], shown["time"]) == ("text", "2024-05-20T20:03:29.250000Z")

    def test_tables_and_tracebacks_are_messages(self):
        assert self.shown(record("", table="+-+\n| a |"))["message"] == "+-+\n| a |"
        made = record("bad")
        made.exc_info = (ValueError, ValueError("thirteen"), None)
        assert "ValueError: thirteen" in self.shown(made)["message"]


@pytest.mark.usefixtures("configured")  # restores the levels of loggers
def test_log_that_ends_on_full_disk_reports(tmp_path: Path) -> None:
    log.configure(LogOptions(file="/dev/full"))
    logging.getLogger("naiad.test").info("lost")
    assert not log.shut_down()
    log.configure(LogOptions(file=str(tmp_path / "log")))
    logging.getLogger("naiad.test").info("written")
    assert log.shut_down()


def test_format_table():
    assert format_table(
        ("Model", "Status"), [("densenet", "READY"), ("m", "UNAVAILABLE:\nno file")]
    ).splitlines() == [
        "+----------+--------------+",
        "| Model    | Status       |",
        "+----------+--------------+",
        "| densenet | READY        |",
        "| m        | UNAVAILABLE: |",
        "|          | no file      |",
        "+----------+--------------+",
    ]
    (_, _, _, row, _) = format_table(("Model",), [("m\x1b[2J\x85 | fake",)]).splitlines()
    assert row == r"| m\x1b[2J\x85 | fake |"
    assert format_table(("Model",), []).splitlines() == ["+-------+", "| Model |", "+-------+", "+-------+"]


def test_long_cells_take_several_lines():
    reason = "UNAVAILABLE: " + "the file is damaged, " * 20 + "x" * 100
    lines = format_table(("Model", "Status"), [("m", reason)]).splitlines()
    assert {len(line) for line in lines} == {len("| Model | ") + 80 + len(" |")}
    text = "".join(line.removeprefix("|       | ").removeprefix("| m     | ").rstrip(" |") for line in lines[3:-1])
    assert text.replace(" ", "") == reason.replace(" ", "")


class TestBackgroundHandler:
    def test_lines_are_written_in_order(self):
        stream = io.StringIO()
        handler = BackgroundHandler(stream)
        for number in range(1000):
            handler.handle(record(str(number)))
        handler.flush()
        assert stream.getvalue().splitlines() == [str(number) for number in range(1000)]
        handler.close()

    def test_gathered_lines_are_written_together(self, monkeypatch):
        gathering, go_on = threading.Event(), threading.Event()

        def sleep(seconds):
            gathering.set()
            go_on.wait(60)

        monkeypatch.setattr("naiad.telemetry.logs.log_output.time.sleep", sleep)
        stream = _Counted()
        handler = BackgroundHandler(stream, gather_s=0.02)
        handler.handle(record("first"))
        gathering.wait(60)
        for _ in range(8):
            handler.handle(record("more"))
        go_on.set()
        handler.close()
        assert stream.writes == ["first\n" + 8 * "more\n"]

    def test_what_does_not_fit_is_counted_and_said(self):
        stream = _Stalled()
        handler = BackgroundHandler(stream, capacity=5)
        handler.handle(record("first"))
        stream.entered.acquire()
        for _ in range(8):
            handler.handle(record("more"))
        stream.go_on.release()
        handler.close()
        lines = stream.getvalue().splitlines()
        assert lines[0] == "first"
        assert lines.count("more") == 5
        assert lines[-1] == "3 log lines were lost: the log was not read fast enough"

    def test_closed_pipe_does_not_fail_caller(self):
        stream = io.StringIO()
        handler = BackgroundHandler(stream)
        stream.close()
        handler.handle(record())
        handler.flush()
        handler.close()

    def test_invalid_log_arguments_do_not_fail_caller(self, monkeypatch):
        monkeypatch.setattr(logging, "raiseExceptions", False)
        stream = io.StringIO()
        handler = BackgroundHandler(stream)
        handler.handle(logging.LogRecord("x", logging.INFO, "f", 1, "%d", ("no number",), None))
        handler.close()
        assert stream.getvalue() == ""

    def test_closing_twice_is_harmless_and_closes_its_stream(self):
        stream = io.StringIO()
        handler = BackgroundHandler(stream, closes_stream=True)
        handler.close()
        handler.close()
        assert stream.closed


class _Counted(io.StringIO):
    """A stream that lists what it is given in one piece."""

    def __init__(self):
        super().__init__()
        self.writes = []

    def write(self, text):
        self.writes.append(text)
        return len(text)


class _Stalled(io.StringIO):
    """Blocks in its first write until it is released."""

    def __init__(self):
        super().__init__()
        self.entered = threading.Semaphore(0)
        self.go_on = threading.Semaphore(0)
        self.is_first = True

    def write(self, text):
        if self.is_first:
            self.is_first = False
            self.entered.release()
            self.go_on.acquire()
        return super().write(text)


@pytest.fixture
def configured(tmp_path):
    """Configure the log to a file; returns a function that returns its lines."""
    root, package = logging.getLogger(), logging.getLogger("naiad")
    levels = root.level, package.level
    path = tmp_path / "server.log"

    def start(**options):
        log.configure(LogOptions(file=str(path), **options))

        def lines():
            log.shut_down()
            return path.read_text().splitlines()

        return lines

    yield start
    log.shut_down()
    root.setLevel(levels[0])
    package.setLevel(levels[1])


class TestConfigure:
    def test_switches_and_verbosity(self, configured):
        lines = configured(info=False, verbose=1)
        logger = logging.getLogger("naiad.test")
        logger.error("error")
        logger.warning("warning")
        logger.info("info")
        logger.log(log.verbose(1), "verbose 1")
        logger.log(log.verbose(2), "verbose 2")
        assert [line.partition("] ")[2] for line in lines()] == ['"error"', '"warning"', '"verbose 1"']

    def test_nothing_verbose_by_default(self, configured):
        lines = configured()
        logging.getLogger("naiad.test").debug("no")
        logging.getLogger("other.package").info("yes")
        assert [line.partition("] ")[2] for line in lines()] == ['"yes"']

    def test_a_second_call_replaces_the_first(self, configured, tmp_path):
        first = configured()
        logging.getLogger("naiad.test").info("to the first")
        log.configure(LogOptions(file=str(tmp_path / "second.log"), format="ISO8601"))
        logging.getLogger("naiad.test").info("to the second")
        assert len(first()) == 1
        (line,) = (tmp_path / "second.log").read_text().splitlines()
        assert re.fullmatch(r'\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ I \d+ test_log\.py:\d+\] "to the second"', line)

    def test_table_is_logged_with_callers_position(self, configured):
        lines = configured()
        log.log_table(logging.getLogger("naiad.test"), ("Model",), [("m",)])
        written = lines()
        assert re.search(r"test_log\.py:\d+\] $", written[0])
        assert written[1] == "+-------+"


class TestRequestFailure:
    def failure(self, **changes):
        log.log_request_failure(
            **{
                "protocol": "grpc",
                "request_id": "abc",
                "model": "densenet",
                "version": "3",
                "error": InferError(ErrorCode.INTERNAL, "no luck", detail='File "model.py", line 7\nValueError: x'),
                "level": logging.ERROR,
                **changes,
            }
        )

    def test_exactly_one_line_holds_everything(self, configured):
        lines = configured()
        self.failure()
        (line,) = lines()
        assert re.match(r"E\d{4} .* test_log\.py:\d+\] ", line)
        for part in (
            "[request id: abc]",
            "grpc",
            "'densenet'",
            "version 3",
            "INTERNAL",
            "no luck",
            r"model.py\", line 7",
        ):
            assert part in line

    @pytest.mark.parametrize("known", ["abc", "<id_unknown>"])
    def test_the_id_comes_once(self, configured, known):
        lines = configured()
        self.failure(error=InferError(ErrorCode.INVALID_ARG, f"[request id: {known}] bad shape"))
        (line,) = lines()
        assert line.count("request id") == 1
        assert "[request id: abc]" in line

    def test_json_lines_have_the_parts_as_fields(self, configured):
        lines = configured(format="json")
        self.failure(key="team-a")
        (line,) = lines()
        shown = json.loads(line)
        parts = {"request_id": "abc", "model": "densenet", "version": "3", "protocol": "grpc", "error": "INTERNAL"}
        assert shown == shown | parts | {"key": "team-a", "level": "ERROR"}
        assert shown["message"].startswith("[request id: abc] ")

    def test_a_version_that_was_not_asked_for(self, configured):
        lines = configured()
        self.failure(version="")
        assert "version newest" in lines()[0]

    def test_a_flood_is_summed_up(self, configured):
        lines = configured()
        for number in range(1000):
            self.failure(request_id=str(number))
        self.failure(model="other")
        written = lines()
        assert len(written) < 500
        logged = sum("no luck" in line for line in written)
        summed_up = sum(int(n) for line in written for n in re.findall(r'"(\d+) more failed requests', line))
        assert logged + summed_up == 1001
        assert any("'other'" in line for line in written), "another kind is not held back"

    def test_a_level_that_is_off_costs_nothing(self):
        logger = logging.getLogger("naiad.silent")
        logger.setLevel(logging.CRITICAL)
        gate = FloodGate()
        error = InferError(ErrorCode.INTERNAL, "no")
        FailureLog(logger, gate).log(
            protocol="http", request_id="1", model="m", version="1", error=error, level=logging.ERROR
        )
        assert gate.restart(0) == []


class TestFloodGate:
    def test_kinds_are_bounded(self):
        gate = FloodGate(lines_per_second=1, kind_limit=2)
        assert [gate.admit(kind) for kind in ("a", "b", "c", "d", "a")] == [True, True, True, False, False]
        assert dict(gate.restart(0)) == {"others": 1, "a": 1}

    def test_a_window_is_a_second(self):
        gate = FloodGate(lines_per_second=1)
        gate.restart(5)
        assert not gate.is_over(5 + 10**9 - 1)
        assert gate.is_over(5 + 10**9)
        gate.admit("a")
        assert not gate.admit("a")
        assert gate.restart(5 + 10**9) == [("a", 1)]
        assert gate.admit("a")

    def test_all_kinds_share_a_limit(self):
        gate = FloodGate(lines_per_second=2, all_lines_per_second=5)
        assert sum(gate.admit(kind) for kind in "aabbccdd") == 5
        assert dict(gate.restart(0)) == {"c": 1, "d": 2}


class TestRepeatFilter:
    def make(self, caplog, **limits):
        sums = logging.getLogger("test.sums")
        sums.setLevel(logging.INFO)
        return RepeatFilter(sums, ("naiad.frontend.",), FloodGate(**limits))

    def record(self, name="naiad.frontend.http2.connection", level=logging.INFO, text="closed: %s"):
        return logging.LogRecord(name, level, "file", 1, text, ("why",), None)

    def test_equal_lines_are_counted(self, caplog):
        limited = self.make(caplog, lines_per_second=3)
        assert sum(limited.filter(self.record()) for _ in range(10)) == 3
        assert limited.filter(self.record(text="another line"))
        limited.flush()
        assert caplog.messages == ["7 more lines of naiad.frontend.http2.connection were not logged: closed: %s"]

    @pytest.mark.parametrize(("name", "level"), [("naiad.model", logging.INFO), ("naiad.frontend.x", logging.DEBUG)])
    def test_other_lines_pass(self, caplog, name, level):
        limited = self.make(caplog, lines_per_second=1)
        assert all(limited.filter(self.record(name, level)) for _ in range(10))


def test_failures_show_client_text_cut_and_escaped(caplog):
    failures = FailureLog(logging.getLogger("naiad.test_failures"))
    error = InferError(ErrorCode.NOT_FOUND, f"[request id: {excerpt('i' * 5000)}] no")
    with caplog.at_level(logging.INFO):
        failures.log(
            protocol="HTTP",
            request_id="i" * 5000,
            model="m\n\x1b[31m" * 900,
            version="",
            error=error,
            level=logging.INFO,
        )
    (line,) = caplog.messages
    assert line.startswith("[request id: " + "i" * 200 + "...] HTTP request for model 'm\\n\\x1b[31m")
    assert line.endswith("...' version newest failed: NOT_FOUND: no")
    assert len(line) < 600


def test_request_ids_are_unique_and_short():
    ids = [log.new_request_id() for _ in range(10_000)]
    assert len(set(ids)) == len(ids)
    assert max(map(len, ids)) < 24
