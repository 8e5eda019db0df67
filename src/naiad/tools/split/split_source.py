"""What a split needs of a model, one class a format (`SplitSource`); the runs of models: times, differences."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from zipfile import BadZipFile

import numpy as np

from naiad.core.errors import InferError, invalid_argument

Array = np.ndarray[Any, Any]
Feeds = Mapping[str, Array]

_RUNS, _LEAST_RUNS, _RUNS_S = 30, 3, 3.0


class SplitSession(Protocol):
    """A model or a stage, loaded for the CPU."""

    threads: int

    def run(self, feeds: Feeds) -> dict[str, Any]:
        """Return all outputs by name; `feeds` may have more values than the inputs. Raises InferError."""


@dataclass(frozen=True, slots=True)
class StageModel:
    """One stage, before it is written."""

    model: Any
    """An ONNX model or a module of PyTorch."""
    node_count: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    parameter_bytes: int


@dataclass(frozen=True, slots=True)
class Stage:
    """One written stage."""

    node_count: int
    parameter_bytes: int
    inputs: Sequence[str]
    outputs: Sequence[str]
    session: SplitSession


class SplitSource(Protocol):
    """A model to split."""

    backend: str
    """Of the stages."""
    threads_parameter: str
    """Name of the backend's parameter for the threads of an instance."""

    @property
    def whole(self) -> SplitSession:
        """The model, loaded."""

    feeds: Feeds
    """The inputs that the model and its stages run on."""

    @property
    def inputs(self) -> Sequence[str]:
        """Names of the inputs."""

    @property
    def outputs(self) -> Sequence[str]:
        """Names of the outputs."""

    node_ms: Sequence[float]
    parameter_bytes: Sequence[int]
    """Of each node; shared parameters count at their first node."""
    crossing: Sequence[Sequence[str]]
    """The values that cross a cut before each node; inputs of the model are not included."""
    sizes: Mapping[str, int]
    """Bytes of the values that an ensemble can pass."""

    def write(self, cuts: Sequence[int], directory: Path, name: str) -> Sequence[Stage]:
        """Write the stages between the cuts as models `NAME_stage0`, ... in `directory`. Raises InferError."""


def fastest_ms(sessions: Sequence[SplitSession], feeds: Feeds) -> list[float]:
    """Return the time of the fastest run of each session: other load of the machine only adds to it.

    The sessions take turns, so that other load meets all of them. With one thread the time is that on the core.
    """
    clock = time.process_time if sessions[0].threads == 1 else time.perf_counter
    times_s: list[list[float]] = [[] for _ in sessions]
    end_s = time.monotonic() + _RUNS_S
    while len(times_s[0]) < _LEAST_RUNS or (len(times_s[0]) < _RUNS and time.monotonic() < end_s):
        for session, own in zip(sessions, times_s, strict=True):
            start_s = clock()
            session.run(feeds)
            own.append(clock() - start_s)
    return [min(own) * 1e3 for own in times_s]


def read_feeds(path: Path, inputs: Sequence[str]) -> dict[str, Array]:
    """Return the inputs from a `.npz` file. Raises InferError(INVALID_ARG) for names other than `inputs`."""
    feeds = _read(path)
    unknown = feeds.keys() - {*inputs}
    if unknown:
        raise invalid_argument(f"{path}: the model has no input '{min(unknown)}', only {', '.join(inputs)}")
    missing = [name for name in inputs if name not in feeds]
    if missing:
        raise invalid_argument(f"{path} has no input '{missing[0]}'; the model needs {', '.join(inputs)}")
    return feeds


def check_feed(path: Path, name: str, array: Array, kind: str, dims: Sequence[Any], *, has_datatype: bool) -> None:
    """Raise InferError(INVALID_ARG) unless an input of a file has the datatype and the fixed dimensions."""
    fits = len(array.shape) == len(dims) and all(
        not isinstance(size, int) or size == own for size, own in zip(dims, array.shape, strict=True)
    )
    if not fits or not has_datatype:
        raise invalid_argument(
            f"{path}: input '{name}' is {array.dtype} {list(array.shape)}, the model expects {kind} {list(dims)}"
        )


def _read(path: Path) -> dict[str, Array]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except OSError as error:
        raise invalid_argument(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, TypeError, EOFError, BadZipFile) as error:
        raise invalid_argument(f"{path} is not a .npz file with the inputs by name (numpy.savez): {error}") from error


def rows_are_independent(stages: Sequence[SplitSession], feeds: Feeds, crossing: Sequence[str]) -> bool:
    """Return whether stages can batch: all values between them have a row for each row of the inputs, and other rows
    behind these do not change it.
    """
    if any(not array.shape for array in feeds.values()):
        return False
    # In the opposite order along all axes but the first: other values, which are as valid.
    doubled = {
        name: np.concatenate([array, np.flip(array, axis=tuple(range(1, array.ndim)))])
        for name, array in feeds.items()
    }
    try:
        single, double = run_stages(stages, feeds), run_stages(stages, doubled)
    except InferError:
        return False
    rows = {array.shape[0] for array in feeds.values()}
    for name in crossing:
        shape = single[name].shape
        if {*shape[:1]} != rows or double[name].shape != (2 * shape[0], *shape[1:]):
            return False
        if not difference(single[name], double[name][: shape[0]])[2]:
            return False
    return True


def run_stages(stages: Sequence[SplitSession], feeds: Feeds) -> dict[str, Any]:
    """Return all values between and after the stages. Raises InferError."""
    values: dict[str, Any] = dict(feeds)
    for stage in stages:
        values.update(stage.run(values))
    return values


def difference(whole: Array, staged: Array) -> tuple[float, float, bool]:
    """Return the largest absolute and relative difference of two outputs, and whether they count as equal.

    A cut changes which nodes are merged, and so the rounding: floats may differ by 1e-4 of the largest value (float16
    and bfloat16: 1e-2, float64: 1e-9). All other datatypes must be equal.
    """
    if whole.shape != staged.shape or whole.dtype != staged.dtype:
        return np.inf, np.inf, False
    if whole.dtype.kind not in "fV" or not whole.size:
        return 0.0, 0.0, bool(np.array_equal(whole, staged))
    finite = np.isfinite(whole)
    if not np.array_equal(finite, np.isfinite(staged)):
        return np.inf, np.inf, False
    if not np.array_equal(np.nan_to_num(whole[~finite]), np.nan_to_num(staged[~finite])):
        return np.inf, np.inf, False
    a, b = whole[finite].astype(np.float64), staged[finite].astype(np.float64)
    if not a.size:
        return 0.0, 0.0, True
    apart = float(np.abs(a - b).max())
    ratio = apart / max(float(np.abs(a).max()), 1e-30)
    return apart, ratio, ratio <= {2: 1e-2, 4: 1e-4, 8: 1e-9}[whole.dtype.itemsize]
