"""`grpc.health.v1.Health/Watch`: the status of the server at once, then each change of it, until the client leaves.

Readiness is a question that the engine answers when it is asked, so one timer asks it for all watching calls.
"""

import asyncio
import logging
from collections.abc import Callable

from naiad.core.errors import ErrorCode, InferError, internal, unavailable, unsupported
from naiad.core.tensor import Buffer
from naiad.frontend import failed_requests
from naiad.frontend.context import CancelReason, GrpcCall
from naiad.protocol.grpc import control as control_grpc

_log = logging.getLogger(__name__)

PERIOD_S = 0.5
"""A change reaches the clients after at most this time."""

Decode = Callable[[Buffer], object]
"""Checks the request. Raises InferError(NOT_FOUND) for a service that the server does not have."""


class HealthWatches:
    """The watching calls of one event loop, and the timer that asks for them."""

    def __init__(self, status: Callable[[], bytes], decode: Decode) -> None:
        """`status` returns the present HealthCheckResponse."""
        self._status = status
        self._decode = decode
        self._watching: set[HealthWatch] = set()
        self._timer: asyncio.TimerHandle | None = None

    def open(self, call: GrpcCall) -> "HealthWatch":
        """Return the state of a call that has just begun."""
        return HealthWatch(call, self)

    def decode(self, message: Buffer) -> None:
        """Check the request of a call. Raises InferError(NOT_FOUND)."""
        self._decode(message)

    def add(self, watch: "HealthWatch") -> None:
        """Send the status to a call, now and at each change."""
        watch.show(self._status())
        self._watching.add(watch)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(PERIOD_S, self._ask)

    def remove(self, watch: "HealthWatch") -> None:
        """Forget a call that has ended; without any, nothing is asked."""
        self._watching.discard(watch)
        if not self._watching and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ask(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(PERIOD_S, self._ask)
        status = self._status()
        for watch in tuple(self._watching):
            try:
                watch.show(status)
            except Exception:
                # One broken call ends; the other calls go on.
                _log.exception("gRPC call %s failed", watch.path)
                watch.end(internal(f"internal error in {watch.path}; see the server log"))


class HealthWatch:
    """One watching call; `GrpcService` has the order in which its methods are called."""

    def __init__(self, call: GrpcCall, watches: HealthWatches) -> None:
        self._call = call
        self._watches = watches
        self._shown = b""
        """The last status that was sent."""
        self._is_open = True
        call.context = self
        call.on_cancel = self._cancelled

    @property
    def path(self) -> str:
        """The path of the call."""
        return self._call.path

    def take(self, message: Buffer) -> None:
        """Begin to watch. A service that the server does not have is shown as unknown, as gRPC says."""
        if self._shown:
            self.end(unsupported("Watch takes one request message, got more"))
            return
        try:
            self._watches.decode(message)
        except InferError as error:
            if error.code is ErrorCode.NOT_FOUND:
                self.show(control_grpc.HEALTH_SERVICE_UNKNOWN)
            else:
                self.end(error)
            return
        self._watches.add(self)

    def show(self, status: bytes) -> None:
        """Send a status that is not shown yet; a client that does not read gets the newest when it reads again."""
        if status != self._shown and self._is_open and not self._call.queued_bytes:
            self._shown = status
            self._call.send([status])

    def refuse(self, message: Buffer, error: InferError) -> None:
        """End the call: its request cannot be read."""
        self.end(error)

    def half_close(self) -> None:
        """Go on: a client that watches sends one message; end the call of one that has sent none."""
        if not self._shown:
            self.end(unsupported("Watch needs one request message, got none"))

    def writable(self) -> None:
        """Do nothing: a call that watches is never paused."""

    def drain(self) -> None:
        """Show that the server ends, and end the call."""
        self.show(control_grpc.HEALTH_NOT_SERVING)
        self.end(unavailable("Server exiting"))

    def fail(self) -> None:
        """Forget the call: the transport ends it."""
        self._is_open = False
        self._watches.remove(self)

    def _cancelled(self, why: CancelReason) -> None:
        self.end(why.error(waited=True))

    def end(self, error: InferError) -> None:
        """End the call with an error, unless it has ended."""
        if self._is_open:
            self.fail()
            self._call.on_cancel = None
            failed_requests.finish(self._call, error)
