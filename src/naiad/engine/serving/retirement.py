"""The end of instances that an update in place retires, while their version goes on serving."""

import threading
import time
from collections.abc import Sequence

from naiad.engine.serving.dispatch.dispatcher import Dispatcher
from naiad.engine.serving.dispatch.runners import InstanceRunner
from naiad.telemetry.last_resort import report

_LINGER_S = 5.0
"""Polling interval for the sequences or open requests of a leaving instance."""
_CLOSE_S = 5.0
"""Minimum time to wait for the closing of a leaving instance."""


class RetiredInstances:
    """Instances retired by an update in place: they finish their work, then they are closed.

    Their work is the current batch, live sequences, and open requests of decoupled models. The caller of the update
    does not wait for the latter two.
    """

    def __init__(self, dispatcher: Dispatcher, runners: Sequence[InstanceRunner]) -> None:
        self._dispatcher = dispatcher
        self._runners = runners
        self._threads: list[threading.Thread] = []

    @property
    def have_ended(self) -> bool:
        """Whether all are closed."""
        return bool(self._threads) and not any(thread.is_alive() for thread in self._threads)

    def stop(self, timeout_s: float) -> bool:
        """Close them, waiting at most for their current batches; return whether they were closed in time."""
        deadline_s = time.monotonic() + timeout_s
        prompt = []
        for runner in self._runners:
            lingers = self._dispatcher.has_remaining_work(runner)
            thread = threading.Thread(
                target=self._close, args=(runner, timeout_s, lingers), name="leave", daemon=True
            )
            self._threads.append(thread)
            thread.start()
            if not lingers:
                prompt.append(thread)
        for thread in prompt:
            thread.join(max(0.0, deadline_s - time.monotonic()))
        return not any(thread.is_alive() for thread in prompt)

    def wait(self, deadline_s: float) -> None:
        """Wait until a monotonic time for all to be closed, after the version was stopped."""
        for thread in self._threads:
            thread.join(max(_CLOSE_S, deadline_s - time.monotonic()))

    def _close(self, runner: InstanceRunner, timeout_s: float, lingers: bool) -> None:
        try:
            self._close_when_free(runner, timeout_s, lingers)
        except BaseException as error:
            report("closing an instance that leaves", error)

    def _close_when_free(self, runner: InstanceRunner, timeout_s: float, lingers: bool) -> None:
        has_ended = runner.join(_LINGER_S if lingers else timeout_s)
        while lingers and not (has_ended or self._dispatcher.is_stopping):
            has_ended = runner.join(_LINGER_S)
        open_requests = self._dispatcher.open_requests
        while open_requests is not None and not open_requests.wait_closed_of(runner.instance, _LINGER_S):
            if self._dispatcher.is_stopping:
                break
        self._dispatcher.forget_runners([runner])
        runner.instance.close()
