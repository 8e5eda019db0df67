"""The gRPC services over the engine: `inference.GRPCInferenceService`, and gRPC's own for health and reflection."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from naiad.core.errors import InferError, excerpt, internal, unsupported
from naiad.core.request import InferRequest
from naiad.core.response import InferResponse
from naiad.core.tensor import Buffer
from naiad.engine.engine import Engine
from naiad.engine.on_demand.held_requests import ColdModelError
from naiad.frontend import failed_requests
from naiad.frontend.cold_models import hold_call
from naiad.frontend.context import CancelReason, GrpcCall, encoding_error, version_of
from naiad.frontend.control.control import ControlCalls
from naiad.frontend.grpc.compression import GrpcCompression
from naiad.frontend.grpc.control import control_handlers
from naiad.frontend.grpc.health_watch import HealthWatch, HealthWatches
from naiad.frontend.grpc.reflection import Reflections, ReflectionStream
from naiad.frontend.grpc.stream_request import Prepared, prepare
from naiad.frontend.header_forwarding import HeaderForwarding, TraceFields, fields_of_call
from naiad.frontend.long_work.slice_runner import SliceJob
from naiad.operations.inference import INFER, STREAM_INFER
from naiad.operations.models import HEALTH_WATCH, REFLECTION, REFLECTION_ALPHA, decode_health_check, encode_health
from naiad.operations.operation import AnyOperation, MayBringFiles, by_grpc_path, grpc_path
from naiad.operations.table import OPERATIONS
from naiad.protocol.grpc import control as control_grpc
from naiad.protocol.grpc.infer import InferRequestDecoder, encode_response, identify, read_beginning
from naiad.protocol.grpc.walk import SHORT_BYTES

if TYPE_CHECKING:
    from naiad.frontend.grpc.ended_stream import EndedStream
    from naiad.frontend.grpc.stream import InferStream

_log = logging.getLogger(__name__)
_DECOUPLED = "ModelInfer RPC doesn't support models with decoupled transaction policy"

_MODEL_INFER = grpc_path(INFER)
_MODEL_STREAM_INFER = grpc_path(STREAM_INFER)
_HEALTH_WATCH = grpc_path(HEALTH_WATCH)

_ServiceStream: TypeAlias = "InferStream | EndedStream | HealthWatch | ReflectionStream"


class InferenceGrpcService:
    """Handles gRPC calls; one per event loop. Implements `frontend.context.GrpcService`."""

    protocol = "GRPC"  # for traces
    transport = "grpc"  # for recordings

    def __init__(
        self,
        engine: Engine,
        forwarding: HeaderForwarding | None = None,
        compression: GrpcCompression | None = None,
        calls: ControlCalls | None = None,
        may_bring_files: MayBringFiles = lambda: False,
        operations: Sequence[AnyOperation] = OPERATIONS,
    ) -> None:
        """`calls` carries out control operations, and its runner decodes large messages."""
        self._engine = engine
        self._inference = engine.inference
        calls = calls or ControlCalls(engine)
        self._runner = calls.runner
        self._compression = compression
        self._forwarding = forwarding
        self._decoder = InferRequestDecoder(engine.inference.request_limits)
        self._decode = self._decoder.decode
        self.control_delay_s = 0.0
        """Delay of calls other than inference (Triton: a test hook)."""
        self._controls = control_handlers(operations, calls, may_bring_files)
        watches = HealthWatches(lambda: encode_health(engine.views.is_ready()), decode_health_check)
        reflections = Reflections(list(by_grpc_path(operations)))
        self._open_stream: Mapping[str, Callable[[GrpcCall], _ServiceStream]] = {
            _MODEL_STREAM_INFER: self._open_inferences,
            _HEALTH_WATCH: watches.open,
            grpc_path(REFLECTION): reflections.open,
            grpc_path(REFLECTION_ALPHA): reflections.open,
        }
        self._methods = frozenset((_MODEL_INFER, *self._open_stream, *self._controls))

    # --- called by the transport -----------------------------------------------------------------------------

    def unary(self, call: GrpcCall, message: Buffer) -> None:
        """Handle a complete unary call; its response may follow later."""
        # hot: every ModelInfer
        try:
            if call.path == _MODEL_INFER:
                self._infer(call, message)
            elif self.control_delay_s:
                self._control_later(call, bytes(message))
            else:
                self._control(call, message)
        except ColdModelError as cold:
            if call.path == _MODEL_INFER:
                timeout_us = self._decode(message)[0].timeout_us
                self._hold(call, len(message), cold, partial(self._infer, call, message), timeout_us)
            else:
                self._hold(call, len(message), cold, partial(self._control, call, message))
        except Exception:
            self._fail(call)

    def _hold(
        self,
        call: GrpcCall,
        size_bytes: int,
        cold: ColdModelError,
        handle: Callable[[], object],
        timeout_us: int = 0,
    ) -> None:
        """Hold a call until its model is loaded, for the timeout of its request at most."""

        def act() -> None:
            try:
                handle()
            except ColdModelError as again:  # it was evicted meanwhile
                self._hold(call, size_bytes, again, handle, timeout_us)

        hold_call(call, size_bytes, cold, act, timeout_us)

    def _fail(self, call: GrpcCall) -> None:
        """End a call whose handler has raised: a defect fails one call, not the connection."""
        _log.exception("gRPC call %s failed", call.path)
        failed_requests.finish(call, internal(f"internal error in {excerpt(call.path)}; see the server log"))

    def rejection(self, path: str) -> InferError | None:
        """Return why calls to `path` are rejected before any message is read; None if they are served."""
        return None if path in self._methods else control_grpc.refusal(path)

    def message_began(self, call: GrpcCall, beginning: Buffer) -> None:
        """Finish a call of ModelInfer for an unknown model before its tensors are buffered."""
        known = read_beginning(beginning) if call.path == _MODEL_INFER else None
        if known is None:
            return
        model_name, model_version, request_id = known
        try:
            if self._inference.served(model_name, model_version).is_decoupled:
                raise unsupported(_DECOUPLED)
        except ColdModelError as cold:
            cold.held.begin_load(cold)  # while the rest arrives
        except InferError as error:
            failed_requests.finish_infer(call, request_id, model_name, model_version, error)

    def is_streaming(self, path: str) -> bool:
        """Return whether messages of calls to `path` are delivered one by one."""
        return path in self._open_stream

    def stream_message(self, call: GrpcCall, message: Buffer) -> None:
        """Submit one request of a ModelStreamInfer call, begin to watch, or answer a request of reflection."""
        stream = self._stream_of(call)
        try:
            stream.take(message)
        except Exception:
            # Open requests need no response: the transport ends the call.
            stream.fail()
            raise

    def refuse_message(self, call: GrpcCall, message: Buffer, error: InferError) -> None:
        """Answer a message of a ModelStreamInfer call with an error; the call goes on. Other calls end."""
        self._stream_of(call).refuse(message, error)

    def stream_half_closed(self, call: GrpcCall) -> None:
        """End a ModelStreamInfer call after the responses to all its requests."""
        self._stream_of(call).half_close()

    def stream_writable(self, call: GrpcCall) -> None:
        """Resume a paused ModelStreamInfer call if there is room again."""
        self._stream_of(call).writable()

    def stream_draining(self, call: GrpcCall) -> None:
        """End a ModelStreamInfer call after the responses to its open requests."""
        self._stream_of(call).drain()

    def _stream_of(self, call: GrpcCall) -> _ServiceStream:
        stream: _ServiceStream | None = call.context  # type: ignore[assignment]  # set by the streams
        return self._open_stream[call.path](call) if stream is None else stream

    def _open_inferences(self, call: GrpcCall) -> "InferStream":
        from naiad.frontend.grpc.stream import InferStream  # most servers have no streams

        sender = None if self._compression is None else self._compression.sender(call)
        return InferStream(call, self._engine, self._decoder, self._forwarding, sender, self._runner)

    # --- inference -------------------------------------------------------------------------------------------

    def _infer(self, call: GrpcCall, message: Buffer, prepared: Prepared | None = None) -> None:
        """Decode and submit a request; `prepared` is one that is decoded already."""
        # hot: every ModelInfer
        if prepared is not None:
            (header, request_id, data), element_counts = prepared
        elif len(message) > SHORT_BYTES:
            self._decode_large(call, message)
            return
        else:
            element_counts = None
            try:
                header, request_id, data = self._decode(message)
            except InferError as error:
                self._reject_undecoded(call, message, error)
                return
        if self._forwarding is not None:
            try:
                header = self._forwarding.apply(header, call.metadata)
            except InferError as error:
                failed_requests.finish_infer(call, request_id, header.model_name, header.model_version, error)
                return
        request = InferRequest(
            header, data, self._on_response, id=request_id, arrival_ns=call.arrival_ns, context=call
        )
        request.deadline_ns = call.deadline_ns
        if element_counts:
            request.element_counts = element_counts
        try:
            served = self._inference.served(header.model_name, header.model_version)
            if served.is_decoupled:
                raise unsupported(_DECOUPLED)
            call.on_cancel = partial(self._abandon, request)
            if call.timing is not None:
                call.timing.submit(request)
            self._inference.submit(request, served)
        except InferError as error:
            call.on_cancel = None
            failed_requests.finish_infer(call, request_id, header.model_name, header.model_version, error)

    def _decode_large(self, call: GrpcCall, message: Buffer) -> None:
        """Decode a large message in slices, then submit it."""
        job = self._runner.run(
            call.client,
            prepare(self._decoder, message),
            len(message),
            partial(self._submit_large, call, len(message)),
            partial(self._reject_undecoded, call, message),
        )
        if not job.is_over:
            call.on_cancel = partial(self._cancel_decoding, call, job)

    def _cancel_decoding(self, call: GrpcCall, job: SliceJob, why: CancelReason) -> None:
        """Cancel the decoding of a request whose client has disconnected or whose deadline has passed."""
        self._runner.cancel(job)
        failed_requests.finish_infer(call, "", "", "", why.error(waited=True))

    def _submit_large(self, call: GrpcCall, size_bytes: int, prepared: Prepared) -> None:
        try:
            self._infer(call, b"", prepared)
        except ColdModelError as cold:
            timeout_us = prepared[0][0].timeout_us
            self._hold(call, size_bytes, cold, partial(self._infer, call, b"", prepared), timeout_us)
        except Exception:
            _log.exception("gRPC call %s failed", call.path)
            failed_requests.finish(call, internal(f"internal error in {call.path}; see the server log"))

    def trace_fields(self, request: InferRequest) -> TraceFields:
        """Return the trace fields of a request."""
        return fields_of_call(request.context)  # type: ignore[arg-type]  # set in _infer

    def _reject_undecoded(self, call: GrpcCall, message: Buffer, error: InferError) -> None:
        """Respond to a request that could not be decoded.

        Triton: the error of an unknown or decoupled model has priority over all other errors of the request.
        """
        call.on_cancel = None
        model_name = model_version = request_id = ""
        try:
            model_name, model_version, request_id = identify(message)
            if self._inference.served(model_name, model_version).is_decoupled:
                raise unsupported(_DECOUPLED)
        except ColdModelError:
            pass  # the model is known
        except InferError as earlier:
            error = earlier.with_traceback(None)  # which refers to this frame, with the message
        failed_requests.finish_infer(call, request_id, model_name, model_version, error)

    def _abandon(self, request: InferRequest, why: CancelReason) -> None:
        """Cancel a request whose client has disconnected or whose deadline has passed; log it and finish the call."""
        call: GrpcCall = request.context  # type: ignore[assignment]  # set in _infer
        waited = self._inference.cancel(request)
        error = why.error(waited=waited)
        failed_requests.finish_infer(call, request.id, request.header.model_name, version_of(request), error)

    def _on_response(self, request: InferRequest, response: InferResponse) -> None:
        call: GrpcCall = request.context  # type: ignore[assignment]  # set in _infer
        # The handler refers to the request and the request to the call: break the cycle, so that the garbage
        # collector does not have to find it.
        call.on_cancel = None
        if request.cancelled:
            return  # cancellation has finished the call already
        if call.timing is not None:
            call.timing.note_answer(response)
        error = response.error
        if error is None:
            try:
                parts = encode_response(request.id, response)
                if self._compression is None:
                    call.respond(parts)
                else:
                    self._compression.respond(call, parts)
                return
            except Exception as unfit:
                error = encoding_error(unfit, request)
        failed_requests.finish_infer(
            call, request.id, request.header.model_name, response.header.model_version, error
        )

    # --- control ---------------------------------------------------------------------------------------------

    def _control(self, call: GrpcCall, message: Buffer) -> None:
        handle = self._controls.get(call.path)
        if handle is None:
            failed_requests.finish(call, control_grpc.refusal(call.path))
        else:
            handle(call, message)

    def _control_later(self, call: GrpcCall, message: bytes) -> None:
        def handle() -> None:
            try:
                self._control(call, message)
            except Exception:
                self._fail(call)

        asyncio.get_running_loop().call_later(self.control_delay_s, handle)
