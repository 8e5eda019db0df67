"""What is in progress, over all models: requests and live sequences, until the server exits."""

from naiad.core.model import name_of
from naiad.engine.lookup.model_table import ModelTable
from naiad.engine.processes import Processes


class InFlight:
    """The requests and sequences in progress."""

    def __init__(self, models: ModelTable, processes: Processes) -> None:
        self._models = models
        self._processes = processes

    @property
    def count(self) -> int:
        """Requests queued or executing, over all models, and those that wait for their model to be loaded."""
        held_count = 0 if self._models.held is None else self._models.held.count
        return held_count + sum(served.in_flight_count for served in self._models.all_versions())

    @property
    def pending_count(self) -> int:
        """Requests that wait, over all models: in a queue, or for their model to be loaded."""
        held_count = 0 if self._models.held is None else self._models.held.count
        return held_count + sum(served.pending_count for served in self._models.all_versions())

    def versions(self) -> list[tuple[str, str, int]]:
        """Return the name, version and number of requests of every model that has queued or executing ones."""
        versions = self._models.all_versions()
        found = [(name_of(served.name), served.version, served.in_flight_count) for served in versions]
        return [each for each in found if each[2]]

    def check(self, now_ns: int) -> None:
        """Let every model fail hung executions; called about once a second."""
        for served in self._models.all_versions():
            served.check(now_ns)

    def abort(self, reason: str) -> None:
        """Fail all queued and executing requests with UNAVAILABLE: the server exits. On the loop."""
        if self._models.held is not None:
            self._models.held.abort(reason)
        # Ensembles first: otherwise failures in their members would be reported as the members' failures.
        for served in sorted(self._models.all_versions(), key=lambda served: bool(served.instances)):
            served.abort(reason)

    # --- sequences ------------------------------------------------------------------------------------------------

    def close_to_new_sequences(self) -> None:
        """Continue live sequences, and reject new ones, before the server stops."""
        for served in self._models.all_versions():
            served.close_to_new_sequences()

    @property
    def own_sequence_count(self) -> int:
        """Live sequences of this process, over all models."""
        return sum(served.live_sequence_count for served in self._models.all_versions())

    @property
    def live_sequence_count(self) -> int:
        """Live sequences, also those in other processes that are used through this one.

        While a server drains, connections stay open as long as there are any.
        """
        return self._processes.sequence_count(self.own_sequence_count)
