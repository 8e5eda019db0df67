"""Errors of conversions: what to do, then the words of the library."""

import errno
from pathlib import Path

import pytest

from naiad.cli.models.optimize import _with_place
from naiad.tools.optimize.converters.conversion_child import _reason


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (ValueError("Histogram has not been collected. Please run collect() first."), "calibration found no values"),
        (RuntimeError("Unsupported opset version 99"), "the package that converts does not know the model's opset"),
        (TypeError("complex64 is not supported"), "the format has no complex numbers"),
        (OSError(errno.ENOSPC, "No space left on device"), "no space is left on the disk of "),
    ],
)
def test_reason_begins_with_what_to_do(error, advice):
    text = _reason(error)
    assert text.startswith(advice)
    assert text.endswith(f"{type(error).__name__}: {error}")


def test_other_reasons_are_quoted_alone():
    assert _reason(ValueError("a\n\nb")) == "ValueError: a b"


def test_full_disk_is_named():
    error = _with_place(OSError(errno.ENOSPC, "No space left on device"), Path("/data/work"))
    assert str(error).startswith("no space is left on the disk of /data/work; free some, or choose another disk")
    named = _with_place(OSError(errno.EDQUOT, "Quota", "/home/me/x"), Path("/data/work"))
    assert "/home/me/x" in str(named)
    other = FileNotFoundError(errno.ENOENT, "No such file", "a")
    assert _with_place(other, Path("/data/work")) is other
