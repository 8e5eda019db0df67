"""TLS contexts from PEM files, and the handling of failed handshakes.

A failed handshake is logged with its reason, and a client that sends plain HTTP gets an error in plain HTTP. The
event loop itself would only drop the connection.
"""

import logging
import ssl

from naiad.core.errors import internal
from naiad.options.network.access_options import TlsOptions

_log = logging.getLogger(__name__)

_REJECTION_TEXT = (
    b'{"error":"a plain HTTP request was sent to an HTTPS port: this port speaks TLS only; '
    b'use https://, or ssl=True"}'
)
_REJECTION = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b"
    % (len(_REJECTION_TEXT), _REJECTION_TEXT)
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
        """Return the TLS object of a connection that reads from `incoming` and writes to `outgoing`."""
        wrapped = super().wrap_bio(incoming, outgoing, server_side, server_hostname, session)
        assert isinstance(wrapped, _Handshake)
        wrapped.outgoing = outgoing
        wrapped.incoming = incoming
        return wrapped


class _Handshake(ssl.SSLObject):
    incoming: ssl.MemoryBIO
    outgoing: ssl.MemoryBIO
    _was_rejected = False

    def do_handshake(self) -> None:
        """Continue the handshake. Raises ssl.SSLError."""
        if self._was_rejected:
            self._linger()
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            _log.info("TLS handshake failed: %s", _explained(error))
            if error.reason != "HTTP_REQUEST":
                raise
            self._was_rejected = True
            self.outgoing.write(_REJECTION)
            self._linger()

    def _linger(self) -> None:
        """Send the response, and wait for the peer to close, at most as long as a handshake may take.

        RFC 9112 9.6: closing with a part of the request unread may discard the response at the client.
        """
        self.incoming.read()
        raise ssl.SSLWantReadError(ssl.SSL_ERROR_WANT_READ, "a plain-text request was rejected")


def _explained(error: ssl.SSLError) -> str:
    if error.reason in ("HTTP_REQUEST", "WRONG_VERSION_NUMBER"):
        return "the client sends plain text: use https:// or ssl=True in the client, or turn TLS off here"
    return reason_of(error)


def reason_of(error: ssl.SSLError) -> str:
    """Return OpenSSL's reason, in lower case."""
    return (error.reason or str(error)).replace("_", " ").lower()


HANDSHAKE_TIMEOUT_S = 10.0
"""A peer that has not finished its handshake by then is dropped."""
SHUTDOWN_TIMEOUT_S = 86_400.0
"""The loop drops a closed connection after this time, even if a slow peer is still reading its response.

The protocols watch the close themselves (`frontend.linger`), which distinguishes slow peers from inactive ones.
"""


def server_context(options: TlsOptions, protocol: str, alpn: tuple[str, ...]) -> ssl.SSLContext | None:
    """Return the context of an endpoint, None if it uses plain text.

    `protocol` is the prefix of its flags; `alpn` lists the offered protocols, the preferred one first. Raises
    InferError that names the flag and its file.
    """
    if not options.is_on:
        return None
    context = ServerContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(list(alpn))
    load(context, options, protocol)
    return context


def load(context: ssl.SSLContext, options: TlsOptions, protocol: str) -> None:
    """Read the files into `context`; its previous content is in use until then.

    Raises InferError as `server_context`.
    """
    _load_chain(context, options, protocol)
    if options.use_ssl_mutual:
        _load_root(context, options, protocol)


def _load_chain(context: ssl.SSLContext, options: TlsOptions, protocol: str) -> None:
    def reject_password() -> str:
        # Without this OpenSSL would prompt on the terminal.
        raise internal(f"--{protocol}-server-key {options.server_key} is encrypted; give the key without a password")

    _check_readable(options.server_cert, f"--{protocol}-server-cert")
    _check_readable(options.server_key, f"--{protocol}-server-key")
    try:
        context.load_cert_chain(options.server_cert, options.server_key, reject_password)
    except ssl.SSLError as error:
        raise internal(
            f"--{protocol}-server-cert {options.server_cert} and --{protocol}-server-key {options.server_key} "
            f"are not a PEM certificate and its key: {reason_of(error)}"
        ) from error


def _load_root(context: ssl.SSLContext, options: TlsOptions, protocol: str) -> None:
    _check_readable(options.root_cert, f"--{protocol}-root-cert")
    try:
        context.load_verify_locations(cafile=options.root_cert)
    except ssl.SSLError as error:
        raise internal(
            f"--{protocol}-root-cert {options.root_cert} contains no PEM certificate: {reason_of(error)}"
        ) from error
    context.verify_mode = ssl.CERT_REQUIRED


def _check_readable(path: str, flag: str) -> None:
    try:
        with open(path, "rb"):
            return
    except OSError as error:
        raise internal(f"{flag} {path}: {error.strerror}") from error
