"""Conversions that fail for want of space: they end the run, and are not kept as failures of the candidate."""

import errno
import os
from pathlib import Path

import pytest

from naiad.tools.optimize.converters import conversions
from naiad.tools.optimize.converters.conversion_job import ConversionJob
from naiad.tools.process.running import EndedProcess, ProcessLimits

JOB = ConversionJob("onnx", "m.onnx", "onnx", "fp32", {}, (), (), False, {}, "samples")
STRERROR = os.strerror(errno.ENOSPC)


@pytest.fixture
def attempt(tmp_path):
    return conversions._Attempt(JOB, tmp_path / "conversions" / "a-0", ProcessLimits(), None)


def child_that_writes(result, log):
    """Return a runner of a child that fails after it has written so much of its result and its log."""

    def run(command, limits, output, environment):
        output.write_text(log)
        if result is not None:
            Path(command[-1]).write_text(result)
        return EndedProcess(1, 0.1, 1.0)

    return run


def no_space(path, data):
    raise OSError(errno.ENOSPC, STRERROR, str(path))


@pytest.mark.parametrize(
    ("result", "log", "is_full", "place"),
    [
        ("", "", True, "conversions"),
        (None, "", True, "conversions"),
        (None, f"OSError: [Errno 28] {STRERROR}", False, "conversions"),
        ('{"reason": "no space", "full_disk": "/other/x"}', "", False, "/other/x"),
    ],
)
def test_full_disk_ends_the_run_and_leaves_nothing(monkeypatch, attempt, result, log, is_full, place):
    monkeypatch.setattr(conversions, "run", child_that_writes(result, log))
    if is_full:
        monkeypatch.setattr(Path, "write_bytes", no_space)
    with pytest.raises(OSError, match="Errno 28") as raised:
        attempt.run()
    assert str(raised.value.filename).endswith(place)
    assert list(attempt.folder.parent.iterdir()) == []


@pytest.mark.parametrize(
    ("result", "reason"),
    [('{"reason": "ValueError: no"}', "ValueError: no"), ('{"rea', "the converter crashed (exit status 1)")],
)
def test_other_failures_are_kept(monkeypatch, attempt, result, reason):
    monkeypatch.setattr(conversions, "run", child_that_writes(result, "log"))
    attempt.run()
    found = conversions._read(attempt.folder, None, attempt.limits)
    assert (found.reason, found.log) == (reason, "log")
    assert sorted(each.name for each in attempt.folder.iterdir()) == [
        "conversion.json",
        "files",
        "job.json",
        "log.txt",
    ]
