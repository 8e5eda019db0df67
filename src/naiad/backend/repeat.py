"""The repeat backend: a decoupled model that answers a request with each of its elements. For tests and studies.

As Triton's backend of this name: inputs IN (INT32 [-1]), DELAY (UINT32 [-1], milliseconds before each response) and
WAIT (UINT32 [1], milliseconds until `execute` returns); outputs OUT (INT32 [1], the element) and IDX (UINT32 [1], its
position). With a WAIT shorter than the delays the instance takes its next batch while it still answers. The last
response is followed by an empty final one. One thread sends the responses of all requests, each when it is due.
"""

import heapq
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import numpy as np

from naiad.backend.api import Backend, Instance, InstanceSpec, Model, ModelContext
from naiad.config import model_config_pb2
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.batch import Batch
from naiad.core.datatype import DataType
from naiad.core.errors import InferError, cause_of, internal, invalid_argument
from naiad.core.request import InferRequest
from naiad.core.response import InferResponse, ResponseHeader
from naiad.core.tensor import Buffer, TensorSpec
from naiad.telemetry.last_resort import report

_PAUSED_NS = 50_000_000
"""After this a request whose client did not take its responses is looked at again."""

Emit = Callable[[InferRequest, InferResponse], None]


class DelayedResponses:
    """Sends responses in the order in which they are due; requests that are due together take turns.

    Bounded by the requests in flight, of which each has one entry.
    """

    def __init__(self, thread_name: str) -> None:
        self._due: list[tuple[int, int, _Repetition, Emit]] = []
        self._count = 0
        self._changed = threading.Condition()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name=thread_name, daemon=True)
        self._thread.start()

    def begin(self, responses: "_Repetition", emit: Emit) -> None:
        """Begin to send `responses`; the first delay counts from now."""
        due_ns = time.monotonic_ns() + responses.next_delay_ns()
        with self._changed:
            self._push(due_ns, responses, emit)
            self._changed.notify()

    def close(self) -> None:
        """Send nothing more and end the thread."""
        with self._changed:
            self._is_closed = True
            self._due.clear()
            self._changed.notify()
        self._thread.join()

    def _push(self, due_ns: int, responses: "_Repetition", emit: Emit) -> None:
        # The number keeps turns, and keeps the heap from comparing responses.
        self._count += 1
        heapq.heappush(self._due, (due_ns, self._count, responses, emit))

    def _run(self) -> None:
        while True:
            with self._changed:
                entry = self._wait()
            if entry is None:
                return
            due_ns, _, responses, emit = entry
            if responses.request.is_paused and not responses.request.cancelled:
                with self._changed:
                    self._push(time.monotonic_ns() + _PAUSED_NS, responses, emit)
                continue
            self._send(due_ns, responses, emit)
            # A request must not live on while this thread waits for the next one.
            del entry, responses, emit

    def _send(self, due_ns: int, responses: "_Repetition", emit: Emit) -> None:
        try:
            response = responses.next_response()
            emit(responses.request, response)
            if not response.final:
                with self._changed:
                    self._push(due_ns + responses.next_delay_ns(), responses, emit)
        except BaseException as error:  # the other requests of this thread go on
            report("a response of backend 'repeat'", error)
            emit(responses.request, responses.failure(internal(cause_of(error))))

    def _wait(self) -> tuple[int, int, "_Repetition", Emit] | None:
        """Return what is due next, when it is due; None when closed."""
        while not self._is_closed:
            if not self._due:
                self._changed.wait()
                continue
            left_ns = self._due[0][0] - time.monotonic_ns()
            if left_ns <= 0:
                return heapq.heappop(self._due)
            self._changed.wait(left_ns / 1e9)
        return None


_INPUTS = {"IN": ("TYPE_INT32", -1), "DELAY": ("TYPE_UINT32", -1), "WAIT": ("TYPE_UINT32", 1)}
_OUTPUTS = {"OUT": ("TYPE_INT32", 1), "IDX": ("TYPE_UINT32", 1)}
_OUTPUT_SPECS = (TensorSpec("OUT", DataType.INT32, (1,)), TensorSpec("IDX", DataType.UINT32, (1,)))
_NS_PER_MS = 1_000_000
_pack_index = struct.Struct("<I").pack


class RepeatBackend(Backend):
    """Models without a model file."""

    name: ClassVar[str] = "repeat"

    def auto_complete(self, context: ModelContext) -> ModelConfig:
        """Fill in the tensors and the transaction policy."""
        config = ModelConfig()
        config.CopyFrom(context.config)
        if not config.input and not config.output:
            for name, (datatype, dim) in _INPUTS.items():
                config.input.add(name=name, data_type=model_config_pb2.DataType.Value(datatype), dims=[dim])
            for name, (datatype, dim) in _OUTPUTS.items():
                config.output.add(name=name, data_type=model_config_pb2.DataType.Value(datatype), dims=[dim])
        if not config.HasField("model_transaction_policy"):
            config.model_transaction_policy.decoupled = True
        return config

    def load(self, context: ModelContext) -> Model:
        """Check the configuration. Raises InferError(INVALID_ARG)."""
        config = context.config
        if not config.model_transaction_policy.decoupled:
            raise _wrong(config, "needs model_transaction_policy { decoupled: true }")
        if config.max_batch_size:
            raise _wrong(config, f"does not batch: set max_batch_size to 0, it is {config.max_batch_size}")
        _check_tensors(config, "input", config.input, _INPUTS)
        _check_tensors(config, "output", config.output, _OUTPUTS)
        return RepeatModel(context)


def _wrong(config: ModelConfig, what: str) -> InferError:
    return invalid_argument(f"model '{config.name}': the repeat backend {what}")


def _check_tensors(
    config: ModelConfig,
    kind: str,
    tensors: Sequence[model_config_pb2.ModelInput] | Sequence[model_config_pb2.ModelOutput],
    expected: Mapping[str, tuple[str, int]],
) -> None:
    found = {t.name: (model_config_pb2.DataType.Name(t.data_type), *t.dims) for t in tensors}
    if found != expected:
        wanted = ", ".join(f"{name} ({datatype} [{dim}])" for name, (datatype, dim) in expected.items())
        raise _wrong(config, f"has the {kind}s {wanted}; the model configuration says otherwise")


class RepeatModel(Model):
    """The response headers that its instances share."""

    def __init__(self, context: ModelContext) -> None:
        self.name = context.name
        self._version = str(context.version)
        self._headers: dict[tuple[int, ...], ResponseHeader] = {}

    def create_instance(self, spec: InstanceSpec) -> Instance:
        """Create an instance with an emitting thread of its own."""
        return RepeatInstance(self, spec.name)

    def response_header(self, positions: tuple[int, ...]) -> ResponseHeader:
        """Return the header of responses with the outputs at `positions`."""
        header = self._headers.get(positions)
        if header is None:
            specs = [_OUTPUT_SPECS[position] for position in positions]
            header = self._headers[positions] = ResponseHeader(self.name, self._version, specs)
        return header


class _Repetition:
    """A request that is being answered: yields each response and the delay before the one that follows."""

    __slots__ = ("_delays_ms", "_elements", "_header", "_next", "_positions", "request")

    def __init__(self, model: RepeatModel, request: InferRequest) -> None:
        """Raises InferError(INVALID_ARG) when elements and delays do not match."""
        tensors = dict(zip((spec.name for spec in request.header.inputs), request.data, strict=True))
        self._elements = tensors["IN"]
        self._delays_ms = np.frombuffer(tensors["DELAY"], "<u4")
        count = len(self._elements) // 4
        if len(self._delays_ms) != count:
            raise invalid_argument(
                f"expected IN and DELAY shape to match, got [{count}] and [{len(self._delays_ms)}]; give one delay "
                "for each element"
            )
        wanted = {output.name for output in request.header.outputs}
        self._positions = tuple(i for i, spec in enumerate(_OUTPUT_SPECS) if not wanted or spec.name in wanted)
        self._header = model.response_header(self._positions)
        self._next = 0
        self.request = request

    def next_delay_ns(self) -> int:
        """Return how long to wait before the next response; 0 for the completion."""
        if self._next < len(self._delays_ms):
            return int(self._delays_ms[self._next]) * _NS_PER_MS
        return 0

    def failure(self, error: InferError) -> InferResponse:
        """Return the final response with an error."""
        return InferResponse(self._header, error=error)

    def next_response(self) -> InferResponse:
        """Return the next response, of which the last is final and has no outputs."""
        number = self._next
        if number >= len(self._delays_ms) or self.request.cancelled:
            return InferResponse(self._header, final=True, empty_final=True)
        self._next = number + 1
        both: tuple[Buffer, Buffer] = (self._elements[4 * number : 4 * number + 4], _pack_index(number))
        return InferResponse(self._header, [both[position] for position in self._positions], final=False)


class RepeatInstance(Instance):
    """Parses requests on its own thread and has another thread answer them."""

    def __init__(self, model: RepeatModel, name: str) -> None:
        self._model = model
        self._decoupled_responses = DelayedResponses(f"{name} emits")
        self._closed = threading.Event()

    def execute(self, batch: Batch) -> Sequence[InferResponse]:
        """Begin to answer every request, and return after the longest WAIT."""
        emit = batch.emit
        if emit is None:
            raise invalid_argument(f"model '{self._model.name}': the repeat backend executes decoupled models only")
        batch.compute_start_ns = time.monotonic_ns()
        wait_ms = 0
        for request in batch.requests:
            try:
                repetition = _Repetition(self._model, request)
            except InferError as error:
                emit(request, InferResponse(self._model.response_header((0, 1)), error=error))
                continue
            wait_ms = max(wait_ms, _wait_ms(request))
            self._decoupled_responses.begin(repetition, emit)
        if wait_ms:
            self._closed.wait(wait_ms / 1000)
        batch.compute_end_ns = time.monotonic_ns()
        return ()

    def close(self) -> None:
        """End the emitting thread; what it has not sent is dropped."""
        self._closed.set()
        self._decoupled_responses.close()


def _wait_ms(request: InferRequest) -> int:
    for spec, data in zip(request.header.inputs, request.data, strict=True):
        if spec.name == "WAIT":
            return int.from_bytes(data[:4], "little")
    return 0
