"""Overload of a real server: what is refused, what is answered, and that Triton's rule can be had back."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

from support.model_zoo import tensors, write_python
from support.server_process import ServerProcess, serving
from support.waiting import wait_until

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

CONFIG = "max_batch_size: 1 instance_group [ { count: 1 kind: KIND_CPU } ]\n" + tensors(
    {"X": "FP32 [ 1 ]"}, {"Y": "FP32 [ 1 ]"}
)
MODELS = {
    "plain": "",
    "batched": "dynamic_batching { }",
    "configured": "dynamic_batching { default_queue_policy { } }",
}
SHORT = ("--queue-overload-target-ms=100", "--queue-overload-max-wait-ms=1000")
SECONDS, PAUSE_S = 3.0, 0.002
PEERS = 8


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = tmp_path_factory.mktemp("overload")
    for name, block in MODELS.items():
        write_python(repository, name, CONFIG + block, {"Y": "X"}, inputs=["X"], each="time.sleep(0.005)")
    return repository


@pytest.fixture(scope="module")
def server(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    log = tmp_path_factory.mktemp("log") / "server.log"
    with serving(log, f"--model-repository={repository}", *SHORT) as running:
        yield running


class Load:
    """Requests that leave one after the other, whether or not earlier ones are answered."""

    def __init__(self, server: ServerProcess, model: str) -> None:
        self._lock = threading.Lock()
        self.errors: dict[int, InferenceServerException] = {}
        self.answered: list[int] = []
        """The numbers of those that were answered, in order."""
        self._client = grpcclient.InferenceServerClient(server.grpc_url)
        self._input = grpcclient.InferInput("X", [1, 1], "FP32")
        self._input.set_data_from_numpy(np.zeros((1, 1), np.float32))
        self._model = model
        self.sent_count = 0

    def send(self) -> None:
        number, self.sent_count = self.sent_count, self.sent_count + 1

        def take(result: object, error: InferenceServerException | None) -> None:
            with self._lock:
                if error is None:
                    self.answered.append(number)
                else:
                    self.errors[number] = error

        self._client.async_infer(self._model, [self._input], take)

    def flood(self, seconds: float = SECONDS, *, until_refused: bool = False) -> None:
        """Send several times what the model can execute."""
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s and not (until_refused and self.errors):
            for _ in range(2):
                self.send()
            time.sleep(2 * PAUSE_S)

    @property
    def is_in_order(self) -> bool:
        """Whether requests were answered as they were sent. Streams that gRPC opens at once may change places."""
        ordered = sorted(self.answered)
        place = {number: index for index, number in enumerate(ordered)}
        return all(abs(place[number] - index) < PEERS for index, number in enumerate(self.answered))

    def wait(self) -> None:
        wait_until(lambda: len(self.answered) + len(self.errors) == self.sent_count, timeout_s=120)
        self._client.close()


@pytest.mark.parametrize("model", ["plain", "batched"])
def test_a_queue_that_grows_is_newest_first(server: ServerProcess, model: str) -> None:
    load = Load(server, model)
    load.flood(60, until_refused=True)
    load.wait()
    assert len(load.answered) + len(load.errors) == load.sent_count
    assert not load.is_in_order, "newer requests overtook older ones"
    assert load.errors, "the oldest were refused"
    for error in load.errors.values():
        assert error.status() == "StatusCode.UNAVAILABLE"
        assert error.message().endswith("Exceeds maximum queue size")
    counted = f'nv_inference_request_failure{{model="{model}",reason="REJECTED",version="1"}} {len(load.errors)}'
    assert counted in server.get("/metrics", url=server.metrics_url).body.decode()


def test_a_burst_is_answered_to_the_last(server: ServerProcess) -> None:
    load = Load(server, "plain")
    for _ in range(1000):
        load.send()
    load.wait()
    assert not load.errors
    assert len(load.answered) == 1000


def test_a_configured_policy_is_triton_s_rule(server: ServerProcess) -> None:
    load = Load(server, "configured")
    load.flood()
    load.wait()
    assert not load.errors
    assert load.is_in_order


def test_the_flag_is_triton_s_rule(repository: Path, tmp_path: Path) -> None:
    flags = (*SHORT, "--queue-overload-policy=none")
    with serving(tmp_path / "server.log", f"--model-repository={repository}", *flags) as server:
        load = Load(server, "plain")
        load.flood()
        load.wait()
    assert not load.errors
    assert load.is_in_order
