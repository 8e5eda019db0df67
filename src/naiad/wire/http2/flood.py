"""Token buckets against floods of frames that cost the peer nothing.

What a frame costs is counted in control frames, a PING being one. Frames that honest peers send many of,
WINDOW_UPDATE and small DATA, count a sixteenth: with a burst of 2,000 frames a connection wastes at most 0.1 s of
CPU, and 10 ms a second after it (bench/micro_http2_frames.py has what each kind takes). Useful work earns frames:
clients measure the bandwidth with a PING per round trip while data flows, and open windows as they read.
"""

from naiad.wire.http2.frames import Http2Code, Http2Error
from naiad.wire.http2.limits import Http2Limits

SMALL_FRAME = 1 / 16
"""Cost of a WINDOW_UPDATE, a small DATA frame, or a frame for a stream that has ended."""
REOPENED_STREAM = 1 / 16
"""Cost of a stream that a wider initial window lets send."""
_FRAMES_PER_USEFUL = 4


class FloodMeter:
    """Counts events against a burst and a sustained rate; time is an argument (monotonic ns)."""

    __slots__ = ("_burst", "_last_ns", "_per_s", "_tokens")

    def __init__(self, burst: int, per_s: int) -> None:
        self._burst = burst
        self._per_s = per_s
        self._tokens = float(burst)
        self._last_ns = 0

    def is_exceeded(self, now_ns: int, cost: float = 1.0) -> bool:
        """Count events that cost `cost` at `now_ns` and return whether that is too much."""
        elapsed_ns = now_ns - self._last_ns
        if elapsed_ns > 0:
            self._last_ns = now_ns
            self._tokens = min(self._burst, self._tokens + elapsed_ns * self._per_s / 1e9)
        self._tokens -= cost
        return self._tokens < 0

    def refund(self, count: int) -> None:
        """Allow `count` more events, never more than the burst."""
        self._tokens = min(self._burst, self._tokens + count)


class FloodGuard:
    """Ends a connection whose peer resets streams, or sends frames that carry nothing, too often."""

    __slots__ = ("_frames", "_resets", "_useful_seen")

    def __init__(self, limits: Http2Limits) -> None:
        self._resets = FloodMeter(limits.resets_burst, limits.resets_per_s)
        self._frames = FloodMeter(limits.control_frames_burst, limits.control_frames_per_s)
        self._useful_seen = 0

    def count_reset(self, now_ns: int) -> None:
        """Count a stream that the peer has reset, or made this side reset. Raises Http2Error."""
        if self._resets.is_exceeded(now_ns):
            raise Http2Error(Http2Code.ENHANCE_YOUR_CALM, "streams are reset too often")

    def count_frame(self, name: str, now_ns: int, useful: int, cost: float) -> None:
        """Count a frame; `useful` grows with streams, messages and data, which earn frames. Raises Http2Error."""
        if useful > self._useful_seen:
            self._frames.refund(_FRAMES_PER_USEFUL * (useful - self._useful_seen))
            self._useful_seen = useful
        if self._frames.is_exceeded(now_ns, cost):
            raise Http2Error(Http2Code.ENHANCE_YOUR_CALM, f"too many {name} frames")
