"""Requests of an executing model to other models: calls, and commands to load or unload."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from naiad.core.errors import InferError, unavailable
from naiad.core.request import InferRequest


class ModelCall(InferRequest):
    """A request from one model to another, with its caller and the client requests that it serves."""

    __slots__ = (
        "caller",
        "caller_model",
        "depth",
        "held",
        "holds_execution",
        "is_listening",
        "parents",
        "refuse",
        "traced_with",
    )

    caller_model: str
    """Name of the model that calls."""
    caller: object
    """The instance that calls."""
    parents: Sequence[InferRequest]
    """The requests for which the caller makes this call; empty if unknown."""
    holds_execution: bool
    """Whether the caller certainly executes no other request until the response to the call."""
    traced_with: InferRequest | None
    """The traced request that this call belongs to, if there is one."""
    refuse: Callable[["ModelCall", InferError], object]
    """Fails the call with an error and cancels it."""
    is_listening: bool
    """Whether its caller has cancelled it, and still reads its responses."""
    depth: int
    """Number of calls between this one and a client's request, itself included; set by the engine."""
    held: frozenset[int]
    """Ids of the instances that are blocked until the response to the call: its caller and the callers before it.

    Set by the engine.
    """

    @property
    def call(self) -> "ModelCall":
        """The call itself."""
        return self

    def ancestors(self) -> Iterator[InferRequest]:
        """Yield the requests that cannot end before this call: its parents, and the parents of earlier calls."""
        pending, seen = [self], {id(self)}
        while pending:
            call = pending.pop()
            if not call.holds_execution:
                continue
            for parent in call.parents:
                yield parent
                source = parent.call
                if source is not None and id(source) not in seen:
                    seen.add(id(source))
                    pending.append(source)

    def chain(self, request: InferRequest) -> str:
        """Return the models from the first caller to `request`, which is this call or made for it: `a -> b -> a`."""
        calls = [self]
        while (source := next((p.call for p in calls[-1].parents if p.call is not None), None)) is not None:
            calls.append(source)
        names = [calls[-1].caller_model]
        for call in reversed(calls):
            if call.caller_model != names[-1]:
                names.append(call.caller_model)  # a member of the called ensemble
            names.append(call.header.model_name)
        if request.header.model_name != names[-1]:
            names.append(request.header.model_name)
        return " -> ".join(names)

    def deadlock(self, request: InferRequest, reason: str) -> InferError:
        """Return the error of a call that would wait for itself; `request` is this call or made for it."""
        return unavailable(
            f"the call of model '{self.header.model_name}' by model '{self.caller_model}' would wait for itself "
            f"({self.chain(request)}): {reason}"
        )

    @property
    def waits_for_client(self) -> bool:
        """Always False: its caller is a model, which may take as long as it needs for each response."""
        return False

    @property
    def has_begun(self) -> bool:
        """Whether it belongs to work that has begun: its caller executes."""
        return True


@dataclass(frozen=True, slots=True)
class ModelCommand:
    """A command of a model to load or unload a model."""

    caller_model: str
    """Name of the commanding model."""
    is_initializing: bool
    """Whether the caller is still being loaded."""
    parents: Sequence[InferRequest]
    """The requests that the caller executes at the same time."""
    name: str
    """The model to load or unload."""
    is_load: bool
    parameters: Mapping[str, object] = field(default_factory=dict)
    """As in the model-repository extension."""
