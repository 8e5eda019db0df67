"""What requests are sent to: servers over HTTP/1.1 and gRPC, and models in this process."""

from collections.abc import Sequence

from naiad.core.errors import invalid_argument
from naiad.tools.perf.perf_exchange import Target
from naiad.tools.perf.perf_plan import Mode, Protocol, ServerTarget
from naiad.tools.perf.targets.grpc import UnaryTarget
from naiad.tools.perf.targets.grpc_stream import StreamTarget
from naiad.tools.perf.targets.http import HttpTarget


def make_target(service: ServerTarget, models: Sequence[str] = ()) -> Target:
    """Return the target of a service, which is not connected yet.

    `models` are those that a target in this process loads; without names it loads all of its repository. Raises
    InferError(INVALID_ARG).
    """
    if service.protocol is Protocol.IN_PROCESS:
        from naiad.tools.perf.targets.in_process import (
            InProcessTarget,  # a server's modules, which clients do not need
        )

        return InProcessTarget(service, models)
    if service.protocol is Protocol.GRPC:
        return UnaryTarget(service) if service.mode is Mode.UNARY else StreamTarget(service)
    if service.mode is Mode.STREAM:
        raise invalid_argument("streams need gRPC; use the protocol 'grpc'")
    return HttpTarget(service)
