"""How models reach other models while they execute: through the engine, like clients, but with their callers known.

A watch looks now and then, while calls are open, for calls that would wait for each other for ever.
"""

import time
from collections.abc import Callable
from typing import Protocol

from naiad.core.errors import InferError, unavailable
from naiad.core.model_call import ModelCall, ModelCommand
from naiad.core.ports import Loop, TimerHandle
from naiad.core.request import InferRequest
from naiad.engine.calls.commands import ModelCommands, Models
from naiad.engine.calls.cycles import call_of, describe, find_stuck, is_waiting

MOST_NESTED = 64
"""Calls that may lie between a call and a client's request."""
_LOOK_S = 0.05
"""How often the watch looks."""
_LOOK_AGAIN_S = 0.005
"""How soon it looks again after it has found something: others may be stuck as well."""
_SETTLED_NS = 20_000_000
"""Calls are given so long to be taken up before the watch is interested in them."""
_PATIENCE_NS = 1_000_000_000
"""After this a call from another thread of the model, while its batch executes, is taken to hold the execution."""


class Inference(Models, Protocol):
    """What is asked of the engine."""

    def submit(self, request: InferRequest) -> None:
        """Submit a request. Raises InferError."""

    def cancel(self, request: InferRequest) -> bool:
        """Cancel a submitted request; True when it was dropped, False when something executes it."""

    def is_decoupled(self, name: str, version: str = "") -> bool:
        """Tell whether a model is decoupled. Raises InferError for one that is not ready."""

    def is_model_ready(self, name: str, version: str = "") -> bool:
        """Tell whether a model version is ready; an unknown one is not. Raises InferError."""


class ModelCalls:
    """The port through which models that execute here reach others. Used on the event loop only."""

    def __init__(self, engine: Inference, loop: Loop) -> None:
        self.loop = loop
        self._engine = engine
        self._open: dict[ModelCall, None] = {}
        """In the order in which they were made."""
        self._timer: TimerHandle | None = None
        self._commands = ModelCommands(engine, loop)

    def submit(self, call: ModelCall) -> None:
        """Submit a call. Raises InferError when it is refused at the door; otherwise it must be closed."""
        # hot: once a call
        depth = 1
        for parent in call.parents:
            source = call_of(parent)
            if source is not None and source.depth >= depth:
                depth = source.depth + 1
        if depth > MOST_NESTED:
            raise unavailable(
                f"calls of models are nested more than {MOST_NESTED} deep: model '{call.caller_model}' calls "
                f"'{call.header.model_name}', and probably one calls itself without end"
            )
        call.depth = depth
        self._open[call] = None
        try:
            self._engine.submit(call)
        except InferError:
            del self._open[call]
            raise
        if self._timer is None:
            self._timer = self.loop.call_later(_LOOK_S, self._look)

    def cancel(self, call: ModelCall) -> None:
        """Cancel a submitted call; it is answered nevertheless."""
        self._engine.cancel(call)

    def close(self, call: ModelCall) -> None:
        """Note that a call has had its final response."""
        self._open.pop(call, None)

    def is_decoupled(self, name: str, version: str) -> bool:
        """Tell whether a model is decoupled. Raises InferError for one that is not ready."""
        return self._engine.is_decoupled(name, version)

    def is_ready(self, name: str, version: str) -> bool:
        """Tell whether a model is ready; an unknown one is not."""
        try:
            return self._engine.is_model_ready(name, version)
        except InferError:
            return False

    def command(self, command: ModelCommand, on_done: Callable[[InferError | None], object]) -> None:
        """Load or unload a model in a thread; `on_done` is called on the loop, with the error if it failed."""
        self._commands.command(command, on_done)

    # --- calls that wait for themselves -----------------------------------------------------------------------------

    def _look(self) -> None:
        """Refuse the newest of the calls that would wait for ever, if there are any."""
        self._timer = None
        if not self._open:
            return
        now_ns = time.monotonic_ns()
        holding = [call for call in self._open if _holds(call, now_ns)]
        stuck = find_stuck(holding) if any(now_ns - call.arrival_ns > _SETTLED_NS for call in holding) else []
        waiting = [call for call in stuck if is_waiting(call)]
        if waiting:
            newest = max(waiting, key=lambda call: call.arrival_ns)
            newest.refuse(newest, _cycle_error(newest, describe(newest, stuck)))
        self._timer = self.loop.call_later(_LOOK_AGAIN_S if waiting else _LOOK_S, self._look)


def _holds(call: ModelCall, now_ns: int) -> bool:
    return call.holds_execution or (call.is_during_execution and now_ns - call.arrival_ns > _PATIENCE_NS)


def _cycle_error(call: ModelCall, circle: list[str]) -> InferError:
    path = " -> ".join(circle)
    name = call.header.model_name
    return unavailable(
        f"the call of model '{name}' by model '{call.caller_model}' would wait for itself for ever ({path}): "
        "requests that wait for such calls hold every instance that could go on with it (of a sequence: the one that "
        "has it), or what it needs besides: resources (rate_limiter), room in an ensemble (max_inflight_requests), "
        "the answer to the same question (response_cache), their turn (preserve_ordering). More instances "
        "(instance_group), resources or room can help, or a decoupled model whose execute returns before its calls "
        "are answered"
    )
