"""Decoupled Python models in real workers behind a served model, on an event loop of the test's own."""

import asyncio
import textwrap
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from naiad.backend.api import InstanceSpec
from naiad.backend.python.backend import PythonBackend
from naiad.backend.workers.worker_instance import WorkerInstance
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.request import InferRequest
from naiad.core.response import InferResponse
from naiad.core.tensor import Array
from naiad.engine.serving.served_model import ServedModel
from support.backend_parts import make_context, make_request, output_arrays
from support.engine_parts import served_model

PRELUDE = """
import asyncio, ctypes, gc, json, logging, os, signal, sys, threading, time
import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


def answer(**arrays):
    return pb_utils.InferenceResponse([pb_utils.Tensor(name, array) for name, array in arrays.items()])


def value(request, name="IN"):
    return pb_utils.get_input_tensor_by_name(request, name).as_numpy()


def number(n):
    return answer(OUT=np.array([n], np.float32))

"""


def decoupled_config(datatype: str = "TYPE_FP32", **parameters: str) -> ModelConfig:
    """Return a configuration with one input IN and one output OUT."""
    made = ModelConfig(name="m", backend="python")
    made.input.add(name="IN", data_type=datatype, dims=[-1])
    made.output.add(name="OUT", data_type=datatype, dims=[-1])
    made.model_transaction_policy.decoupled = True
    for name, text in parameters.items():
        made.parameters[name].string_value = text
    return made


class Streams:
    """A served decoupled model; what it answers is collected by request."""

    def __init__(self, model: ServedModel, instance: WorkerInstance, loop: asyncio.AbstractEventLoop) -> None:
        self.model = model
        self.instance = instance
        self._loop = loop
        self._responses: dict[str, list[InferResponse]] = defaultdict(list)
        self._news = threading.Condition()
        self._count = 0
        self.look: Callable[[InferResponse], None] | None = None
        """Looks at each response when it comes; then its data are released."""

    def submit(self, arrays: Mapping[str, Array], **fields: Any) -> InferRequest:
        """Submit a request on the loop."""
        request = make_request(arrays, **fields)
        self._count += 1
        request.id = f"r{self._count}"
        request.arrival_ns = time.monotonic_ns()
        request.on_response = self._take
        self.on_loop(self.model.submit, request)
        return request

    def on_loop(self, action: Callable[..., object], *args: Any) -> None:
        """Have the loop do something and wait until it has."""
        done = threading.Event()

        def act() -> None:
            action(*args)
            done.set()

        self._loop.call_soon_threadsafe(act)
        assert done.wait(60)

    def responses(self, request: InferRequest) -> list[InferResponse]:
        """Return what has come so far."""
        return self._responses[request.id]

    def wait(self, request: InferRequest, count: int = 0) -> list[InferResponse]:
        """Wait for `count` responses, 0: for the final one, and return all that have come."""
        received = self._responses[request.id]

        def has_come() -> bool:
            return len(received) >= count if count else bool(received and received[-1].final)

        with self._news:
            assert self._news.wait_for(has_come, 30), f"{len(received)} responses to {request.id}"
        return list(received)

    def numbers(self, request: InferRequest) -> list[float]:
        """Wait for the final response and return the first element of each response that has outputs."""
        return [float(output_arrays(each)["OUT"][0]) for each in self.wait(request) if not each.empty_final]

    def _take(self, request: InferRequest, response: InferResponse) -> None:
        with self._news:
            received = self._responses[request.id]
            assert not (received and received[-1].final), "a response after the final one"
            if self.look is not None:
                self.look(response)
                response.data = ()
            received.append(response)
            self._news.notify_all()


@contextmanager
def serve_decoupled(
    directory: Path,
    source: str,
    config: ModelConfig | None = None,
    *,
    backend_config: Mapping[str, str] | None = None,
) -> Iterator[Streams]:
    """Serve the model that `source` defines."""
    (directory / "1").mkdir(parents=True, exist_ok=True)
    (directory / "1" / "model.py").write_text(PRELUDE + textwrap.dedent(source))
    config = config or decoupled_config()
    context = make_context(config, directory, backend_config=backend_config)
    backend_model = PythonBackend().load(context)
    instance = backend_model.create_instance(InstanceSpec("m_0_0", 0, "KIND_CPU"))
    assert isinstance(instance, WorkerInstance)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    model = served_model([instance], loop, config, backend_model=backend_model)
    try:
        yield Streams(model, instance, loop)
    finally:
        model.stop(10.0)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
