"""Whether a response is an answer of its model at all: outputs, datatypes, shapes and sizes as its metadata says."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from naiad.core.errors import InferError
from naiad.core.tensor import Buffer, Shape, TensorSpec, to_array
from naiad.tools.perf.inputs.request_signature import Signature
from naiad.tools.perf.perf_exchange import Body
from naiad.tools.values.tensor import ModelTensor


@dataclass(frozen=True, slots=True)
class DeclaredOutputs:
    """The outputs of a model."""

    tensors: Mapping[str, ModelTensor]
    rows: int = 1
    """Of a request, where the model has a batch dimension."""
    is_decoupled: bool = True
    """A request may have any number of responses."""
    models: Sequence[str] = ()
    """The names of the model: that of its requests, and that of its metadata."""

    def check(self, requested: Sequence[str], body: Body, *, is_whole: bool, has_data: bool = True) -> str:
        """Return "" for right responses, otherwise what is wrong.

        `requested` are the outputs that the request named, none for all. `is_whole`: the body has all responses.
        Without `has_data` the data is elsewhere, in shared memory.
        """
        for specs, data in body:
            for spec, content in zip(specs, data, strict=True):
                wrong = self._check_output(spec, content if has_data else None)
                if wrong:
                    return wrong
        for specs, _ in body:
            names = [spec.name for spec in specs]
            if len(set(names)) < len(names):
                twice = next(name for name in names if names.count(name) > 1)
                return f"output '{twice}' is {names.count(twice)} times in a response"
        found = {spec.name for specs, _ in body for spec in specs}
        missing = [name for name in requested or self.tensors if name not in found]
        if not is_whole or (self.is_decoupled and not found and not body):
            return ""
        if missing:
            return (
                f"output '{missing[0]}' is missing; the response has {', '.join(map(repr, sorted(found))) or 'none'}"
            )
        return ""

    def _check_output(self, spec: TensorSpec, content: Buffer | None) -> str:
        declared = self.tensors.get(spec.name)
        if declared is None and self.tensors:
            return f"output '{spec.name}' is not one of the model's: {', '.join(map(repr, self.tensors))}"
        if declared is not None:
            if spec.datatype is not declared.datatype:
                return (
                    f"output '{spec.name}' has datatype {spec.datatype.value}, declared is {declared.datatype.value}"
                )
            expected = (self.rows, *declared.dims) if declared.is_batched else tuple(declared.dims)
            if not _is_compatible(spec.shape, expected):
                return f"output '{spec.name}' has shape {list(spec.shape)}, declared is {list(expected)}"
        if content is None:
            return ""
        try:
            to_array(spec, content)
        except InferError as error:
            return f"output '{spec.name}': {error.message}"
        return ""


def _is_compatible(shape: Shape, declared: Shape) -> bool:
    return len(shape) == len(declared) and all(
        want in (-1, got) and got >= 0 for got, want in zip(shape, declared, strict=True)
    )


def declared_outputs(
    signature: Signature, rows: int, models: Sequence[str], *, is_decoupled: bool
) -> DeclaredOutputs:
    """Return the outputs of a model, which may have several names, for requests of a number of rows."""
    return DeclaredOutputs(signature.outputs, rows, is_decoupled, tuple(dict.fromkeys(filter(None, models))))
