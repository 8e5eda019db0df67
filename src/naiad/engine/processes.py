"""The processes of a server, as the engine of one of them sees them."""

from collections.abc import Callable, Mapping, Sequence

from naiad.config.rollout.guard import RolloutCounts
from naiad.config.rollout.state import RolloutState
from naiad.core.errors import InferError
from naiad.core.model import IndexEntry
from naiad.core.slices import Slices
from naiad.telemetry.statistics.version_statistics import VersionStatistics

OnDone = Callable[[InferError | None], object]
"""Called on the loop, once, with the error if it failed."""


class Processes:
    """All processes of the server together: here the one process of a server.

    A query gets the answer of this process as `own`, and returns that of all processes where it is known now. A
    command gets as `own` what does it in this process alone, and has all processes do it.
    """

    def is_ready(self, own: bool) -> bool:
        """Return whether the server is ready for traffic."""
        return own

    def is_model_ready(self, own: bool) -> bool:
        """Return whether the model version that was asked for is ready."""
        return own

    def statistics(self, own: Slices[Sequence[VersionStatistics]]) -> Slices[Sequence[VersionStatistics]]:
        """Return the statistics of the versions in `own`."""
        return own

    def index(self, own: Callable[[], Sequence[IndexEntry]]) -> Sequence[IndexEntry]:
        """Return the repository index; blocks. Raises InferError."""
        return own()

    def rollout_counts(self, own: Mapping[str, RolloutCounts]) -> Mapping[str, RolloutCounts]:
        """Return the counts of every rollout, by the keys of the models."""
        return own

    def sequence_count(self, own: int) -> int:
        """Return the number of live sequences, also of those in other processes that are used through this one."""
        return own

    def load(self, name: str, parameters: Mapping[str, object], own: Callable[[], object]) -> None:
        """Load or reload a model; blocks. Raises InferError."""
        own()

    def unload(self, name: str, parameters: Mapping[str, object], own: Callable[[], object]) -> None:
        """Unload a model; blocks. Raises InferError."""
        own()

    def set_rollout(
        self,
        key: str,
        state: RolloutState,
        on_done: OnDone,
        own: Callable[[], object],
        *,
        is_stored: bool,
        loads: bool,
    ) -> None:
        """Set the state of a rollout; on the loop. `own` calls `on_done`.

        `loads`: versions must be loaded first.
        """
        own()
