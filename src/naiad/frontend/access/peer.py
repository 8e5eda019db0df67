"""The address of a request's client, for logs, and whether it is of this machine."""

import ipaddress
from collections.abc import Sequence

from naiad.options.network.addresses import is_loopback


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


def is_local(client: object) -> bool:
    """Return whether the other side of a connection is on this machine.

    It is if its address is a loopback address, or that of the connection's own side, and always on a Unix socket,
    whose sides have no host. A proxy on this machine is local, and so are all requests that it passes on. The address
    of a peer that has gone is not known: it is not local.
    """
    transport = getattr(client, "transport", None)
    if transport is None:
        return False
    peer, own = (_host(transport.get_extra_info(name)) for name in ("peername", "sockname"))
    return peer == own or is_loopback(peer)


def network_of(client: object) -> str:
    """Return what the clients of one place have in common: `local`, an IPv4 address, or a /64 network of IPv6.

    A client with IPv6 chooses its address within the network. Empty if the address is not known.
    """
    if is_local(client):
        return "local"
    transport = getattr(client, "transport", None)
    host = "" if transport is None else _host(transport.get_extra_info("peername"))
    try:
        number = ipaddress.ip_address(host)
    except ValueError:
        return host
    number = getattr(number, "ipv4_mapped", None) or number
    return str(number) if number.version == 4 else str(ipaddress.ip_network((number, 64), strict=False))


def _host(place: object) -> str:
    """Return the address in a socket's name without the zone of IPv6; empty for a Unix socket."""
    if isinstance(place, Sequence) and not isinstance(place, (str, bytes)) and place:
        return str(place[0]).partition("%")[0]
    return ""
