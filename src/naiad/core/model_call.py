"""What a model asks of other models while it executes: calls, and commands to load or unload."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from naiad.core.request import InferRequest

if TYPE_CHECKING:
    from naiad.core.errors import InferError


class ModelCall(InferRequest):
    """A request that one model makes to another. Its caller and whose requests it serves travel with it."""

    __slots__ = (
        "caller",
        "caller_model",
        "depth",
        "holds_execution",
        "is_during_execution",
        "parents",
        "refuse",
        "traced_with",
    )

    caller_model: str
    """Name of the model that calls."""
    caller: object
    """The instance that calls."""
    parents: Sequence[InferRequest]
    """The requests that the caller executes and makes this call for; empty when that is not known."""
    holds_execution: bool
    """Whether the caller surely executes nothing else until the call is answered."""
    is_during_execution: bool
    """Whether the caller has been executing a batch, which perhaps waits for the answer, when it called."""
    traced_with: InferRequest | None
    """The request with which this one is traced, if that one is."""
    refuse: "Callable[[ModelCall, InferError], object]"
    """Answers the call with an error and cancels it."""
    depth: int
    """How many calls lie between this one and a client's request, itself included; set by the engine."""

    @property
    def waits_for_client(self) -> bool:
        """Never: its caller is a model, which may take as long as it needs for each response."""
        return False

    @property
    def has_begun(self) -> bool:
        """Whether it belongs to work that has begun: its caller executes."""
        return True


@dataclass(frozen=True, slots=True)
class ModelCommand:
    """A command of a model to load or unload a model."""

    caller_model: str
    """Name of the model that commands."""
    is_initializing: bool
    """Whether the caller is not ready yet: it is being loaded itself."""
    parents: Sequence[InferRequest]
    """The requests that the caller executes meanwhile."""
    name: str
    """The model to load or unload."""
    is_load: bool
    parameters: Mapping[str, object] = field(default_factory=dict)
    """As the model-repository extension has them."""
