"""The last and the slowest requests of a version, kept only while a page shows it.

Ids are kept as the log has them, because clients may send millions of characters.
"""

import heapq
import threading
import time
from collections import deque
from collections.abc import Sequence
from itertools import count

from naiad.core.errors import excerpt
from naiad.core.request import InferRequest
from naiad.telemetry.live.live_answer import RECENT_REQUESTS, SLOWEST_REQUESTS, SUCCESS, RequestTimes

_SLICE_NS = 30_000_000_000
_SLICES = 10
"""The slowest requests are kept for five minutes."""


class RecentRequests:
    """Observes the requests of one version; called by `ModelStatistics` under its lock, read by any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._recent: deque[RequestTimes] = deque(maxlen=RECENT_REQUESTS)
        self._numbers = count()
        self._slices: deque[tuple[int, list[tuple[int, int, RequestTimes]]]] = deque(maxlen=_SLICES)
        """Start of each slice of time, and its slowest requests as a heap."""

    def note_successes(
        self, requests: Sequence[InferRequest], durations: tuple[int, int, int], start_ns: int, end_ns: int
    ) -> None:
        """Note requests that were executed together: input, compute and output took `durations`."""
        now_ms = time.time_ns() // 1_000_000
        rest_ns = max(0, end_ns - start_ns - sum(durations))
        size = sum([request.batch_size or 1 for request in requests])
        with self._lock:
            for request in requests:
                queue_ns = max(0, start_ns - request.arrival_ns)
                name = excerpt(request.id)
                self._add(
                    RequestTimes(name, now_ms, SUCCESS, size, queue_ns, *durations, response_ns=rest_ns), end_ns
                )

    def note_cache_hit(self, request: InferRequest, lookup_ns: int, end_ns: int) -> None:
        """Note a request that the response cache has answered."""
        now_ms = time.time_ns() // 1_000_000
        rest_ns = max(0, end_ns - request.arrival_ns - lookup_ns)
        with self._lock:
            self._add(RequestTimes(excerpt(request.id), now_ms, SUCCESS, 1, rest_ns, lookup_ns, 0, 0, 0), end_ns)

    def note_failure(self, request: InferRequest, reason: str, end_ns: int) -> None:
        """Note a request that has failed; all of its time counts as waiting."""
        now_ms = time.time_ns() // 1_000_000
        waited_ns = max(0, end_ns - request.arrival_ns)
        with self._lock:
            name, size = excerpt(request.id), request.batch_size or 1
            self._add(RequestTimes(name, now_ms, reason, size, waited_ns, 0, 0, 0, 0), end_ns)

    def _add(self, times: RequestTimes, end_ns: int) -> None:
        self._recent.append(times)
        if not self._slices or end_ns - self._slices[-1][0] >= _SLICE_NS:
            self._slices.append((end_ns, []))
        heap = self._slices[-1][1]
        entry = (times.duration_ns, next(self._numbers), times)
        if len(heap) < SLOWEST_REQUESTS:
            heapq.heappush(heap, entry)
        elif entry > heap[0]:
            heapq.heapreplace(heap, entry)

    def recent(self) -> list[RequestTimes]:
        """Return the last requests, newest first."""
        with self._lock:
            return list(reversed(self._recent))

    def slowest(self, now_ns: int) -> list[RequestTimes]:
        """Return the slowest requests of the last five minutes, slowest first."""
        oldest_ns = now_ns - _SLICE_NS * _SLICES
        with self._lock:
            found = [entry for start_ns, heap in self._slices if start_ns >= oldest_ns for entry in heap]
        return [entry[2] for entry in heapq.nlargest(SLOWEST_REQUESTS, found)]
