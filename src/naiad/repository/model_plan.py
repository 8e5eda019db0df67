"""What is going to be loaded of a model, who loads it, and which models have to come first."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from naiad.config.model_config_pb2 import ModelConfig
from naiad.config.pbtxt.lexer import ParsedConfig
from naiad.config.validate.ensemble import find_ensemble_cycle
from naiad.core.errors import InferError
from naiad.core.model import model_key
from naiad.repository.agents.chain import AgentChain
from naiad.repository.lifecycle import LoadedVersion, V
from naiad.repository.store import ModelEntry


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """What is going to be loaded of a model: its configuration, and the versions that the policy selects."""

    entry: ModelEntry
    config: ModelConfig
    """Completed and checked as far as possible without a look into the model itself."""
    versions: Sequence[int]
    source: ParsedConfig | None = None
    """The file that the configuration was read from, for the places of mistakes that only loading finds."""
    unsupported_reason: InferError | None = None
    """Why no version will load, where Triton finds that out when it loads them."""
    agents: AgentChain | None = None
    """The repository agents that have looked at the files."""
    circle: Sequence[str] = ()
    """The ensembles through which this one contains itself, from itself to itself; empty for what can be loaded."""


class Update(Protocol):
    """A change of a loaded version in place: it is prepared, and not made yet."""

    def commit(self) -> LoadedVersion | None:
        """Make the change; return what it leaves over, for the caller to stop."""

    def discard(self) -> None:
        """Give the change up and release what was prepared for it."""


class VersionLoader(Protocol[V]):
    """Turns what a store has into something that serves. Its methods are called from several threads."""

    def plan(self, entry: ModelEntry) -> ModelPlan:
        """Read the configuration and select the versions. Raises InferError."""

    def load(self, plan: ModelPlan, version: int) -> V:
        """Load one version. Raises InferError."""

    def update(self, plan: ModelPlan, version: int, loaded: V) -> Update | None:
        """Prepare to serve `plan` with what is loaded of a version; None when it must be loaded anew.

        Files and configuration are those that it was loaded from, but for instance groups and version policy.
        Raises InferError.
        """


def by_dependency(plans: Sequence[ModelPlan]) -> Iterator[Sequence[ModelPlan]]:
    """Yield groups of plans, each of which needs models of earlier groups only.

    Ensembles that contain each other in a circle, and those that need them, come last; their loading fails.
    """
    left = {plan.entry.key: plan for plan in plans}
    while left:
        ready = [plan for plan in left.values() if not any(name in left for name in member_names(plan.config))]
        if not ready:
            yield _with_circles(left)
            return
        yield ready
        for plan in ready:
            del left[plan.entry.key]


def _with_circles(plans: Mapping[str, ModelPlan]) -> list[ModelPlan]:
    members = {name: sorted(member_names(plan.config)) for name, plan in plans.items()}
    return [replace(plan, circle=find_ensemble_cycle(members, name)) for name, plan in plans.items()]


def member_names(config: ModelConfig) -> set[str]:
    """Return what the models of an ensemble's steps are known by; none for any other model."""
    return {model_key(step.model_namespace, step.model_name) for step in config.ensemble_scheduling.step}
