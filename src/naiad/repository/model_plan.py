"""Plans of loads, the interface of the loader, and the order of dependent models."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from naiad.backend.load_stop import LoadStop
from naiad.config.forms.pbtxt.lexer import ParsedConfig
from naiad.config.model_config_pb2 import ModelConfig
from naiad.config.rollout.rollout_record import FoundRollout
from naiad.config.validate.ensemble import find_ensemble_cycle
from naiad.core.errors import InferError
from naiad.core.model import model_key
from naiad.repository.agents.chain import AgentChain
from naiad.repository.lifecycle import LoadedVersion, V
from naiad.repository.stores.store import ModelEntry


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """The plan of a model's load: its configuration, and the versions that the policy selects."""

    entry: ModelEntry
    config: ModelConfig
    """Completed and checked as far as possible without the model itself."""
    versions: Sequence[int]
    source: ParsedConfig | None = None
    """The source file of the configuration, for the positions of mistakes that only loading finds."""
    unsupported_reason: InferError | None = None
    """The reason why no version will load, if Triton finds it only during a load."""
    agents: AgentChain | None = None
    """The repository agents that have checked the files."""
    rollout: FoundRollout | None = None
    """What was found about its rollout."""
    circle: Sequence[str] = ()
    """The cycle of ensembles from this one to itself; empty for a loadable model."""
    stop: LoadStop = field(default_factory=LoadStop, compare=False)
    """Whether the load has to end; each load has its own."""


class Update(Protocol):
    """A prepared change of a loaded version in place."""

    def commit(self) -> LoadedVersion | None:
        """Apply the change; return the retired rest, for the caller to stop."""

    def discard(self) -> None:
        """Discard the change and release its resources."""


class VersionLoader(Protocol[V]):
    """Turns the files of a store into served versions. Its methods are called from several threads."""

    def plan(self, entry: ModelEntry) -> ModelPlan:
        """Read the configuration and select the versions. Raises InferError."""

    def load(self, plan: ModelPlan, version: int) -> V:
        """Load one version. Raises InferError."""

    def config_of(self, loaded: V) -> ModelConfig:
        """Return the complete configuration of a loaded version."""

    def update(self, plan: ModelPlan, version: int, loaded: V) -> Update | None:
        """Prepare to serve `plan` with the loaded version; None if it must be reloaded.

        Files and configuration are unchanged, except instance groups and version policy. Raises InferError.
        """


def by_dependency(plans: Sequence[ModelPlan]) -> Iterator[Sequence[ModelPlan]]:
    """Yield groups of plans, each of which needs only models of earlier groups.

    Ensembles in a cycle, and models that need them, come last; their loading fails.
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
    """Return the keys of the models of an ensemble's steps; none for any other model."""
    return {model_key(step.model_namespace, step.model_name) for step in config.ensemble_scheduling.step}
