"""Time limits of one HTTP/2 connection, checked by a sweep every second so that no request pays for a timer."""

from collections.abc import Iterable

from naiad.frontend.http2_call import Http2Call
from naiad.wire.limits import Http2Limits

_LATELY_NS = 5_000_000_000
"""A peer has read an answer that was sent before that, unless its machine has not even taken it."""


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)


class Http2Clock:
    """Knows since when a connection has been slow."""

    __slots__ = (
        "_begin_ns",
        "_body_ns",
        "_excused_ns",
        "_frame_ns",
        "_moved_ns",
        "_preface_ns",
        "_sent_count",
        "_swept_ns",
        "_unsent_bytes",
        "_unsent_since_ns",
        "_write_ns",
    )

    def __init__(self, limits: Http2Limits, now_ns: int) -> None:
        self._begin_ns = now_ns
        self._preface_ns = _ns(limits.preface_timeout_s)
        self._frame_ns = _ns(limits.frame_timeout_s)
        self._body_ns = _ns(limits.body_timeout_s)
        self._write_ns = _ns(limits.write_timeout_s)
        self._unsent_bytes = 0
        self._unsent_since_ns = now_ns
        self._sent_count = 0
        self._excused_ns = 0
        """When the peer could not send last, because it was not read or got no window."""
        self._moved_ns = now_ns
        """When the connection took bytes last, of whatever stream."""
        self._swept_ns = now_ns

    def excuse(self, now_ns: int) -> None:
        """Take note that it is not the peer's fault when nothing comes."""
        self._excused_ns = now_ns

    def note_sent(self, unsent_bytes: int, sent_count: int, now_ns: int) -> None:
        """Take note of what was sent: bytes that the socket has not taken, frames that were made. Comes first."""
        self._swept_ns = now_ns
        if unsent_bytes != self._unsent_bytes or sent_count != self._sent_count:
            self._sent_count = sent_count
            self._moved_ns = now_ns

    def setup_is_late(self, now_ns: int) -> bool:
        """Tell whether preface and SETTINGS should have come by now."""
        return now_ns - self._begin_ns >= self._preface_ns

    def frame_is_late(self, incomplete_since_ns: int, now_ns: int) -> bool:
        """Tell whether a frame or header block has been incomplete for too long."""
        return incomplete_since_ns > 0 and now_ns - max(incomplete_since_ns, self._excused_ns) >= self._frame_ns

    def has_sent_lately(self, sent_count: int) -> bool:
        """Tell whether the peer may still be busy with an answer: some were sent in the last seconds."""
        if not sent_count:
            return False
        return sent_count != self._sent_count or self._swept_ns - self._moved_ns < _LATELY_NS

    def write_is_stalled(self, unsent_bytes: int, now_ns: int) -> bool:
        """Tell whether the peer has taken nothing of the unsent bytes for too long."""
        if unsent_bytes == 0 or unsent_bytes != self._unsent_bytes:
            self._unsent_bytes = unsent_bytes
            self._unsent_since_ns = now_ns
            return False
        return now_ns - self._unsent_since_ns >= self._write_ns

    def late_calls(self, calls: Iterable[Http2Call], now_ns: int) -> tuple[list[Http2Call], list[Http2Call]]:
        """Return the calls whose body has stopped growing, and those whose answer the peer does not take."""
        slow: list[Http2Call] = []
        blocked: list[Http2Call] = []
        for call in calls:
            if call.queue is not None:
                if not call.blocked_since_ns:
                    call.blocked_since_ns = now_ns
                elif now_ns - self._blocked_since(call) >= self._write_ns:
                    blocked.append(call)
            elif (
                not call.is_remote_closed
                and not call.is_streaming
                and now_ns - max(call.progress_ns, self._excused_ns) >= self._body_ns
            ):
                slow.append(call)
        return slow, blocked

    def _blocked_since(self, call: Http2Call) -> int:
        # A call whose own window is open waits for its turn: others may have much to send on a slow line.
        return call.blocked_since_ns if call.send_window <= 0 else max(call.blocked_since_ns, self._moved_ns)
