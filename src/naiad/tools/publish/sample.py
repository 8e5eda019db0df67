"""A sample request: inputs of a model, and what it should answer."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from naiad.core.datatype import DataType
from naiad.core.errors import excerpt
from naiad.core.model import ModelMetadata
from naiad.core.tensor import Array, TensorSpec

Values: TypeAlias = Mapping[str, Any]
"""Arrays or nested lists by the name of the tensor; shapes include the batch dimension."""


class SampleError(ValueError):
    """A sample cannot be read or does not fit, or the answer is another one; the message names the tensor."""


@dataclass(frozen=True, slots=True)
class TrialSample:
    """A request, and its expected answer if there is one."""

    inputs: Values
    expected: Values | None = None
    tolerance: float = 1e-4
    """Relative to each value, and to the greatest value of the output, at most 1; for floating-point outputs. Other
    outputs must be equal."""

    def tensors(self, metadata: ModelMetadata) -> dict[str, Array]:
        """Return the inputs as arrays of the datatypes of a model. Raises SampleError."""
        known = {spec.name: spec for spec in metadata.inputs}
        unknown = sorted(self.inputs.keys() - known.keys())
        if unknown:
            raise SampleError(
                f"the sample has input '{excerpt(unknown[0])}', which model '{metadata.name}' does not have; "
                f"its inputs are {', '.join(known)}"
            )
        return {name: _array(known[name], values) for name, values in self.inputs.items()}

    def check(self, outputs: Mapping[str, Array]) -> None:
        """Compare an answer with the expected one. Raises SampleError that names the output and its difference."""
        for name, values in (self.expected or {}).items():
            if name not in outputs:
                raise SampleError(f"the answer has no output '{excerpt(name)}', only {', '.join(outputs)}")
            _compare(name, outputs[name], values, self.tolerance)


def read_sample(source: "TrialSample | Values | str | Path") -> TrialSample:
    """Return a sample: of values by input, or of a file, `.json` or `.npz`.

    JSON is a request of KServe v2 (`{"inputs": [{"name", "shape", "datatype", "data"}]}`) or has values by input
    (`{"x": [[1, 2]]}`). Raises SampleError.
    """
    if isinstance(source, TrialSample):
        return source
    if isinstance(source, Mapping):
        return TrialSample(source)
    return TrialSample(read_values(source))


def read_values(source: "Values | str | Path", kind: str = "inputs") -> Values:
    """Return values by tensor of a mapping or a file; `kind` is `inputs` or `outputs`. Raises SampleError."""
    if isinstance(source, Mapping):
        return source
    path = Path(source)
    try:
        if path.suffix == ".npz":
            with np.load(path) as arrays:
                return dict(arrays)
        document = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise SampleError(f"the sample {path} cannot be read: {error}; expected a .json or .npz file") from error
    if not isinstance(document, dict) or not document:
        raise SampleError(f"the sample {path} is not an object with inputs; expected values by name of the input")
    tensors = document.get(kind)
    if isinstance(tensors, list) and all(isinstance(each, dict) and "name" in each for each in tensors):
        return {each["name"]: _of_request(each, path) for each in tensors}
    return document


def _of_request(tensor: Mapping[str, Any], path: Path) -> Any:
    if "data" not in tensor:
        raise SampleError(f"tensor '{excerpt(str(tensor['name']))}' of the sample {path} has no 'data'")
    shape = tensor.get("shape")
    values = np.asarray(tensor["data"], dtype=object if tensor.get("datatype") == "BYTES" else None)
    try:
        return values if shape is None else values.reshape(shape)
    except (ValueError, TypeError):
        raise SampleError(
            f"tensor '{excerpt(str(tensor['name']))}' of the sample {path} has {values.size} values, "
            f"which do not fit its shape {shape}"
        ) from None


def _array(spec: TensorSpec, values: Any) -> Array:
    try:
        if spec.datatype is DataType.BYTES:
            return np.asarray(values, dtype=object)
        given = np.asarray(values)
        with np.errstate(over="ignore", invalid="ignore"):
            array = given.astype(spec.datatype.numpy)
    except (ValueError, TypeError, OverflowError) as error:
        raise SampleError(f"input '{spec.name}' of the sample is no {spec.datatype.value} tensor: {error}") from None
    is_float = array.dtype.kind not in "iub"
    if not (np.isinf(array) <= np.isinf(given) if is_float else array == given).all():
        raise SampleError(f"input '{spec.name}' of the sample has a value that {spec.datatype.value} does not have")
    return array


def _compare(name: str, found: Array, expected: Any, tolerance: float) -> None:
    wanted = np.asarray(expected, dtype=object if found.dtype == object else None)
    if wanted.shape != found.shape:
        raise SampleError(f"output '{name}' has shape {_shape(found.shape)}, expected {_shape(wanted.shape)}")
    if found.dtype == object:
        if [*map(_bytes, found.ravel())] != [*map(_bytes, wanted.ravel())]:
            raise SampleError(f"output '{name}' differs from the expected texts")
        return
    is_float = found.dtype.kind not in "iub"
    limit = tolerance if is_float else 0.0
    if not (_are_close(found, wanted, limit) if is_float else np.array_equal(found, wanted)):
        difference = np.max(np.abs(found.astype(np.float64) - wanted.astype(np.float64)))
        raise SampleError(
            f"output '{name}' differs from the expected values by up to {difference:.3g}; the tolerance is {limit:g}"
        )


def _are_close(found: Array, wanted: Array, tolerance: float) -> bool:
    """Compare with an absolute limit that outputs of small numbers do not fall below."""
    one, two = found.astype(np.float64), wanted.astype(np.float64)
    greatest = float(np.abs(two).max(initial=0.0, where=np.isfinite(two)))
    absolute = tolerance * min(1.0, greatest) if greatest else tolerance
    return bool(np.allclose(one, two, rtol=tolerance, atol=absolute, equal_nan=True))


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")


def _shape(shape: Sequence[int]) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"
