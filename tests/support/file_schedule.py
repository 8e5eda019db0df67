"""Which process of pytest-xdist takes which file, when some processes take only files whose tests mostly wait.

Tests that wait for timers and for other processes leave the cores idle. A process for them alone fills this time,
while the number of processes that compute stays what the machine can give time to. It collects only these files:
to import and collect all takes each process most of a minute of CPU time.
"""

from collections.abc import Collection, Sequence

import pytest
from xdist.remote import Producer
from xdist.scheduler.loadfile import LoadFileScheduling
from xdist.workermanage import WorkerController


def takes_only_waiting(worker_id: str, count: int, waiting_count: int) -> bool:
    """Return whether a process takes only files that wait: the last ones do, but not one that replaces another.

    `worker_id`: gw0, gw1, ...; `count`: of the processes at the beginning; `waiting_count`: of those that do.
    """
    return count - waiting_count <= int(worker_id.removeprefix("gw")) < count


class WaitingFilesBeside(LoadFileScheduling):
    """A file in one process, as `--dist loadfile` has it; the last processes take only files that wait.

    The other processes begin with files that compute, and take those that wait when no others are left.
    """

    def __init__(
        self, config: pytest.Config, log: Producer | None, waiting_files: Collection[str], process_count: int
    ) -> None:
        super().__init__(config, log)
        self._waiting_files = waiting_files
        self._process_count = process_count
        self._places: dict[WorkerController, dict[str, int]] = {}

    def schedule(self) -> None:
        """Begin, with the tests of a process that has collected all."""
        if self.collection is None:
            by_size = sorted(self.registered_collections.items(), key=lambda pair: len(pair[1]), reverse=True)
            self.registered_collections = dict(by_size)
        super().schedule()

    def _check_nodes_have_same_collection(self) -> bool:
        """Compare processes that have collected all; a part is right for those that only take waiting files."""
        registered = self.registered_collections
        every = set(next(iter(registered.values())))
        parts = {node for node, tests in registered.items() if self._is_for_waiting(node) and every.issuperset(tests)}
        try:
            self.registered_collections = {node: tests for node, tests in registered.items() if node not in parts}
            return super()._check_nodes_have_same_collection()
        finally:
            self.registered_collections = registered

    def _is_for_waiting(self, node: WorkerController) -> bool:
        return takes_only_waiting(node.gateway.id, self.numnodes, self._process_count)

    def _next_file(self, node: WorkerController) -> str | None:
        """Return what a process takes next; None for nothing, to the end of the run."""
        computing = (file for file in self.workqueue if file not in self._waiting_files)
        waiting = (file for file in self.workqueue if file in self._waiting_files)
        if self._is_for_waiting(node):
            return next(waiting, None)
        return next(computing, None) or next(waiting, None)

    def _reschedule(self, node: WorkerController) -> None:
        if self.workqueue and not node.shutting_down and self._next_file(node) is None:
            node.shutdown()
        else:
            super()._reschedule(node)

    def _assign_work_unit(self, node: WorkerController) -> None:
        file = self._next_file(node)
        if file is None:  # at the beginning: later `_reschedule` has looked
            node.shutdown()
            return
        tests = self.workqueue.pop(file)
        self.assigned_work[node][file] = tests
        node.send_runtest_some(self._places_of(node, [each for each, is_done in tests.items() if not is_done]))

    def _places_of(self, node: WorkerController, tests: Sequence[str]) -> list[int]:
        """Return the places of tests in what a process has collected; to search the list for each takes seconds."""
        if node not in self._places:
            self._places[node] = {test: place for place, test in enumerate(self.registered_collections[node])}
        return [self._places[node][test] for test in tests]
