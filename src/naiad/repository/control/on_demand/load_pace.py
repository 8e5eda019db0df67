"""The pace of loads by requests and of evictions: their threads, and how many loads work at a time."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from queue import SimpleQueue

from naiad.core.model import name_of
from naiad.telemetry.last_resort import report

_SHORT_S = 0.5
"""A load that has worked for longer is no reason for others to wait: a model may take minutes."""
_PAUSE_S = 0.1
"""Before the thread of an urgent load is tried again."""


class LoadThreads:
    """Runs loads on threads.

    The loop that begins them waits for nothing: the start of a thread takes as long as busy threads let it, and
    `ThreadPoolExecutor.submit` has one lock for all executors of the process, also while it starts a thread.
    """

    def __init__(self, load: Callable[[str], object], most: int) -> None:
        """`load` gets the key of a model, on one of `most` threads; an urgent load has a thread of its own."""
        self._load = load
        self._asked: SimpleQueue[tuple[str, bool] | None] = SimpleQueue()
        self._pool = ThreadPoolExecutor(most, thread_name_prefix="on-demand")
        self._has_ended = False

    def start(self) -> None:
        """Be ready for loads; not on the loop, and once."""
        threading.Thread(target=self._begin_asked, name="on-demand-begin", daemon=True).start()

    def begin(self, key: str, *, is_urgent: bool) -> None:
        """Begin a load soon."""
        self._asked.put((key, is_urgent))

    def end(self) -> None:
        """Begin no more loads; those that have not begun never do."""
        self._has_ended = True
        self._asked.put(None)
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _begin_asked(self) -> None:
        while (asked := self._asked.get()) is not None and not self._has_ended:
            key, is_urgent = asked
            try:
                if is_urgent:  # all threads of the pool may wait for the end of its caller
                    name = f"on-demand-{name_of(key)}"
                    threading.Thread(target=self._load, args=(key,), name=name, daemon=True).start()
                else:
                    self._pool.submit(self._load, key)
            except Exception as error:  # this thread begins all loads, so it must go on
                # The system has no more threads. The pool has kept its load for a thread that is there.
                if not self._has_ended:
                    report(f"starting a thread for the load of model '{key}'", error)
                    if is_urgent:
                        time.sleep(_PAUSE_S)
                        self._asked.put(asked)


class EvictionThreads:
    """Runs the evictions of groups of models, each on a thread of its own."""

    def __init__(self, evict: Callable[[Sequence[str]], object]) -> None:
        self._evict = evict
        self._waiting: deque[Sequence[str]] = deque()

    def add(self, group: Sequence[str]) -> None:
        """Add a group, whose thread `start` starts: that waits for the new thread, so no lock may be held then."""
        self._waiting.append(group)

    def start(self) -> None:
        """Start the threads of the groups that were added."""
        while True:
            try:
                group = self._waiting.popleft()
            except IndexError:
                return
            name = f"evict-{name_of(group[-1])}"
            threading.Thread(target=self._evict, args=(group,), name=name, daemon=True).start()


class LoadTurns:
    """Lets few loads work at a time, and leaves a core to the requests of the models that are loaded."""

    def __init__(self, load_count: int, core_count: int) -> None:
        """At most `load_count` work, of which as many are short or have just begun as there are cores but one."""
        self._load_count = load_count
        self._short_count = max(1, core_count - 1)
        self._first = threading.Lock()
        """Of the load that waits for its turn; those behind it wait for this, so that they wake up one by one."""
        self._changed = threading.Condition()
        self._begun_s: dict[object, float] = {}
        """When each load that works has begun, the longest one first."""

    @contextmanager
    def turn(self, *, is_urgent: bool = False) -> Iterator[None]:
        """Wait for a turn; an urgent load takes none: what it waits for could be its own caller."""
        if is_urgent:
            yield
            return
        load = object()
        with self._first, self._changed:
            while (wait_s := self._wait_s()) is None or wait_s > 0:
                self._changed.wait(wait_s)
            self._begun_s[load] = time.monotonic()
        try:
            yield
        finally:
            with self._changed:
                del self._begun_s[load]
                self._changed.notify_all()

    def _wait_s(self) -> float | None:
        """Return how long the next load has to wait, if none ends before; None for as long as none ends."""
        if len(self._begun_s) >= self._load_count:
            return None
        if len(self._begun_s) < self._short_count:
            return 0.0
        return [*self._begun_s.values()][-self._short_count] + _SHORT_S - time.monotonic()
