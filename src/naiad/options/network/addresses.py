"""The addresses of services and the protocols at each: Triton's separate ports, or one port for all.

The HTTP port distinguishes HTTP/1.1 and HTTP/2, so it serves gRPC as well, and the gRPC port serves REST over HTTP/2.
This is disabled where it would bypass an access flag; `unsupported_reason` returns why.

Addresses in flags are a host or number, IPv6 with or without brackets, or `unix:/path`.
"""

import ipaddress
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from naiad.options.network.access_options import TlsOptions

_UNIX = "unix:"
_MAX_UNIX_PATH_BYTES = 107
"""The kernel's maximum, without the terminating zero."""
_ANY = ("0.0.0.0", "::", "")


def is_unix(address: str) -> bool:
    """Return whether an address is a Unix socket."""
    return address.startswith(_UNIX)


def unix_path(address: str) -> str:
    """Return the path of a Unix socket. gRPC: `unix:///path` is the same as `unix:/path`."""
    path = address.removeprefix(_UNIX)
    return path[2:] if path.startswith("///") else path


def is_loopback(address: str) -> bool:
    """Return whether only clients of this machine reach an internet address; a Unix socket is none."""
    if is_unix(address):
        return False
    host = host_of(address)
    if host.lower() == "localhost":
        return True
    try:
        number = ipaddress.ip_address(host)
    except ValueError:
        return False
    return (getattr(number, "ipv4_mapped", None) or number).is_loopback


def host_of(address: str) -> str:
    """Return the host of an internet address without the brackets of IPv6."""
    return address[1:-1] if address.startswith("[") and address.endswith("]") else address


def covers(wide: str, narrow: str) -> bool:
    """Return whether every client that reaches `narrow` reaches `wide` too: equal, or any address of this host."""
    if wide == narrow:
        return True
    if is_unix(wide):
        return is_unix(narrow) and unix_path(wide) == unix_path(narrow)
    wide, narrow = host_of(wide), host_of(narrow)
    # A Unix socket is protected by file permissions: narrower than any address.
    return wide in _ANY or wide == narrow


def check_address(address: str) -> str:
    """Return the address of a flag unchanged. Raises ValueError if it is not valid."""
    if is_unix(address):
        path = unix_path(address)
        if not path.startswith("/"):
            raise ValueError("is not an absolute path; write unix:/path/of/the.sock")
        if len(path.encode()) > _MAX_UNIX_PATH_BYTES:
            raise ValueError(f"is too long for a Unix socket; the maximum is {_MAX_UNIX_PATH_BYTES} bytes")
        return address
    host = host_of(address)
    if "[" in host or "]" in host or "/" in host:
        raise ValueError("is not an address; write a name, an IPv4 or IPv6 address, or unix:/path, without the port")
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
    """The configured address of one service, and its access rules."""

    name: str
    """The prefix of its flags: http, grpc, metrics."""
    allow: bool
    address: str
    port: int
    tls: TlsOptions = _NO_TLS
    restricted: Collection[str] = ()
    """The categories that require a header."""

    @property
    def key(self) -> str | int:
        """What no two services may share: the path of a Unix socket, or a port; 0 for any free port."""
        return unix_path(self.address) if is_unix(self.address) else self.port


def is_one_port(http: Place, grpc: Place) -> bool:
    """Return whether HTTP and gRPC have the same address."""
    if not (http.allow and grpc.allow) or http.key == 0:
        return False
    return http.key == grpc.key and (is_unix(http.address) or host_of(http.address) == host_of(grpc.address))


def owner_of_tls(http: Place, grpc: Place) -> Place:
    """Return the service whose TLS options apply to an address that HTTP and gRPC share."""
    return grpc if grpc.tls.is_on else http


def are_overheard(http: Place, grpc: Place) -> bool:
    """Return whether one of the two is readable on the network: no TLS, and no Unix socket."""
    if is_one_port(http, grpc):
        return not (owner_of_tls(http, grpc).tls.is_on or is_unix(http.address))
    return any(place.allow and not (place.tls.is_on or is_unix(place.address)) for place in (http, grpc))


def unsupported_reason(guest: Place, host: Place) -> str:
    """Return why the port of `host` may not serve the protocol of `guest`; empty if it may."""
    if not guest.allow:
        return f"--allow-{guest.name}=false"
    if is_one_port(guest, host):
        return ""
    if not covers(guest.address, host.address):
        return f"--{guest.name}-address and --{host.name}-address differ"
    if not host.tls.is_at_least(guest.tls):
        return f"--{guest.name}-use-ssl requires TLS, which the port does not have"
    # A restriction on a port must not be bypassed through the other protocol.
    if not set(host.restricted) <= set(guest.restricted):
        return f"it does not have the restrictions of {host.name}"
    return ""


def problem_of_places(http: Place, grpc: Place, *more: Place) -> str:
    """Return which services cannot listen at their addresses; empty if all can."""
    if is_one_port(http, grpc):
        if http.tls.is_on and grpc.tls.is_on and http.tls != grpc.tls:
            return (
                "HTTP and gRPC have one port, so --http-use-ssl and --grpc-use-ssl and their files must be the same"
            )
        return _clash((http, *more))
    return _clash((http, grpc, *more))


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
