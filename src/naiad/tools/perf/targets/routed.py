"""Several targets as one: each request goes to that of its template. A replay keeps transports in this way."""

import asyncio
from collections.abc import Sequence

from naiad.tools.perf.perf_exchange import Prepared, RequestTemplate, SentRequest, Target


class RoutedPrepared:
    """A template in the form of the target of its route."""

    __slots__ = ("inner", "target")

    def __init__(self, target: Target, template: RequestTemplate) -> None:
        self.target = target
        self.inner = target.prepare(template)


class RoutedTarget:
    """The targets of a run, by route."""

    def __init__(self, targets: Sequence[Target]) -> None:
        self._targets = targets

    async def open(self, connections: int) -> None:
        """Connect each target, in turn: any of them may get all of the requests. Raises ConnectionFailedError."""
        for target in self._targets:
            await target.open(connections)

    def prepare(self, template: RequestTemplate) -> RoutedPrepared:
        """Encode a template. Raises InferError(INVALID_ARG) for one that its target cannot carry."""
        return RoutedPrepared(self._targets[template.route], template)

    def send(self, prepared: Prepared, exchange: SentRequest) -> None:
        """Send a request to the target of its template."""
        assert isinstance(prepared, RoutedPrepared)
        prepared.target.send(prepared.inner, exchange)

    async def close(self) -> None:
        """Close all targets; outstanding requests fail as `connection`."""
        await asyncio.gather(*(target.close() for target in self._targets))
