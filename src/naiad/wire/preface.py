"""The version of HTTP that a peer speaks, by its first bytes (RFC 9113 3.4)."""

import enum


class HttpVersion(enum.Enum):
    """What a connection carries."""

    HTTP_1 = enum.auto()
    HTTP_2 = enum.auto()


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""The first bytes of a client's HTTP/2 connection (RFC 9113 3.4)."""
_REQUEST_LINE_BYTES = 4096
TLS_REFUSAL = "the client speaks TLS, this port does not: turn it off there, or on here (--http-, --grpc-use-ssl)"
ALPN = {"h2": HttpVersion.HTTP_2, "http/1.1": HttpVersion.HTTP_1}
"""By the name that TLS negotiates it with (RFC 7301)."""


def is_tls(received: bytes | bytearray | memoryview) -> bool:
    """Return whether a connection begins with a TLS handshake: with a record of type 22 (RFC 8446 5.1)."""
    return bytes(received[:1]) == b"\x16"


def is_http1(received: bytes) -> bool:
    """Return whether bytes that are not HTTP/2's seem to begin with a request of HTTP/1."""
    return b" HTTP/1." in received[:_REQUEST_LINE_BYTES]


def version_of(received: bytes | memoryview) -> HttpVersion | None:
    """Return what the bytes received so far begin, None when more are needed: less than the 24 of the preface.

    Only the exact preface is HTTP/2. Everything else goes to the HTTP/1 parser, whose error messages are readable.
    """
    head = bytes(received[: len(PREFACE)])
    if head == PREFACE:
        return HttpVersion.HTTP_2
    return None if PREFACE.startswith(head) else HttpVersion.HTTP_1
