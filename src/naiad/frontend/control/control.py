"""Carries out the control operations of both protocols: decodes the request, calls the engine, encodes the result.

`naiad.operations` declares what each step is and where it runs. In a server of several processes a `Distribution`
lets all of them take part.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from naiad.core.errors import unavailable
from naiad.core.slices import Slices
from naiad.engine.engine import Engine
from naiad.frontend.long_work.slice_runner import SliceJob, SliceRunner
from naiad.frontend.long_work.thread_pool import RunInThread, run_at_once
from naiad.operations.operation import AnyOperation


@dataclass(slots=True)
class ControlExchange:
    """A request for an operation, with what its protocol does with it. `respond` or `fail` is called on the loop."""

    operation: AnyOperation
    client: object
    """The connection: slices of several clients alternate."""
    decode: Callable[[], Any]
    encode: Callable[[Any], Any]
    respond: Callable[[Any], object]
    fail: Callable[[Exception], object]
    hold: Callable[[SliceJob], object] = lambda job: None
    """Gets the job of a response that takes several turns of the loop."""


class Distribution(Protocol):
    """Lets all processes of a server take part in operations. Its callbacks are called on the loop."""

    def execute(
        self,
        operation: AnyOperation,
        request: object,
        done: Callable[[Any], object],
        failed: Callable[[Exception], object],
    ) -> None:
        """Carry out a command in all processes, then call `done` with its result."""

    def gather(
        self,
        operation: AnyOperation,
        request: object,
        work: Callable[[], object],
        failed: Callable[[Exception], object],
    ) -> bool:
        """Do `work` where the engine knows the state of all processes; return False if this process is enough."""


class ControlCalls:
    """Carries out control operations; one per event loop."""

    def __init__(
        self,
        engine: Engine,
        run_in_thread: RunInThread = run_at_once,
        run_control: RunInThread = run_at_once,
        runner: SliceRunner | None = None,
        distribution: Distribution | None = None,
    ) -> None:
        """`run_in_thread` runs work that reads the repository, `run_control` work that may take minutes."""
        self._engine = engine
        self._threads = {"index thread": run_in_thread, "control thread": run_control}
        self.runner = runner or SliceRunner()
        self._distribution = distribution

    def handle(self, exchange: ControlExchange) -> None:
        """Handle a request. Raises InferError, as long as the operation does not continue elsewhere."""
        operation = exchange.operation
        if operation.place == "control thread" and self._engine.phase.is_draining:
            raise unavailable("Server not ready")
        run = self._threads.get(operation.place)
        if run is None:
            self._proceed(exchange, exchange.decode())
        elif self._distribution is not None and operation.kind == "command":
            run(exchange.decode, partial(self._proceed, exchange), exchange.fail)
        else:
            run(partial(self._work, exchange), exchange.respond, exchange.fail)

    def carry_out(
        self,
        operation: AnyOperation,
        request: object,
        done: Callable[[Any], object],
        failed: Callable[[Exception], object],
    ) -> None:
        """Carry out a command in this process alone, then call `done` with its result."""
        assert operation.call is not None, operation.name
        self._threads.get(operation.place, run_at_once)(partial(operation.call, self._engine, request), done, failed)

    def _work(self, exchange: ControlExchange) -> object:
        """Do everything on a thread."""
        call = exchange.operation.call
        assert call is not None, exchange.operation.name
        return exchange.encode(call(self._engine, exchange.decode()))

    def _proceed(self, exchange: ControlExchange, request: object) -> None:
        """Continue with a decoded request, on the loop."""
        operation, distribution = exchange.operation, self._distribution
        if distribution is None:
            self._answer(exchange, request)
        elif operation.order is not None and operation.order(request) is not None:
            distribution.execute(operation, request, partial(_conclude, exchange), exchange.fail)
        elif not distribution.gather(operation, request, partial(self._answer, exchange, request), exchange.fail):
            self._answer(exchange, request)

    def _answer(self, exchange: ControlExchange, request: object) -> None:
        operation = exchange.operation
        assert operation.call is not None, operation.name
        result = operation.call(self._engine, request)
        if operation.place != "slices":
            _conclude(exchange, result)
            return
        job = self.runner.run(exchange.client, _encoded(exchange, result), 0, exchange.respond, exchange.fail)
        if not job.is_over:
            exchange.hold(job)


def _conclude(exchange: ControlExchange, result: object) -> None:
    exchange.respond(exchange.encode(result))


def _encoded(exchange: ControlExchange, result: Slices[Any]) -> Slices[Any]:
    return (yield from exchange.encode((yield from result)))
