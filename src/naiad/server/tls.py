"""TLS contexts from PEM files: what a port offers, and whom it lets in."""

import ssl

from naiad.config.security import TlsOptions
from naiad.core.errors import InferError, internal
from naiad.server.handshake import ServerContext, reason_of

HANDSHAKE_TIMEOUT_S = 10.0
"""A peer that has not finished its handshake by then is dropped."""
SHUTDOWN_TIMEOUT_S = 86_400.0
"""The loop drops a closed connection after this, however much of its answer a slow peer is still taking.

The protocols watch the end themselves (`frontend.farewell`), which tells a slow peer from one that does nothing.
"""


def server_context(options: TlsOptions, protocol: str, alpn: tuple[str, ...]) -> ssl.SSLContext | None:
    """Return the context of an endpoint, None when it speaks plain text.

    `protocol` is the prefix of its flags; `alpn` the protocols it offers, the preferred first. Raises InferError that
    names the flag and its file.
    """
    if not options.is_on:
        return None
    context = ServerContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(list(alpn))
    load(context, options, protocol)
    return context


def load(context: ssl.SSLContext, options: TlsOptions, protocol: str) -> None:
    """Read the files into `context`; what it held before serves until then. Raises InferError as `server_context`."""
    _load_chain(context, options, protocol)
    if options.use_ssl_mutual:
        _load_root(context, options, protocol)


def _load_chain(context: ssl.SSLContext, options: TlsOptions, protocol: str) -> None:
    def refuse_password() -> str:
        # Without this OpenSSL would ask on the terminal, which nobody reads.
        raise internal(f"--{protocol}-server-key {options.server_key} is encrypted; give the key without a password")

    _check_readable(options.server_cert, f"--{protocol}-server-cert")
    _check_readable(options.server_key, f"--{protocol}-server-key")
    try:
        context.load_cert_chain(options.server_cert, options.server_key, refuse_password)
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
            f"--{protocol}-root-cert {options.root_cert} holds no PEM certificate: {reason_of(error)}"
        ) from error
    context.verify_mode = ssl.CERT_REQUIRED


def _check_readable(path: str, flag: str) -> None:
    try:
        with open(path, "rb"):
            return
    except OSError as error:
        raise _unreadable(path, flag, error) from error


def _unreadable(path: str, flag: str, error: OSError) -> InferError:
    return internal(f"{flag} {path}: {error.strerror}")
