"""All processes of the server, as the engine of one of them sees them, and what this one answers for itself."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence

from naiad.cluster.messages import (
    Answer,
    AskIndex,
    AskLive,
    AskMetrics,
    AskRollouts,
    AskStatistics,
    IsModelReady,
    IsReady,
    ModelControl,
    Query,
    RolloutControl,
)
from naiad.cluster.packed_live import pack_live
from naiad.cluster.packed_statistics import PackedStatistics, pack, unpack
from naiad.config.rollout.guard import RolloutCounts
from naiad.config.rollout.state import RolloutState
from naiad.core.errors import InferError
from naiad.core.model import IndexEntry
from naiad.core.slices import Slices, finish
from naiad.engine.engine import Engine
from naiad.engine.processes import OnDone, Processes
from naiad.telemetry.metrics.response_metrics import response_count
from naiad.telemetry.statistics.version_statistics import VersionStatistics


class AllProcesses(Processes):
    """The merged state of all processes, and the commands to all of them.

    Each way to the other processes is None until the server is open; until then this process speaks for itself.
    """

    def __init__(self) -> None:
        self.ask_index: Callable[[], Sequence[IndexEntry]] | None = None
        """Returns the repository index of all processes; blocks, and raises InferError."""
        self.request: Callable[[ModelControl], None] | None = None
        """Broadcasts the load or unload of a model by a model; blocks, raises InferError."""
        self.spread_rollout: Callable[[RolloutControl, OnDone], object] | None = None
        """Broadcasts the state of a rollout; then calls back on the loop, with the error if it failed."""
        self.sequences_elsewhere: Callable[[], int] | None = None
        """Returns the number of sequences in other processes that this one has sent requests to."""
        self._said: tuple[Query, Answer] | None = None

    @contextlib.contextmanager
    def with_answer(self, query: Query, answer: Answer) -> Iterator[None]:
        """Use `answer`, the merged answer of all processes, inside the context, which must not await."""
        self._said = (query, answer)
        try:
            yield
        finally:
            self._said = None

    # --- queries ----------------------------------------------------------------------------------------------------

    def is_ready(self, own: bool) -> bool:
        """Return whether the server is ready for traffic."""
        return own and (self._said is None or not isinstance(self._said[0], IsReady) or bool(self._said[1]))

    def is_model_ready(self, own: bool) -> bool:
        """Return whether the model version that was asked for is ready."""
        return own and (self._said is None or not isinstance(self._said[0], IsModelReady) or bool(self._said[1]))

    def statistics(self, own: Slices[Sequence[VersionStatistics]]) -> Slices[Sequence[VersionStatistics]]:
        """Return the statistics of the versions in `own`: of all processes, if their answer is there now."""
        if self._said is None or not isinstance(self._said[0], AskStatistics):
            return own
        return _summed(own, self._said[1])  # type: ignore[arg-type]  # as asked

    def index(self, own: Callable[[], Sequence[IndexEntry]]) -> Sequence[IndexEntry]:
        """Return the repository index of all processes; blocks, so not for the event loop. Raises InferError."""
        return own() if self.ask_index is None else self.ask_index()

    def rollout_counts(self, own: Mapping[str, RolloutCounts]) -> Mapping[str, RolloutCounts]:
        """Return the counts of every rollout, by the keys of the models."""
        if self._said is not None and isinstance(self._said[0], AskRollouts):
            return self._said[1]  # type: ignore[return-value]  # as asked
        return own

    def sequence_count(self, own: int) -> int:
        """Return the number of live sequences of this process and of those that are used through it."""
        return own + (0 if self.sequences_elsewhere is None else self.sequences_elsewhere())

    # --- commands ---------------------------------------------------------------------------------------------------

    def load(self, name: str, parameters: Mapping[str, object], own: Callable[[], object]) -> None:
        """Load or reload a model in all processes; blocks. Raises InferError."""
        if self.request is None:
            own()
        else:
            self.request(ModelControl(name, is_load=True, parameters=parameters))

    def unload(self, name: str, parameters: Mapping[str, object], own: Callable[[], object]) -> None:
        """Unload a model in all processes; blocks until it accepts no more requests. Raises InferError."""
        if self.request is None:
            own()
        else:
            self.request(ModelControl(name, is_load=False, parameters=parameters))

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
        """Set the state of a rollout in all processes; on the loop, where `on_done` is called with any error."""
        if self.spread_rollout is None:
            own()
        else:
            self.spread_rollout(RolloutControl(key, state, is_stored, loads), on_done)


class OwnAnswers:
    """The answers of this process alone to the queries of the supervisor."""

    def __init__(self, engine: Engine) -> None:
        self._views = engine.views.of_this_process()
        self._live = engine.live
        self._rollouts = engine.rollouts
        self._models = engine.models

    def activity(self) -> int:
        """Return a number that changes with each request that was answered."""
        return response_count() + sum(each.statistics.request_count for each in self._models.all_versions())

    def answer(self, query: Query) -> Answer:
        """Return the answer to a query."""
        if isinstance(query, IsReady):
            return self._views.is_ready()
        if isinstance(query, IsModelReady):
            return self._has_ready(query)
        if isinstance(query, AskStatistics | AskLive):
            return finish(self.answer_in_slices(query))
        if isinstance(query, AskIndex):
            return self._views.survey_repository()
        if isinstance(query, AskRollouts):
            return self._rollouts.counts()
        return self._views.metrics_text()

    def answer_in_slices(self, query: AskStatistics | AskMetrics | AskLive) -> Slices[Answer]:
        """Return the answer to a query that takes long; yields about every millisecond."""
        if isinstance(query, AskLive):
            return (yield from pack_live((yield from self._live.answer(query.query))))
        if isinstance(query, AskStatistics):
            return (yield from pack((yield from self._views.statistics_in_slices())))
        return b"".join((yield from self._views.metrics_in_slices()))

    def _has_ready(self, query: IsModelReady) -> bool:
        try:
            return self._views.is_model_ready(query.name, query.version)
        except InferError:
            return False


def _summed(own: Slices[Sequence[VersionStatistics]], sums: PackedStatistics) -> Slices[Sequence[VersionStatistics]]:
    by_key = {row.key: row for row in (yield from unpack(sums))}
    return [by_key.get(row.key, row) for row in (yield from own)]
