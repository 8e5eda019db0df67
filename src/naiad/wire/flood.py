"""Token buckets against floods of frames that cost the peer nothing."""

from naiad.wire.http2_frames import Http2Code, Http2Error
from naiad.wire.limits import Http2Limits

_WORK_PER_CONTROL_FRAME = 4


class FloodMeter:
    """Counts events against a burst and a sustained rate; time is an argument (monotonic ns)."""

    __slots__ = ("_burst", "_last_ns", "_per_s", "_tokens")

    def __init__(self, burst: int, per_s: int) -> None:
        self._burst = burst
        self._per_s = per_s
        self._tokens = float(burst)
        self._last_ns = 0

    def is_exceeded(self, now_ns: int) -> bool:
        """Count one event at `now_ns` and tell whether it is one too many."""
        elapsed_ns = now_ns - self._last_ns
        if elapsed_ns > 0:
            self._last_ns = now_ns
            self._tokens = min(self._burst, self._tokens + elapsed_ns * self._per_s / 1e9)
        self._tokens -= 1
        return self._tokens < 0

    def refund(self, count: int) -> None:
        """Allow `count` more events, never more than the burst."""
        self._tokens = min(self._burst, self._tokens + count)


class FloodGuard:
    """Ends a connection whose peer resets streams, or sends frames that carry nothing, too often."""

    __slots__ = ("_control_frames", "_resets", "_work_seen")

    def __init__(self, limits: Http2Limits) -> None:
        self._resets = FloodMeter(limits.resets_burst, limits.resets_per_s)
        self._control_frames = FloodMeter(limits.control_frames_burst, limits.control_frames_per_s)
        self._work_seen = 0

    def count_reset(self, now_ns: int) -> None:
        """Count a stream that the peer has reset, or made this side reset. Raises Http2Error."""
        if self._resets.is_exceeded(now_ns):
            raise Http2Error(Http2Code.ENHANCE_YOUR_CALM, "streams are reset too often")

    def count_control_frame(self, name: str, now_ns: int, work: int) -> None:
        """Count a frame; `work` grows with streams, data and answers, which earn frames. Raises Http2Error."""
        # Clients measure the bandwidth with a PING per round trip while data flows, so real work earns PINGs.
        if work > self._work_seen and name != "empty DATA":
            self._control_frames.refund(_WORK_PER_CONTROL_FRAME * (work - self._work_seen))
            self._work_seen = work
        if self._control_frames.is_exceeded(now_ns):
            raise Http2Error(Http2Code.ENHANCE_YOUR_CALM, f"too many {name} frames")
