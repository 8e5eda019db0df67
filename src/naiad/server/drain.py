"""The way out: not ready, still serving, then finishing, then gone.

1. From the signal on the server says that it is not ready, so that load balancers turn away from it.
2. For `drain_s` everything else goes on as before: requests still arrive from those who have not noticed.
3. Then the ports close, after the connections that wait in their queues are accepted. Requests in flight are
   answered; their answers over HTTP/1.1 say `Connection: close`. HTTP/2 connections get GOAWAY and close after their
   last answer. Connections over HTTP/1.1 that are idle then are served on, as in Triton, until their clients close
   them or the countdown is nearly over; from then on answers say `Connection: close`, and idle connections close.
4. The models finish what is left and unload. Metrics can be read until then.
5. What is in flight when the time is over, an execution that hangs, is answered with 503 before the process ends.

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
_LAST_ANSWERS_S = 1.0
"""How long the answers of what was given up may take to leave."""
_FINISH_S = 3.0
_FINISH_SHARE = 0.25
"""Of the exit timeout: how long before its end idle connections are closed, at most `_FINISH_S`."""


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

    def abort(self, reason: str) -> None:
        """Answer all that waits or executes with UNAVAILABLE."""


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
        service.connections.announce_drain()
    await asyncio.gather(*(service.stop_listening() for service in services))
    for service in services:
        service.connections.drain()
    _log.info("Waiting for in-flight requests to complete.")
    if not await _all_closed(services, deadline_s, exit_timeout_s) and engine.in_flight_count:
        _log.warning(
            "Timeout %g s: %d requests in flight, %d connections open",
            exit_timeout_s,
            engine.in_flight_count,
            sum(s.connections.connection_count for s in services),
        )
        engine.abort(f"the server exits, and the request was not done within the {exit_timeout_s:g} s it waits")
        last_s = time.monotonic() + _LAST_ANSWERS_S
        await asyncio.gather(*(_wait_closed(each.connections, last_s) for each in services))
        return False
    for service in services:
        service.connections.abort()  # those that have nothing to wait for
    _log.info("All requests are answered, unloading models")
    return await asyncio.to_thread(unload, max(0.0, deadline_s - time.monotonic()))


async def _all_closed(services: Sequence[Service], deadline_s: float, exit_timeout_s: float) -> bool:
    """Wait for all connections, and ask the idle ones to end shortly before the deadline; whether all have closed."""
    finish_s = min(_FINISH_S, _FINISH_SHARE * exit_timeout_s)
    for until_s in (deadline_s - finish_s, deadline_s):
        closed = [await _wait_closed(service.connections, until_s) for service in services]
        if all(closed):
            return True
        for service in services:
            service.connections.finish()
    return False


async def _wait_closed(connections: Connections, deadline_s: float) -> bool:
    try:
        await asyncio.wait_for(connections.wait_closed(), max(0.0, deadline_s - time.monotonic()))
    except TimeoutError:
        return False
    return True
