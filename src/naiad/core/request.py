"""An inference request: the header that clients repeat, and the data that differs between requests."""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from naiad.core.parameters import NO_PARAMETERS, ParameterValue
from naiad.core.tensor import Buffer, Shape, TensorSpec

if TYPE_CHECKING:
    from naiad.core.device_tensor import DevicePlace
    from naiad.core.response import InferResponse


MAX_LAYOUTS = 4096
"""Limit of the cached layouts of a model's headers."""


class ExecutionTimes:
    """The times of the execution of a request, in monotonic ns; 0 before it has ended."""

    __slots__ = (
        "compute_end_ns",
        "compute_start_ns",
        "exec_end_ns",
        "exec_start_ns",
        "free_ns",
        "is_open",
        "traceparent",
    )

    def __init__(self) -> None:
        self.exec_start_ns = 0
        self.compute_start_ns = 0
        self.compute_end_ns = 0
        self.exec_end_ns = 0
        self.free_ns = 0
        """Since when the instance had been free before the execution; 0 if it had not been."""
        self.is_open = False
        """Whether the response comes after the end of the execution."""
        self.traceparent = ""
        """The parent span for work of the model, as W3C Trace Context; empty for none."""


@dataclass(frozen=True, slots=True)
class SharedMemoryRegion:
    """The location of a tensor in a registered shared-memory region."""

    name: str
    offset: int
    byte_size: int


@dataclass(frozen=True, slots=True)
class RequestedOutput:
    """One output that the client requested, and its form."""

    name: str
    binary: bool = False
    """HTTP: send it in the binary tail. gRPC ignores it: its responses are always raw."""
    classification: int = 0
    """Top-k classes instead of the tensor; 0 for the tensor."""
    shared_memory: SharedMemoryRegion | None = None
    may_be_missing: bool = False
    """A response without this output is not an error: the requester decides (steps of ensembles)."""
    stays_on_device: bool = False
    """It may be a `DeviceTensor` in the response (steps of ensembles, outputs in CUDA shared memory)."""


class RequestHeader:
    """All parts of a request except its id and its tensor data.

    Clients send the same header again and again; decoders intern headers by their bytes, so that one header object
    and all values derived from it serve many requests. Immutable but for `admission` and `execution`, memos that
    belong to the engine.
    """

    __slots__ = (
        "admission",
        "binary_output_default",
        "execution",
        "inputs",
        "is_on_device",
        "is_plain",
        "json_form",
        "layout",
        "model_name",
        "model_version",
        "nan_is_null",
        "origin",
        "outputs",
        "parameters",
        "priority",
        "sequence_end",
        "sequence_id",
        "sequence_start",
        "shared_memory",
        "timeout_us",
        "wants_empty_final",
    )

    def __init__(  # noqa: PLR0913 - the fields of the protocol's header, keyword-only
        self,
        *,
        model_name: str,
        model_version: str = "",
        inputs: Sequence[TensorSpec] = (),
        outputs: Sequence[RequestedOutput] = (),
        parameters: Mapping[str, ParameterValue] = NO_PARAMETERS,
        priority: int = 0,
        timeout_us: int = 0,
        sequence_id: int | str = 0,
        sequence_start: bool = False,
        sequence_end: bool = False,
        binary_output_default: bool = False,
        wants_empty_final: bool = False,
        shared_memory: Mapping[str, SharedMemoryRegion] | None = None,
        has_device_inputs: bool = False,
        nan_is_null: bool = False,
        json_form: str = "",
    ) -> None:
        self.model_name = model_name
        self.model_version = model_version
        """As the client sent it; "" for the newest ready version."""
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        """Empty: every output of the model."""
        self.parameters = parameters
        """Custom parameters only; the reserved ones are fields here."""
        self.priority = priority
        self.timeout_us = timeout_us
        self.sequence_id = sequence_id
        self.sequence_start = sequence_start
        self.sequence_end = sequence_end
        self.nan_is_null = nan_is_null
        """Whether null stands for NaN in JSON, and for infinities in responses; otherwise they are written bare."""
        self.json_form = json_form
        """How generate writes outputs: empty for flat, or one of `protocol.shaped`."""
        self.binary_output_default = binary_output_default
        self.wants_empty_final = wants_empty_final
        """Streams: send the final response of a decoupled model even if it has no outputs."""
        self.shared_memory = shared_memory or {}
        """Input name to region, for inputs whose data is not in the message."""
        self.is_plain = not self.shared_memory and not any(
            output.classification or output.shared_memory is not None for output in self.outputs
        )
        """No tensor is in shared memory and no classes are requested."""
        self.is_on_device = has_device_inputs or any(output.stays_on_device for output in self.outputs)
        """An input may be a `DeviceTensor`, or an output: in steps of ensembles, and with CUDA shared memory."""
        self.admission: object | None = None
        self.execution: Any = None
        self.origin: RequestHeader | None = None
        """The decoded header of which this one is a changed copy; admitted with it, as it names the same tensors."""
        self.layout: RequestHeader | None = None
        """Another header with the same inputs and outputs, shared by all headers with equal execution."""

    def in_sequence(self, sequence_id: int | str, *, is_first: bool) -> "RequestHeader":
        """Return a copy for a request of a sequence, the first or a later one, and not its last."""
        copy = self._copy()
        copy.sequence_id = sequence_id
        copy.sequence_start = is_first
        copy.sequence_end = False
        copy.execution = None
        copy.layout = self.layout or self
        return copy

    def for_other_version(self) -> "RequestHeader":
        """Return a copy with memos of its own: two versions that shared them would derive them again and again."""
        copy = self._copy()
        copy.admission = copy.execution = copy.origin = copy.layout = None
        return copy

    def on_host(self) -> "RequestHeader":
        """Return a copy for a model that takes and returns no tensors of devices."""
        copy = self._copy()
        copy.outputs = tuple(replace(output, stays_on_device=False) for output in self.outputs)
        copy.is_on_device = False
        copy.execution = copy.layout = None
        return copy

    def on_device(self, staying: Set[str]) -> "RequestHeader":
        """Return a copy for a request with inputs on a device, or with these outputs there."""
        copy = self._copy()
        copy.outputs = tuple(
            replace(output, stays_on_device=True) if output.name in staying else output for output in self.outputs
        )
        copy.is_on_device = True
        copy.execution = copy.layout = None
        copy.origin = self.origin or self
        return copy

    def with_tensors(
        self, inputs: Sequence[TensorSpec], outputs: Sequence[RequestedOutput], layouts: "dict[object, RequestHeader]"
    ) -> "RequestHeader":
        """Return a copy for an execution with other tensors, all in buffers.

        `layouts` has one header for all that execute alike, though they have different lengths or sequences.
        """
        copy = self._copy()
        copy.inputs, copy.outputs = tuple(inputs), tuple(outputs)
        copy.shared_memory, copy.is_plain, copy.is_on_device = {}, True, False
        copy.admission = copy.execution = copy.origin = None
        if len(layouts) >= MAX_LAYOUTS:
            layouts.clear()
        key = (copy.inputs, tuple([output.name for output in copy.outputs]))
        copy.layout = layouts.get(key)
        if copy.layout is None:
            copy.layout = layouts[key] = RequestHeader(
                model_name=self.model_name, inputs=copy.inputs, outputs=copy.outputs
            )
        return copy

    def _copy(self) -> "RequestHeader":
        copy = RequestHeader.__new__(RequestHeader)
        for name in RequestHeader.__slots__:
            setattr(copy, name, getattr(self, name))
        return copy


class InferRequest:
    """One request in progress: a shared header, its own id and data, and the destination of its response."""

    __slots__ = (
        "arrival_ns",
        "batch_size",
        "cancelled",
        "context",
        "data",
        "deadline_ns",
        "destinations",
        "element_counts",
        "header",
        "id",
        "is_paused",
        "model",
        "on_response",
        "queue",
        "sequence",
        "shape_key",
        "times",
    )

    def __init__(
        self,
        header: RequestHeader,
        data: Sequence[Buffer],
        on_response: "Callable[[InferRequest, InferResponse], object]",
        *,
        id: str = "",  # noqa: A002 - the protocol's word
        arrival_ns: int = 0,
        context: object = None,
    ) -> None:
        self.header = header
        self.data = data
        """One buffer per input, in the order of `header.inputs`; see `header.is_on_device`."""
        self.id = id
        self.on_response = on_response
        """Called on the event loop for every response; the last one has `final` set, exactly once."""
        self.context = context
        """Belongs to the frontend: the HTTP context or call that waits for the response."""
        self.arrival_ns = arrival_ns
        """Monotonic time at which the request was complete."""
        self.deadline_ns = 0
        """Monotonic time after which the client no longer waits for the response; 0 for none."""
        self.cancelled = False
        self.element_counts: Sequence[int] | None = None
        """Number of elements of each BYTES input, if the frontend has counted them; otherwise -1."""
        self.destinations: Mapping[str, memoryview | DevicePlace] | None = None
        """Output name to writable memory, for outputs that an instance may write there itself.

        The data of such an output is then empty in its response. An instance may ignore it: outputs in the response
        are copied. All are on devices if the header `is_on_device`, otherwise all are in host memory.
        """
        self.is_paused = False
        """Decoupled models: the client does not read its responses.

        An instance that can wait emits no more until it is False again; otherwise the client may be disconnected. Set
        by the frontend, on the loop.
        """
        # Set by the engine on admission:
        self.batch_size = 1
        """Rows: the first dimension for batching models, otherwise 1."""
        self.shape_key: object = None
        """Requests share a batch only if these are equal (shapes of non-ragged inputs, set of inputs)."""
        self.model: Any = None
        """The served model version that admitted the request."""
        self.queue: Any = None
        """Belongs to the scheduler: the queue in which the request waits; None if it does not wait."""
        self.times: ExecutionTimes | None = None
        """Set by a component that needs the execution times of the request."""
        self.sequence: Any = None
        """Set by a sequence scheduler: the live sequence that the request belongs to."""

    @property
    def waits_for_client(self) -> bool:
        """Whether it is paused because of its client, for which the server waits only within a limit."""
        return self.is_paused

    @property
    def unread_bytes(self) -> int:
        """Bytes of its responses that its client has not taken yet; -1 if its transport does not know."""
        return -1

    @property
    def is_listening(self) -> bool:
        """Whether its responses are read although it is cancelled; False for a request of a client."""
        return False

    @property
    def call(self) -> Any:
        """The `ModelCall` that this request is, or that it is made for; None for a request of a client."""
        return None

    @property
    def has_begun(self) -> bool:
        """Whether it belongs to work that has begun, and has priority over new requests under overload."""
        return False

    @property
    def keeps_order(self) -> bool:
        """Whether its response waits for earlier ones, so that it must not overtake them."""
        return False

    def shape_of(self, index: int) -> Shape:
        """Return the shape of input number `index`."""
        return self.header.inputs[index].shape


def ignore_response(request: InferRequest, response: "InferResponse") -> None:
    """Ignore the responses of a request that no client has sent."""
