"""Calls between models without models: an engine, a loop and served models that do what a test says."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from naiad.core.environment.model_call import ModelCall
from naiad.core.request import InferRequest, RequestHeader
from support.one_engine import OneEngine

if TYPE_CHECKING:
    from naiad.core.errors import InferError


class FakeServed:
    """A served model: its instances, and which of its requests wait."""

    def __init__(self, name: str, count: int = 1) -> None:
        self.name = name
        self.instances = [object() for _ in range(count)]

    def is_waiting(self, request: InferRequest) -> bool:
        return request.queue is not None


def make_call(
    caller: FakeServed,
    target: FakeServed,
    *,
    instance: int = 0,
    parents: Sequence[InferRequest] = (),
    is_queued: bool = True,
    holds: bool = True,
    arrival_ns: int = 1,
    refused: list[Any] | None = None,
) -> ModelCall:
    """Return a call of `target` by an instance of `caller`; it waits in a queue or executes."""
    header = RequestHeader(model_name=target.name)
    call = ModelCall(header, (), lambda request, response: None, arrival_ns=arrival_ns)
    call.is_listening = False
    call.model = target
    call.queue = "queue" if is_queued else None
    call.caller, call.caller_model = caller.instances[instance], caller.name
    call.parents = parents
    call.holds_execution = holds
    call.traced_with = None
    call.depth, call.held = 1, frozenset()
    call.refuse = lambda made, error: (refused if refused is not None else []).append((made, error))
    return call


class ManualLoop:
    """An event loop whose timers and callbacks run when the test says."""

    def __init__(self) -> None:
        self.timers: list[tuple[float, Callable[..., object], tuple[Any, ...]]] = []

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> "ManualLoop":
        self.timers.append((delay, callback, args))
        return self

    def cancel(self) -> None:
        """Timers of tests are not cancelled."""

    def call_soon(self, callback: Callable[..., object], *args: Any) -> None:
        callback(*args)

    def call_soon_threadsafe(self, callback: Callable[..., object], *args: Any) -> None:
        callback(*args)

    def fire(self) -> None:
        """Run the timers that are set now."""
        timers, self.timers = self.timers, []
        for _, callback, args in timers:
            callback(*args)


class FakeEngine(OneEngine):
    """Takes what is asked of the engine, and rejects what the test chooses."""

    def __init__(self) -> None:
        self.submitted: list[InferRequest] = []
        self.cancelled: list[InferRequest] = []
        self.commands: list[tuple[str, str, Mapping[str, object]]] = []
        self.refusal: InferError | None = None
        self.on_command: Callable[[], object] = lambda: None
        self.ready = {"m": True}

    def submit(self, request: InferRequest) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.submitted.append(request)

    def cancel(self, request: InferRequest) -> bool:
        self.cancelled.append(request)
        return True

    def is_decoupled(self, name: str, version: str = "") -> bool:
        return name == "decoupled"

    def is_model_ready(self, name: str, version: str = "") -> bool:
        if self.refusal is not None:
            raise self.refusal
        return self.ready.get(name, False)

    def _command(self, what: str, name: str, parameters: Mapping[str, object]) -> None:
        self.commands.append((what, name, parameters))
        self.on_command()
        if self.refusal is not None:
            raise self.refusal

    def load_model(self, name: str, parameters: Mapping[str, object], *, is_owner: bool = True) -> None:
        self._command("load", name, parameters)

    def unload_model(
        self, name: str, parameters: Mapping[str, object], on_withdrawn: Callable[[], object] | None = None
    ) -> None:
        if on_withdrawn is not None:
            on_withdrawn()
        self._command("unload", name, parameters)

    def broadcast_load(self, name: str, parameters: Mapping[str, object]) -> None:
        self._command("load everywhere", name, parameters)

    def broadcast_unload(
        self, name: str, parameters: Mapping[str, object], on_withdrawn: Callable[[], object]
    ) -> None:
        on_withdrawn()
        self._command("unload everywhere", name, parameters)
