"""The engine of a member: it answers for itself, or for all processes while it is told what they say."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence

from naiad.cluster.messages import (
    Answer,
    AskIndex,
    AskMetrics,
    AskStatistics,
    IsModelReady,
    IsReady,
    ModelControl,
    Question,
)
from naiad.core.errors import InferError
from naiad.core.model import IndexEntry, ModelState
from naiad.engine.inference import Engine
from naiad.telemetry.statistics.version import VersionStatistics


class MemberEngine(Engine):
    """An engine whose knowledge about the server may come from all of its processes."""

    ask_index: Callable[[], Sequence[IndexEntry]] | None = None
    """Returns the repository index of all processes; blocks, and raises InferError. None before the server serves."""
    order: Callable[[ModelControl], None] | None = None
    """Has all processes carry out what a model wants; blocks, raises InferError. None before the server serves."""
    sequences_elsewhere: Callable[[], int] | None = None
    """Returns how many sequences other processes have to which this one has sent requests. None without others."""
    _said: tuple[Question, Answer] | None = None

    @contextlib.contextmanager
    def knowing(self, question: Question, answer: Answer) -> Iterator[None]:
        """Take `answer`, that of all processes, for what it knows; nothing may be awaited meanwhile."""
        self._said = (question, answer)
        try:
            yield
        finally:
            self._said = None

    def answer(self, question: Question) -> Answer:
        """Return what this process alone says."""
        if isinstance(question, IsReady):
            return super().is_ready()
        if isinstance(question, IsModelReady):
            return self._has_ready(question)
        if isinstance(question, AskStatistics):
            return super().statistics()
        if isinstance(question, AskIndex):
            return super().survey_repository()
        return super().metrics_text()

    def _has_ready(self, question: IsModelReady) -> bool:
        try:
            return super().is_model_ready(question.name, question.version)
        except InferError:
            return False

    # --- sequences --------------------------------------------------------------------------------------------------

    @property
    def own_sequence_count(self) -> int:
        """Sequences of this process that have begun and not ended."""
        return super().live_sequence_count

    @property
    def live_sequence_count(self) -> int:
        """Sequences that have begun and not ended, also those that others have and that come through this process.

        While a server drains, connections stay open as long as there are any.
        """
        elsewhere = self.sequences_elsewhere() if self.sequences_elsewhere is not None else 0
        return self.own_sequence_count + elsewhere

    # --- what the protocols ask -------------------------------------------------------------------------------------

    def is_ready(self) -> bool:
        """Tell whether the server is ready for traffic."""
        if self._said is not None and isinstance(self._said[0], IsReady):
            return super().is_ready() and bool(self._said[1])
        return super().is_ready()

    def is_model_ready(self, name: str, version: str = "") -> bool:
        """Tell whether a model version is ready; an unknown one is not. Raises InferError."""
        is_ready = super().is_model_ready(name, version)
        if self._said is not None and isinstance(self._said[0], IsModelReady):
            return is_ready and bool(self._said[1])
        return is_ready

    def statistics(self, name: str = "", version: str = "") -> Sequence[VersionStatistics]:
        """Return statistics as `Engine.statistics` does."""
        own = super().statistics(name, version)
        if self._said is None or not isinstance(self._said[0], AskStatistics):
            return own
        sums = {row.key: row for row in self._said[1]}  # type: ignore[union-attr]  # as asked
        return [sums.get(row.key, row) for row in own]  # type: ignore[misc]  # as asked

    def survey_repository(self, ready_only: bool = False) -> Sequence[IndexEntry]:
        """Return the repository index of all processes; blocks, so not for the event loop. Raises InferError."""
        if self.ask_index is None:
            return super().survey_repository(ready_only)
        rows = self.ask_index()
        return [row for row in rows if row.state is ModelState.READY] if ready_only else rows

    def metrics_text(self) -> bytes:
        """Return the Prometheus exposition of everything that is measured."""
        if self._said is not None and isinstance(self._said[0], AskMetrics):
            return self._said[1]  # type: ignore[return-value]  # as asked
        return super().metrics_text()

    # --- what models want -------------------------------------------------------------------------------------------

    def load_everywhere(self, name: str, parameters: Mapping[str, object]) -> None:
        """Load or reload a model in all processes; blocks. Raises InferError."""
        if self.order is None:
            super().load_everywhere(name, parameters)
        else:
            self.order(ModelControl(name, is_load=True, parameters=parameters))

    def unload_everywhere(
        self, name: str, parameters: Mapping[str, object], on_withdrawn: Callable[[], object]
    ) -> None:
        """Unload a model in all processes; blocks until it takes no more requests. Raises InferError."""
        if self.order is None:
            super().unload_everywhere(name, parameters, on_withdrawn)
        else:
            self.order(ModelControl(name, is_load=False, parameters=parameters))
