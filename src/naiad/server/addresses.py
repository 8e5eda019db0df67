"""Where a server listens: one address for each port that is open."""

from collections.abc import Mapping

from naiad.config.options import ServerOptions
from naiad.config.places import is_one_port, owner_of_tls
from naiad.server.listener import Address

_GRPC = ("GRPCInferenceService",)
_HTTP = ("HTTPService",)
_METRICS = ("Metrics Service",)


def addresses(options: ServerOptions) -> Mapping[str, Address]:
    """Return the addresses by the prefix of their flags, in Triton's order of starting: grpc, http, metrics.

    Where HTTP and gRPC were given the same place it is that of http alone.
    """
    grpc, http, mode = options.grpc, options.http, options.unix_socket_mode
    found: list[Address] = []
    if is_one_port(options.http_place, options.grpc_place):
        reuse = http.reuse_port or grpc.reuse_port
        found.append(Address(_GRPC + _HTTP, "http", http.address, http.port, reuse, mode))
    else:
        if grpc.allow:
            found.append(Address(_GRPC, "grpc", grpc.address, grpc.port, grpc.reuse_port, mode))
        if http.allow:
            found.append(Address(_HTTP, "http", http.address, http.port, http.reuse_port, mode))
    if options.metrics.allow:
        address, port = options.metrics_place.address, options.metrics.port
        found.append(Address(_METRICS, "metrics", address, port, unix_mode=mode))
    return {address.flag: address for address in found}


def has_tls(options: ServerOptions, flag: str) -> bool:
    """Tell whether the port of that prefix speaks TLS."""
    places = {"grpc": options.grpc_place, "http": options.http_place, "metrics": options.metrics_place}
    place = places[flag]
    if flag == "http" and is_one_port(options.http_place, options.grpc_place):
        place = owner_of_tls(options.http_place, options.grpc_place)
    return place.tls.is_on
