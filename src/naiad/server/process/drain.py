"""Drain and exit of the server.

1. From the signal on, readiness is false, so that load balancers remove the server.
2. For `drain_s` everything else continues: requests still arrive from clients that have not noticed.
3. Then loads in progress end, and the ports close, after the connections in their queues are accepted. Requests in
   flight get their responses; over HTTP/1.1 these contain `Connection: close`. HTTP/2 connections get GOAWAY and
   close after their last response.
   Idle HTTP/1.1 connections stay open, as in Triton, until their clients close them or the countdown is nearly over;
   then responses contain `Connection: close`, and idle connections close.
4. The models finish their requests and unload. Metrics can be read until then.
5. Requests that are in flight when the time is over, for example in a hung execution, get 503 before the process
   ends.

Steps 3 and 4 share one countdown. Triton: `--exit-timeout-secs`, HTTP first, then gRPC, then models, metrics last.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from naiad.engine.engine import Engine
from naiad.server.ports.endpoint import Connections, Service

_log = logging.getLogger(__name__)
_SEQUENCE_POLL_S = 0.05
_COUNT_DOWN_S = 1.0
_MOST_LISTED = 16
_LAST_RESPONSES_S = 1.0
"""Time to send the responses of aborted requests."""
_FINISH_S = 3.0
_FINISH_SHARE = 0.25
"""Idle connections are closed this long before the end of the exit timeout, at most `_FINISH_S`."""


async def drain(
    engine: Engine,
    services: Sequence[Service],
    unload: Callable[[float], bool],
    *,
    drain_s: float,
    exit_timeout_s: float,
    end_loads: Callable[[], object] = lambda: None,
    end_streams: Callable[[], object] = lambda: None,
) -> bool:
    """Take the server out of service; return whether everything finished in time.

    `unload` blocks up to the given number of seconds and returns whether all requests finished. `end_loads` ends the
    loads in progress, whose requests would be waited for. `end_streams` ends the streams without an end of their own.
    """
    engine.phase.is_draining = True
    if drain_s:
        _log.info("no longer ready; serving for another %g s", drain_s)
        await asyncio.sleep(drain_s)
    deadline_s = time.monotonic() + exit_timeout_s
    await asyncio.to_thread(end_loads)
    engine.in_flight.close_to_new_sequences()
    while engine.in_flight.live_sequence_count and time.monotonic() < deadline_s:
        # Live sequences continue over open connections, and end at the latest when they are idle.
        await asyncio.sleep(_SEQUENCE_POLL_S)
    end_streams()
    for service in services:
        service.connections.announce_drain()
    await asyncio.gather(*(service.stop_listening() for service in services))
    for service in services:
        service.connections.drain()
    _log.info("Waiting for in-flight requests to complete.")
    counting = asyncio.ensure_future(_count_down(engine, deadline_s))
    try:
        have_closed = await _all_closed(services, deadline_s, exit_timeout_s)
    finally:
        counting.cancel()
    if not have_closed and engine.in_flight.count:
        _log.warning(
            "Timeout %g s: %d requests in flight, %d connections open",
            exit_timeout_s,
            engine.in_flight.count,
            sum(s.connections.connection_count for s in services),
        )
        engine.in_flight.abort(
            f"the server exits, and the request did not finish within the exit timeout of {exit_timeout_s:g} s"
        )
        last_s = time.monotonic() + _LAST_RESPONSES_S
        await asyncio.gather(*(_wait_closed(each.connections, last_s) for each in services))
        return False
    for service in services:
        service.connections.abort()  # closes idle connections
    _log.info("All models are stopped, unloading models")
    return await asyncio.to_thread(unload, max(0.0, deadline_s - time.monotonic()))


async def _count_down(engine: Engine, deadline_s: float) -> None:
    """Log every second, in Triton's words, which models the server waits for."""
    while True:
        busy = engine.in_flight.versions()
        left_s = max(0, round(deadline_s - time.monotonic()))
        _log.info("Timeout %d: Found %d model versions that have in-flight inferences", left_s, len(busy))
        for name, version, count in busy[:_MOST_LISTED]:
            _log.info("Model '%s' (version %s) has %d in-flight inferences", name, version, count)
        await asyncio.sleep(_COUNT_DOWN_S)


async def _all_closed(services: Sequence[Service], deadline_s: float, exit_timeout_s: float) -> bool:
    """Wait for all connections, and close idle ones shortly before the deadline; return whether all have closed."""
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
