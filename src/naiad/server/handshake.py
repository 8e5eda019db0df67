"""TLS handshakes that fail: why goes to the log, and who spoke plain HTTP is told so in plain HTTP.

The event loop keeps both to itself: it drops the connection without a word.
"""

import logging
import ssl

_log = logging.getLogger(__name__)

_REFUSAL_TEXT = (
    b'{"error":"a plain HTTP request was sent to an HTTPS port: this port speaks TLS only; '
    b'use https://, or ssl=True"}'
)
_REFUSAL = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b"
    % (len(_REFUSAL_TEXT), _REFUSAL_TEXT)
)


class ServerContext(ssl.SSLContext):
    """A context for servers with the interpreter's defaults (TLS 1.2 and up, forward secrecy, no compression)."""

    def __init__(self, protocol: int) -> None:
        """`protocol` is `ssl.PROTOCOL_TLS_SERVER`."""
        defaults = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.options = defaults.options
        self.verify_flags = defaults.verify_flags
        self.minimum_version = max(defaults.minimum_version, ssl.TLSVersion.TLSv1_2)
        self.keylog_filename = defaults.keylog_filename
        self.sslobject_class = _Handshake

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        """Return the TLS of a connection whose bytes come through `incoming` and go through `outgoing`."""
        wrapped = super().wrap_bio(incoming, outgoing, server_side, server_hostname, session)
        assert isinstance(wrapped, _Handshake)
        wrapped.outgoing = outgoing
        wrapped.incoming = incoming
        return wrapped


class _Handshake(ssl.SSLObject):
    incoming: ssl.MemoryBIO
    outgoing: ssl.MemoryBIO
    _was_refused = False

    def do_handshake(self) -> None:
        """Go on with the handshake. Raises ssl.SSLError."""
        if self._was_refused:
            self._linger()
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            _log.info("TLS handshake failed: %s", _explained(error))
            if error.reason != "HTTP_REQUEST":
                raise
            self._was_refused = True
            self.outgoing.write(_REFUSAL)
            self._linger()

    def _linger(self) -> None:
        """Have the answer sent, and wait for the peer to close, at most as long as a handshake may take.

        RFC 9112 9.6: to close with a part of the request unread may cost the client the answer.
        """
        self.incoming.read()
        raise ssl.SSLWantReadError(ssl.SSL_ERROR_WANT_READ, "a plain request was refused")


def _explained(error: ssl.SSLError) -> str:
    if error.reason in ("HTTP_REQUEST", "WRONG_VERSION_NUMBER"):
        return "the client speaks plain text: let it use https:// or ssl=True, or turn TLS off here"
    return reason_of(error)


def reason_of(error: ssl.SSLError) -> str:
    """Return what OpenSSL says, in lower case."""
    return (error.reason or str(error)).replace("_", " ").lower()
