"""What requests are sent to: servers over HTTP/1.1 and gRPC."""

from naiad.core.errors import invalid_argument
from naiad.perf.exchange import Target
from naiad.perf.plan import Mode, Protocol, Service
from naiad.perf.targets.grpc import UnaryTarget
from naiad.perf.targets.grpc_stream import StreamTarget
from naiad.perf.targets.http import HttpTarget


def make_target(service: Service) -> Target:
    """Return the target of a service, which is not connected yet. Raises InferError(INVALID_ARG)."""
    if service.protocol is Protocol.HTTP and service.mode is Mode.UNARY:
        return HttpTarget(service)
    if service.protocol is Protocol.GRPC:
        return UnaryTarget(service) if service.mode is Mode.UNARY else StreamTarget(service)
    raise invalid_argument("streams need gRPC; use the protocol 'grpc'")
