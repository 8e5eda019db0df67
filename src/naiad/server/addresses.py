"""Where a server listens: one address for each port that is open."""

from collections.abc import Mapping

from naiad.config.options import ServerOptions
from naiad.server.endpoint import Address


def addresses(options: ServerOptions) -> Mapping[str, Address]:
    """Return the addresses by the prefix of their flags, in Triton's order of starting: grpc, http, metrics."""
    grpc, http, metrics = options.grpc, options.http, options.metrics
    every = (
        (grpc.allow, Address("GRPCInferenceService", "grpc", grpc.address, grpc.port, grpc.reuse_port)),
        (http.allow, Address("HTTPService", "http", http.address, http.port, http.reuse_port)),
        (metrics.allow, Address("Metrics Service", "metrics", metrics.address or http.address, metrics.port)),
    )
    return {address.flag: address for is_open, address in every if is_open}
