"""What `naiad perf` prints after a measurement."""

from pathlib import Path

import pytest

from naiad.cli.perf.command import _report
from naiad.cli.perf.perf_flags import parse
from naiad.cli.perf.planning import make_plan
from naiad.tools.measure.result import Result

RESULT = Result([], "2026-11-23T00:00:00", {}, None)


def report(*arguments: str) -> int:
    flags = parse(arguments)
    return _report(RESULT, make_plan(flags), flags, None, is_perf_analyzer=False)


def test_next_command_names_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert report("-m", "net") == 0
    assert capsys.readouterr().out.endswith("better configuration: naiad analyze net --url http://localhost:8000\n")


def test_report_of_a_replay_ends_the_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report("--replay", "recording", "--html", str(tmp_path / "report.html")) == 0
    assert capsys.readouterr().out.endswith("report.html\n")
