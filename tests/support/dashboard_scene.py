"""Models with something to show in the dashboard, and traffic for them: a rollout, an ensemble, calls, failures."""

import http.client
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support import onnx_models
from support.ensemble_models import tensor, write_ensemble
from support.model_repository import write_identity, write_model, write_scale

_CALLER = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        tensor = pb_utils.get_input_tensor_by_name(request, "IN")
        for name in ("scale", "scale"):
            call = pb_utils.InferenceRequest(model_name=name, inputs=[tensor], requested_output_names=["OUT"])
            response = call.exec()
        return pb_utils.InferenceResponse(response.output_tensors())
"""
_STRICT = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        value = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
        if value.item() < 0:
            return pb_utils.InferenceResponse([], pb_utils.TritonError(f"{value.item()} <b>is</b> negative"))
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", value)])
"""
_ONE_NUMBER = """
  backend: "python" max_batch_size: 0
  input [ { name: "IN" data_type: TYPE_FP32 dims: [ 1 ] } ]
  output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] } ]
"""
_STEPS = [
    ("resize", {"INPUT0": "IMAGE"}, {"OUTPUT0": "SMALL"}),
    ("detect", {"INPUT0": "SMALL"}, {"OUTPUT0": "BOXES"}),
    ("read", {"INPUT0": "SMALL"}, {"OUTPUT0": "WORDS"}),
    ("join", {"INPUT0": "BOXES", "INPUT1": "WORDS"}, {"OUTPUT0": "TEXT"}),
]
ROLLOUT = """
stable = 1
canary = 2
weight = 10

[guard]
min_requests = 100000
max_error_rate = 0.02
max_p99_ms = 500
"""


def write_scene(repository: Path) -> None:
    """Write the models: one of each kind that the page shows in a way of its own."""
    write_model(repository, "plain", None, {"1/model.onnx": onnx_models.add_sub()})
    for name, delay_ms in (("resize", 2), ("detect", 8), ("read", 5)):
        batching = "dynamic_batching { max_queue_delay_microseconds: 2000 }"
        write_identity(repository, name, parameters={"execute_delay_ms": str(delay_ms)}, extra=batching)
    write_model(repository, "join", None, {"1/model.onnx": onnx_models.add_sub()})
    write_ensemble(repository, "page_reader", [tensor("IMAGE")], [tensor("TEXT")], _STEPS, max_batch_size=4)
    for version, factor in ((1, 2.0), (2, 2.5)):
        write_scale(repository, factor, version=version)
    (repository / "scale" / "rollout.toml").write_text(ROLLOUT)
    write_model(repository, "caller", _ONE_NUMBER, {"1/model.py": _CALLER})
    write_model(repository, "strict", _ONE_NUMBER, {"1/model.py": _STRICT})
    write_model(repository, "broken", None, {"1/model.onnx": onnx_models.add_sub()[:90]})


def _body(inputs: dict[str, list[float]], shape: list[int], request_id: str) -> bytes:
    tensors = [{"name": name, "datatype": "FP32", "shape": shape, "data": data} for name, data in inputs.items()]
    return json.dumps({"id": request_id, "inputs": tensors}).encode()


def _requests(number: int) -> Iterator[tuple[str, bytes]]:
    row = [0.5] * 16
    yield "plain", _body({"INPUT0": row, "INPUT1": row}, [1, 16], f"plain-{number}")
    yield "page_reader", _body({"IMAGE": row}, [1, 16], f"page-{number}")
    yield "detect", _body({"INPUT0": row}, [1, 16], f"detect-{number}")
    yield "scale", _body({"IN": [1.0]}, [1], f"scale-{number}")
    if number % 4 == 0:
        yield "caller", _body({"IN": [2.0]}, [1], f"caller-{number}")
        yield "strict", _body({"IN": [-1.0 if number % 24 == 0 else 1.0]}, [1], f"strict-{number}")


@contextmanager
def traffic(url: str, *, clients: int = 3, pause_s: float = 0.15) -> Iterator[None]:
    """Send requests to all models of the scene until the end; `url` is `host:port`."""
    ended = threading.Event()

    def send(client: int) -> None:
        connection: Any = None
        number = client
        while not ended.is_set():
            number += clients
            for model, body in _requests(number):
                try:
                    connection = connection or http.client.HTTPConnection(url, timeout=10)
                    connection.request("POST", f"/v2/models/{model}/infer", body)
                    connection.getresponse().read()
                except (OSError, http.client.HTTPException):  # a test has stopped the server
                    connection = None
                    time.sleep(0.2)
            time.sleep(pause_s)

    threads = [threading.Thread(target=send, args=(client,), daemon=True) for client in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()
