"""Conversions in the process of the tests: a subprocess for each would import the frameworks again, for seconds.

What a subprocess adds (limits, crashes, its end with its parent) is tested with tests/unit/tools/optimize/
test_conversion_run.py, and `naiad optimize` as a command converts in subprocesses in all its tests.
"""

import contextlib
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from naiad.tools.optimize.converters import conversion_child, conversions
from naiad.tools.process.running import EndedProcess, ProcessLimits


@contextlib.contextmanager
def conversions_here() -> Iterator[None]:
    """Convert in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conversions, "run", _run)
        yield


def _run(
    command: Sequence[str], limits: ProcessLimits, output: Path, environment: Mapping[str, str] | None = None
) -> EndedProcess:
    began_s = time.monotonic()
    with (
        output.open("w") as log,
        contextlib.redirect_stdout(log),
        contextlib.redirect_stderr(log),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # A warning of a framework is no error in a subprocess.
        conversion_child.convert(*map(Path, command[-2:]))
    return EndedProcess(0, time.monotonic() - began_s, 0.0)
