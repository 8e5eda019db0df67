"""Everything at once, thousands of times: requests that are good, bad and abandoned; nothing stays behind."""

import random
import re
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

from support import onnx_models
from support.failing_models import write_mischief
from support.model_repository import add_sub_config, write_identity, write_model, write_python_add_sub
from support.process_resources import ProcessResources
from support.raw_http1 import HttpPeer, http_request
from support.server_process import ServerProcess
from support.waiting import wait_until

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

StartServer = Callable[..., ServerProcess]

REQUESTS = 800
"""Of each of four clients."""
ROW = np.arange(16, dtype=np.float32).reshape(1, 16)
SLOW = http_request(
    "/v2/models/slow/infer",
    b'{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,1],"data":[1]}]}',
)


class Worker:
    """One thread with a client of one protocol; what came of its requests is counted in `outcomes`."""

    def __init__(self, server: ServerProcess, protocol: str, seed: int) -> None:
        self._server = server
        self._module = httpclient if protocol == "http" else grpcclient
        self._url = server.http_url if protocol == "http" else server.grpc_url
        self._random = random.Random(seed)
        self.outcomes: Counter[str] = Counter()
        self.failure: BaseException | None = None

    def run(self, count: int) -> None:
        try:
            with self._module.InferenceServerClient(self._url) as client:
                for number in range(count):
                    self._one(client, number)
        except BaseException as error:
            self.failure = error

    def _one(self, client, number: int) -> None:
        kind = self._random.choices(["good", "bad", "fails", "unknown", "abandoned"], [10, 2, 1, 1, 1])[0]
        getattr(self, f"_{kind}")(client, number)
        self.outcomes[kind] += 1

    def _inputs(self, number: int, columns: int = 16):
        arrays = {"INPUT0": ROW[:, :columns] + number, "INPUT1": ROW[:, :columns]}
        inputs = []
        for name, array in arrays.items():
            inputs.append(self._module.InferInput(name, list(array.shape), "FP32"))
            inputs[-1].set_data_from_numpy(array)
        return inputs

    def _good(self, client, number: int) -> None:
        model = self._random.choice(["add_sub", "python_add_sub"])
        result = client.infer(model, self._inputs(number), request_id=str(number))
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), 2 * ROW + number)
        response = result.get_response()
        assert (response["id"] if isinstance(response, dict) else response.id) == str(number)

    def _bad(self, client, number: int) -> None:
        with pytest.raises(InferenceServerException, match="unexpected shape"):
            client.infer("add_sub", self._inputs(number, columns=15))

    def _fails(self, client, number: int) -> None:
        kind = self._module.InferInput("KIND", [1], "BYTES")
        kind.set_data_from_numpy(np.array([b"raises"], np.object_))
        with pytest.raises(InferenceServerException, match="boom 17"):
            client.infer("mischief", [kind])

    def _unknown(self, client, number: int) -> None:
        with pytest.raises(InferenceServerException, match="unknown model"):
            client.infer("nothing", self._inputs(number))

    def _abandoned(self, client, number: int) -> None:
        if self._module is httpclient:
            with HttpPeer(self._url) as peer:
                peer.send(SLOW)
            return
        tensor = self._module.InferInput("INPUT0", [1, 1], "FP32")
        tensor.set_data_from_numpy(ROW[:, :1])
        answered = threading.Event()
        call = client.async_infer("slow", [tensor], lambda result, error: answered.set())
        call.cancel()
        assert answered.wait(60)


def soak(server: ServerProcess, count: int) -> Counter[str]:
    workers = [Worker(server, protocol, seed) for seed, protocol in enumerate(["http", "grpc"] * 2)]
    threads = [threading.Thread(target=worker.run, args=(count,)) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for worker in workers:
        if worker.failure is not None:
            raise worker.failure
    return sum((worker.outcomes for worker in workers), Counter())


def gauge(server: ServerProcess, name: str) -> set[float]:
    text = server.get("/metrics", url=server.metrics_url).body.decode()
    return {float(value) for value in re.findall(rf"^{name}\{{.*\}} (\S+)$", text, re.MULTILINE)}


def test_nothing_is_left_of_thousands_of_mixed_requests(start_server: StartServer, tmp_path: Path) -> None:
    root = tmp_path / "models"
    config = add_sub_config("onnxruntime", extra="dynamic_batching { }")
    write_model(root, "add_sub", config, {"1/model.onnx": onnx_models.add_sub()})
    write_python_add_sub(root, extra="dynamic_batching { }")
    write_identity(root, "slow", parameters={"execute_delay_ms": "5"})
    write_mischief(root, "mischief")
    running = start_server(root)
    running.wait_ready()
    soak(running, 50)
    resources = ProcessResources(running.process.pid)
    children = resources.child_count()
    outcomes = soak(running, REQUESTS)
    assert min(outcomes[kind] for kind in ("good", "bad", "fails", "unknown", "abandoned")) > 100
    wait_until(lambda: gauge(running, "nv_inference_pending_request_count") == {0.0}, "requests stay behind")
    resources.assert_back()
    assert resources.child_count() == children
    running.signal()
    assert running.wait_exit() == 0
    log = running.log_text()
    assert "internal error" not in log
    assert "sending the response to request" not in log
