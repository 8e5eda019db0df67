"""The extra tensors of a sequence model: controls, states, and filler rows of the batch."""

import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from naiad.config.execution_tensors import Control, control_type
from naiad.config.model_config_pb2 import DataType as ConfigDataType
from naiad.config.model_config_pb2 import ModelConfig, ModelSequenceBatching
from naiad.core.batch import Batch
from naiad.core.datatype import BY_CONFIG_NUMBER, DataType
from naiad.core.errors import excerpt, internal, invalid_argument, unsupported
from naiad.core.request import InferRequest, RequestedOutput, RequestHeader, ignore_response
from naiad.core.response import RESCHEDULE, InferResponse, ResponseHeader
from naiad.core.tensor import Buffer, Shape, TensorSpec, encode_bytes_elements, zeros

_FORMATS = {"int32_false_true": "<i", "fp32_false_true": "<f", "bool_false_true": "<?"}
_ID_FORMATS: dict[int, tuple[str, int]] = {
    ConfigDataType.TYPE_UINT64: ("<Q", (1 << 64) - 1),
    ConfigDataType.TYPE_INT64: ("<Q", (1 << 64) - 1),
    # Triton: the low 32 bits.
    ConfigDataType.TYPE_UINT32: ("<I", (1 << 32) - 1),
    ConfigDataType.TYPE_INT32: ("<I", (1 << 32) - 1),
}
_SPLIT_LIMIT = 4096
"""Limit of the cached values of a response header."""

State = tuple[tuple[Shape, ...], Sequence[Buffer]]
"""Shapes with batch dimension and the data, in the order of the configuration."""
ControlValue = Callable[[RequestHeader], bytes]


class _Split(NamedTuple):
    """The outputs of a response that are states, and the rest for the client."""

    shapes: tuple[Shape, ...]
    positions: Sequence[int]
    visible_header: ResponseHeader
    visible: Sequence[int] | None
    """Positions of the client's outputs; None for all."""


class SequenceTensors:
    """Extends the requests of a batch before its execution, and takes the states out of the responses.

    A request has the extended header and data only while it executes; then the client's are restored.
    """

    def __init__(self, config: ModelConfig, model_dir: Path) -> None:
        """Read initial states. Raises InferError for an unreadable state or an unsupported configuration."""
        batching = config.sequence_batching
        self._model_name = config.name
        self._batch_dims: Shape = (1,) if config.max_batch_size > 0 else ()
        self._specs: list[TensorSpec] = []
        self._values: list[ControlValue] = []
        self._absent: list[bytes] = []
        self._id_type: int = ConfigDataType.TYPE_INVALID
        for control_input in batching.control_input:
            if control_input.control:
                self._add_control(control_input.name, control_input.control[0])
        if batching.state and config.model_transaction_policy.decoupled:
            raise unsupported(
                f"model '{config.name}': 'state' of a decoupled model is not supported; remove 'state' or 'decoupled'"
            )
        self._state_inputs = [(state.input_name, BY_CONFIG_NUMBER[state.data_type]) for state in batching.state]
        self._state_outputs = tuple(state.output_name for state in batching.state)
        visible = {output.name for output in config.output}
        self._hidden = frozenset(name for name in self._state_outputs if name not in visible)
        self._initial = self._initial_state(batching.state, model_dir)
        self._layouts: dict[object, RequestHeader] = {}

    # --- from the configuration -------------------------------------------------------------------------------------

    def _add_control(self, name: str, control: Control) -> None:
        datatype = BY_CONFIG_NUMBER[control_type(control)]
        self._specs.append(TensorSpec(name, datatype, (*self._batch_dims, 1)))
        if control.kind == Control.CONTROL_SEQUENCE_CORRID:
            self._id_type = control.data_type
            self._values.append(_id_value(control.data_type))
            self._absent.append(zeros(self._specs[-1]))
            return
        false, true = _control_values(control)
        self._absent.append(false)
        if control.kind == Control.CONTROL_SEQUENCE_START:
            self._values.append(lambda header: true if header.sequence_start else false)
        elif control.kind == Control.CONTROL_SEQUENCE_END:
            self._values.append(lambda header: true if header.sequence_end else false)
        else:
            self._values.append(lambda header: true)

    def _initial_state(self, states: Sequence[ModelSequenceBatching.State], model_dir: Path) -> State:
        shapes: list[Shape] = []
        data: list[Buffer] = []
        for state in states:
            initial = state.initial_state[0] if state.initial_state else None
            # Triton: without an initial state -1 counts 1, and the memory is uninitialized; here it is zero.
            dims = tuple(max(1, dim) for dim in state.dims) if initial is None else tuple(initial.dims)
            spec = TensorSpec(state.input_name, BY_CONFIG_NUMBER[state.data_type], (*self._batch_dims, *dims))
            shapes.append(spec.shape)
            if initial is not None and initial.WhichOneof("state_data") == "data_file":
                data.append(_read_state(model_dir / "initial_state" / initial.data_file, spec, self._model_name))
            else:
                data.append(zeros(spec))
        return tuple(shapes), data

    # --- admission -------------------------------------------------------------------------------------------------

    def check(self, header: RequestHeader) -> None:
        """Raise InferError(INVALID_ARG) if the model cannot accept the type of a correlation id.

        The scheduler rejects a missing one.
        """
        if not header.sequence_id:
            return
        kind = ConfigDataType.Name(self._id_type)
        wants_text = self._id_type == ConfigDataType.TYPE_STRING
        has_text = isinstance(header.sequence_id, str)
        if self._id_type != ConfigDataType.TYPE_INVALID and wants_text is not has_text:
            raise invalid_argument(
                f"sequence id '{excerpt(str(header.sequence_id))}' is {'a string' if has_text else 'an integer'}, "
                "but model "
                f"'{self._model_name}' takes {'strings' if wants_text else 'integers'}: its control "
                f"CONTROL_SEQUENCE_CORRID is {kind}"
            )

    # --- execution -------------------------------------------------------------------------------------------------

    def prepare(self, batch: Batch) -> None:
        """Extend the requests of a batch, and fill the rows between them."""
        batch.begin_transform(self)
        for request in batch.requests:
            self._extend(request)
        slots = batch.slots
        if slots and slots[-1] + 1 != len(slots):
            filled = [self._null_request(batch.requests[0])] * (slots[-1] + 1)
            for slot, request in zip(slots, batch.requests, strict=True):
                filled[slot] = request
            batch.requests = filled

    def _extend(self, request: InferRequest) -> None:
        header = request.header
        state: State = self._initial
        if not header.sequence_start and request.sequence.state is not None:
            state = request.sequence.state
        shapes, buffers = state
        extended = header.execution
        if extended is None or extended[0] is not self or extended[1] != shapes:
            extended = header.execution = (self, shapes, self._extended_header(header, shapes))
        request.header = extended[2]
        request.data = [*request.data, *[value(header) for value in self._values], *buffers]

    def _extended_header(self, header: RequestHeader, shapes: tuple[Shape, ...]) -> RequestHeader:
        states = [
            TensorSpec(name, datatype, shape)
            for (name, datatype), shape in zip(self._state_inputs, shapes, strict=True)
        ]
        outputs = list(header.outputs)
        if outputs:
            asked = {output.name for output in outputs}
            outputs += [RequestedOutput(name) for name in self._state_outputs if name not in asked]
        return header.with_tensors((*header.inputs, *self._specs, *states), outputs, self._layouts)

    def _null_request(self, like: InferRequest) -> InferRequest:
        """Return a request of the same shapes with controls of an empty slot."""
        count = len(self._specs)
        header = like.header
        client_count = len(header.inputs) - count - len(self._state_inputs)
        data: list[Buffer] = [zeros(spec) for spec in header.inputs[:client_count]]
        data += self._absent
        data += [zeros(spec) for spec in header.inputs[client_count + count :]]
        null_header = RequestHeader(
            model_name=header.model_name,
            model_version=header.model_version,
            inputs=header.inputs,
            outputs=header.outputs,
        )
        null_header.layout = header.layout
        return InferRequest(null_header, data, ignore_response)

    # --- afterwards ------------------------------------------------------------------------------------------------

    def restore(self, batch: Batch) -> None:
        """Restore the client's headers and data, remove the filler rows; no effect the second time."""
        replaced = batch.end_transform(self)
        if not replaced:
            return
        slots = batch.slots
        if slots and len(slots) != len(batch.requests):
            batch.requests = [batch.requests[slot] for slot in slots]
        for request, (header, data) in zip(batch.requests, replaced, strict=True):
            request.header, request.data = header, data

    def settle(self, batch: Batch, responses: Sequence[InferResponse]) -> Sequence[InferResponse]:
        """Restore the requests of an executed batch, keep the states, return the responses for the clients."""
        slots = batch.slots
        if slots and len(responses) == len(batch.requests) != len(slots):
            responses = [responses[slot] for slot in slots]
        self.restore(batch)
        if not self._state_outputs or len(responses) != len(batch.requests):
            return responses
        return [self._settle(r, response) for r, response in zip(batch.requests, responses, strict=True)]

    def _settle(self, request: InferRequest, response: InferResponse) -> InferResponse:
        if response.error is not None or response is RESCHEDULE:
            return response
        header = response.header
        key = (self, request.header.outputs)
        split = header.memo.get(key)
        if not isinstance(split, _Split):
            split = self._split(header, request.header)
            if len(header.memo) < _SPLIT_LIMIT:
                header.memo[key] = split
        shapes, positions, visible_header, visible = split
        data = response.data
        # Copies: a view would keep the outputs of the whole batch alive.
        request.sequence.state = (shapes, [bytes(data[position]) for position in positions])
        if visible is None:
            return response
        return InferResponse(visible_header, [data[p] for p in visible], parameters=response.parameters)

    def _split(self, header: ResponseHeader, asked: RequestHeader) -> "_Split":
        """Find the states and the client's outputs."""
        names = [spec.name for spec in header.outputs]
        missing = [name for name in self._state_outputs if name not in names]
        if missing:
            raise internal(f"model '{self._model_name}' did not return its state '{missing[0]}'")
        positions = [names.index(name) for name in self._state_outputs]
        wanted = {output.name for output in asked.outputs}
        visible = [
            position
            for position, name in enumerate(names)
            if (name in wanted if wanted else name not in self._hidden)
        ]
        shapes = tuple(header.outputs[position].shape for position in positions)
        if len(visible) == len(names):
            return _Split(shapes, positions, header, None)
        specs = [header.outputs[position] for position in visible]
        return _Split(shapes, positions, ResponseHeader(header.model_name, header.model_version, specs), visible)


def _control_values(control: Control) -> tuple[bytes, bytes]:
    for name, layout in _FORMATS.items():
        values = getattr(control, name)
        if values:
            return struct.pack(layout, values[0]), struct.pack(layout, values[1])
    raise invalid_argument(f"sequence control {Control.Kind.Name(control.kind)} has no values")


def _id_value(datatype: int) -> ControlValue:
    if datatype == ConfigDataType.TYPE_STRING:
        return lambda header: encode_bytes_elements([str(header.sequence_id).encode()])
    layout, mask = _ID_FORMATS[datatype]
    pack = struct.Struct(layout).pack
    return lambda header: pack(header.sequence_id & mask)  # type: ignore[operator]  # checked on admission


def _read_state(path: Path, spec: TensorSpec, model: str) -> bytes:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise invalid_argument(
            f"model '{model}': the initial state of '{spec.name}' cannot be read from {path}: {error.strerror}"
        ) from error
    if spec.datatype is not DataType.BYTES and len(data) != spec.byte_size:
        raise invalid_argument(
            f"model '{model}': the initial state of '{spec.name}' in {path} has {len(data)} bytes, expected "
            f"{spec.byte_size} for {spec.datatype.value} {list(spec.shape)}"
        )
    return data
