"""`ServerReflectionInfo` of gRPC's reflection: each request of a stream is answered at once, in order.

A client that does not read its answers is paused: flow control stops it until it has read them.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from naiad.core.errors import InferError, unavailable
from naiad.core.tensor import Buffer
from naiad.frontend import failed_requests
from naiad.frontend.context import CancelReason, GrpcCall
from naiad.frontend.grpc.ended_stream import ENDED
from naiad.wire.grpc import GrpcStatus

if TYPE_CHECKING:
    from naiad.protocol.reflection.answers import ReflectionAnswers

MAX_QUEUED_BYTES = 256 * 1024
"""Limit of unread answers; above it a stream takes no more requests."""


class Reflections:
    """The reflection calls of one event loop. The descriptors are made for the first of them."""

    def __init__(self, paths: Sequence[str]) -> None:
        """`paths` has the path of each served method."""
        self._paths = paths
        self._answers: ReflectionAnswers | None = None

    def open(self, call: GrpcCall) -> "ReflectionStream":
        """Return the state of a call that has just begun."""
        if self._answers is None:
            # Most servers are never asked.
            from naiad.protocol.reflection.answers import ReflectionAnswers
            from naiad.protocol.reflection.service_files import served_files
            from naiad.protocol.reflection.symbol_index import SymbolIndex

            self._answers = ReflectionAnswers(SymbolIndex(served_files(self._paths)))
        return ReflectionStream(call, self._answers.answer)


class ReflectionStream:
    """One call; `GrpcService` has the order in which its methods are called."""

    __slots__ = ("_answer", "_call", "_is_paused")

    def __init__(self, call: GrpcCall, answer: Callable[[Buffer], bytes]) -> None:
        self._call = call
        self._answer = answer
        self._is_paused = False
        call.context = self
        call.on_cancel = self._cancelled

    def take(self, message: Buffer) -> None:
        """Answer a request; one that cannot be read ends the call."""
        try:
            answer = self._answer(message)
        except InferError as error:
            self._fail(error)
            return
        self._call.send([answer])
        if self._call.queued_bytes > MAX_QUEUED_BYTES and not self._is_paused:
            self._is_paused = True
            self._call.pause()

    def refuse(self, message: Buffer, error: InferError) -> None:
        """End the call: its request cannot be read."""
        self._fail(error)

    def half_close(self) -> None:
        """End the call: every request has its answer."""
        self._close()
        self._call.finish(GrpcStatus.OK)

    def writable(self) -> None:
        """Take requests again once the client has read half of the limit."""
        if self._is_paused and self._call.queued_bytes <= MAX_QUEUED_BYTES // 2:
            self._is_paused = False
            self._call.resume()

    def drain(self) -> None:
        """End the call, because the server ends."""
        self._fail(unavailable("Server exiting"))

    def fail(self) -> None:
        """Forget the call: the transport ends it."""
        self._close()

    def _cancelled(self, why: CancelReason) -> None:
        self._close()

    def _fail(self, error: InferError) -> None:
        self._close()
        failed_requests.finish(self._call, error)

    def _close(self) -> None:
        # Call and stream refer to each other: without the cycle they are freed at once.
        self._call.on_cancel = None
        self._call.context = ENDED
