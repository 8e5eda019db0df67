"""Calls between models: a model that executes submits requests to other models through the engine.

The engine knows the callers of a call. The called model rejects a call at once when the calls before it hold every
instance that could execute it. Calls that wait too long for another reason are rejected here.
"""

import logging
import time
from collections.abc import Callable

from naiad.core.errors import InferError, unavailable
from naiad.core.model_call import ModelCall, ModelCommand
from naiad.core.ports import Loop, TimerHandle
from naiad.engine.calls.commands import ModelCommands
from naiad.engine.inference import Engine
from naiad.options.limits import DEFAULT_CALL_WAIT_TIMEOUT_S

_log = logging.getLogger(__name__)

MOST_NESTED = 64
"""Maximum number of calls between a call and a client's request."""
_LOOK_S = 1.0
"""Interval of the check of waiting calls."""
_LOOK_AGAIN_S = 0.1
"""Delay of the check after a rejected call, which may allow other calls to continue."""


class ModelCalls:
    """The port to other models for the models that execute here. Used on the event loop only."""

    def __init__(self, engine: Engine, loop: Loop, wait_timeout_s: float = DEFAULT_CALL_WAIT_TIMEOUT_S) -> None:
        """`wait_timeout_s`: time that a call may wait without being executed; 0 for no limit."""
        self.loop = loop
        self._engine = engine
        self._wait_timeout_ns = int(wait_timeout_s * 1e9)
        self._open: dict[ModelCall, int] = {}
        """Monotonic time of the last check at which each call did not wait."""
        self._timer: TimerHandle | None = None
        self._commands = ModelCommands(engine, loop)

    def submit(self, call: ModelCall) -> None:
        """Submit a call. Raises InferError if it is rejected; otherwise it must be closed."""
        # hot: once a call
        depth = 1
        held = {id(call.caller)} if call.holds_execution else None
        for parent in call.parents:
            source = parent.call
            if source is not None:
                depth = max(depth, source.depth + 1)
                if held is not None:
                    held |= source.held
        if depth > MOST_NESTED:
            raise unavailable(
                f"calls of models are nested more than {MOST_NESTED} deep: model '{call.caller_model}' calls "
                f"'{call.header.model_name}', and probably one calls itself without end"
            )
        call.depth = depth
        call.held = frozenset(held or ())
        self._open[call] = call.arrival_ns
        try:
            self._engine.submit(call)
        except InferError:
            del self._open[call]
            raise
        if self._timer is None and self._wait_timeout_ns:
            self._timer = self.loop.call_later(_LOOK_S, self._look)

    def cancel(self, call: ModelCall) -> None:
        """Cancel a submitted call; it still gets a final response."""
        self._engine.cancel(call)

    def close(self, call: ModelCall) -> None:
        """Note the final response of a call."""
        self._open.pop(call, None)

    def is_decoupled(self, name: str, version: str) -> bool:
        """Return whether a model is decoupled. Raises InferError if it is not ready."""
        return self._engine.is_decoupled(name, version)

    def is_ready(self, name: str, version: str) -> bool:
        """Return whether a model is ready; an unknown one is not."""
        try:
            return self._engine.is_model_ready(name, version)
        except InferError:
            return False

    def command(self, command: ModelCommand, on_done: Callable[[InferError | None], object]) -> None:
        """Load or unload a model in a thread; `on_done` is called on the loop, with the error if it failed."""
        self._commands.command(command, on_done)

    # --- calls that wait for too long -------------------------------------------------------------------------------

    def _look(self) -> None:
        """Reject the longest waiting call if it has waited too long; only one, since other calls may depend on it."""
        self._timer = None
        if not self._open:
            return
        now_ns = time.monotonic_ns()
        overdue: ModelCall | None = None
        for call, since_ns in self._open.items():
            if not call.model.is_waiting(call):
                self._open[call] = now_ns
            elif now_ns - since_ns > self._wait_timeout_ns and (overdue is None or since_ns < self._open[overdue]):
                overdue = call
        if overdue is not None:
            text = (
                f"the call of model '{overdue.header.model_name}' by model '{overdue.caller_model}' has waited for "
                f"{self._wait_timeout_ns / 1e9:g} s (--call-wait-timeout-secs) without being executed "
                f"({overdue.chain(overdue)}): the instances or resources that it needs are busy, or wait for it"
            )
            _log.warning("%s", text)
            self._open[overdue] = now_ns
            overdue.refuse(overdue, unavailable(text))
        self._timer = self.loop.call_later(_LOOK_S if overdue is None else _LOOK_AGAIN_S, self._look)
