"""Where services listen and which protocols each place answers: Triton's separate ports, or one port for all.

The HTTP port tells HTTP/1.1 and HTTP/2 apart, so gRPC is answered there too, and REST over HTTP/2 on the gRPC port.
But never where that would let somebody in whom the flags keep out: `obstacle` tells.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from naiad.config.address import covers, host_of, is_unix, unix_path
from naiad.config.security import TlsOptions

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


def obstacle(guest: Place, host: Place) -> str:
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
