"""Responses per second of a decoupled Python model, from `send` in the worker to `on_response` on the event loop.

    python -m bench.micro_emission [sync|async ...]

One request at a time and 100 responses each, then more of both; CPU microseconds per response in the server's process
and in the worker, the time to the first response, and how many responses came with one message on average.
"""

import asyncio
import statistics
import sys
import textwrap
import time
from collections.abc import Callable

import numpy as np
import psutil
import uvloop

from bench.in_memory import process_us, python_model, served_model
from naiad.backend.api import InstanceSpec
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.datatype import DataType
from naiad.core.request import InferRequest, RequestHeader
from naiad.core.response import InferResponse
from naiad.core.tensor import TensorSpec
from naiad.engine.serving.served_model import ServedModel

SECONDS = 2.0
BODIES = {
    "sync": """
        def execute(self, requests):
            for request in requests:
                self.answer(request.get_response_sender(), request)
    """,
    "async": """
        async def execute(self, requests):
            for request in requests:
                self.answer(request.get_response_sender(), request)
    """,
}
MODEL = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def answer(self, sender, request):
        count = int(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()[0])
        for n in range(count):
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([n], np.int32))]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


class Client:
    """Has one request open at a time."""

    def __init__(self, served: ServedModel, count: int, done: Callable[[], None]) -> None:
        self.responses = 0
        self.first_ns: list[int] = []
        self.end_ns = 0
        self._served = served
        self._header = RequestHeader(model_name="m", inputs=[TensorSpec("IN", DataType.INT32, (1,))])
        self._data = [np.array([count], np.int32).tobytes()]
        self._done = done
        self._waits = False

    def begin(self) -> None:
        self._waits = True
        request = InferRequest(self._header, self._data, self._take, arrival_ns=time.monotonic_ns())
        self._served.submit(request)

    def _take(self, request: InferRequest, response: InferResponse) -> None:
        if self._waits:
            self._waits = False
            self.first_ns.append(time.monotonic_ns() - request.arrival_ns)
        self.responses += 1
        if not response.final:
            return
        assert response.error is None, response.error
        if time.monotonic_ns() < self.end_ns:
            self.begin()
        else:
            self._done()


async def measure(body: str, clients: int, count: int) -> None:
    config = ModelConfig(name="m", backend="python")
    config.model_transaction_policy.decoupled = True
    config.input.add(name="IN", data_type="TYPE_INT32", dims=[1])
    config.output.add(name="OUT", data_type="TYPE_INT32", dims=[1])
    source = MODEL + textwrap.indent(textwrap.dedent(body), "    ")
    model = await asyncio.to_thread(python_model, source, config)
    instance = await asyncio.to_thread(model.create_instance, InstanceSpec("m_0_0", 0, "KIND_CPU"))
    served = served_model(config, model, instance)
    ended = asyncio.Event()
    left = [clients]

    def done() -> None:
        left[0] -= 1
        if not left[0]:
            ended.set()

    every = [Client(served, count, done) for _ in range(clients)]
    server = psutil.Process()
    (worker,) = server.children()
    before, start = (process_us(server), process_us(worker)), time.perf_counter()
    for client in every:
        client.end_ns = time.monotonic_ns() + int(SECONDS * 1e9)
        client.begin()
    await ended.wait()
    wall_s = time.perf_counter() - start
    responses = sum(client.responses for client in every)
    first_us = statistics.median(ns for client in every for ns in client.first_ns) / 1000
    after = process_us(server), process_us(worker)
    print(
        f"{clients:8} {count:10} {responses / wall_s:12,.0f} {(after[0] - before[0]) / responses:8.1f} "
        f"{(after[1] - before[1]) / responses:8.1f} {first_us:10.0f}"
    )
    assert await asyncio.to_thread(served.stop, 10.0)


def main() -> None:
    for name in sys.argv[1:] or BODIES:
        print(f"\n{name}: CPU us per response, median us to the first response")
        print(f"{'requests':>8} {'responses':>10} {'responses/s':>12} {'server':>8} {'worker':>8} {'first':>10}")
        for clients, count in ((1, 1), (1, 10), (1, 100), (1, 1000), (8, 100)):
            uvloop.run(measure(BODIES[name], clients, count))


if __name__ == "__main__":
    main()
