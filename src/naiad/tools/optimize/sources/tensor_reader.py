"""Reads the tensors of a model file in a subprocess with limits: a framework may crash, hang or execute code."""

import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from naiad.core.tensor import Array, TensorSpec
from naiad.files.json_records import read_record, to_json
from naiad.tools.optimize.optimize_source import Format
from naiad.tools.optimize.samples.chunks import write_chunks
from naiad.tools.process.child import with_this_path
from naiad.tools.process.running import ProcessLimits, run

_CHILD = "naiad.tools.optimize.sources.reading_child"


@dataclass(frozen=True, slots=True)
class Reading:
    """What is to be read, and what is known already."""

    format: Format
    path: Path
    inputs: tuple[TensorSpec, ...] = ()
    """Of the user or of samples, then without the batch dimension."""
    outputs: tuple[TensorSpec, ...] = ()
    has_batch: bool | None = None
    are_observed: bool = False
    """Whether the inputs are derived from samples."""
    allow_pickle: bool = False


@dataclass(frozen=True, slots=True)
class Tensors:
    """What was read."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    has_batch: bool


def read_tensors(reading: Reading, examples: Sequence[Mapping[str, Array]], limits: ProcessLimits) -> Tensors:
    """Return the tensors of a model, which is run on `examples` where its file does not have them.

    Raises ValueError with file and reason, also for a crash and for a limit that was exceeded.
    """
    with tempfile.TemporaryDirectory(prefix="naiad-source-") as temporary:
        folder = Path(temporary)
        absolute = replace(reading, path=reading.path.absolute())
        (folder / "reading.json").write_text(to_json(absolute), encoding="utf-8")
        write_chunks(examples, folder / "examples")
        command = [sys.executable, "-m", _CHILD, str(folder)]
        ended = run(command, limits, folder / "log.txt", child_environment())
        try:
            result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
        except (FileNotFoundError, json.JSONDecodeError):  # it could not write all of it
            log = (folder / "log.txt").read_text(encoding="utf-8", errors="replace").strip().splitlines()
            last = f"; the last line of output: {log[-1][:300]}" if log else ""
            why = ended.exceeded or f"its framework crashed (exit status {ended.status}){last}"
            raise ValueError(f"{reading.path}: the file cannot be read: {why}") from None
    if "reason" in result:
        raise ValueError(f"{reading.path}: {result['reason']}")
    return read_record(Tensors, result)


def child_environment() -> dict[str, str]:
    """Return the variables of a process that imports what this one can import, on the CPU."""
    return with_this_path({**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""})
