"""Checks the responses of other servers: what clients get has the tensors and the sizes that its header says.

The other server may run another model by now, or be another program. A local backend's outputs are checked where they
are cut into responses; here that is done once for each header, and by the sizes of the data for each response.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.datatype import DataType
from naiad.core.errors import InferError, internal
from naiad.core.request import InferRequest
from naiad.core.response import InferResponse, ResponseHeader
from naiad.core.slices import finish
from naiad.core.tensor import Buffer, count_bytes_elements

if TYPE_CHECKING:
    from naiad.core.tensor import TensorSpec

_HEADER_LIMIT = 1024
"""Limit of the cached headers."""
_COUNTED_BYTES = 1 << 20
"""The elements of larger strings are not counted: it would keep the event loop."""


class RemoteResponses:
    """The responses that one version may have."""

    def __init__(self, name: str, version: str, config: ModelConfig) -> None:
        self._name, self._version = name, version
        self._is_batching = config.max_batch_size > 0
        self._is_decoupled = config.model_transaction_policy.decoupled
        self._outputs = {each.name: each for each in config.output}
        self._headers: dict[tuple[TensorSpec, ...], tuple[ResponseHeader, frozenset[str], Sequence[int]]] = {}

    def header(self, request: InferRequest, response: InferResponse) -> ResponseHeader:
        """Return the header for clients, made once. Raises InferError(INTERNAL) for a response that does not fit."""
        specs = response.header.outputs
        known = self._headers.get(specs)
        if known is None:
            known = self._learn(specs)
        header, names, sizes = known
        wanted = {each.name for each in request.header.outputs} or self._outputs.keys()
        # A decoupled model may answer some of the outputs, and any number of rows, with each response.
        if not names <= wanted if self._is_decoupled else names != wanted:
            raise _wrong(f"the response has the outputs {_list(names)}; expected {_list(wanted)}")
        if self._is_batching and not self._is_decoupled and specs and specs[0].shape[0] != request.batch_size:
            raise _wrong(f"the response has {specs[0].shape[0]} rows; expected {request.batch_size}")
        if len(response.data) != len(specs):
            raise _wrong(f"the response has data for {len(response.data)} of {len(specs)} outputs")
        for spec, data, size in zip(specs, response.data, sizes, strict=True):
            if spec.datatype is DataType.BYTES:
                _check_strings(spec, data)
            elif len(data) != size:
                raise _wrong(f"output '{spec.name}' {list(spec.shape)} has {len(data)} bytes; expected {size}")
        return header

    def _learn(self, specs: "tuple[TensorSpec, ...]") -> tuple[ResponseHeader, frozenset[str], Sequence[int]]:
        names = frozenset(each.name for each in specs)
        rows = {each.shape[:1] for each in specs}
        if len(names) != len(specs) or (self._is_batching and len(rows) > 1) or not all(map(self._fits, specs)):
            shown = ", ".join(f"'{each.name}' {each.datatype.value} {list(each.shape)}" for each in specs)
            raise _wrong(f"the response has {shown}, which does not fit the configuration")
        if len(self._headers) >= _HEADER_LIMIT:
            self._headers.clear()
        header = ResponseHeader(self._name, self._version, specs)
        found = self._headers[specs] = header, names, [each.byte_size for each in specs]
        return found

    def _fits(self, spec: "TensorSpec") -> bool:
        known = self._outputs.get(spec.name)
        if known is None or spec.datatype.config_number != known.data_type:
            return False
        dims = spec.shape[1:] if self._is_batching else spec.shape
        return (
            len(spec.shape) == len(known.dims) + self._is_batching
            and all(each >= 0 for each in spec.shape)
            and all(wanted in (-1, size) for wanted, size in zip(known.dims, dims, strict=True))
        )


def _check_strings(spec: "TensorSpec", data: Buffer) -> None:
    if len(data) > _COUNTED_BYTES:
        return
    try:
        count = finish(count_bytes_elements(data, f"for output '{spec.name}'"))
    except InferError as error:
        raise _wrong(error.message) from None
    if count != spec.element_count:
        raise _wrong(f"output '{spec.name}' {list(spec.shape)} has {count} strings; expected {spec.element_count}")


def _list(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in sorted(names)) or "none"


def _wrong(what: str) -> InferError:
    return internal(f"{what}; has the model changed there?")
