"""Priorities and queue policies with stock tritonclient, over HTTP and gRPC: the schedule policy extension."""

import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

from support.held_models import Notes, write_held
from support.server_process import ServerProcess
from support.waiting import wait_until

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

DATA = np.ones((1, 2), np.float32)
BRIEF_US = 1000
_ONE = "instance_group [ { count: 1 kind: KIND_CPU } ]\n"
_numbers = itertools.count()

POLICIES = {
    "prioritized": "priority_levels: 3 default_priority_level: 3",
    # Triton: a request may shorten the model's timeout, not set one where there is none.
    "limited": "default_queue_policy { allow_timeout_override: true default_timeout_microseconds: 600000000 }",
    "small": """
        priority_levels: 2 default_priority_level: 2
        default_queue_policy { max_queue_size: 2 }
        priority_queue_policy { key: 1 value { max_queue_size: 1 } }
    """,
    "rejecting": "default_queue_policy { default_timeout_microseconds: 100000 }",
    "stubborn": "default_queue_policy { default_timeout_microseconds: 600000000 }",
    "delaying": """
        priority_levels: 2 default_priority_level: 2
        priority_queue_policy {
          key: 1
          value { timeout_action: DELAY default_timeout_microseconds: 600000000 allow_timeout_override: true }
        }
    """,
}


class Place:
    """A server with held models, and a library of clients for it."""

    def __init__(self, server: ServerProcess, notes: Notes, module) -> None:
        self.server, self.notes, self.module = server, notes, module
        self.url = server.http_url if module is httpclient else server.grpc_url


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, Notes]]:
    root, notes = tmp_path_factory.mktemp("models"), tmp_path_factory.mktemp("notes")
    for name, policy in POLICIES.items():
        write_held(root, name, notes, extra=f"{_ONE}dynamic_batching {{ {policy} }}\n")
    running = ServerProcess(tmp_path_factory.mktemp("log") / "log", f"--model-repository={Path(root)}")
    try:
        running.wait_ready()
        yield running, Notes(notes)
    finally:
        running.stop()


@pytest.fixture(params=[httpclient, grpcclient], ids=["http", "grpc"])
def place(request: pytest.FixtureRequest, shared: tuple[ServerProcess, Notes]) -> Place:
    return Place(*shared, request.param)


class Asker:
    """Sends requests, each from a thread of its own; the first of them is held until all may go."""

    def __init__(self, place: Place, model: str) -> None:
        self._place = place
        self._model = model
        self._mark = f"{model}-{next(_numbers)}"
        self._threads: dict[str, threading.Thread] = {}
        self.errors: dict[str, str] = {}
        """What was answered so far: "" for a result."""

    def send(self, name: str, *, waits: int | None = None, **more) -> None:
        """Send a request and return when `waiting` requests are in the queue; None: wait for nothing."""
        self._threads[name] = threading.Thread(target=self._ask, args=(name, more))
        self._threads[name].start()
        if waits is not None:
            self._place.server.wait_requests(self._model, waiting=waits, executing=1)

    def refused(self, name: str) -> str:
        """Wait until a request is refused without another one released, and return the error of its client."""
        return wait_until(lambda: self.errors.get(name), lambda: f"{name} was not refused: {self.errors}")

    def release(self) -> Sequence[str]:
        """Let everything be executed and answered; return what was executed, in its order."""
        for name in reversed(self._threads):
            self._place.notes.release(f"{self._mark} {name}")
        for thread in self._threads.values():
            thread.join(60)
        served = [name for name in self._threads if not self.errors[name]]
        return sorted(served, key=lambda name: self._place.notes.wait(f"{self._mark} {name}", "began"))

    def _ask(self, name: str, more) -> None:
        tensor = self._place.module.InferInput("IN", list(DATA.shape), "FP32")
        tensor.set_data_from_numpy(DATA)
        error = ""
        with self._place.module.InferenceServerClient(self._place.url, **self._patience()) as client:
            try:
                client.infer(self._model, [tensor], request_id=f"{self._mark} {name}", **more)
            except InferenceServerException as caught:
                error = f"{caught.status()} {caught.message()}"
        self.errors[name] = error

    def _patience(self) -> dict[str, float]:
        return {"network_timeout": 600.0} if self._place.module is httpclient else {}


def test_higher_priority_overtakes(place):
    asker = Asker(place, "prioritized")
    asker.send("first", waits=0)
    asker.send("default", waits=1)
    asker.send("low", waits=2, priority=3)
    asker.send("middle", waits=3, priority=2)
    asker.send("high", waits=4, priority=1)
    assert asker.release() == ["first", "high", "middle", "default", "low"]


def test_priority_beyond_the_levels_is_the_default(place):
    asker = Asker(place, "prioritized")
    asker.send("first", waits=0)
    asker.send("beyond", waits=1, priority=9)
    asker.send("middle", waits=2, priority=2)
    assert asker.release() == ["first", "middle", "beyond"]


def test_request_that_waits_beyond_its_timeout_is_refused(place):
    asker = Asker(place, "limited")
    asker.send("first", waits=0)
    asker.send("patient", waits=1, timeout=500_000_000)
    asker.send("hasty", timeout=BRIEF_US)
    assert "Request timeout expired" in asker.refused("hasty")
    assert asker.release() == ["first", "patient"]


def is_unavailable(error: str) -> bool:
    """Whether an answer is that of UNAVAILABLE, as either protocol says it."""
    return "UNAVAILABLE" in error or error.startswith("503")


def test_full_queue_of_each_level_refuses(place):
    asker = Asker(place, "small")
    asker.send("first", waits=0)
    asker.send("second", waits=1)
    asker.send("third", waits=2)
    asker.send("too many")
    # Refused at once, before anything is executed.
    refusals = [asker.refused("too many")]
    asker.send("urgent", waits=3, priority=1)
    asker.send("too urgent", priority=1)
    refusals.append(asker.refused("too urgent"))
    for refusal in refusals:
        assert "Exceeds maximum queue size" in refusal
        assert is_unavailable(refusal)
    assert asker.release() == ["first", "urgent", "second", "third"]


def test_timeout_of_the_model_rejects(place):
    asker = Asker(place, "rejecting")
    asker.send("first", waits=0)
    asker.send("second")
    error = asker.refused("second")
    assert "Request timeout expired" in error
    assert is_unavailable(error)
    assert asker.release() == ["first"]


def test_timeout_of_request_needs_allowance_of_model(place):
    asker = Asker(place, "stubborn")
    asker.send("first", waits=0)
    asker.send("hasty", waits=1, timeout=BRIEF_US)
    time.sleep(20 * BRIEF_US / 1e6)
    assert asker.release() == ["first", "hasty"]


def test_delayed_timed_out_request_precedes_next_level(place):
    asker = Asker(place, "delaying")
    asker.send("first", waits=0)
    asker.send("low", waits=1)
    asker.send("late", waits=2, priority=1, timeout=BRIEF_US)
    asker.send("in time", waits=3, priority=1)
    time.sleep(20 * BRIEF_US / 1e6)
    assert asker.release() == ["first", "in time", "late", "low"]
