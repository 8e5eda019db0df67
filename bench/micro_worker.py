"""CPU cost of a request to a Python model, over both processes.

    python -m bench.micro_worker [requests] [images]

First a real worker with an add/sub model: CPU microseconds per request in the server's process and in the worker, and
what of the latter is the model itself (the same calls without a server). Then a backend with `isolation: process`
and large tensors (`images`).
"""

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil

from bench.in_memory import cpu_us, process_us, python_model, vectors_config
from bench.models import ADD_SUB_PY
from naiad.backend.api import Instance, InstanceSpec, ModelContext
from naiad.backend.registry import BackendRegistry
from naiad.backend.workers.worker_instance import WorkerInstance
from naiad.core.batch import Batch
from naiad.core.datatype import DataType
from naiad.core.request import InferRequest, RequestHeader
from naiad.core.tensor import TensorSpec
from naiad.worker.api import pb_utils
from naiad.worker.api.request import ReceivedRequest, RequestPlan
from naiad.worker.api.tensor import ReceivedTensor, TensorPlan

ROUNDS = 5
SPEC = InstanceSpec("m_0", 0, "KIND_CPU")


def batch_of(count: int, width: int) -> Batch:
    spec = [TensorSpec(f"INPUT{number}", DataType.FP32, (1, width)) for number in range(2)]
    header = RequestHeader(model_name="m", inputs=spec)
    data = np.arange(width, dtype=np.float32).tobytes()
    requests = [
        InferRequest(header, [data, data], lambda request, response: None, id=f"request-{number}")
        for number in range(count)
    ]
    return Batch(requests, count)


def measure(instance: WorkerInstance, count: int, width: int, seconds: float = 1.0) -> tuple[float, float, float]:
    """Return wall, server CPU and worker CPU in us per request."""
    server = psutil.Process()
    worker = server.children()[0]
    batch = batch_of(count, width)
    for _ in range(50):
        instance.execute(batch)
    executed = 0
    before, start = (process_us(server), process_us(worker)), time.perf_counter()
    while time.perf_counter() - start < seconds:
        for _ in range(20):
            instance.execute(batch)
        executed += 20 * count
    wall = 1e6 * (time.perf_counter() - start)
    return (
        wall / executed,
        (process_us(server) - before[0]) / executed,
        (process_us(worker) - before[1]) / executed,
    )


def model_alone_us(count: int, width: int) -> float:
    """Return what the model itself costs per request: its numpy calls and the pb_utils calls that it makes."""
    data = bytearray(np.arange(width, dtype=np.float32).tobytes())
    plans = [TensorPlan(f"INPUT{number}", "FP32", (1, width)) for number in range(2)]

    header = RequestPlan()

    def work() -> None:
        for _ in range(count):
            tensors: list[pb_utils.Tensor] = [ReceivedTensor(plan, data, 0) for plan in plans]
            request = ReceivedRequest(header, "", tensors, lambda _: False, 0)
            a = pb_utils.get_input_tensor_by_name(request, "INPUT0")
            b = pb_utils.get_input_tensor_by_name(request, "INPUT1")
            assert a is not None
            assert b is not None
            x, y = a.as_numpy(), b.as_numpy()
            pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", x + y), pb_utils.Tensor("OUTPUT1", x - y)])

    return repeated_us(work, 2000 // count + 1) / count


def repeated_us(work: Callable[[], None], times: int) -> float:
    def many() -> None:
        for _ in range(times):
            work()

    return cpu_us(many, times, ROUNDS)


def requests_to_a_model() -> None:
    print("add/sub, 16 floats: us per request")
    print(f"{'batch':>6} {'wall':>8} {'server':>8} {'worker':>8} {'model':>8} {'overhead':>9}")
    instance = python_model(ADD_SUB_PY, vectors_config("python", 16)).create_instance(SPEC)
    assert isinstance(instance, WorkerInstance)
    for count in (1, 2, 8, 32):
        rounds = [measure(instance, count, 16) for _ in range(ROUNDS)]
        wall, server, worker = (statistics.median(column) for column in zip(*rounds, strict=True))
        model = model_alone_us(count, 16)
        print(f"{count:6} {wall:8.1f} {server:8.1f} {worker:8.1f} {model:8.1f} {server + worker - model:9.1f}")
    instance.close()


def identities(width: int) -> tuple[Instance, WorkerInstance]:
    """Return an instance of the identity backend in this process, and one in a worker."""
    config = vectors_config("identity", width)
    context = ModelContext("m", 1, config, Path(), Path(), 1)
    inside = BackendRegistry({}).get("identity").load(context).create_instance(SPEC)
    config.parameters["isolation"].string_value = "process"
    isolated = BackendRegistry({}).get_for(config, "m").load(context).create_instance(SPEC)
    assert isinstance(isolated, WorkerInstance)
    return inside, isolated


def isolated_images() -> None:
    """Print what isolation adds to a batch of 600 KB in and 600 KB out; the two instances take turns."""
    inside, isolated = identities(75_000)
    batch = batch_of(1, 75_000)
    rounds = [(_batch_us(inside, batch), _batch_us(isolated, batch)) for _ in range(1 + 4 * ROUNDS)][1:]
    thread, process = (statistics.median(column) for column in zip(*rounds, strict=True))
    print("\nidentity, 2 x 300 KB in and out: us per batch")
    print(f"thread {thread:.1f}, process {process:.1f}, difference {process - thread:.1f}")
    isolated.close()


def _batch_us(instance: Instance, batch: Batch, times: int = 100) -> float:
    taken = []
    for _ in range(times):
        start = time.perf_counter_ns()
        instance.execute(batch)
        taken.append((time.perf_counter_ns() - start) / 1000)
    return statistics.median(taken)


def main() -> None:
    parts = {"requests": requests_to_a_model, "images": isolated_images}
    for what in sys.argv[1:] or parts:
        parts[what]()


if __name__ == "__main__":
    main()
