"""The way out: not ready, still serving, then finishing, then gone.

1. From the signal on the server says that it is not ready, so that load balancers turn away from it.
2. For `drain_s` everything else goes on as before: requests still arrive from those who have not noticed.
3. Then nobody is accepted any more, HTTP answers say `Connection: close`, HTTP/2 connections get GOAWAY. Requests in
   flight are answered; connections close after their last answer.
4. The models finish what is left and unload. Metrics can be read until then.

Steps 3 and 4 share one countdown. Triton: `--exit-timeout-secs`, HTTP first, then gRPC, then models, metrics last.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from naiad.server.endpoint import Connections, Service

_log = logging.getLogger(__name__)
_SEQUENCE_POLL_S = 0.05


class Draining(Protocol):
    """What the way out asks of the engine."""

    is_draining: bool

    @property
    def in_flight_count(self) -> int:
        """Requests that wait or execute."""

    @property
    def live_sequence_count(self) -> int:
        """Sequences that have begun and not ended."""

    def close_to_new_sequences(self) -> None:
        """Let live sequences go on, and refuse new ones."""


async def drain(
    engine: Draining,
    services: Sequence[Service],
    unload: Callable[[float], bool],
    *,
    drain_s: float,
    exit_timeout_s: float,
) -> bool:
    """Take the server out of service; whether everything finished in time.

    `unload` blocks up to the seconds it is given and tells whether all requests finished.
    """
    engine.is_draining = True
    if drain_s:
        _log.info("not ready any more; serving for another %g s", drain_s)
        await asyncio.sleep(drain_s)
    deadline_s = time.monotonic() + exit_timeout_s
    engine.close_to_new_sequences()
    while engine.live_sequence_count and time.monotonic() < deadline_s:
        # They go on over the connections that are open, and end at the latest when they are idle.
        await asyncio.sleep(_SEQUENCE_POLL_S)
    for service in services:
        service.stop_listening()
        service.connections.drain()
    _log.info("Waiting for in-flight requests to complete.")
    for service in services:
        if not await _wait_closed(service.connections, deadline_s):
            _log.warning(
                "Timeout %g s: %d requests in flight, %d connections open",
                exit_timeout_s,
                engine.in_flight_count,
                sum(s.connections.connection_count for s in services),
            )
            return False
    _log.info("All requests are answered, unloading models")
    return await asyncio.to_thread(unload, max(0.0, deadline_s - time.monotonic()))


async def _wait_closed(connections: Connections, deadline_s: float) -> bool:
    try:
        await asyncio.wait_for(connections.wait_closed(), max(0.0, deadline_s - time.monotonic()))
    except TimeoutError:
        return False
    return True
