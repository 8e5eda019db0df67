"""What samples and runs of a model say of its tensors, where the file of the model does not."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from naiad.core.datatype import BY_NAME, DataType, conversion_hint, from_numpy
from naiad.core.tensor import Array, Shape, TensorSpec
from naiad.tools.optimize.optimize_source import Samples

Call = Callable[[Mapping[str, Array]], Mapping[str, Array]]
"""A model: arrays by name of input to arrays by name of output."""
_EXAMPLES = 4
_TENSOR = re.compile(r"(?P<name>.+):(?P<datatype>\w+):(?P<shape>(-?\d+(,-?\d+)*)?)")


@dataclass(frozen=True, slots=True)
class ObservedInputs:
    """The inputs as samples have them, without the batch dimension, and samples of different shapes."""

    inputs: tuple[TensorSpec, ...]
    examples: Sequence[Mapping[str, Array]]


@dataclass(frozen=True, slots=True)
class Outputs:
    """What runs have shown."""

    specs: tuple[TensorSpec, ...]
    rows: int | None
    """First dimension of all tensors: -1 for any number of rows, 1 for a single one; None without batch dimension."""


def parse_tensor(text: str) -> TensorSpec:
    """Return the tensor of `NAME:DATATYPE:SHAPE`, for example `x:FP32:-1,3,224,224`. Raises ValueError."""
    match = _TENSOR.fullmatch(text.replace(" ", ""))
    datatype = BY_NAME.get(match["datatype"].upper()) if match else None
    if match is None or datatype is None:
        raise ValueError(
            f"tensor '{text}': expected NAME:DATATYPE:SHAPE, for example x:FP32:-1,3,224,224; the datatype is one of "
            f"{', '.join(BY_NAME)}, and -1 is a dimension that varies"
        )
    shape = tuple(int(dim) for dim in match["shape"].split(",") if dim)
    if any(dim < -1 or dim == 0 for dim in shape):
        raise ValueError(f"tensor '{text}': dimensions are positive, or -1 for one that varies")
    return TensorSpec(match["name"], datatype, shape)


def observe(samples: Samples) -> ObservedInputs:
    """Read all samples. Raises ValueError if there are none, or an input changes its rank or datatype."""
    known: dict[str, TensorSpec] = {}
    examples: dict[tuple[Shape, ...], Mapping[str, Array]] = {}
    for index, sample in enumerate(samples):
        for name, array in sample.items():
            spec = TensorSpec(name, _datatype(f"sample {index}, input '{name}'", array), array.shape)
            known[name] = _merged(known.get(name, spec), spec, f"sample {index}, input '{name}'")
        shapes = tuple(array.shape for array in sample.values())
        if len(examples) < _EXAMPLES:
            examples.setdefault(shapes, sample)
    if not known:
        raise ValueError("the data has no samples")
    return ObservedInputs(tuple(known.values()), list(examples.values()))


def run_examples(call: Call, examples: Iterable[Mapping[str, Array]], has_batch: bool | None) -> Outputs:
    """Run a model on samples, and return its outputs; with `has_batch` None, find out whether it takes rows.

    Raises ValueError if the model fails, answers nothing, or has no batch dimension although `has_batch` says so.
    """
    samples = list(examples)
    failures: dict[str, str] = {}
    for rows in (-1, 1, None):
        if has_batch in (None, rows is not None):
            try:
                return Outputs(_run(call, samples, rows), rows)
            except ValueError as error:
                reason = str(error)
                failures[_ROWS[rows]] = "the same" if reason in failures.values() else reason
    tried = "; ".join(f"{way}: {reason}" for way, reason in failures.items())
    found = ", ".join(f"'{name}' {array.dtype} {list(array.shape)}" for name, array in samples[0].items())
    raise ValueError(f"the model does not answer the samples; {tried}; the first sample is {found}")


_ROWS: Mapping[int | None, str] = {
    -1: "with rows of samples",
    1: "with one sample as a row",
    None: "without a batch dimension",
}


def _run(call: Call, samples: Sequence[Mapping[str, Array]], rows: int | None) -> tuple[TensorSpec, ...]:
    found: dict[str, TensorSpec] = {}
    for sample in samples:
        for count in {-1: (2, 1), 1: (1,), None: (0,)}[rows]:
            inputs = {name: np.stack([array] * count) if count else array for name, array in sample.items()}
            try:
                answer = call(inputs)
            except Exception as error:  # frameworks raise all kinds of exceptions
                raise ValueError(_reason(error)) from error
            for name, array in answer.items():
                if count and array.shape[:1] != (count,):
                    raise ValueError(f"output '{name}' has the shape {list(array.shape)} for {count} rows")
                shape = (rows or 0, *array.shape[1:]) if count else array.shape
                spec = TensorSpec(name, _datatype(f"output '{name}'", array), shape)
                found[name] = _merged(found.get(name, spec), spec, f"output '{name}'")
    if not found:
        raise ValueError("it returns nothing")
    return tuple(found.values())


def _reason(error: Exception) -> str:
    """Return class and message; the message of a TorchScript error is the last line of its tracebacks."""
    name, message = type(error).__name__, str(error).strip()
    if "Traceback" in message:
        message = message.splitlines()[-1].removeprefix(f"{name}: ")
    return f"{name}: {' '.join(message.split())[:300]}"


def _merged(known: TensorSpec, new: TensorSpec, where: str) -> TensorSpec:
    """Return a tensor with -1 for the dimensions that differ."""
    if len(known.shape) != len(new.shape):
        raise ValueError(f"{where}: expected {len(known.shape)} axes as before, got {len(new.shape)}")
    if known.datatype is not new.datatype:
        raise ValueError(f"{where}: expected {known.datatype.value} as before, got {new.datatype.value}")
    shape = tuple(old if old == size else -1 for old, size in zip(known.shape, new.shape, strict=True))
    return TensorSpec(known.name, known.datatype, shape)


def _datatype(where: str, array: Array) -> DataType:
    found = from_numpy(array.dtype)
    if found is None:
        hint = conversion_hint(array.dtype)
        raise ValueError(f"{where}: datatype {array.dtype} has no counterpart in a tensor of a server: {hint}")
    return found
