"""SETTINGS (RFC 9113 6.5): what this side asks for, and what the peer's mean for the output.

The windows that the peer is given for its DATA (RFC 9113 5.2, 6.9); `http2_output` keeps those it gives.
"""

from naiad.wire.http2 import frames as wire
from naiad.wire.http2.connection_limits import MAX_FRAME_BYTES, Http2Limits
from naiad.wire.http2.frame_output import Http2Output
from naiad.wire.http2.frames import DEFAULT_WINDOW, Http2Code, Http2Error, window_update
from naiad.wire.http2.stream_state import Stream


class ReceiveWindows:
    """The windows of the connection and its streams; a window is refilled when half of it is used."""

    __slots__ = (
        "_full_bytes",
        "_output",
        "_returned_bytes",
        "_stream_full_bytes",
        "half_bytes",
        "is_held",
        "left_bytes",
    )

    def __init__(self, output: Http2Output, limits: Http2Limits) -> None:
        self._output = output
        self._full_bytes = limits.connection_window_bytes
        self._stream_full_bytes = limits.stream_window_bytes
        self.half_bytes = self._full_bytes // 2
        self.left_bytes = self._full_bytes
        """What the peer may send still, over all streams."""
        self._returned_bytes = 0
        self.is_held = False
        """The peer gets no more window for the connection."""

    def announce(self) -> None:
        """Widen the connection's window, which no setting does, from the protocol's first size to ours."""
        if self._full_bytes > DEFAULT_WINDOW:
            self._output.send_control(window_update(0, self._full_bytes - DEFAULT_WINDOW))

    @property
    def received_bytes(self) -> int:
        """DATA that has come so far, padding included."""
        return self._returned_bytes + self._full_bytes - self.left_bytes

    def take(self, size: int) -> None:
        """Count a DATA frame, padding included. Raises Http2Error when the connection's window is exceeded."""
        self.left_bytes -= size
        if self.left_bytes < self.half_bytes:
            self.refill()

    def refill(self) -> None:
        """Give the peer the connection's whole window back. Raises Http2Error when it took more."""
        if self.left_bytes < 0:
            raise Http2Error(Http2Code.FLOW_CONTROL_ERROR, "the connection's window is exceeded")
        if not self.is_held:
            used_bytes = self._full_bytes - self.left_bytes
            self._output.send_control(window_update(0, used_bytes))
            self._returned_bytes += used_bytes
            self.left_bytes = self._full_bytes

    def refill_stream(self, stream: Stream) -> None:
        """Give the peer the whole window of a stream back, if half of it is used."""
        full = self._stream_full_bytes
        if stream.receive_window < full // 2:
            self._output.send_control(window_update(stream.id, full - stream.receive_window))
            stream.receive_window = full

    def hold(self) -> None:
        """Let the peer send only what the connection's window still allows, until `release`.

        Bodies stop, on all streams. What costs nothing to read goes on: windows, PINGs, resets.
        """
        self.is_held = True

    def release(self) -> None:
        """Let the peer go on sending bodies."""
        self.is_held = False
        if self.left_bytes < self.half_bytes:
            self.refill()


_MAX_SETTINGS_BYTES = 64 * wire.SETTING.size


def server_settings(limits: Http2Limits) -> bytes:
    """Return the SETTINGS frame of a server with these limits."""
    return wire.settings({wire.SETTING_MAX_CONCURRENT_STREAMS: limits.concurrent_streams, **_settings_of(limits)})


def client_settings(limits: Http2Limits) -> bytes:
    """Return the SETTINGS frame of a client with these limits; it takes no pushed responses."""
    return wire.settings({wire.SETTING_ENABLE_PUSH: 0, **_settings_of(limits)})


def _settings_of(limits: Http2Limits) -> dict[int, int]:
    return {
        wire.SETTING_INITIAL_WINDOW_SIZE: limits.stream_window_bytes,
        wire.SETTING_MAX_FRAME_SIZE: limits.frame_bytes,
        wire.SETTING_MAX_HEADER_LIST_SIZE: limits.header_list_bytes,
    }


def apply_settings(payload: memoryview, output: Http2Output) -> int:
    """Apply the settings of a frame; the caller acknowledges them. Raises Http2Error for values that are illegal.

    All values are checked, and the last of each setting is applied (RFC 9113 6.5.3). Return how many streams may have
    been set going.
    """
    if len(payload) > _MAX_SETTINGS_BYTES:
        raise Http2Error(Http2Code.ENHANCE_YOUR_CALM, "too many settings in a frame")
    last: dict[int, int] = {}
    for key, value in wire.SETTING.iter_unpack(payload):
        _check(key, value)
        last[key] = value
        if key == wire.SETTING_HEADER_TABLE_SIZE:
            output.set_peer_table_bytes(value)  # RFC 7541 4.2: the smallest in between counts
    output.peer_frame_bytes = last.get(wire.SETTING_MAX_FRAME_SIZE, output.peer_frame_bytes)
    output.peer_max_streams = last.get(wire.SETTING_MAX_CONCURRENT_STREAMS, output.peer_max_streams)
    if wire.SETTING_INITIAL_WINDOW_SIZE in last:
        return output.set_initial_window(last[wire.SETTING_INITIAL_WINDOW_SIZE])
    return 0


def _check(key: int, value: int) -> None:
    """Raise Http2Error for a value that its setting cannot have (RFC 9113 6.5.2)."""
    if key == wire.SETTING_INITIAL_WINDOW_SIZE:
        if value > wire.MAX_WINDOW:
            raise Http2Error(Http2Code.FLOW_CONTROL_ERROR, f"SETTINGS_INITIAL_WINDOW_SIZE of {value}")
    elif key == wire.SETTING_MAX_FRAME_SIZE:
        if not wire.DEFAULT_FRAME_BYTES <= value <= MAX_FRAME_BYTES:
            raise Http2Error(Http2Code.PROTOCOL_ERROR, f"SETTINGS_MAX_FRAME_SIZE of {value}")
    elif key == wire.SETTING_ENABLE_PUSH and value > 1:
        raise Http2Error(Http2Code.PROTOCOL_ERROR, f"SETTINGS_ENABLE_PUSH of {value}")
