"""The address of a request's client, for logs."""

from collections.abc import Sequence


def address_of(client: object) -> str:
    """Return the address of a connection, `127.0.0.1:5000`; `unix` for a Unix socket, empty if it is not known.

    `client` is the `client` of a context or a call.
    """
    transport = getattr(client, "transport", None)
    if transport is None:
        return ""
    peer: object = transport.get_extra_info("peername")
    if isinstance(peer, Sequence) and not isinstance(peer, (str, bytes)) and len(peer) >= 2:
        host, port = str(peer[0]).partition("%")[0], peer[1]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return "unix"
