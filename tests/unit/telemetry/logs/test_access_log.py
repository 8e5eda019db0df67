"""The access log's lines, its sample and its losses; the audit lines of the server's log."""

import json
import logging
import re

import pytest

from naiad.options.options import AccessLogOptions
from naiad.telemetry.logs.access_log import AccessEntry, AccessLog, Audit
from naiad.telemetry.logs.failures import FloodGate

HOSTILE = 'a\nE0520 forged\x1b[2J\x9b "status=200'


def entry(**changes):
    return AccessEntry(
        **{"protocol": "HTTP", "method": "POST", "path": "/v2/models/m/infer", "status": 200, **changes}
    )


@pytest.fixture
def lines(tmp_path):
    """Write entries with some options, and return the lines."""

    def write(*entries, log_format="default", **options):
        path = tmp_path / "access.log"
        log = AccessLog(AccessLogOptions(str(path), **options), log_format)
        for each in entries:
            log.write(each)
        log.close()
        return path.read_text().splitlines()

    return write


def test_text_lines_have_names_and_values(lines):
    (line,) = lines(entry(key="ci", client="127.0.0.1:5", bytes_in=7, duration_ns=1_500_000, request_id="a b"))
    moment, _, rest = line.partition(" ")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+Z", moment)
    assert rest == (
        "protocol=HTTP client=127.0.0.1:5 key=ci method=POST path=/v2/models/m/infer "
        'request_id="a b" status=200 bytes_in=7 bytes_out=0 duration_ms=1.5'
    )


def test_json_lines_are_objects(lines):
    (line,) = lines(entry(key="ci", error="no"), log_format="json")
    shown = json.loads(line)
    assert shown == {
        "time": shown["time"],
        "protocol": "HTTP",
        "key": "ci",
        "method": "POST",
        "path": "/v2/models/m/infer",
        "status": 200,
        "bytes_in": 0,
        "bytes_out": 0,
        "duration_ms": 0.0,
        "error": "no",
    }


@pytest.mark.parametrize("log_format", ["default", "ISO8601", "json"])
@pytest.mark.parametrize("name", ["path", "model", "version", "request_id", "method", "error", "client", "key"])
def test_no_client_forges_a_line(lines, log_format, name):
    written = lines(entry(**{name: HOSTILE}), log_format=log_format)
    assert len(written) == 1
    assert written[0].isprintable()
    assert len(lines(entry(**{name: "x" * 100_000}), log_format=log_format)[-1]) < 1000


@pytest.mark.parametrize(("sample", "least", "most"), [(1.0, 1000, 1000), (0.0, 0, 0), (0.5, 350, 650)])
def test_the_sample_is_a_share(tmp_path, sample, least, most):
    log = AccessLog(AccessLogOptions(str(tmp_path / "access.log"), sample), "default")
    assert least <= sum(log.takes() for _ in range(1000)) <= most
    log.close()


def test_lost_lines_are_counted():
    log = AccessLog(AccessLogOptions("/dev/full"), "default")
    for _ in range(3):
        log.write(entry())
    log.close()
    assert log.lost_count >= 3


def test_a_renamed_file_is_opened_again(tmp_path, monkeypatch):
    monkeypatch.setattr("naiad.telemetry.logs.log_output._CHECK_NS", 0)
    path = tmp_path / "access.log"
    log = AccessLog(AccessLogOptions(str(path)), "default")
    log.write(entry(request_id="first"))
    log._handler.flush()
    path.rename(tmp_path / "access.log.1")
    log.write(entry(request_id="second"))
    log.close()
    assert "first" in (tmp_path / "access.log.1").read_text()
    assert "second" in path.read_text()


class TestAudit:
    def audit(self, **limits):
        logger = logging.getLogger("test.audit")
        logger.setLevel(logging.INFO)
        return Audit(logger, FloodGate(**limits))

    def test_refusals_name_client_and_request(self, caplog):
        self.audit().refused(entry(status=403, key="ci", client="127.0.0.1:5", error="not for you"))
        assert caplog.messages == [
            "refused: HTTP POST /v2/models/m/infer from 127.0.0.1:5 with key 'ci': 403: not for you"
        ]
        (record,) = caplog.records
        assert record.levelno == logging.WARNING
        fields = record.fields  # type: ignore[attr-defined]
        assert (fields["event"], fields["key"], fields["status"]) == ("refused", "ci", 403)

    @pytest.mark.parametrize(("status", "level"), [(401, "WARNING"), (404, "INFO"), ("UNAUTHENTICATED", "WARNING")])
    def test_levels(self, caplog, status, level):
        self.audit().refused(entry(status=status))
        assert caplog.records[0].levelname == level

    def test_control_calls_name_their_target(self, caplog):
        self.audit().controlled(
            entry(protocol="gRPC", method="", path="/s/RepositoryModelLoad", model="m", status="OK")
        )
        assert caplog.messages == ["control: gRPC /s/RepositoryModelLoad of 'm' from an unknown address: OK"]

    def test_a_flood_is_summed_up(self, caplog):
        audit = self.audit(lines_per_second=3)
        for number in range(100):
            audit.refused(entry(status=401, path=f"/{number}"))
        audit.refused(entry(status=404))
        audit.flush()
        assert len(caplog.messages) == 5
        assert caplog.messages[-1] == "97 more audit lines of the kind 'refused HTTP 401' were not logged one by one"
