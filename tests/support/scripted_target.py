"""A target without a server: it answers when a script says."""

import asyncio
import time
from collections.abc import Callable

from naiad.client import ConnectionFailedError
from naiad.tools.perf.perf_exchange import Prepared, RequestTemplate, SentRequest


class ScriptedPrepared:
    def __init__(self, template: RequestTemplate) -> None:
        self.template = template


class ScriptedTarget:
    """Answers each request after `delay_s(exchange)`; while stalled, after the stall."""

    def __init__(
        self,
        delay_s: Callable[[SentRequest], float] = lambda _: 0.0,
        failure: Callable[[SentRequest], str] = lambda _: "",
    ) -> None:
        self.delay_s = delay_s
        self.failure = failure
        self.sent: list[SentRequest] = []
        self.prepared: list[ScriptedPrepared] = []
        self.ended: list[SentRequest] = []
        self.outstanding = 0
        self.most_outstanding = 0
        self.connections: list[int] = []
        self.is_refusing = False
        self.is_closed = False
        self.stall_until_s = 0.0

    async def open(self, connections: int) -> None:
        if self.is_refusing:
            raise ConnectionFailedError("no connection to script://")
        self.is_closed = False
        self.connections.append(connections)

    def prepare(self, template: RequestTemplate) -> ScriptedPrepared:
        return ScriptedPrepared(template)

    def send(self, prepared: Prepared, exchange: SentRequest) -> None:
        assert isinstance(prepared, ScriptedPrepared)
        loop = asyncio.get_running_loop()
        exchange.start_ns = exchange.sent_ns = time.monotonic_ns()
        self.sent.append(exchange)
        self.prepared.append(prepared)
        self.outstanding += 1
        self.most_outstanding = max(self.most_outstanding, self.outstanding)
        delay_s = self.delay_s(exchange) + max(0.0, self.stall_until_s - time.monotonic())
        if delay_s:
            loop.call_later(delay_s, self._end, exchange)
        else:
            loop.call_soon(self._end, exchange)

    def _end(self, exchange: SentRequest) -> None:
        self.outstanding -= 1
        exchange.first_ns = exchange.end_ns = time.monotonic_ns()
        exchange.responses = 1
        exchange.failure = self.failure(exchange)
        exchange.failure_message = exchange.failure and f"scripted {exchange.failure}"
        self.ended.append(exchange)
        exchange.on_end(exchange)

    async def close(self) -> None:
        self.is_closed = True
