"""Responses of a TLS port to clients without TLS, byte by byte and without a socket."""

import ssl

import pytest

from naiad.server.ports.tls import ServerContext


@pytest.fixture
def connection():
    """Return the TLS object of a new connection, with its input and output."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    return ServerContext(ssl.PROTOCOL_TLS_SERVER).wrap_bio(incoming, outgoing, server_side=True), incoming, outgoing


def test_plain_request_gets_one_response(connection, caplog):
    caplog.set_level("INFO")
    tls, incoming, outgoing = connection
    incoming.write(b"POST /v2/models/m/infer HTTP/1.1\r\nContent-Length: 99\r\n\r\nabc")
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    answer = outgoing.read()
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert b"\r\nConnection: close\r\n" in head
    assert b"Content-Length: %d" % len(body) in head
    for _ in range(3):
        incoming.write(b"x" * 1000)
        with pytest.raises(ssl.SSLWantReadError):
            tls.do_handshake()
        assert (incoming.pending, outgoing.pending) == (0, 0)
    assert caplog.text.count("the client sends plain text") == 1


@pytest.mark.parametrize("data", [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"HELO models.example\r\n"])
def test_other_bytes_get_no_response(connection, data):
    tls, incoming, outgoing = connection
    incoming.write(data)
    with pytest.raises(ssl.SSLError) as caught:
        tls.do_handshake()
    assert not isinstance(caught.value, ssl.SSLWantReadError)
    assert not outgoing.read().startswith(b"HTTP")


def test_half_a_request_line_is_waited_for(connection):
    tls, incoming, outgoing = connection
    incoming.write(b"GET")
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    assert not outgoing.pending
    incoming.write(b" /v2 HTTP/1.1\r\n\r\n")
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    assert outgoing.read().startswith(b"HTTP/1.1 400")


def test_defaults_match_the_interpreter():
    context, defaults = ServerContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    for name in ("options", "verify_flags", "verify_mode", "check_hostname", "protocol", "maximum_version"):
        assert getattr(context, name) == getattr(defaults, name), name
    assert context.get_ciphers() == defaults.get_ciphers()
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
