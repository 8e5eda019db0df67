"""Priorities and queue policies with stock tritonclient, over HTTP and gRPC: the schedule policy extension."""

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

from support.model_repository import write_identity
from support.server_process import ServerProcess

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

DATA = np.ones((1, 2), np.float32)
_SLOW = {"execute_delay_ms": "300"}
_ONE = "instance_group [ { count: 1 kind: KIND_CPU } ]\n"

POLICIES = {
    "small": """
        priority_levels: 2 default_priority_level: 2
        default_queue_policy { max_queue_size: 2 }
        priority_queue_policy { key: 1 value { max_queue_size: 1 } }
    """,
    "rejecting": "default_queue_policy { default_timeout_microseconds: 100000 }",
    "stubborn": "default_queue_policy { default_timeout_microseconds: 30000000 }",
    "delaying": """
        priority_levels: 2 default_priority_level: 2
        priority_queue_policy {
          key: 1
          value { timeout_action: DELAY default_timeout_microseconds: 30000000 allow_timeout_override: true }
        }
    """,
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    root = tmp_path_factory.mktemp("models")
    levels = "dynamic_batching { priority_levels: 3 default_priority_level: 3 }\n"
    write_identity(root, "prioritized", max_batch_size=1, parameters=_SLOW, extra=_ONE + levels)
    # Triton: a request may shorten the model's timeout, not set one where there is none.
    policy = "default_queue_policy { allow_timeout_override: true default_timeout_microseconds: 30000000 }"
    policy = f"dynamic_batching {{ {policy} }}\n"
    write_identity(root, "limited", max_batch_size=1, parameters=_SLOW, extra=_ONE + policy)
    for name, policy in POLICIES.items():
        batching = f"dynamic_batching {{ {policy} }}\n"
        write_identity(root, name, max_batch_size=1, parameters=_SLOW, extra=_ONE + batching)
    running = ServerProcess(tmp_path_factory.mktemp("log") / "log", f"--model-repository={Path(root)}")
    try:
        running.wait_ready()
        yield running
    finally:
        running.stop()


@pytest.fixture(params=["http", "grpc"])
def protocol(request: pytest.FixtureRequest, server: ServerProcess):
    module = httpclient if request.param == "http" else grpcclient
    return module, server.http_url if request.param == "http" else server.grpc_url


class Asker:
    """Sends requests, each from a thread of its own, and keeps the order of the answers."""

    def __init__(self, protocol, server: ServerProcess, model: str) -> None:
        self._module, self._url = protocol
        self._server = server
        self._model = model
        self._threads: list[threading.Thread] = []
        self.answers: list[tuple[str, str]] = []

    def send(self, name: str, *, waits: int, **more) -> None:
        """Send a request and return when so many wait in the queue."""
        self._threads.append(threading.Thread(target=self._ask, args=(name, more)))
        self._threads[-1].start()
        while self._gauge("nv_inference_pending_request_count") != waits or not self._gauge(
            "naiad_inference_executing_request_count"
        ):
            pass

    def _gauge(self, name: str) -> float:
        text = self._server.get("/metrics", url=self._server.metrics_url).body.decode()
        rows = [row for row in text.splitlines() if row.startswith(f"{name}{{") and f'model="{self._model}"' in row]
        return float(rows[0].rpartition(" ")[2])

    def _ask(self, name: str, more) -> None:
        tensor = self._module.InferInput("INPUT0", list(DATA.shape), "FP32")
        tensor.set_data_from_numpy(DATA)
        error = ""
        with self._module.InferenceServerClient(self._url) as client:
            try:
                client.infer(self._model, [tensor], request_id=name, **more)
            except InferenceServerException as caught:
                error = f"{caught.status()} {caught.message()}"
        self.answers.append((name, error))

    def wait(self) -> None:
        for thread in self._threads:
            thread.join(30)


def test_higher_priority_overtakes(server, protocol):
    asker = Asker(protocol, server, "prioritized")
    asker.send("first", waits=0)
    asker.send("default", waits=1)
    asker.send("low", waits=2, priority=3)
    asker.send("middle", waits=3, priority=2)
    asker.send("high", waits=4, priority=1)
    asker.wait()
    assert asker.answers == [(name, "") for name in ("first", "high", "middle", "default", "low")]


def test_priority_beyond_the_levels_is_the_default(server, protocol):
    asker = Asker(protocol, server, "prioritized")
    asker.send("first", waits=0)
    asker.send("beyond", waits=1, priority=9)
    asker.send("middle", waits=2, priority=2)
    asker.wait()
    assert asker.answers == [(name, "") for name in ("first", "middle", "beyond")]


def test_request_that_waits_beyond_its_timeout_is_refused(server, protocol):
    asker = Asker(protocol, server, "limited")
    asker.send("first", waits=0)
    asker.send("patient", waits=1, timeout=20_000_000)
    asker.send("hasty", waits=1, timeout=1000)
    asker.wait()
    errors = dict(asker.answers)
    assert errors["first"] == errors["patient"] == ""
    assert "Request timeout expired" in errors["hasty"]
    assert asker.answers[0][0] == "hasty"


def is_unavailable(error: str) -> bool:
    """Whether an answer is that of UNAVAILABLE, as either protocol says it."""
    return "UNAVAILABLE" in error or error.startswith("503")


def test_full_queue_refuses_and_each_level_has_its_own(server, protocol):
    asker = Asker(protocol, server, "small")
    asker.send("first", waits=0)
    asker.send("second", waits=1)
    asker.send("third", waits=2)
    asker.send("too many", waits=2)
    asker.send("urgent", waits=3, priority=1)
    asker.send("too urgent", waits=3, priority=1)
    asker.wait()
    errors = dict(asker.answers)
    for refused in ("too many", "too urgent"):
        assert "Exceeds maximum queue size" in errors[refused]
        assert is_unavailable(errors[refused])
    # Refused at once, before anything is executed.
    assert {name for name, _ in asker.answers[:2]} == {"too many", "too urgent"}
    assert asker.answers[2:] == [(name, "") for name in ("first", "urgent", "second", "third")]


def test_timeout_of_the_model_rejects(server, protocol):
    asker = Asker(protocol, server, "rejecting")
    asker.send("first", waits=0)
    asker.send("second", waits=0)
    asker.wait()
    (refused, error), served = asker.answers
    assert refused == "second"
    assert "Request timeout expired" in error
    assert is_unavailable(error)
    assert served == ("first", "")


def test_timeout_of_a_request_has_no_effect_unless_the_model_allows_it(server, protocol):
    asker = Asker(protocol, server, "stubborn")
    asker.send("first", waits=0)
    asker.send("hasty", waits=1, timeout=1000)
    asker.wait()
    assert asker.answers == [("first", ""), ("hasty", "")]


def test_timed_out_request_that_is_delayed_goes_before_the_next_level(server, protocol):
    asker = Asker(protocol, server, "delaying")
    asker.send("first", waits=0)
    asker.send("low", waits=1)
    asker.send("late", waits=2, priority=1, timeout=1000)
    asker.send("in time", waits=3, priority=1)
    asker.wait()
    assert asker.answers == [(name, "") for name in ("first", "in time", "late", "low")]
