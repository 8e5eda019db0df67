"""CPU microseconds per request of the engine alone: submit, schedule, hand over, record, deliver.

    python -m bench.micro_engine

A real event loop and a real instance thread; the instance does nothing, so what is left is naiad's own work and the
switching between the two threads. `depth` requests are kept in flight.
"""

import asyncio
import sys
import time
from collections.abc import Sequence

import uvloop

from bench.in_memory import served_model, vectors_config
from naiad.backend.api import Instance, InstanceSpec, Model
from naiad.core.batch import Batch
from naiad.core.datatype import DataType
from naiad.core.request import InferRequest, RequestHeader
from naiad.core.response import InferResponse, ResponseHeader
from naiad.core.tensor import TensorSpec


class Nothing(Instance):
    runs_on_any_thread = "--thread" not in sys.argv

    def __init__(self) -> None:
        self.header = ResponseHeader("m", "1", [TensorSpec("OUTPUT0", DataType.FP32, (1, 16))])

    def execute(self, batch: Batch) -> Sequence[InferResponse]:
        batch.compute_start_ns = batch.compute_end_ns = batch.exec_start_ns
        header = self.header
        return [InferResponse(header, request.data) for request in batch.requests]


class NothingModel(Model):
    def create_instance(self, spec: InstanceSpec) -> Instance:
        return Nothing()


async def measure(depth: int, count: int) -> tuple[float, float, float]:
    """Return wall and CPU microseconds per request and the mean batch size."""
    config = vectors_config("", 16, count=1, max_batch_size=32)
    config.dynamic_batching.SetInParent()
    loop = asyncio.get_running_loop()
    model = served_model(config, NothingModel(), Nothing())
    header = RequestHeader(model_name="m", inputs=[TensorSpec("INPUT0", DataType.FP32, (1, 16))])
    data = [bytes(64)]
    done = loop.create_future()
    left = count

    def answered(request: InferRequest, response: InferResponse) -> None:
        nonlocal left
        left -= 1
        if left >= depth:
            model.submit(InferRequest(header, data, answered, arrival_ns=time.monotonic_ns()))
        elif not left:
            done.set_result(None)

    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(depth):
        model.submit(InferRequest(header, data, answered, arrival_ns=time.monotonic_ns()))
    await done
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    await asyncio.to_thread(model.stop, 5.0)
    return wall / count * 1e6, cpu / count * 1e6, count / model.statistics.snapshot().execution_count


def main() -> None:
    print("depth   wall us   CPU us   mean batch")
    for depth in (1, 8, 32):
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            wall, cpu, batch = runner.run(measure(depth, 40_000))
        print(f"{depth:5} {wall:9.1f} {cpu:8.1f} {batch:12.1f}")


if __name__ == "__main__":
    main()
