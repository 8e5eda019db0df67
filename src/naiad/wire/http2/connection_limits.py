"""Limits of a connection: what a peer may make this server hold or do.

Token buckets against floods of frames that cost the peer nothing.

What a frame costs is counted in control frames, a PING being one. Frames that honest peers send many of,
WINDOW_UPDATE and small DATA, count a sixteenth: with a burst of 2,000 frames a connection wastes at most 0.1 s of
CPU, and 10 ms a second after it (measured for each kind of frame). Useful work earns frames:
clients measure the bandwidth with a PING per round trip while data flows, and open windows as they read.
"""

from dataclasses import dataclass, field

from naiad.wire.http2.frames import Http2Code, Http2Error
from naiad.wire.http2.keepalive import KeepaliveRules

INT32_MAX = 2**31 - 1
MAX_FRAME_BYTES = 2**24 - 1  # RFC 9113 4.2


@dataclass(frozen=True, slots=True)
class Http2Limits:
    """Limits of one HTTP/2 connection; the defaults suit tensors of any size from trusted and untrusted peers.

    Raises ValueError when a value is outside what RFC 9113 allows.
    """

    header_list_bytes: int = 64 * 1024
    """Largest header list of a request, as RFC 7541 counts it (32 bytes per field added). A larger one is refused."""
    header_fields: int = 128
    """Most fields of a request, pseudo-fields included. A request with more is refused."""
    continuation_frames: int = 64
    """Most CONTINUATION frames of one header block."""
    concurrent_streams: int = 1024
    frame_bytes: int = 1024 * 1024
    """Largest frame payload the peer may send. Large frames keep large tensors cheap."""
    stream_window_bytes: int = 8 * 1024 * 1024
    connection_window_bytes: int = 32 * 1024 * 1024
    message_bytes: int = INT32_MAX
    """Largest gRPC message or body as it comes."""
    decompressed_bytes: int = 64 * 1024 * 1024
    decompression_ratio: int = 200
    """Largest message that a compressed one may become."""
    collecting_bytes: int = 2 * INT32_MAX
    """Most bytes of incomplete messages over all streams of a connection."""
    outstanding_bytes: int = 512 * 1024 * 1024
    """The peer gets no more window for bodies while large messages of this size wait for their answers."""
    queued_bytes: int = 64 * 1024 * 1024
    """Answers that wait for the peer's window. Above it new requests wait; a stream that sends more is reset."""
    write_buffer_bytes: int = 4 * 1024 * 1024
    """Most bytes handed to the socket at a time."""
    resets_burst: int = 20_000
    """Streams reset at once; beyond it `resets_per_s` (CVE-2023-44487). High: clients do cancel in storms."""
    resets_per_s: int = 1_000
    control_frames_burst: int = 2_000
    """PING, SETTINGS, PRIORITY, empty DATA and unknown frames at once; beyond it `control_frames_per_s`.
    Sixteen small frames count as one."""
    control_frames_per_s: int = 200
    preface_timeout_s: float = 10.0
    """From the connection to its first complete SETTINGS frame."""
    frame_timeout_s: float = 30.0
    """A frame or header block, once begun, is complete after this."""
    body_timeout_s: float = 60.0
    """How far a body, or a message of a streaming call, may fall behind `body_rate_bytes_per_s`; it is refused."""
    body_rate_bytes_per_s: int = 16384
    write_timeout_s: float = 60.0
    """How far a peer may fall behind `write_rate_bytes_per_s` in taking what waits for it.

    A stream is then reset; a connection whose socket takes too little is dropped."""
    write_rate_bytes_per_s: int = 1024
    connections: int = 16384
    """Open connections of one endpoint; beyond it the longest idle is closed, or else the new one."""
    keepalive: KeepaliveRules = field(default_factory=KeepaliveRules)

    @property
    def discarded_block_bytes(self) -> int:
        """Largest header block whose request alone is refused; beyond it the connection ends."""
        return 8 * self.header_list_bytes

    @property
    def discarded_list_bytes(self) -> int:
        """Largest header list of such a block, less the values that need no decoding.

        The next block may refer to what this one adds to the table (RFC 9113 4.3), and decoding that takes time.
        """
        return 3 * self.header_list_bytes

    @property
    def discarded_fields(self) -> int:
        """Most fields of such a header list."""
        return 16 * self.header_fields

    def __post_init__(self) -> None:
        _require("frame_bytes", self.frame_bytes, 2**14, MAX_FRAME_BYTES)
        # The connection's window never shrinks below the protocol's first 64 KiB - 1.
        _require("connection_window_bytes", self.connection_window_bytes, 2**16 - 1, INT32_MAX)
        # A first DATA frame of any legal size fits the window, which lets the receiver skip one check.
        _require("stream_window_bytes", self.stream_window_bytes, max(self.frame_bytes, 2**16 - 1), INT32_MAX)
        _require("message_bytes", self.message_bytes, 1, 2**32 - 1)
        _require("concurrent_streams", self.concurrent_streams, 1, INT32_MAX)
        _require("header_fields", self.header_fields, 4, INT32_MAX)  # the pseudo-fields of a request


def _require(name: str, value: int, lowest: int, highest: int) -> None:
    if not lowest <= value <= highest:
        raise ValueError(f"Http2Limits.{name} is {value}; it must be between {lowest} and {highest}")


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
