"""Delays for test suites, configured by environment variables with Triton's names."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass

_log = logging.getLogger(__name__)

SCHEDULER = "TRITONSERVER_DELAY_SCHEDULER"
BACKLOG = "TRITONSERVER_BACKLOG_DELAY_SCHEDULER"
GRPC_RESPONSE = "TRITONSERVER_SERVER_DELAY_GRPC_RESPONSE_SEC"


@dataclass(frozen=True, slots=True)
class ArtificialDelays:
    """The configured delays; zero for none."""

    scheduler_count: int = 0
    """`TRITONSERVER_DELAY_SCHEDULER`: batchers delay their requests once, until this many are queued."""
    backlog_count: int = 0
    """`TRITONSERVER_BACKLOG_DELAY_SCHEDULER`: direct sequence batchers also wait for this many in the backlog."""
    grpc_response_s: int = 0
    """`TRITONSERVER_SERVER_DELAY_GRPC_RESPONSE_SEC`: delay of gRPC calls other than inference."""


def read_artificial_delays(environ: Mapping[str, str]) -> ArtificialDelays:
    """Return the delays in `environ`. They are logged: a server in production should have none."""
    delays = ArtificialDelays(*(_count(environ, name) for name in (SCHEDULER, BACKLOG, GRPC_RESPONSE)))
    if delays != ArtificialDelays():
        names = [name for name in (SCHEDULER, BACKLOG, GRPC_RESPONSE) if _count(environ, name)]
        _log.warning("the environment configures artificial delays, which are meant for tests: %s", ", ".join(names))
    return delays


def _count(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name, "").strip()
    if text.isdecimal():
        return int(text)
    if text:
        _log.warning("the environment variable %s is '%s', expected a whole number; it is ignored", name, text[:200])
    return 0
