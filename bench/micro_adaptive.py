"""What learning costs: an adaptive batcher beside dynamic ones, under the same simulated Poisson load.

    PYTHONPATH=src python bench/micro_adaptive.py

Prints microseconds of `enqueue` for each request, of `take` and `record_execution` for each batch, and the rows of a
batch; of five rounds the one with the cheapest requests.
"""

import random
import time
from collections.abc import Callable

from naiad.core.request import InferRequest, RequestHeader
from naiad.scheduler.adaptive import AdaptiveScheduler
from naiad.scheduler.api import Scheduler
from naiad.scheduler.dynamic import DynamicScheduler

ROUNDS = 5
REQUESTS = 30_000
MEAN_GAP_NS = 200_000
FIXED_NS, ROW_NS, STRAY_NS = 270_000, 41_000, 50_000
"""What a batch of the simulated model takes, the last times a random share."""
_clock_ns = time.perf_counter_ns

SCHEDULERS: dict[str, Callable[[], Scheduler]] = {
    "dynamic": lambda: DynamicScheduler(max_batch_size=32),
    "dynamic, delay": lambda: DynamicScheduler(max_batch_size=32, delay_ns=1),
    "adaptive": lambda: AdaptiveScheduler(max_batch_size=32),
    "adaptive, 2 instances": lambda: AdaptiveScheduler(max_batch_size=32, instance_count=2),
}


def make_requests(rng: random.Random) -> list[InferRequest]:
    header, key = RequestHeader(model_name="m"), ((16,), (16,))
    requests, now_ns = [], 1_000_000
    for _ in range(REQUESTS):
        now_ns += int(rng.expovariate(1 / MEAN_GAP_NS))
        request = InferRequest(header, (), lambda request, response: None, arrival_ns=now_ns)
        request.shape_key = key
        requests.append(request)
    return requests


def run(scheduler: Scheduler) -> tuple[float, float, float, float]:
    """Return microseconds of enqueue, take and record, and rows a batch; one instance executes."""
    rng = random.Random(1)
    requests = make_requests(rng)
    position = now_ns = batches = 0
    enqueue_ns = take_ns = record_ns = 0
    while position < REQUESTS or scheduler.pending_count:
        if not scheduler.pending_count:
            now_ns = max(now_ns, requests[position].arrival_ns)
        while position < REQUESTS and requests[position].arrival_ns <= now_ns:
            request = requests[position]
            began_ns = _clock_ns()
            scheduler.enqueue(request, request.arrival_ns)
            enqueue_ns += _clock_ns() - began_ns
            position += 1
        began_ns = _clock_ns()
        batch = scheduler.take(now_ns)
        take_ns += _clock_ns() - began_ns
        if batch is None:
            upcoming_ns = requests[position].arrival_ns if position < REQUESTS else scheduler.wake_ns()
            now_ns = max(now_ns + 1, min(scheduler.wake_ns() or upcoming_ns, upcoming_ns))
            continue
        batches += 1
        batch.exec_start_ns = now_ns
        now_ns += FIXED_NS + ROW_NS * len(batch.requests) + rng.randrange(STRAY_NS)
        batch.exec_end_ns = now_ns
        if scheduler.learns:
            began_ns = _clock_ns()
            scheduler.record_execution(batch)
            record_ns += _clock_ns() - began_ns
    return (
        enqueue_ns / REQUESTS / 1e3,
        take_ns / batches / 1e3,
        record_ns / batches / 1e3,
        REQUESTS / batches,
    )


def main() -> None:
    for name, make in SCHEDULERS.items():
        enqueue_us, take_us, record_us, rows = min(run(make()) for _ in range(ROUNDS))
        print(
            f"{name:24} enqueue {enqueue_us:5.2f} us/request, take {take_us:6.2f} us/batch, "
            f"record {record_us:5.2f} us/batch, {rows:.1f} rows"
        )


if __name__ == "__main__":
    main()
