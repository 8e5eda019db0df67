"""What a split needs of a model: a sequence of nodes, their costs, and stages made of them. One class a format."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from naiad.split.runs import Feeds, Session


@dataclass(frozen=True, slots=True)
class Stage:
    """One written stage."""

    node_count: int
    parameter_bytes: int
    inputs: Sequence[str]
    outputs: Sequence[str]
    session: Session


class Source(Protocol):
    """A model to split."""

    backend: str
    """Of the stages."""
    threads_parameter: str
    """Name of the backend's parameter for the threads of an instance."""

    @property
    def whole(self) -> Session:
        """The model, loaded."""

    feeds: Feeds
    """The inputs that the model and its stages run on."""

    @property
    def inputs(self) -> Sequence[str]:
        """Names of the inputs."""

    @property
    def outputs(self) -> Sequence[str]:
        """Names of the outputs."""

    node_ms: Sequence[float]
    parameter_bytes: Sequence[int]
    """Of each node; shared parameters count at their first node."""
    crossing: Sequence[Sequence[str]]
    """The values that cross a cut before each node; inputs of the model are not included."""
    sizes: Mapping[str, int]
    """Bytes of the values that an ensemble can pass."""

    def write(self, cuts: Sequence[int], directory: Path, name: str) -> Sequence[Stage]:
        """Write the stages between the cuts as models `NAME_stage0`, ... in `directory`. Raises InferError."""
