"""One `ModelStreamInfer` call: requests in, responses out, errors as messages of the stream.

Ordinary models: one response per request, in request order. Decoupled models: each response is sent when it arrives.
A stream with too many open requests, or with too many unread responses, is paused: flow control stops the peer until
there is room again.
"""

import time
from collections import deque
from collections.abc import Sequence
from functools import partial

from naiad.core.errors import InferError, Rejection, unavailable
from naiad.core.limits.request_limits import UNCOUNTED_BYTES
from naiad.core.request import InferRequest
from naiad.core.response import InferResponse
from naiad.core.tensor import Buffer
from naiad.engine.engine import Engine
from naiad.engine.on_demand.held_requests import ColdModelError, HeldRequest
from naiad.frontend import failed_requests
from naiad.frontend.connections.body_reservation import BUDGET_EXCEEDED
from naiad.frontend.context import CancelReason, GrpcCall, encoding_error, version_of
from naiad.frontend.grpc.compression import Sender
from naiad.frontend.grpc.ended_stream import ENDED
from naiad.frontend.grpc.stream_request import Prepared, StreamRequest, StreamTurn, prepare
from naiad.frontend.header_forwarding import HeaderForwarding, TraceFields, fields_of_call
from naiad.frontend.long_work.slice_runner import SliceJob, SliceRunner
from naiad.protocol.grpc.infer import (
    Decoded,
    InferRequestDecoder,
    encode_executor,
    encode_failure,
    encode_refusal,
    encode_stream_response,
    identify,
)
from naiad.protocol.grpc.walk import SHORT_BYTES
from naiad.protocol.status_table import status_of
from naiad.wire.grpc import GrpcStatus
from naiad.wire.header_fields import Headers

MAX_OPEN_REQUESTS = 1024
"""Limit of submitted requests without a response per stream; further ones wait."""
MAX_OPEN_BYTES = 64 * 1024 * 1024
"""Limit of the bytes of open requests, or of their expected responses; above it a stream accepts no more requests."""
MAX_QUEUED_BYTES = 1024 * 1024
"""Limit of unread response bytes; above it a stream accepts no more requests."""
_STALLED_NS = 30_000_000
"""A peer that takes nothing for this time does not read, however little waits for it."""
_STRICT_FIELD = b"triton_grpc_error"


class InferStream:
    """The requests of one streaming call and their pending responses."""

    protocol = "GRPC"  # for traces
    transport = "grpc_stream"  # for recordings
    __slots__ = (
        "_call",
        "_decode",
        "_decoder",
        "_forwarding",
        "_has_paused_call",
        "_held",
        "_inference",
        "_is_draining",
        "_is_half_closed",
        "_is_over",
        "_is_paused",
        "_is_strict",
        "_job",
        "_message_count",
        "_on_response",
        "_open",
        "_open_bytes",
        "_order",
        "_response_bytes",
        "_resume_bytes",
        "_runner",
        "_sender",
        "_stalled_since_ns",
        "_unread_bytes",
    )

    def __init__(
        self,
        call: GrpcCall,
        engine: Engine,
        decoder: InferRequestDecoder,
        forwarding: HeaderForwarding | None,
        sender: Sender | None = None,
        runner: SliceRunner | None = None,
    ) -> None:
        self._call = call
        self._sender = sender or call
        self._inference = engine.inference
        self._decoder = decoder
        self._decode = decoder.decode
        self._runner = runner or SliceRunner()
        self._job: SliceJob | None = None
        """Decoding of a large message; the stream is paused meanwhile and later messages wait."""
        self._held: HeldRequest | None = None
        """A request whose model is loaded; the stream is paused meanwhile, and keeps its order."""
        self._forwarding = forwarding
        self._is_strict = _wants_grpc_errors(call.metadata)
        self._message_count = 0
        """Only counted in a stream that ends with its first error, which may concern other requests too."""
        if self._is_strict:
            self._decode = self._decode_counted
        self._open: set[InferRequest] = set()
        self._open_bytes = 0
        self._response_bytes = 0
        """Size of the last ordinary response, used as the estimate for the next ones."""
        self._order: deque[StreamTurn] = deque()
        """Requests of ordinary models without a response."""
        self._has_paused_call = False
        self._is_paused = False
        self._resume_bytes = 0
        """A paused stream goes on when no more unread bytes are left."""
        self._stalled_since_ns = self._unread_bytes = 0
        """Since when the peer has taken nothing of the unread bytes, and their number."""
        self._is_half_closed = False
        self._is_draining = False
        self._is_over = False
        self._on_response = self._take_response
        call.context = self
        call.on_cancel = self.cancel

    # --- called by the service ----------------------------------------------------------------------------------

    def take(self, message: Buffer) -> None:
        """Submit the request in `message`; an error becomes a message of the stream."""
        # hot: once a request
        if len(message) > SHORT_BYTES:
            self._decode_large(message)
            return
        try:
            decoded = self._decode(message)
        except InferError as error:
            self._reject_undecoded(message, error)
            return
        self._submit(message, decoded)

    def refuse(self, message: Buffer, error: InferError) -> None:
        """Answer the request in `message` with an error; it is not submitted."""
        self._reject_undecoded(message, error)

    def _decode_counted(self, message: Buffer) -> Decoded:
        self._message_count += 1
        return self._decoder.decode(message)

    def _decode_large(self, message: Buffer) -> None:
        """Decode a large message in slices; the stream is paused meanwhile."""
        self._message_count += 1
        job = self._runner.run(
            self._call.client,
            prepare(self._decoder, message),
            len(message),
            partial(self._submit_large, message),
            partial(self._reject_large, message),
            is_part=True,
        )
        if not job.is_over:
            self._job = job
            self._pause()

    def _submit_large(self, message: Buffer, prepared: Prepared) -> None:
        self._job = None
        try:
            self._submit(message, *prepared)
        except Exception:
            # Open requests need no response: the call ends.
            self.fail()
            self._sender.finish(GrpcStatus.INTERNAL, "internal error; see the server log")
            raise
        self._go_on()

    def _reject_large(self, message: Buffer, error: InferError) -> None:
        self._job = None
        if not self._is_over:
            self._reject_undecoded(message, error)
            self._go_on()

    def _submit(self, message: Buffer, decoded: Decoded, element_counts: Sequence[int] | None = None) -> None:
        header, request_id, data = decoded
        try:
            if self._forwarding is not None:
                header = self._forwarding.apply(header, self._call.metadata)
        except InferError as error:
            self._reject_undecoded(message, error)
            return
        model_name, model_version = header.model_name, header.model_version
        turn = StreamTurn(len(message), self._sender, is_ordered=True)
        request = StreamRequest(
            header, data, self._on_response, id=request_id, arrival_ns=self._call.arrival_ns, context=turn
        )
        request.deadline_ns = self._call.deadline_ns
        request.element_counts = element_counts
        # A large request was decoded meanwhile.
        request.is_paused = self._is_paused
        try:
            if self._is_draining:
                raise unavailable("Server exiting")
            if turn.message_bytes > UNCOUNTED_BYTES:
                self._reserve(turn)
            served = self._inference.served(model_name, model_version)
            if served.is_decoupled:
                turn.is_ordered = False
            else:
                if self._response_bytes > turn.message_bytes:
                    turn.message_bytes = self._response_bytes
                self._order.append(turn)
            self._open.add(request)
            self._inference.submit(request, served)
        except ColdModelError as cold:
            self._release(turn)
            self._hold(message, (decoded, element_counts), cold)
            return
        except InferError as error:
            self._open.discard(request)
            self._release(turn)
            self._reject(turn, request_id, model_name, model_version, error)
            return
        self._open_bytes += turn.message_bytes
        if len(self._open) >= MAX_OPEN_REQUESTS or self._open_bytes >= MAX_OPEN_BYTES:
            self._pause()

    def _hold(self, message: Buffer, prepared: Prepared, cold: ColdModelError) -> None:
        """Hold a request until its model is loaded; the stream is paused meanwhile."""

        def resume() -> None:
            self._held = None
            self._submit_large(message, prepared)

        def refuse(error: InferError) -> None:
            self._held = None
            self._reject_large(message, error)

        try:
            timeout_us = prepared[0][0].timeout_us
            # Also when it is held again, because the model was evicted meanwhile.
            since_ns = self._call.arrival_ns
            deadline_ns = since_ns + timeout_us * 1000 if timeout_us else 0
            self._held = cold.held.hold(
                cold, len(message), resume, refuse, since_ns=since_ns, deadline_ns=deadline_ns
            )
        except InferError as error:
            refuse(error)
            return
        self._pause()

    def _reserve(self, turn: StreamTurn) -> None:
        """Reserve the bytes of a message until its response is sent. Raises InferError if there is no room."""
        if not self._call.reserve_bytes(turn.message_bytes):
            raise unavailable(BUDGET_EXCEEDED, Rejection.MEMORY)
        turn.reserved_bytes = turn.message_bytes

    def _release(self, turn: StreamTurn) -> None:
        if turn.reserved_bytes:
            self._call.release_bytes(turn.reserved_bytes)

    def half_close(self) -> None:
        """End the call after the responses to all requests."""
        self._is_half_closed = True
        self._end_if_done()

    def drain(self) -> None:
        """Accept no more requests and end the call after the responses to all of them."""
        self._is_draining = True
        self._end_if_done()

    def writable(self) -> None:
        """Resume if there is room again."""
        if self._is_paused and self._sender.queued_bytes <= self._resume_bytes:
            self._set_paused(False)
            self._send_kept()
            if self._is_half_closed or self._is_draining:
                self._end_if_done()
        if self._has_paused_call and not self._is_over and self._has_room():
            self._has_paused_call = False
            self._call.resume()

    def cancel(self, why: CancelReason) -> None:
        """Cancel and log all open requests, because the client needs no responses; write nothing more."""
        for request in self._cancel_open():
            waited = self._inference.cancel(request)
            error = why.error(waited=waited)
            failed_requests.log("gRPC", request.id, request.header.model_name, version_of(request), error)

    def fail(self) -> None:
        """Cancel all open requests after a failure that is logged elsewhere; write nothing more."""
        for request in self._cancel_open():
            self._inference.cancel(request)

    def _cancel_open(self) -> list[InferRequest]:
        self._close()
        return list(self._open)

    def trace_fields(self, request: InferRequest) -> TraceFields:
        """Return the trace fields of a request."""
        return fields_of_call(self._call)

    # --- responses ----------------------------------------------------------------------------------------------

    def _take_response(self, request: InferRequest, response: InferResponse) -> None:
        # hot: once a response
        turn: StreamTurn = request.context  # type: ignore[assignment]  # set in `take`
        if response.final:
            self._open.discard(request)
            self._open_bytes -= turn.message_bytes
        if self._is_over:
            return
        if response.error is not None:
            self._fail(request, turn, response.error, final=response.final)
        elif response.empty_final and not turn.is_ordered:
            if request.header.wants_empty_final:
                header = request.header
                self._send((encode_executor(request.id, header.model_name, header.model_version),))
        else:
            try:
                parts = encode_stream_response(request.id, response)
            except Exception as error:
                self._fail(request, turn, encoding_error(error, request), final=response.final)
            else:
                if turn.is_ordered:
                    self._response_bytes = sum(map(len, parts))
                self._respond(turn, parts)
        if response.final:
            self._continue(turn)

    def _continue(self, turn: StreamTurn) -> None:
        """Continue the stream after the last response to a request."""
        self._release(turn)
        self._go_on()

    def _go_on(self) -> None:
        if self._has_paused_call:
            self.writable()
        if self._is_half_closed or self._is_draining:
            self._end_if_done()

    def _fail(self, request: InferRequest, turn: StreamTurn, error: InferError, *, final: bool) -> None:
        header = request.header
        if self._is_strict:
            # Triton: with `triton_grpc_error` the first inference error ends the call.
            if self._message_count > 1:
                error = error.of_part()
            self.fail()
            failed_requests.finish_infer(self._sender, request.id, header.model_name, header.model_version, error)
            return
        _, message = failed_requests.log("gRPC", request.id, header.model_name, header.model_version, error)
        text = _text(message, error)
        self._respond(turn, (encode_failure(request.id, header.model_name, header.model_version, text, final=final),))

    def _respond(self, turn: StreamTurn, parts: Sequence[Buffer]) -> None:
        """Send a response, or keep it until earlier responses are sent and the peer has read them."""
        if not turn.is_ordered:
            self._send(parts)
            return
        order = self._order
        if order[0] is not turn or self._is_paused:
            turn.response_parts = parts
            return
        order.popleft()
        self._send(parts)
        self._send_kept()

    def _send_kept(self) -> None:
        """Send the kept responses whose turn has come.

        The transport resets a call with too many queued bytes, so this stops while the peer reads slowly.
        """
        order = self._order
        while order and order[0].response_parts is not None and not self._is_paused:
            self._send(order.popleft().response_parts or ())

    def _send(self, parts: Sequence[Buffer]) -> None:
        sender = self._sender
        sender.send(parts)
        queued_bytes = sender.queued_bytes
        if queued_bytes and not self._is_paused and (queued_bytes > MAX_QUEUED_BYTES or self._is_stalled(parts)):
            self._resume_bytes = min(MAX_QUEUED_BYTES // 2, queued_bytes - 1)
            self._stalled_since_ns = self._unread_bytes = 0
            self._pause()
            self._set_paused(True)

    def _is_stalled(self, parts: Sequence[Buffer]) -> bool:
        """Return whether the peer has taken nothing for a while; called for each response that had to wait."""
        queued_bytes = self._sender.queued_bytes
        now_ns = time.monotonic_ns()
        has_taken = queued_bytes < self._unread_bytes + sum(map(len, parts))
        self._unread_bytes = queued_bytes
        if has_taken or not self._stalled_since_ns:
            self._stalled_since_ns = now_ns
        return now_ns - self._stalled_since_ns > _STALLED_NS

    # --- rejected requests ------------------------------------------------------------------------------------------

    def _reject_undecoded(self, message: Buffer, error: InferError) -> None:
        """Respond to a request that could not be decoded. Triton: an unknown model has priority over other errors."""
        model_name = model_version = request_id = ""
        turn = StreamTurn(0, self._sender, is_ordered=True)
        try:
            model_name, model_version, request_id = identify(message)
            turn.is_ordered = not self._inference.served(model_name, model_version).is_decoupled
        except ColdModelError:
            pass  # the model is known
        except InferError as earlier:
            error = earlier.with_traceback(None)  # which refers to this frame, with the message
        self._reject(turn, request_id, model_name, model_version, error)

    def _reject(self, turn: StreamTurn, request_id: str, model: str, version: str, error: InferError) -> None:
        _, text = failed_requests.log("gRPC", request_id, model, version, error)
        if turn.is_ordered and (not self._order or self._order[-1] is not turn):
            self._order.append(turn)
        self._respond(turn, (encode_refusal(request_id, _text(text, error)),))
        if len(self._order) >= MAX_OPEN_REQUESTS:
            # Errors of rejected requests wait for the responses before them, as responses do.
            self._pause()

    # --- the stream ---------------------------------------------------------------------------------------------

    def _has_room(self) -> bool:
        return (
            max(len(self._open), len(self._order)) < MAX_OPEN_REQUESTS
            and self._open_bytes < MAX_OPEN_BYTES
            and not self._is_paused
            and self._job is None
            and self._held is None
        )

    def _pause(self) -> None:
        if not self._has_paused_call and not self._is_over:
            self._has_paused_call = True
            self._call.pause()

    def _set_paused(self, is_paused: bool) -> None:
        self._is_paused = is_paused
        for request in self._open:
            request.is_paused = is_paused

    def _end_if_done(self) -> None:
        is_waiting = self._job is not None or self._held is not None
        if self._open or self._order or self._is_over or is_waiting:
            return
        if self._is_half_closed:
            self._finish(0)
        elif self._is_draining:
            error = unavailable("Server exiting")
            self._finish(status_of(error).grpc, error.message)

    def _finish(self, status: int, message: str = "") -> None:
        self._close()
        self._sender.finish(status, message)

    def _close(self) -> None:
        # Call and stream refer to each other: break the cycle, so that the garbage collector does not have to find
        # it.
        self._is_over = True
        if self._job is not None:
            self._runner.cancel(self._job)
            self._job = None
        if self._held is not None:
            self._held.cancel()
            self._held = None
        self._call.on_cancel = None
        self._call.context = ENDED
        self._order.clear()


def _text(message: str, error: InferError) -> str:
    """Return a text that is not empty: an empty `error_message` means success."""
    return message or f"the request ended with {error.code.name}"


def _wants_grpc_errors(metadata: Headers) -> bool:
    return any(name == _STRICT_FIELD and value == b"true" for name, value in metadata)
