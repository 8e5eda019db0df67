"""Conversions, and reading of model files, without an interpreter for each, which imports frameworks for seconds.

What a subprocess adds (limits, crashes, its end with its parent) is tested with tests/unit/tools/optimize/
test_conversion_run.py, and `naiad optimize` as a command converts in subprocesses in all its tests.
"""

import contextlib
import multiprocessing
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from naiad.core.tensor import Array
from naiad.tools.optimize.converters import conversion_child, conversions
from naiad.tools.optimize.sources import reading_child, source_opening
from naiad.tools.optimize.sources.tensor_reader import Reading, Tensors
from naiad.tools.process.running import EndedProcess, ProcessLimits


@contextlib.contextmanager
def conversions_here() -> Iterator[None]:
    """Convert in this process."""
    with _conversions(_convert):
        yield


@contextlib.contextmanager
def forked_conversions(*modules: str) -> Iterator[None]:
    """Convert in processes that are forked from one that has imported `modules`, and has done nothing else.

    For frameworks that change each other: nncf replaces functions of PyTorch. All tests of a process give the same.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*modules, __name__])

    def convert(job: Path, result: Path, output: Path) -> None:
        process = context.Process(target=_convert, args=(job, result, output))
        process.start()
        process.join()

    with _conversions(convert):
        yield


@contextlib.contextmanager
def reading_here() -> Iterator[None]:
    """Read the tensors of model files in this process."""

    def read(reading: Reading, examples: Sequence[Mapping[str, Array]], limits: ProcessLimits) -> Tensors:
        return reading_child.read(reading, examples)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source_opening, "read_tensors", read)
        yield


@contextlib.contextmanager
def _conversions(convert: Callable[[Path, Path, Path], None]) -> Iterator[None]:
    def run(
        command: Sequence[str], limits: ProcessLimits, output: Path, environment: Mapping[str, str] | None = None
    ) -> EndedProcess:
        began_s = time.monotonic()
        convert(*map(Path, command[-2:]), output)
        return EndedProcess(0, time.monotonic() - began_s, 0.0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conversions, "run", run)
        yield


def _convert(job: Path, result: Path, output: Path) -> None:
    with (
        output.open("w") as log,
        contextlib.redirect_stdout(log),
        contextlib.redirect_stderr(log),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # A warning of a framework is no error in a subprocess.
        conversion_child.convert(job, result)
