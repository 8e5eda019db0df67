"""Certificates and tokens for other servers, from files of the owner. Errors never have what is in a file."""

import ssl
from collections.abc import Mapping

from naiad.config.remote_settings import CA_FILE, CERTIFICATE_FILE, TOKEN_FILE, RemoteAccess
from naiad.core.errors import excerpt, invalid_argument

_MAX_TOKEN_BYTES = 16 << 10


def tls_context(access: RemoteAccess) -> ssl.SSLContext | None:
    """Return the context for TLS; None for the system's certificates alone. Raises InferError(INVALID_ARG)."""
    if not access.ca_file and not access.certificate_file:
        return None
    name, path = CA_FILE, access.ca_file
    try:
        context = ssl.create_default_context(cafile=path or None)
        if access.certificate_file:
            name, path = CERTIFICATE_FILE, access.certificate_file
            # Without a password the library would ask on the terminal.
            context.load_cert_chain(path, access.key_file, password=lambda: "")
    except OSError as error:  # also of ssl
        raise invalid_argument(
            f"{name} '{excerpt(path)}' cannot be used: {error.strerror or error.args[0]}; expected files in PEM "
            "that the server's user can read"
        ) from None
    return context


def token_header(access: RemoteAccess) -> Mapping[str, str]:
    """Return the header with the token; none without a file. Raises InferError(INVALID_ARG)."""
    path = access.token_file
    if not path:
        return {}
    try:
        with open(path, "rb") as file:
            content = file.read(_MAX_TOKEN_BYTES + 1)
    except OSError as error:
        raise invalid_argument(f"{TOKEN_FILE} '{excerpt(path)}' cannot be read: {error.strerror}") from None
    token = content.strip()
    if not token or len(content) > _MAX_TOKEN_BYTES or not all(0x20 < each < 0x7F for each in token):
        raise invalid_argument(
            f"{TOKEN_FILE} '{excerpt(path)}' has no token; expected one line of printable ASCII without spaces"
        )
    return {"authorization": f"Bearer {token.decode()}"}
