"""Binary tensor data in HTTP bodies: the tail after a JSON header, and bodies that are one raw tensor."""

from collections.abc import Callable, Sequence
from operator import itemgetter

from naiad.core.datatype import DataType
from naiad.core.errors import UNKNOWN_ID, InferError, excerpt, invalid_argument
from naiad.core.model import ModelMetadata
from naiad.core.request import RequestHeader
from naiad.core.tensor import Buffer, Shape, TensorSpec, encode_bytes_elements
from naiad.protocol.json.infer.header import InputData


class TailLayout:
    """Cuts the binary tail after a known JSON header into input data."""

    __slots__ = ("cut", "data", "header", "parts", "request_id", "tail_bytes")

    def __init__(self, header: RequestHeader, request_id: str, data: Sequence[InputData]) -> None:
        self.header = header
        self.request_id = request_id
        self.data = data
        self.parts: list[slice] = []
        """The parts of the tail, in order of the inputs that have one."""
        position = 0
        for source in data:
            if source.tail_bytes is not None:
                self.parts.append(slice(position, position + source.tail_bytes))
                position += source.tail_bytes
        self.tail_bytes = position
        self.cut: Callable[[Buffer], Sequence[Buffer]] | None = None
        """Returns the same as `gather`, faster, if every input takes its data from the tail."""
        if len(self.parts) == len(data) > 1:
            self.cut = itemgetter(*self.parts)

    def gather(self, tail: Buffer) -> list[Buffer]:
        """Return one buffer per input: from the tail, from the JSON, or empty for shared memory."""
        parts = iter(self.parts)
        data: list[Buffer] = []
        for source in self.data:
            if source.tail_bytes is not None:
                data.append(tail[next(parts)])
            else:
                data.append(source.inline if source.inline is not None else b"")
        return data

    def wrong_size(self, tail_bytes: int) -> InferError:
        """Return the error for a tail that is shorter or longer than the JSON header specifies."""
        model_name = self.header.model_name
        if tail_bytes > self.tail_bytes:
            return invalid_argument(
                f"unexpected additional input data for model '{excerpt(model_name)}'{self._sizes(tail_bytes)}"
            )
        end = 0
        for spec, source in zip(self.header.inputs, self.data, strict=True):
            end += source.tail_bytes or 0
            if end > tail_bytes:
                missing = min(end - tail_bytes, source.tail_bytes or 0)
                return invalid_argument(
                    f"unexpected size for input '{excerpt(spec.name)}', expecting {missing} additional bytes "
                    f"for model '{excerpt(model_name)}'{self._sizes(tail_bytes)}"
                )
        raise AssertionError("the tail has the right size")

    def _sizes(self, tail_bytes: int) -> str:
        return (
            f"; got {tail_bytes} bytes after the JSON, expected {self.tail_bytes}, the sum of 'binary_data_size': "
            "correct it, the data, or Inference-Header-Content-Length"
        )


def decode_raw(
    model_name: str, model_version: str, body: Buffer, metadata: ModelMetadata, *, batching: bool
) -> tuple[RequestHeader, str, list[Buffer]]:
    """Return the request of a body that is the model's only input without JSON (header length 0).

    The shape is deduced from `metadata`: batch 1, and at most one free dimension. All outputs are sent in binary.
    Raises InferError(INVALID_ARG).
    """
    if len(metadata.inputs) != 1:
        # Triton: with the prefix of unnamed requests, as a raw body has no id.
        raise invalid_argument(
            f"[request id: {UNKNOWN_ID}] Raw request must only have 1 input (found 1) to be deduced but got "
            f"{len(metadata.inputs)} inputs in '{excerpt(model_name)}' model configuration"
        )
    spec = metadata.inputs[0]
    dims = spec.shape[1:] if batching else spec.shape
    shape, data = _deduce(spec, dims, body)
    header = RequestHeader(
        model_name=model_name,
        model_version=model_version,
        inputs=[TensorSpec(spec.name, spec.datatype, (1, *shape) if batching else shape)],
        binary_output_default=True,
    )
    return header, "", [data]


def _deduce(spec: TensorSpec, dims: Shape, body: Buffer) -> tuple[Shape, Buffer]:
    """Return shape (without batch) and tensor data of a raw body."""
    free = [position for position, dim in enumerate(dims) if dim < 0]
    if len(free) > 1:
        raise invalid_argument(
            f"The shape of the raw input '{excerpt(spec.name)}' can not be deduced because there are more than one "
            f"variable-sized dimension"
        )
    fixed = 1
    for dim in dims:
        fixed *= dim if dim >= 0 else 1
    if spec.datatype is DataType.BYTES:
        if fixed != 1:
            raise invalid_argument(
                f"For BYTES datatype raw input '{excerpt(spec.name)}', the model must have input shape [1]"
            )
        return tuple(1 for _ in dims), encode_bytes_elements([bytes(body)])
    if not free:
        return dims, body
    # A body that is not a multiple of the fixed part keeps its size and fails the engine's size check.
    row_bytes = fixed * spec.datatype.item_bytes
    free_dim = len(body) // row_bytes if row_bytes else 0
    return tuple(free_dim if dim < 0 else dim for dim in dims), body
