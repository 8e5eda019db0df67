"""The engine of a server process: it answers for itself, or with the merged state of all processes."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence

from naiad.cluster.messages import (
    Answer,
    AskIndex,
    AskMetrics,
    AskRollouts,
    AskStatistics,
    IsModelReady,
    IsReady,
    ModelControl,
    Query,
    RolloutControl,
)
from naiad.cluster.packed_statistics import PackedStatistics, pack, unpack
from naiad.config.rollout.guard import RolloutCounts
from naiad.config.rollout.state import RolloutState
from naiad.core.errors import InferError
from naiad.core.model import IndexEntry, ModelState
from naiad.core.slices import Slices, finish
from naiad.engine.inference import Engine
from naiad.telemetry.statistics.version import VersionStatistics


class MemberEngine(Engine):
    """An engine that can answer with the merged state of all server processes."""

    ask_index: Callable[[], Sequence[IndexEntry]] | None = None
    """Returns the repository index of all processes; blocks, and raises InferError. None before the server is
    open."""
    request: Callable[[ModelControl], None] | None = None
    """Broadcasts the load or unload of a model by a model; blocks, raises InferError. None before the server is
    open."""
    spread_rollout: Callable[[RolloutControl, Callable[[InferError | None], object]], object] | None = None
    """Broadcasts the state of a rollout; then calls back on the loop, with the error if it failed. None before the
    server is open."""
    sequences_elsewhere: Callable[[], int] | None = None
    """Returns the number of sequences in other processes that this one has sent requests to. None without other
    processes."""
    _said: tuple[Query, Answer] | None = None

    @contextlib.contextmanager
    def with_answer(self, query: Query, answer: Answer) -> Iterator[None]:
        """Use `answer`, the merged answer of all processes, inside the context, which must not await."""
        self._said = (query, answer)
        try:
            yield
        finally:
            self._said = None

    def answer(self, query: Query) -> Answer:
        """Return the answer of this process alone."""
        if isinstance(query, IsReady):
            return super().is_ready()
        if isinstance(query, IsModelReady):
            return self._has_ready(query)
        if isinstance(query, AskStatistics):
            return finish(self.answer_in_slices(query))
        if isinstance(query, AskIndex):
            return super().survey_repository()
        if isinstance(query, AskRollouts):
            return super().rollout_counts()
        return self.metrics_text()

    def answer_in_slices(self, query: AskStatistics | AskMetrics) -> Slices[Answer]:
        """Return the answer of this process alone to a query that takes long; yields about every millisecond."""
        if isinstance(query, AskStatistics):
            return (yield from pack((yield from super().statistics_in_slices())))
        return b"".join((yield from self.metrics_in_slices()))

    def _has_ready(self, query: IsModelReady) -> bool:
        try:
            return super().is_model_ready(query.name, query.version)
        except InferError:
            return False

    # --- sequences --------------------------------------------------------------------------------------------------

    @property
    def own_sequence_count(self) -> int:
        """Live sequences of this process."""
        return super().live_sequence_count

    @property
    def live_sequence_count(self) -> int:
        """Live sequences of this process and those in other processes that are used through this one.

        While a server drains, connections stay open as long as there are any.
        """
        elsewhere = self.sequences_elsewhere() if self.sequences_elsewhere is not None else 0
        return self.own_sequence_count + elsewhere

    # --- queries of the protocols -----------------------------------------------------------------------------------

    def is_ready(self) -> bool:
        """Return whether the server is ready for traffic."""
        if self._said is not None and isinstance(self._said[0], IsReady):
            return super().is_ready() and bool(self._said[1])
        return super().is_ready()

    def is_model_ready(self, name: str, version: str = "") -> bool:
        """Return whether a model version is ready; an unknown one is not. Raises InferError."""
        is_ready = super().is_model_ready(name, version)
        if self._said is not None and isinstance(self._said[0], IsModelReady):
            return is_ready and bool(self._said[1])
        return is_ready

    def statistics_in_slices(self, name: str = "", version: str = "") -> Slices[Sequence[VersionStatistics]]:
        """Return statistics as `Engine.statistics_in_slices` does: of all processes, if their answer is there now."""
        own = super().statistics_in_slices(name, version)
        if self._said is None or not isinstance(self._said[0], AskStatistics):
            return own
        return _summed(own, self._said[1])  # type: ignore[arg-type]  # as asked

    def survey_repository(self, ready_only: bool = False) -> Sequence[IndexEntry]:
        """Return the repository index of all processes; blocks, so not for the event loop. Raises InferError."""
        if self.ask_index is None:
            return super().survey_repository(ready_only)
        rows = self.ask_index()
        return [row for row in rows if row.state is ModelState.READY] if ready_only else rows

    # --- rollouts ---------------------------------------------------------------------------------------------------

    def rollout_counts(self) -> Mapping[str, RolloutCounts]:
        """Return the counts of every rollout, by the keys of the models."""
        if self._said is not None and isinstance(self._said[0], AskRollouts):
            return self._said[1]  # type: ignore[return-value]  # as asked
        return super().rollout_counts()

    def broadcast_rollout(
        self,
        key: str,
        state: RolloutState,
        on_done: Callable[[InferError | None], object],
        *,
        is_stored: bool = False,
    ) -> None:
        """Set the state of a rollout in all processes; on the loop, where `on_done` is called with any error."""
        if self.spread_rollout is None:
            super().broadcast_rollout(key, state, on_done, is_stored=is_stored)
        else:
            loads = bool(self.missing_versions(key, state))
            self.spread_rollout(RolloutControl(key, state, is_stored, loads), on_done)

    # --- requests of models -----------------------------------------------------------------------------------------

    def broadcast_load(self, name: str, parameters: Mapping[str, object]) -> None:
        """Load or reload a model in all processes; blocks. Raises InferError."""
        if self.request is None:
            super().broadcast_load(name, parameters)
        else:
            self.request(ModelControl(name, is_load=True, parameters=parameters))

    def broadcast_unload(
        self, name: str, parameters: Mapping[str, object], on_withdrawn: Callable[[], object]
    ) -> None:
        """Unload a model in all processes; blocks until it accepts no more requests. Raises InferError."""
        if self.request is None:
            super().broadcast_unload(name, parameters, on_withdrawn)
        else:
            self.request(ModelControl(name, is_load=False, parameters=parameters))


def _summed(own: Slices[Sequence[VersionStatistics]], sums: PackedStatistics) -> Slices[Sequence[VersionStatistics]]:
    by_key = {row.key: row for row in (yield from unpack(sums))}
    return [by_key.get(row.key, row) for row in (yield from own)]
