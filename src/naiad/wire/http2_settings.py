"""SETTINGS (RFC 9113 6.5): what this side asks for, and what the peer's mean for the output."""

from naiad.wire import http2_frames as wire
from naiad.wire.http2_frames import Http2Code, Http2Error
from naiad.wire.http2_output import Http2Output
from naiad.wire.limits import MAX_FRAME_BYTES, Http2Limits

_MAX_SETTINGS_BYTES = 64 * wire.SETTING.size


def own_settings(limits: Http2Limits) -> bytes:
    """Return the SETTINGS frame of a server with these limits."""
    return wire.settings(
        {
            wire.SETTING_MAX_CONCURRENT_STREAMS: limits.concurrent_streams,
            wire.SETTING_INITIAL_WINDOW_SIZE: limits.stream_window_bytes,
            wire.SETTING_MAX_FRAME_SIZE: limits.frame_bytes,
            wire.SETTING_MAX_HEADER_LIST_SIZE: limits.header_list_bytes,
        }
    )


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
