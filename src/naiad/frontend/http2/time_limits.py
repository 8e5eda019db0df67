"""Time limits of one HTTP/2 connection.

A sweep every second checks rates and time-outs, so that no request pays for a timer. Deadlines of calls use a single
timer. Clients repeat their timeout, so later calls have later deadlines: the timer is set for the first and, when it
expires, for the earliest deadline of the open calls. A call costs one comparison.
"""

from collections.abc import Callable, Iterable, Mapping

from naiad.core.environment.ports import Loop, TimerHandle
from naiad.frontend.connections.linger import LeastRate
from naiad.frontend.http2.call import Http2Call, RequestSide
from naiad.wire.http2.connection_limits import Http2Limits
from naiad.wire.http2.frame_output import Http2Output


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)


class Http2Clock:
    """Measures how long a connection has been slow."""

    __slots__ = (
        "_begin_ns",
        "_bodies",
        "_excused_ns",
        "_frame_ns",
        "_limits",
        "_preface_ns",
        "_queue",
        "_queues",
    )

    def __init__(self, limits: Http2Limits, now_ns: int) -> None:
        self._limits = limits
        self._begin_ns = now_ns
        self._preface_ns = _ns(limits.preface_timeout_s)
        self._frame_ns = _ns(limits.frame_timeout_s)
        self._excused_ns = 0
        """Last time this side blocked the peer (reading paused or no window)."""
        self._bodies: dict[Http2Call, LeastRate] = {}
        """Rates of the calls whose body was incomplete at the last sweep."""
        self._queues: dict[Http2Call, LeastRate] = {}
        """Rates of the calls whose response waited for the peer at the last sweep."""
        self._queue: LeastRate | None = None
        """Rate of all bytes that wait for the peer's windows."""

    def excuse(self, now_ns: int) -> None:
        """Note that this side blocks the peer."""
        self._excused_ns = now_ns

    def setup_is_late(self, now_ns: int) -> bool:
        """Return whether the preface and SETTINGS are overdue."""
        return now_ns - self._begin_ns >= self._preface_ns

    def frame_is_late(self, incomplete_since_ns: int, now_ns: int) -> bool:
        """Return whether a frame or header block has been incomplete for too long."""
        return incomplete_since_ns > 0 and now_ns - max(incomplete_since_ns, self._excused_ns) >= self._frame_ns

    # --- minimum rates ----------------------------------------------------------------------------------------------

    def slow_bodies(self, calls: Iterable[Http2Call], now_ns: int) -> list[Http2Call]:
        """Return the calls whose body, or current message, arrives too slowly."""
        limits, known, slow = self._limits, self._bodies, []
        self._bodies = {}
        for call in calls:
            request = call.request
            if request is None or not _is_amid_body(call, request):
                continue
            # A streaming call may have been silent for long before its message began.
            begin_ns = 0 if call.is_streaming else call.arrival_ns
            rate = known.get(call) or LeastRate(limits.body_rate_bytes_per_s, limits.body_timeout_s, begin_ns)
            self._bodies[call] = rate
            if self._excused_ns == now_ns:
                rate.excuse(now_ns)
            if rate.is_too_slow(request.received_bytes, now_ns):
                slow.append(call)
        return slow

    def slow_readers(self, calls: Iterable[Http2Call], output: Http2Output, now_ns: int) -> list[Http2Call]:
        """Return the calls whose response the peer reads too slowly, or not at all."""
        known, slow = self._queues, []
        self._queues = {}
        connection_is_slow = self._queue_is_slow(output, now_ns)
        for call in calls:
            if call.queue is None:
                continue
            rate = self._queues[call] = known.get(call) or self._reading_rate()
            if output.window_of(call) > 0:
                # This call waits for its turn: other calls may have much to send on a slow connection.
                rate.excuse(now_ns)
                is_slow = connection_is_slow
            else:
                is_slow = rate.is_too_slow(call.accepted_bytes - call.queued_bytes, now_ns)
            if is_slow:
                slow.append(call)
        return slow

    def _queue_is_slow(self, output: Http2Output, now_ns: int) -> bool:
        if not output.queued_bytes:
            self._queue = None
            return False
        if self._queue is None:
            self._queue = self._reading_rate()
        return self._queue.is_too_slow(output.accepted_bytes - output.queued_bytes, now_ns)

    def _reading_rate(self) -> LeastRate:
        return LeastRate(self._limits.write_rate_bytes_per_s, self._limits.write_timeout_s)


def _is_amid_body(call: Http2Call, request: RequestSide) -> bool:
    if call.is_remote_closed or call.is_local_closed or call.is_held:
        return False
    return request.is_amid_message(call)


_SHORTEST_S = 0.001  # resolution of the loop's timers


class DeadlineTimer:
    """Expires the calls whose deadline has passed."""

    __slots__ = ("_handle", "_loop", "_next_ns", "_now_ns", "_streams")

    def __init__(self, loop: Loop, streams: Mapping[int, Http2Call], now_ns: Callable[[], int]) -> None:
        """`streams` are the open calls of the connection."""
        self._loop = loop
        self._streams = streams
        self._now_ns = now_ns
        self._handle: TimerHandle | None = None
        self._next_ns = 0

    def watch(self, deadline_ns: int, now_ns: int) -> None:
        """Make the timer expire at `deadline_ns` at the latest."""
        if self._handle is not None:
            if self._next_ns <= deadline_ns:
                return
            self._handle.cancel()
        self._next_ns = deadline_ns
        self._handle = self._loop.call_later(max(_SHORTEST_S, (deadline_ns - now_ns) / 1e9), self._on_timer)

    def close(self) -> None:
        """Cancel the timer."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _on_timer(self) -> None:
        self._handle = None
        now_ns = self._now_ns()
        waiting = [call for call in self._streams.values() if call.deadline_ns and not call.is_local_closed]
        for call in waiting:
            if call.deadline_ns <= now_ns:
                call.expire()
        left = [call.deadline_ns for call in waiting if not call.is_local_closed]
        if left:
            self.watch(min(left), now_ns)
