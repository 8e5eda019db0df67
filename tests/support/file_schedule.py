"""Which process of pytest-xdist takes which file, when some processes take only files whose tests mostly wait.

Tests that wait for timers and for other processes leave the cores idle. A process for them alone fills this time,
while the number of processes that compute stays what the machine can give time to.
"""

from collections.abc import Collection

import pytest
from xdist.remote import Producer
from xdist.scheduler.loadfile import LoadFileScheduling
from xdist.workermanage import WorkerController


class WaitingFilesBeside(LoadFileScheduling):
    """A file in one process, as `--dist loadfile` has it; the last processes take only files that wait.

    The other processes begin with files that compute, and take those that wait when no others are left.
    """

    def __init__(
        self, config: pytest.Config, log: Producer | None, waiting_files: Collection[str], process_count: int
    ) -> None:
        super().__init__(config, log)
        self._waiting_files = waiting_files
        self._first_waiting = self.numnodes - process_count

    def _next_file(self, node: WorkerController) -> str | None:
        """Return what a process takes next; None for nothing, to the end of the run."""
        computing = (file for file in self.workqueue if file not in self._waiting_files)
        waiting = (file for file in self.workqueue if file in self._waiting_files)
        if int(node.gateway.id.removeprefix("gw")) >= self._first_waiting:
            return next(waiting, None)
        return next(computing, None) or next(waiting, None)

    def _reschedule(self, node: WorkerController) -> None:
        if self.workqueue and not node.shutting_down and self._next_file(node) is None:
            node.shutdown()
        else:
            super()._reschedule(node)

    def _assign_work_unit(self, node: WorkerController) -> None:
        # A process begins with some file even if none waits: xdist expects it.
        self.workqueue.move_to_end(self._next_file(node) or next(iter(self.workqueue)), last=False)
        super()._assign_work_unit(node)
