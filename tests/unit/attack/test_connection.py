"""The flow control of the attacker's HTTP/2 client."""

import socket
from collections.abc import Iterator

import pytest
from attack.connection import Http2Peer

from naiad.wire.http2 import frames as wire


@pytest.fixture
def peer() -> Iterator[Http2Peer]:
    """A client whose server reads everything and sends only what a test takes for it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        peer = Http2Peer(listener.getsockname()[1], is_grpc=False)
        yield peer
        peer.close()


def test_late_settings_enlarge_windows_of_open_streams(peer: Http2Peer) -> None:
    # RFC 9113 6.9.2: the server's SETTINGS may arrive when the body has already begun.
    stream_id, _ = peer.open_stream("/")
    peer.send_body(stream_id, bytes(1000), ends=False)
    setting = wire.SETTING.pack(wire.SETTING_INITIAL_WINDOW_SIZE, 1 << 20)
    peer.take(wire.frame(wire.SETTINGS, 0, 0, setting))
    peer.take(wire.frame(wire.WINDOW_UPDATE, 0, 0, wire.UINT32.pack(1 << 20)))
    sent_bytes = peer.sent_bytes
    peer.send_body(stream_id, bytes(100_000), ends=False, most_s=0.5)
    assert peer.sent_bytes - sent_bytes > 100_000
