"""What an inference returns."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from naiad.core.response import InferResponse
from naiad.core.tensor import Array, Buffer, TensorSpec, to_array

if TYPE_CHECKING:
    from naiad.core.parameters import Parameters


class InferResult(Mapping[str, Array]):
    """The outputs of a response by name, as arrays: `result["OUTPUT0"]`.

    An array is a view on the received bytes, and read-only; BYTES become an object array of `bytes`. Each look-up
    makes a new array. An output in shared memory is not part of the response and raises InferError.
    """

    def __init__(self, request_id: str, response: InferResponse, fields: Iterable[tuple[bytes, bytes]] = ()) -> None:
        """`fields` are header fields of the response with lower-case names."""
        header = response.header
        self.id = request_id
        """The request id that the server has returned; "" for none."""
        self.model_name = header.model_name
        self.model_version = header.model_version
        self.parameters: Parameters = response.parameters
        self.specs: Sequence[TensorSpec] = header.outputs
        """Name, datatype and shape of each output."""
        self._fields = fields
        self._tensors: dict[str, tuple[TensorSpec, Buffer]] = {
            spec.name: (spec, data) for spec, data in zip(header.outputs, response.data, strict=True)
        }

    @property
    def headers(self) -> Mapping[str, str]:
        """Header fields of the response by lower-case name; over gRPC with the trailing metadata."""
        return {name.decode("latin-1"): value.decode("latin-1") for name, value in self._fields}

    def __getitem__(self, name: str) -> Array:
        """Return an output. Raises KeyError, and InferError when the data does not fit its shape."""
        return to_array(*self._tensors[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __repr__(self) -> str:
        outputs = ", ".join(f"{spec.name} {spec.datatype.value}{list(spec.shape)}" for spec in self.specs)
        return f"InferResult({self.model_name} {self.model_version}: {outputs})"
