"""Calls and commands of models: a model that executes submits requests to other models, and loads and unloads them.

The engine knows the callers of a call. The called model rejects a call at once when the calls before it hold every
instance that could execute it. Calls that wait too long for another reason are rejected here. Commands execute on
threads; a command that would wait for itself fails.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial

from naiad.core.environment.model_call import ModelCall, ModelCommand
from naiad.core.environment.ports import Loop, TimerHandle
from naiad.core.errors import InferError, cause_of, internal, unavailable
from naiad.engine.commands.repository_commands import RepositoryCommands
from naiad.engine.engine import Engine
from naiad.options.execution_limits import DEFAULT_CALL_WAIT_TIMEOUT_S
from naiad.telemetry.last_resort import report

_log = logging.getLogger(__name__)

MOST_NESTED = 64
"""Maximum number of calls between a call and a client's request."""
_LOOK_S = 1.0
"""Interval of the check of waiting calls."""
_LOOK_AGAIN_S = 0.1
"""Delay of the check after a rejected call, which may allow other calls to continue."""
MOST_COMMANDS = 64
"""Maximum number of commands in progress."""

OnDone = Callable[[InferError | None], object]
"""Called on the loop, once, with the error if it failed."""


class ModelCommands:
    """Executes commands of models. Used on the event loop only."""

    def __init__(self, repository: RepositoryCommands, loop: Loop) -> None:
        self._repository = repository
        self._loop = loop
        self._under_way: list[ModelCommand] = []

    def command(self, command: ModelCommand, on_done: OnDone) -> None:
        """Load or unload a model.

        A load is done when the model is ready. Triton: an unload is done once the model accepts no more requests; its
        accepted requests, perhaps the caller's own among them, finish later.
        """
        error = self._refusal(command)
        if error is not None:
            on_done(error)
            return
        self._under_way.append(command)

        def end(failure: InferError | None) -> None:
            self._under_way.remove(command)
            on_done(failure)

        # A model initializes in every process of the server, with the same commands in each.
        self.execute(
            command.name, command.parameters, end, is_load=command.is_load, broadcast=not command.is_initializing
        )

    def execute(
        self, name: str, parameters: Mapping[str, object], on_done: OnDone, *, is_load: bool, broadcast: bool
    ) -> None:
        """Load or unload a model in a thread, in this process or in all."""
        repository, answer = self._repository, _Once(on_done)
        done = partial(self._finish, answer, None)
        act: Callable[[], None]
        if is_load:
            act = partial(repository.broadcast_load if broadcast else repository.load_model, name, parameters)
        else:
            act = partial(
                repository.broadcast_unload if broadcast else repository.unload_model, name, parameters, done
            )
        threading.Thread(target=self._run, args=(name, act, answer), name=f"command:{name}", daemon=True).start()

    def _run(self, name: str, act: Callable[[], None], answer: "_Once") -> None:
        failure: InferError | None = None
        try:
            act()
        except InferError as error:
            failure = error
        except BaseException as error:
            report(f"a command of a model to load or unload '{name}'", error)
            failure = internal(cause_of(error))
        self._finish(answer, failure)

    def _finish(self, answer: "_Once", failure: InferError | None) -> None:
        try:
            self._loop.call_soon_threadsafe(answer, failure)
        except RuntimeError:
            return  # the loop has ended, and the model with it

    def _refusal(self, command: ModelCommand) -> InferError | None:
        """Return the reason to reject a command that would wait for its own end; None if there is none."""
        if len(self._under_way) >= MOST_COMMANDS:
            return unavailable(f"{MOST_COMMANDS} commands of models to load and unload others are under way")
        if not command.is_load:
            return None
        caller, name = command.caller_model, command.name
        if not command.is_initializing and name in _callers(command):
            return unavailable(
                f"model '{caller}' cannot load model '{name}' while it executes a request of it: what the load "
                "replaces would wait for that request to end"
            )
        if command.is_initializing and self._leads_back(command):
            return unavailable(
                f"model '{caller}' cannot load model '{name}' while it is being loaded: loading that one waits for "
                "this one"
            )
        return None

    def _leads_back(self, command: ModelCommand) -> bool:
        """Return whether a model that is being loaded waits, through other models, for the commanding one."""
        reached = {command.name}
        pending = [each for each in self._under_way if each.is_initializing]
        while True:
            found = {each.name for each in pending if each.caller_model in reached} - reached
            if not found:
                return command.caller_model in reached
            reached |= found


class _Once:
    """Calls back the first time it is called; on the loop only."""

    def __init__(self, on_done: OnDone) -> None:
        self._on_done: OnDone | None = on_done

    def __call__(self, failure: InferError | None) -> None:
        on_done, self._on_done = self._on_done, None
        if on_done is not None:
            on_done(failure)


def _callers(command: ModelCommand) -> set[str]:
    """Return the models with requests that wait for the command."""
    found = {command.caller_model}
    seen: set[int] = set()
    waiting = list(command.parents)
    while waiting:
        call = waiting.pop().call
        if call is not None and id(call) not in seen:
            seen.add(id(call))
            found.add(call.caller_model)
            waiting += call.parents
    return found


class ModelCalls:
    """The port to other models for the models that execute here. Used on the event loop only."""

    def __init__(self, engine: Engine, loop: Loop, wait_timeout_s: float = DEFAULT_CALL_WAIT_TIMEOUT_S) -> None:
        """`wait_timeout_s`: time that a call may wait without being executed; 0 for no limit."""
        self.loop = loop
        self._inference = engine.inference
        self._views = engine.views
        self._wait_timeout_ns = int(wait_timeout_s * 1e9)
        self._open: dict[ModelCall, int] = {}
        """Monotonic time of the last check at which each call did not wait."""
        self._timer: TimerHandle | None = None
        self._commands = ModelCommands(engine.repository, loop)

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
            self._inference.submit(call)
        except InferError:
            del self._open[call]
            raise
        if self._timer is None and self._wait_timeout_ns:
            self._timer = self.loop.call_later(_LOOK_S, self._look)

    def cancel(self, call: ModelCall) -> None:
        """Cancel a submitted call; it still gets a final response."""
        self._inference.cancel(call)

    def close(self, call: ModelCall) -> None:
        """Note the final response of a call."""
        self._open.pop(call, None)

    def is_decoupled(self, name: str, version: str) -> bool:
        """Return whether a model is decoupled. Raises InferError if it is not ready."""
        return self._inference.is_decoupled(name, version)

    def is_ready(self, name: str, version: str) -> bool:
        """Return whether a model is ready; an unknown one is not."""
        try:
            return self._views.is_model_ready(name, version)
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
