"""CPU cost of scheduling and counting one request.

    python -m bench.micro_scheduler

Prints microseconds per request for enqueue + take of each scheduler, and for recording statistics, at several batch
sizes; medians of several rounds.
"""

from collections.abc import Callable

from bench.in_memory import cpu_us
from naiad.core.batch import Batch
from naiad.core.request import InferRequest, RequestHeader
from naiad.core.response import InferResponse, ResponseHeader
from naiad.scheduler.api import Scheduler
from naiad.scheduler.direct import DirectScheduler
from naiad.scheduler.dynamic import DynamicScheduler
from naiad.scheduler.queue import QueueLimits
from naiad.telemetry.statistics.model_statistics import ModelStatistics

REQUESTS = 20_000


def make_requests(count: int) -> list[InferRequest]:
    header = RequestHeader(model_name="m", priority=2)
    key = ((16,), (16,))
    requests = []
    for number in range(count):
        request = InferRequest(header, (), lambda request, response: None, arrival_ns=number)
        request.shape_key = key
        requests.append(request)
    return requests


def schedule(make: Callable[[], Scheduler], backlog: int) -> float:
    requests = make_requests(REQUESTS)
    scheduler = make()

    def work() -> None:
        position = 0
        while position < REQUESTS:
            for request in requests[position : position + backlog]:
                scheduler.enqueue(request, request.arrival_ns)
            position += backlog
            while scheduler.take(position) is not None:
                pass

    return cpu_us(work, REQUESTS)


def record(batch_size: int) -> float:
    requests = make_requests(batch_size)
    response = InferResponse(ResponseHeader("m", "1", ()))
    responses = [response] * batch_size
    batch = Batch(requests, batch_size, "full")
    batch.exec_start_ns, batch.compute_start_ns, batch.compute_end_ns, batch.exec_end_ns = 10**6, 11**6, 12**6, 13**6
    counts = ModelStatistics("m", "1")

    def work() -> None:
        for _ in range(REQUESTS // batch_size):
            counts.record_batch(batch, responses, 13**6)

    return cpu_us(work, REQUESTS)


SCHEDULERS: dict[str, Callable[[], Scheduler]] = {
    "direct": DirectScheduler,
    "dynamic": lambda: DynamicScheduler(max_batch_size=32),
    "dynamic, delay": lambda: DynamicScheduler(max_batch_size=32, delay_ns=1),
    "dynamic, 3 priority levels": lambda: DynamicScheduler(max_batch_size=32, priority_levels=3),
    "dynamic, timeouts": lambda: DynamicScheduler(
        max_batch_size=32, default_policy=QueueLimits(max_queue_size=1000, timeout_ns=10**9)
    ),
}


def main() -> None:
    print(f"{'us per request, at a backlog of':40}{1:>8}{8:>8}{32:>8}{200:>8}")
    for name, make in SCHEDULERS.items():
        print(f"{name:40}" + "".join(f"{schedule(make, backlog):8.2f}" for backlog in (1, 8, 32, 200)))
    print(f"{'statistics.record_batch':40}" + "".join(f"{record(size):8.2f}" for size in (1, 8, 32, 200)))


if __name__ == "__main__":
    main()
