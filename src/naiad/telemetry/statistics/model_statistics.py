"""Statistics of one model version, counted as Triton counts them."""

import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from naiad.core.batch import Batch
from naiad.core.errors import ErrorCode, FailureReason, InferError
from naiad.core.request import InferRequest
from naiad.core.response import InferResponse
from naiad.telemetry.statistics.live_counts import LiveCounts
from naiad.telemetry.statistics.part_statistics import CallStatistics, ResponseStatistics
from naiad.telemetry.statistics.version_statistics import (
    LATENCY_BOUNDS_NS,
    BatchStatistics,
    Duration,
    RecentBatch,
    VersionStatistics,
)

if TYPE_CHECKING:
    from naiad.telemetry.statistics.part_statistics import StepCounts

LATENCIES = ("request", "queue", "compute_input", "compute_infer", "compute_output")
"""The latencies with histograms; request and queue times differ within a batch."""

_BUCKET_COUNT = len(LATENCY_BOUNDS_NS) + 1
_SAMPLE_LIMIT = 8192
_NO_FAILURES = dict.fromkeys(FailureReason, 0)
"""Copied, because each reason is hashed by a call of Python."""
RECENT_LIMIT = 32
"""Number of executed batches that are kept one by one."""
_MOST_NOTED = 16
"""Batches of one request that are noted before they are counted together; a longer pause would be felt."""

_Noted = tuple[int, int, int, int, int, int, int, int, int, str, str]
"""A batch of one request: its arrival, the five times of its execution and its end in monotonic ns, the epoch time in
ns; then batch size, rows, release reason and decision."""


class LatencySample(NamedTuple):
    """The latencies of one successful request, or of one that missed in the response cache, for summaries.

    None if a request has no such latency: a cache hit has no compute time.
    """

    end_ns: int
    request_ns: int | None = None
    queue_ns: int | None = None
    compute_input_ns: int | None = None
    compute_infer_ns: int | None = None
    compute_output_ns: int | None = None
    cache_hit_ns: int | None = None
    cache_miss_ns: int | None = None


class RequestObserver(Protocol):
    """Gets the requests of a version one by one, under the lock of its statistics: it must be quick."""

    def note_successes(
        self, requests: Sequence[InferRequest], durations: tuple[int, int, int], start_ns: int, end_ns: int
    ) -> None:
        """Note requests that were executed together; `durations` are of input, infer and output."""

    def note_cache_hit(self, request: InferRequest, lookup_ns: int, end_ns: int) -> None:
        """Note a request that the response cache has answered."""

    def note_failure(self, request: InferRequest, reason: str, end_ns: int) -> None:
        """Note a request that has failed."""


class _Samples:
    """Keeps the latencies of recent requests, for summaries. A `RequestObserver`."""

    def __init__(self) -> None:
        self.kept: deque[LatencySample] = deque(maxlen=_SAMPLE_LIMIT)

    def note_successes(
        self, requests: Sequence[InferRequest], durations: tuple[int, int, int], start_ns: int, end_ns: int
    ) -> None:
        self.kept.extend(
            LatencySample(end_ns, end_ns - request.arrival_ns, start_ns - request.arrival_ns, *durations)
            for request in requests
        )

    def note_cache_hit(self, request: InferRequest, lookup_ns: int, end_ns: int) -> None:
        self.kept.append(LatencySample(end_ns, end_ns - request.arrival_ns, 0, cache_hit_ns=lookup_ns))

    def note_failure(self, request: InferRequest, reason: str, end_ns: int) -> None:
        """Do nothing: summaries are about successes."""


class ModelStatistics:
    """Counts the requests of one model version; instances record, any thread takes snapshots.

    Instance threads record once per batch, under a lock of its own. Most sums are computed per batch: the durations
    of n requests that end together are n times the end minus the sum of their arrivals.

    What a batch of one request costs here is mostly code that the processor's caches have lost since the last
    request. So such batches are only noted, and counted together: by every 16th, and by each reader.
    """

    def __init__(
        self,
        model: str,
        version: str,
        *,
        namespace: str = "",
        answered_is_success: bool = False,
        called: CallStatistics | None = None,
    ) -> None:
        """`namespace` distinguishes models of equal names. `answered_is_success` is for Python models.

        `called` counts its calls of other models.

        Triton: its Python backend counts a request with an error response of the model as a success, and a batch
        whose `execute` raised as an execution; other backends count neither.
        """
        self.model = model
        self.version = version
        self.namespace = namespace
        self.responses = ResponseStatistics()
        self.steps: Sequence[StepCounts] = ()
        """Ensembles: one per step."""
        self.called = CallStatistics() if called is None else called
        """The calls of other models by its code."""
        self._answered_is_success = answered_is_success
        self._lock = threading.Lock()
        self._last_inference_ms = 0
        self._inference_count = 0
        self._execution_count = 0
        self._success_count = 0
        self._request_ns = 0
        self._queue_ns = 0
        self._compute_ns = [0, 0, 0]
        self._cache_hit = [0, 0]
        self._last_hit_ns = 0
        self._cache_miss = [0, 0]
        self._fail_count = 0
        self._fail_ns = 0
        self._failures = _NO_FAILURES.copy()
        self._cancelled = [0, 0]
        """Executing, waiting."""
        self._release_reasons: dict[str, int] = {}
        self._padding: dict[str, int] = {}
        self._batches: dict[int, list[int]] = {}
        """Total batch size to executions and the summed input, infer and output ns."""
        self._buckets = [[0] * _BUCKET_COUNT for _ in LATENCIES]
        self._samples: _Samples | None = None
        self._observers: tuple[RequestObserver, ...] = ()
        """Empty while nothing asks for single requests, which then costs one branch for each batch."""
        self._recent: deque[tuple[int, int, int, int, int, str, str]] = deque(maxlen=RECENT_LIMIT)
        self._noted: deque[_Noted] = deque()
        """Batches that are not counted yet. Threads append without the lock, and only its holder removes."""

    @property
    def request_count(self) -> int:
        """Requests that have ended, as they are known at this moment; without the lock."""
        return self._success_count + self._fail_count + len(self._noted)

    def keep_samples(self) -> None:
        """Keep the latencies of recent requests from now on, for summaries; bounded."""
        if self._samples is None:
            self._samples = _Samples()
            self.observe(self._samples)

    def observe(self, observer: RequestObserver) -> None:
        """Show each request to an observer from now on."""
        with self._lock:
            self._observers = (*self._observers, observer)

    def stop_observing(self, observer: RequestObserver) -> None:
        """Show an observer no more requests."""
        with self._lock:
            self._observers = tuple(each for each in self._observers if each is not observer)

    # --- recording ------------------------------------------------------------------------------------------------

    def record_batch(
        self,
        batch: Batch,
        responses: Sequence[InferResponse],
        end_ns: int,
        wall_ms: int = 0,
        *,
        done: Sequence[InferRequest] | None = None,
    ) -> None:
        """Count an executed batch with its times; `responses` belong to its requests, in order.

        For an iterative model only the requests in `done` count, and `responses` are theirs. `end_ns` is the
        monotonic end time of the requests, `wall_ms` the epoch time, by default the present.
        """
        # hot: bench/micro_scheduler.py
        requests = batch.requests if done is None else done
        for response in responses:
            if response.error is not None:
                requests = self._record_errors(requests, responses, end_ns)
                if not requests and not self._answered_is_success:
                    return
                break
        if len(requests) == 1 and requests is batch.requests and not (wall_ms or self._observers):
            self._note(batch, requests[0], end_ns)
            return
        arrivals = []
        rows = 0
        for request in requests:
            arrivals.append(request.arrival_ns)
            # Triton: a request counts as at least one row.
            rows += request.batch_size or 1
        with self._lock:
            self._count_noted()
            durations = self._record_execution(batch, wall_ms)
            if arrivals:
                self._count_successes(arrivals, durations, batch.exec_start_ns, end_ns)
                for observer in self._observers:
                    observer.note_successes(requests, durations, batch.exec_start_ns, end_ns)
            self._inference_count += rows

    def _note(self, batch: Batch, request: InferRequest, end_ns: int) -> None:
        """Note a batch of one request, which has succeeded and which nothing observes."""
        noted = self._noted
        noted.append(
            (
                request.arrival_ns,
                batch.exec_start_ns,
                batch.compute_start_ns,
                batch.compute_end_ns,
                batch.exec_end_ns,
                end_ns,
                time.time_ns(),
                batch.size,
                request.batch_size or 1,
                batch.release_reason,
                batch.decision,
            )
        )
        if len(noted) >= _MOST_NOTED:
            with self._lock:
                self._count_noted()

    def _count_noted(self) -> None:
        """Count the batches that were noted. The lock is held."""
        noted = self._noted
        while noted:
            arrival, start, compute_start, compute_end, exec_end, end, wall, size, rows, reason, decision = (
                noted.popleft()
            )
            durations = (compute_start - start, compute_end - compute_start, exec_end - compute_end)
            self._count_execution(durations, size, reason, wall // 1_000_000)
            self._recent.append((arrival, start, exec_end, size, 1, reason, decision))
            self._count_successes((arrival,), durations, start, end)
            self._inference_count += rows

    def record_batch_failure(
        self, batch: Batch, end_ns: int, wall_ms: int = 0, *, reason: FailureReason = FailureReason.BACKEND
    ) -> None:
        """Count a batch whose execution failed as a whole: every request fails with `reason`."""
        with self._lock:
            self._count_noted()
            count = len(batch.requests)
            self._fail_count += count
            self._fail_ns += count * end_ns - sum([request.arrival_ns for request in batch.requests])
            self._failures[reason] += count
            for observer in self._observers:
                for request in batch.requests:
                    observer.note_failure(request, reason.value, end_ns)
            if self._answered_is_success:
                self._record_execution(batch, wall_ms)

    def record_cache_hit(self, request: InferRequest, lookup_ns: int, end_ns: int) -> None:
        """Count a request with a response from the cache, `lookup_ns` after the start of the look-up."""
        with self._lock:
            self._count_noted()
            self._success_count += 1
            self._request_ns += end_ns - request.arrival_ns
            self._last_hit_ns = end_ns
            self._cache_hit[0] += 1
            self._cache_hit[1] += lookup_ns
            self._last_inference_ms = time.time_ns() // 1_000_000
            self._buckets[0][bisect_left(LATENCY_BOUNDS_NS, end_ns - request.arrival_ns)] += 1
            # Triton: a hit counts in the queue as well, with zero time.
            self._buckets[1][0] += 1
            for observer in self._observers:
                observer.note_cache_hit(request, lookup_ns, end_ns)

    def record_cache_miss(self, duration_ns: int) -> None:
        """Count an executed request that missed in the cache: time for the look-up and for the insertion."""
        with self._lock:
            self._cache_miss[0] += 1
            self._cache_miss[1] += duration_ns
            if self._samples is not None:
                self._samples.kept.append(LatencySample(time.monotonic_ns(), cache_miss_ns=duration_ns))

    def record_dropped(self, request: InferRequest, reason: FailureReason, end_ns: int) -> None:
        """Count a queued request that ended without an execution."""
        with self._lock:
            self._record_failure(request, reason, end_ns)

    def record_cancelled(self, *, in_queue: bool) -> None:
        """Count a request cancelled by its client, independent of its result."""
        with self._lock:
            self._cancelled[in_queue] += 1

    def record_padding(self, data_count: int, padding_count: int) -> None:
        """Count the elements of a batch in padded inputs: data of clients, and padding."""
        counts = self._padding
        with self._lock:
            counts["data"] = counts.get("data", 0) + data_count
            counts["padding"] = counts.get("padding", 0) + padding_count

    def _record_failure(self, request: InferRequest, reason: FailureReason, end_ns: int) -> None:
        self._fail_count += 1
        self._fail_ns += end_ns - request.arrival_ns
        self._failures[reason] += 1
        for observer in self._observers:
            observer.note_failure(request, reason.value, end_ns)

    def _record_errors(
        self, requests: Sequence[InferRequest], responses: Sequence[InferResponse], end_ns: int
    ) -> Sequence[InferRequest]:
        """Count the requests that failed individually; return the other requests."""
        successes: list[InferRequest] = []
        with self._lock:
            for request, response in zip(requests, responses, strict=True):
                if response.error is None or (self._answered_is_success and not is_cancelled(response.error)):
                    successes.append(request)
                else:
                    self._record_failure(request, _reason_of(response.error), end_ns)
        return successes

    def _record_execution(self, batch: Batch, wall_ms: int) -> tuple[int, int, int]:
        """Count one execution and return its durations: input, infer, output."""
        durations = (
            batch.compute_start_ns - batch.exec_start_ns,
            batch.compute_end_ns - batch.compute_start_ns,
            batch.exec_end_ns - batch.compute_end_ns,
        )
        self._count_execution(durations, batch.size, batch.release_reason, wall_ms or time.time_ns() // 1_000_000)
        requests = batch.requests
        self._recent.append(
            (
                requests[0].arrival_ns,
                batch.exec_start_ns,
                batch.exec_end_ns,
                batch.size,
                len(requests),
                batch.release_reason,
                batch.decision,
            )
        )
        return durations

    def _count_execution(self, durations: tuple[int, int, int], size: int, reason: str, wall_ms: int) -> None:
        self._last_inference_ms = wall_ms
        self._execution_count += 1
        reasons = self._release_reasons
        reasons[reason] = reasons.get(reason, 0) + 1
        # Bounded by the number of sizes, which is max_batch_size.
        entry = self._batches.get(size)
        if entry is None:
            entry = self._batches[size] = [0, 0, 0, 0]
        entry[0] += 1
        entry[1] += durations[0]
        entry[2] += durations[1]
        entry[3] += durations[2]

    def _count_successes(
        self, arrivals: Sequence[int], durations: tuple[int, int, int], start_ns: int, end_ns: int
    ) -> None:
        count = len(arrivals)
        arrived_ns = sum(arrivals)
        self._success_count += count
        self._request_ns += count * end_ns - arrived_ns
        self._queue_ns += count * start_ns - arrived_ns
        buckets = self._buckets
        if count == 1:
            buckets[0][bisect_left(LATENCY_BOUNDS_NS, end_ns - arrived_ns)] += 1
            buckets[1][bisect_left(LATENCY_BOUNDS_NS, start_ns - arrived_ns)] += 1
        else:
            _count_since(buckets[0], arrivals, end_ns)
            _count_since(buckets[1], arrivals, start_ns)
        # Triton: each request of a batch adds the whole batch's durations.
        for position, duration in enumerate(durations):
            self._compute_ns[position] += count * duration
            buckets[position + 2][bisect_left(LATENCY_BOUNDS_NS, duration)] += count

    # --- reading --------------------------------------------------------------------------------------------------

    @property
    def last_use_ns(self) -> int:
        """Monotonic end of the last execution, or of the last response from the cache; 0 before the first."""
        with self._lock:
            self._count_noted()
            return max(self._recent[-1][2] if self._recent else 0, self._last_hit_ns)

    def snapshot(self) -> VersionStatistics:
        """Return the counts of one moment."""
        with self._lock:
            self._count_noted()
            count = self._success_count
            # Triton: cache hits count as queued, but not as computed.
            executed = count - self._cache_hit[0]
            computes = [Duration(executed, ns) for ns in self._compute_ns]
            return VersionStatistics(
                name=self.model,
                version=self.version,
                namespace=self.namespace,
                last_inference_ms=self._last_inference_ms,
                inference_count=self._inference_count,
                execution_count=self._execution_count,
                success=Duration(count, self._request_ns),
                fail=Duration(self._fail_count, self._fail_ns),
                queue=Duration(count, self._queue_ns),
                compute_input=computes[0],
                compute_infer=computes[1],
                compute_output=computes[2],
                cache_hit=Duration(*self._cache_hit),
                cache_miss=Duration(*self._cache_miss),
                batch_stats=[
                    BatchStatistics(size, *(Duration(entry[0], ns) for ns in entry[1:]))
                    for size, entry in sorted(self._batches.items())
                ],
                response_stats=self.responses.snapshot(),
                steps=[step.snapshot() for step in self.steps],
                failures=dict(self._failures),
                cancelled_in_queue_count=self._cancelled[True],
                cancelled_in_execution_count=self._cancelled[False],
                release_reasons=dict(self._release_reasons),
                padding=dict(self._padding),
                latencies={name: tuple(row) for name, row in zip(LATENCIES, self._buckets, strict=True)},
            )

    def live_counts(self, pending: int, executing: int) -> LiveCounts | None:
        """Return the counts of one moment in a small form; None if nothing was counted and nothing is in progress."""
        with self._lock:
            self._count_noted()
            if not (self._success_count or self._fail_count or self._execution_count or pending or executing):
                return None
            input_ns, infer_ns, output_ns = self._compute_ns
            return LiveCounts(
                self._success_count,
                self._fail_count,
                self._execution_count,
                self._inference_count,
                self._request_ns,
                self._queue_ns,
                input_ns,
                infer_ns,
                output_ns,
                self._cache_hit[0],
                self._cache_miss[0],
                pending,
                executing,
                tuple(self._failures.values()) if self._fail_count else (),
                tuple(self._buckets[0]) if self._success_count else (),
                tuple([(size, entry[0]) for size, entry in sorted(self._batches.items())]),
            )

    def recent_batches(self) -> Sequence[RecentBatch]:
        """Return the last batches, oldest first; at most `RECENT_LIMIT`."""
        with self._lock:
            self._count_noted()
            recent = list(self._recent)
        return [RecentBatch(*batch) for batch in recent]

    def samples(self) -> Sequence[LatencySample]:
        """Return the kept samples, oldest first; none unless `keep_samples` was called."""
        with self._lock:
            return [] if self._samples is None else list(self._samples.kept)


def _count_since(buckets: list[int], arrivals: Sequence[int], moment_ns: int) -> None:
    """Count the time from each arrival to `moment_ns` in `buckets`."""
    bounds = LATENCY_BOUNDS_NS
    shortest = bisect_left(bounds, moment_ns - max(arrivals))
    # Requests of one batch arrived close together: mostly the first and the last share a bucket.
    if shortest == bisect_left(bounds, moment_ns - min(arrivals)):
        buckets[shortest] += len(arrivals)
        return
    for arrival_ns in arrivals:
        buckets[bisect_left(bounds, moment_ns - arrival_ns)] += 1


def is_cancelled(error: InferError) -> bool:
    """Return whether an error is the answer to a cancelled request: it is no success of any backend."""
    return error.code is ErrorCode.CANCELLED


def _reason_of(error: InferError) -> FailureReason:
    if error.reason is not None:
        return error.reason
    return FailureReason.CANCELED if is_cancelled(error) else FailureReason.BACKEND
