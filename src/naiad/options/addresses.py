"""Where services listen and which protocols each place answers: Triton's separate ports, or one port for all.

The HTTP port tells HTTP/1.1 and HTTP/2 apart, so gRPC is answered there too, and REST over HTTP/2 on the gRPC port.
But never where that would let somebody in whom the flags keep out: `obstacle` tells.

Addresses to listen on as flags write them: a host or number, IPv6 with or without brackets, `unix:/path`.
"""

import ipaddress
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from naiad.options.access import TlsOptions

_UNIX = "unix:"
_MAX_UNIX_PATH_BYTES = 107
"""What the kernel takes, without the closing zero."""
_ANY = ("0.0.0.0", "::", "")


def is_unix(address: str) -> bool:
    """Tell whether an address is a Unix socket."""
    return address.startswith(_UNIX)


def unix_path(address: str) -> str:
    """Return the path of a Unix socket. gRPC: `unix:///path` is the same as `unix:/path`."""
    path = address.removeprefix(_UNIX)
    return path[2:] if path.startswith("///") else path


def host_of(address: str) -> str:
    """Return the host of an internet address without the brackets of IPv6."""
    return address[1:-1] if address.startswith("[") and address.endswith("]") else address


def covers(wide: str, narrow: str) -> bool:
    """Tell whether everybody who reaches `narrow` reaches `wide` too: it is the same, or any address of this host."""
    if wide == narrow:
        return True
    if is_unix(wide):
        return is_unix(narrow) and unix_path(wide) == unix_path(narrow)
    wide, narrow = host_of(wide), host_of(narrow)
    # A Unix socket is behind the permissions of a file: narrower than any address.
    return wide in _ANY or wide == narrow


def check_address(address: str) -> str:
    """Return the address of a flag as it is. Raises ValueError when nothing can listen there."""
    if is_unix(address):
        path = unix_path(address)
        if not path.startswith("/"):
            raise ValueError("is not an absolute path; write unix:/path/of/the.sock")
        if len(path.encode()) > _MAX_UNIX_PATH_BYTES:
            raise ValueError(f"is too long for a Unix socket; the most is {_MAX_UNIX_PATH_BYTES} bytes")
        return address
    host = host_of(address)
    if "[" in host or "]" in host or "/" in host:
        raise ValueError("is not an address; write a name, an IPv4 or IPv6 address, or unix:/path; the port is apart")
    if ":" in host:
        _check_ipv6(host)
    return address


def _check_ipv6(host: str) -> None:
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        raise ValueError("is not an IPv6 address; the port has a flag of its own") from None


_NO_TLS = TlsOptions()


@dataclass(frozen=True, slots=True)
class Place:
    """Where one service was told to listen, and whom it keeps out."""

    name: str
    """The prefix of its flags: http, grpc, metrics."""
    allow: bool
    address: str
    port: int
    tls: TlsOptions = _NO_TLS
    restricted: Collection[str] = ()
    """The categories that ask for a header."""

    @property
    def key(self) -> str | int:
        """What no two services can have: the path of a Unix socket, or a port; 0 for any free port."""
        return unix_path(self.address) if is_unix(self.address) else self.port


def is_one_port(http: Place, grpc: Place) -> bool:
    """Tell whether HTTP and gRPC were given the same place."""
    if not (http.allow and grpc.allow) or http.key == 0:
        return False
    return http.key == grpc.key and (is_unix(http.address) or host_of(http.address) == host_of(grpc.address))


def owner_of_tls(http: Place, grpc: Place) -> Place:
    """Return whose TLS a place has that HTTP and gRPC share: that of whichever asks for it."""
    return grpc if grpc.tls.is_on else http


def are_overheard(http: Place, grpc: Place) -> bool:
    """Tell whether what clients send can be read on its way to one of the two: no TLS, and no Unix socket."""
    if is_one_port(http, grpc):
        return not (owner_of_tls(http, grpc).tls.is_on or is_unix(http.address))
    return any(place.allow and not (place.tls.is_on or is_unix(place.address)) for place in (http, grpc))


def unsupported_reason(guest: Place, host: Place) -> str:
    """Return why the protocol of `guest` may not be answered on the port of `host`; empty when it may."""
    if not guest.allow:
        return f"--allow-{guest.name}=false"
    if is_one_port(guest, host):
        return ""
    if not covers(guest.address, host.address):
        return f"--{guest.name}-address and --{host.name}-address differ"
    if not host.tls.is_at_least(guest.tls):
        return f"--{guest.name}-use-ssl asks for TLS that the port does not have"
    # What is restricted on a port must not be had there by way of the other protocol.
    if not set(host.restricted) <= set(guest.restricted):
        return f"it has not the restrictions of {host.name}"
    return ""


def problem_of_places(http: Place, grpc: Place, metrics: Place) -> str:
    """Return which services cannot listen where they should; empty when all can."""
    if is_one_port(http, grpc):
        if http.tls.is_on and grpc.tls.is_on and http.tls != grpc.tls:
            return (
                "HTTP and gRPC have one port, so --http-use-ssl and --grpc-use-ssl and their files must be the same"
            )
        return _clash((http, metrics))
    return _clash((http, grpc, metrics))


def _clash(places: Sequence[Place]) -> str:
    seen: dict[str | int, Place] = {}
    for place in places:
        if not place.allow or place.key == 0:
            continue
        other = seen.setdefault(place.key, place)
        if other is not place:
            what = "address" if is_unix(place.address) else "port"
            same = ", or equal addresses too for one port" if place.name == "grpc" else ""
            return f"--{other.name}-{what} and --{place.name}-{what} are both {place.key}; give different ones{same}"
    return ""
