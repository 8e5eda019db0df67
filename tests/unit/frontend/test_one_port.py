import pytest

from naiad.frontend.one_port import Undecided
from naiad.wire.preface import PREFACE
from support.one_port import FakeHttp1, FakeHttp2, FakeTls, SwitchingTransport

REQUEST = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"


class Scene:
    def __init__(self, alpn=None, *, tls=False):
        self.http1, self.http2 = FakeHttp1(), FakeHttp2()
        self.transport = SwitchingTransport(Undecided(self.http1, self.http2), FakeTls(alpn) if tls or alpn else None)
        self.transport.connect()


def test_undecided_connection_has_http1_limits():
    scene = Scene()
    assert scene.http1.is_connected
    assert not scene.http2.is_connected
    scene.transport.protocol.connection_lost(None)
    assert not scene.http1.is_connected


def test_http1_request_gets_protocol_of_separate_port():
    scene = Scene()
    scene.transport.deliver(REQUEST)
    assert scene.transport.protocol is scene.http1
    assert bytes(scene.http1.received) == REQUEST
    scene.transport.deliver(b"more")
    assert bytes(scene.http1.received) == REQUEST + b"more"


def test_preface_replaces_http1_with_http2():
    scene = Scene()
    scene.transport.deliver(PREFACE + b"frames")
    assert scene.transport.protocol is scene.http2
    assert bytes(scene.http2.received) == PREFACE + b"frames"
    assert not scene.http1.is_connected
    assert scene.transport.reading_restarts == 1  # so that the loop checks how the new protocol receives


@pytest.mark.parametrize("data", [PREFACE + b"frames", REQUEST])
def test_byte_by_byte_nothing_is_lost(data):
    scene = Scene()
    for index in range(len(data)):
        scene.transport.deliver(data[index : index + 1])
    receiver = scene.http2 if data.startswith(PREFACE) else scene.http1
    assert bytes(receiver.received) == data


def test_connection_ending_within_preface_is_bad_request():
    scene = Scene()
    scene.transport.deliver(PREFACE[:5])
    scene.transport.eof()
    assert bytes(scene.http1.received) == PREFACE[:5]
    assert scene.http1.saw_eof


def test_connection_that_ends_without_a_byte():
    scene = Scene()
    scene.transport.eof()
    assert scene.http1.saw_eof
    assert scene.http1.received == b""


@pytest.mark.parametrize(("alpn", "chosen"), [("h2", "http2"), ("http/1.1", "http1")])
def test_alpn_decides_before_the_first_byte(alpn, chosen):
    scene = Scene(alpn)
    receiver = getattr(scene, chosen)
    assert scene.transport.protocol is receiver
    assert scene.http1.is_connected is (chosen == "http1")
    assert scene.http2.is_connected is (chosen == "http2")
    scene.transport.deliver(REQUEST)  # even if it violates the negotiated protocol
    assert bytes(receiver.received) == REQUEST


def test_tls_without_alpn_is_decided_by_first_bytes():
    scene = Scene(tls=True)
    scene.transport.deliver(PREFACE)
    assert scene.transport.protocol is scene.http2


def test_connection_rejected_by_http2_gets_nothing_more():
    scene = Scene()
    scene.http2.connection_made = lambda transport: transport.close()
    scene.transport.deliver(PREFACE)
    assert scene.http2.received == b""
