"""The loop of periodic concurrency: groups of requests, each sent once, that overlap."""

from collections.abc import Callable

from naiad.perf.exchange import Exchange, Target
from naiad.perf.generator.requests import Requests
from naiad.perf.plan import PeriodicConcurrency


class PeriodicLoop:
    """Sends a group of requests when each request of the group before has got a number of responses, or has ended."""

    def __init__(
        self,
        load: PeriodicConcurrency,
        target: Target,
        requests: Requests,
        record: Callable[[Exchange], object],
    ) -> None:
        self._load = load
        self._target = target
        self._requests = requests
        self._record = record
        self._waits_for: set[Exchange] = set()
        """Requests of the last group with fewer responses than the load asks for."""
        self._is_stopped = False
        self.sent = self.outstanding = self.unsent = 0

    def start(self) -> None:
        """Send the first group."""
        self._send_group(self._load.start)

    def stop(self, at_ns: int) -> None:
        """Send no more."""
        self._is_stopped = True

    @property
    def is_finished(self) -> bool:
        """All groups were sent, or the load was stopped, and all requests have ended."""
        return not self.outstanding and (self._is_stopped or self.sent == self._load.end)

    def _send_group(self, size: int) -> None:
        for _ in range(size):
            exchange = Exchange(self._ended)
            exchange.on_response = self._responded
            exchange.slot = self.sent
            prepared = self._requests.in_slot(self.sent, exchange)
            self.sent += 1
            self.outstanding += 1
            self._waits_for.add(exchange)
            self._target.send(prepared, exchange)
            exchange.intended_ns = exchange.start_ns

    def _responded(self, exchange: Exchange) -> None:
        if exchange.responses == self._load.responses:
            self._period_ended(exchange)

    def _ended(self, exchange: Exchange) -> None:
        self.outstanding -= 1
        self._record(exchange)
        self._period_ended(exchange)

    def _period_ended(self, exchange: Exchange) -> None:
        if exchange not in self._waits_for:
            return
        self._waits_for.remove(exchange)
        if not self._waits_for and not self._is_stopped and self.sent < self._load.end:
            self._send_group(self._load.step)
