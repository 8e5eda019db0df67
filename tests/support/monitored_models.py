"""Models of every kind that the dashboards show, and traffic for them."""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from support import onnx_models
from support.ensemble_models import tensor, write_ensemble
from support.model_repository import add_sub_config, write_identity, write_model, write_python_add_sub
from support.sequence_models import write_running_sum
from support.server_process import ServerProcess

_CACHED = "response_cache { enable: true }"
_FULL = "dynamic_batching { default_queue_policy { max_queue_size: 1 } }"
CACHE_FLAG = "--cache-config=local,size=1048576"
"""A flag that the server of these models needs."""
PAUSE_S = 0.03
"""Between two requests of a client, so that the tests of a minute take little CPU time."""


def write_monitored(repository: Path) -> None:
    """Write models that batch, run in a worker, keep sequences, are cached, are too slow, and do not load."""
    config = add_sub_config("onnxruntime", max_batch_size=32, extra="dynamic_batching { }")
    write_model(repository, "add_sub", config, {"1/model.onnx": onnx_models.add_sub()})
    write_python_add_sub(repository)
    write_running_sum(repository, "running_sum", "oldest { max_candidate_sequences: 4 }")
    write_identity(repository, "cached", extra=_CACHED)
    write_identity(repository, "full", max_batch_size=1, parameters={"execute_delay_ms": "200"}, extra=_FULL)
    write_ensemble(
        repository,
        "pipeline",
        [tensor("IN0"), tensor("IN1")],
        [tensor("SUM")],
        [
            ("add_sub", {"INPUT0": "IN0", "INPUT1": "IN1"}, {"OUTPUT0": "part"}),
            ("python_add_sub", {"INPUT0": "part", "INPUT1": "IN1"}, {"OUTPUT0": "SUM"}),
        ],
    )
    write_model(repository, "broken", add_sub_config("onnxruntime"), {"1/model.onnx": b"no model"})


def _row(names: Mapping[str, int], parameters: Mapping[str, object] | None = None) -> bytes:
    inputs = [
        {"name": name, "shape": [1, size], "datatype": "FP32", "data": [1.0] * size} for name, size in names.items()
    ]
    return json.dumps({"inputs": inputs, "parameters": dict(parameters or {})}).encode()


def _requests() -> Iterator[tuple[str, bytes]]:
    """Return models and bodies of requests, without end; every seventh begins or ends a sequence."""
    pair = _row({"INPUT0": 16, "INPUT1": 16})
    for number in count(1):
        yield "add_sub", pair
        yield "python_add_sub", pair
        yield "pipeline", _row({"IN0": 16, "IN1": 16})
        yield "cached", _row({"INPUT0": 4})
        yield "full", _row({"INPUT0": 4})
        for step in range(3):
            flags = {"sequence_id": number, "sequence_start": step == 0, "sequence_end": step == 2}
            yield "running_sum", _row({"INPUT": 1}, flags)
        yield "no_such_model", pair


@contextmanager
def traffic(server: ServerProcess, client_count: int = 4) -> Iterator[None]:
    """Send requests to the models until the block ends; some of them fail, on purpose."""
    ended = threading.Event()
    numbers = threading.Lock()
    source = _requests()

    def send() -> None:
        while not ended.is_set():
            with numbers:
                model, body = next(source)
            server.request("POST", f"/v2/models/{model}/infer", body)
            ended.wait(PAUSE_S)

    threads = [threading.Thread(target=send) for _ in range(client_count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()
