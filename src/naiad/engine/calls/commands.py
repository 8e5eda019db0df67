"""Commands of models to load and unload other models, executed on threads; a command that waits for itself fails."""

import threading
from collections.abc import Callable, Mapping
from functools import partial

from naiad.core.errors import InferError, internal, unavailable
from naiad.core.model_call import ModelCommand
from naiad.core.ports import Loop
from naiad.engine.inference import Engine

MOST_COMMANDS = 64
"""Maximum number of commands in progress."""

OnDone = Callable[[InferError | None], object]
"""Called on the loop, once, with the error if it failed."""


class ModelCommands:
    """Executes commands of models. Used on the event loop only."""

    def __init__(self, models: Engine, loop: Loop) -> None:
        self._models = models
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
        models, answer = self._models, _Once(on_done)
        done = partial(self._finish, answer, None)
        act: Callable[[], None]
        if is_load:
            act = partial(models.broadcast_load if broadcast else models.load_model, name, parameters)
        else:
            act = partial(models.broadcast_unload if broadcast else models.unload_model, name, parameters, done)
        threading.Thread(target=self._run, args=(act, answer), name=f"command:{name}", daemon=True).start()

    def _run(self, act: Callable[[], None], answer: "_Once") -> None:
        failure: InferError | None = None
        try:
            act()
        except InferError as error:
            failure = error
        except Exception as error:
            failure = internal(f"{type(error).__name__}: {error}")
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
