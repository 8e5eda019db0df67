"""What a process holds, to be held against what it held before."""

import time

import psutil

_SIDE_THREADS = 4


class ProcessResources:
    """File descriptors and threads of a process, to be held against what they were."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self.before = self.now()

    def now(self) -> tuple[int, int]:
        """Return the numbers of descriptors and of threads."""
        return self._process.num_fds(), self._process.num_threads()

    def assert_back(self, timeout_s: float = 60.0) -> None:
        """Fail unless both numbers return to, or below, what they were; closing takes the server a moment.

        Threads that a server starts when there is first something to do beside its loop stay, and are few.
        """
        deadline = time.monotonic() + timeout_s
        allowed = (self.before[0], self.before[1] + _SIDE_THREADS)
        while any(now > limit for now, limit in zip(self.now(), allowed, strict=True)):
            if time.monotonic() > deadline:
                raise AssertionError(f"descriptors and threads were {self.before}, are {self.now()}")
            time.sleep(0.05)

    def resident_bytes(self) -> int:
        """Return the memory that the process has in RAM."""
        return int(self._process.memory_info().rss)

    def child_count(self) -> int:
        """Return how many processes it has started that are still there."""
        return len(self._process.children())
