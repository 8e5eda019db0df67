"""Clients that give their requests up: what waits is never executed, what executes is told, nobody else notices."""

import itertools
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc

from support.departures import EVERY, Departure, json_body
from support.ensemble_models import tensor, write_ensemble
from support.held_models import Notes, write_held
from support.server_process import Answer, ServerProcess

_numbers = itertools.count()
VECTOR = ("FP32", "-1")
STEP = ({"IN": "IN"}, {"OUT": "OUT"})


def _chain(name: str, *models: str) -> tuple[str, list[Any]]:
    steps = [(model, {"IN": f"t{i}"}, {"OUT": f"t{i + 1}"}) for i, model in enumerate(models)]
    steps[0][1]["IN"], steps[-1][2]["OUT"] = "IN", "OUT"
    return name, steps


class Place:
    """A server with held models."""

    def __init__(self, server: ServerProcess, notes: Notes) -> None:
        self.server = server
        self.notes = notes

    def ask(self, model: str, request_id: str, values: tuple[float, ...] = (1.0,)) -> Callable[[], Answer]:
        """Send a request from a client that stays; return what waits for its answer."""
        answers: list[Answer] = []

        def infer() -> None:
            answers.append(self.server.request("POST", f"/v2/models/{model}/infer", json_body(request_id, values)))

        thread = threading.Thread(target=infer)
        thread.start()

        def wait() -> Answer:
            thread.join(30)
            return answers[0]

        return wait

    def block(self, model: str) -> tuple[str, Callable[[], Answer]]:
        """Occupy the model's instance; return the request's id and what waits for its answer."""
        request_id = f"blocks-{next(_numbers)}"
        wait = self.ask(model, request_id)
        self.notes.wait(request_id, "began")
        return request_id, wait

    def metric(self, name: str, model: str, **labels: str) -> float:
        text = self.server.get("/metrics", url=self.server.metrics_url).body.decode()
        found = re.findall(rf'^{name}\{{model="{model}",(.*)\}} (\S+)$', text, re.MULTILINE)
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        (value,) = [value for rest, value in found if all(each in rest for each in wanted)]
        return float(value)

    def pending(self, model: str) -> float:
        return self.metric("nv_inference_pending_request_count", model)

    def in_flight(self, model: str) -> float:
        return self.pending(model) + self.metric("naiad_inference_executing_request_count", model)

    def wait_pending(self, model: str, count: int) -> None:
        self._wait_for(self.pending, model, count)

    def wait_in_flight(self, model: str, count: int) -> None:
        self._wait_for(self.in_flight, model, count)

    def _wait_for(self, measure: Callable[[str], float], model: str, count: int) -> None:
        deadline = time.monotonic() + 30
        while measure(model) != count:
            assert time.monotonic() < deadline, f"{measure(model)} requests instead of {count}"
            time.sleep(0.005)

    def executions(self, model: str) -> int:
        (row,) = self.server.get(f"/v2/models/{model}/stats").json["model_stats"]
        return int(row["execution_count"])

    def lines_about(self, request_id: str) -> list[str]:
        return [line for line in self.server.log_text().splitlines() if f"[request id: {request_id}]" in line]


def write_models(root: Path, notes: Path) -> None:
    write_held(root, "held", notes)
    write_held(root, "second", notes)
    write_held(root, "emits", notes, decoupled=True)
    delay = "dynamic_batching { preferred_batch_size: [ 3 ] max_queue_delay_microseconds: 5000000 }"
    write_held(root, "batch", notes, max_batch_size=3, extra=delay)
    policy = "max_queue_size: 2 default_timeout_microseconds: 100000 allow_timeout_override: true"
    write_held(root, "queued", notes, extra=f"dynamic_batching {{ default_queue_policy {{ {policy} }} }}")
    write_held(root, "cached", notes, extra="response_cache { enable: true }")
    sequence = "sequence_batching { max_sequence_idle_microseconds: 60000000 %s }"
    write_held(root, "direct", notes, extra=sequence % "direct { }")
    write_held(root, "oldest", notes, extra=sequence % "oldest { max_candidate_sequences: 1 }")
    for name, steps in (_chain("chain", "held", "second"), _chain("strict", "queued", "second")):
        write_ensemble(root, name, [tensor("IN", *VECTOR)], [tensor("OUT", *VECTOR)], steps, max_batch_size=1)
    name, steps = _chain("narrow", "held")
    write_ensemble(
        root,
        name,
        [tensor("IN", *VECTOR)],
        [tensor("OUT", *VECTOR)],
        steps,
        max_batch_size=1,
        scheduling="max_inflight_requests: 1",
    )


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    directory = tmp_path_factory.mktemp("cancellation")
    root, notes = directory / "models", directory / "notes"
    write_models(root, notes)
    server = ServerProcess(
        directory / "log",
        f"--model-repository={root}",
        "--cache-config=local,size=1048576",
        "--metrics-interval-ms=1",
    )
    try:
        server.wait_ready()
        yield Place(server, Notes(notes))
    finally:
        server.stop()


@pytest.fixture(params=EVERY, ids=str)
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def leaves(way: str) -> Departure:
    return EVERY[way]


def fresh(way: str) -> str:
    return f"{way}-{next(_numbers)}"


# --- requests that wait ---------------------------------------------------------------------------------------------


def test_what_waits_is_dropped_while_the_instance_is_busy(place: Place, way: str, leaves: Departure) -> None:
    request_id = fresh(way)
    before = place.metric("naiad_inference_cancelled_total", "held", where="queue")
    blocking, answer = place.block("held")
    leave = leaves(place.server, "held", request_id)
    place.wait_pending("held", 1)
    executions = place.executions("held")
    leave()
    place.wait_pending("held", 0)
    assert not place.notes.has(blocking, "go")
    place.notes.let_go(blocking)
    assert answer().status == 200
    assert not place.notes.has(request_id, "began")
    assert place.executions("held") == executions + 1
    assert place.metric("naiad_inference_cancelled_total", "held", where="queue") == before + 1
    (line,) = place.lines_about(request_id)
    code = "DEADLINE_EXCEEDED" if way == "grpc-deadline" else "(CANCELLED|DEADLINE_EXCEEDED)"
    protocol = "gRPC" if way.startswith("grpc") else "HTTP"
    assert re.search(rf"^W.* {protocol} request for model 'held' version \S+ failed: {code}: .*while it waited", line)


# --- requests that execute ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["held", "emits"])
def test_what_executes_is_told(place: Place, way: str, leaves: Departure, model: str) -> None:
    if model == "emits" and ("stream" not in way and "lines" not in way):
        pytest.skip("asks for one response")
    request_id = fresh(way)
    before = place.metric("naiad_inference_cancelled_total", model, where="execution")
    leave = leaves(place.server, model, request_id)
    place.notes.wait(request_id, "began")
    leave()
    place.notes.wait(request_id, "cancelled")
    # The instance is free for the next.
    request_id = fresh("next")
    place.notes.let_go(request_id)
    if model == "held":
        assert place.ask(model, request_id, (4.0,))().json["outputs"][0]["data"] == [8.0]
    assert place.metric("naiad_inference_cancelled_total", model, where="execution") == before + 1


def test_batch_mates_get_their_answers(place: Place, way: str, leaves: Departure) -> None:
    gone, first, second = fresh(way), fresh("mate"), fresh("mate")
    answers = [place.ask("batch", first, (2.0,)), place.ask("batch", second, (3.0,))]
    place.wait_pending("batch", 2)
    leave = leaves(place.server, "batch", gone)
    for request_id in (first, second, gone):
        place.notes.wait(request_id, "began")
    leave()
    place.notes.wait(gone, "cancelled")
    assert not place.notes.has(first, "cancelled")
    assert not place.notes.has(second, "cancelled")
    place.notes.let_go(first)
    place.notes.let_go(second)
    assert [answer().json["outputs"][0]["data"] for answer in answers] == [[4.0], [6.0]]


# --- ensembles ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["http-close", "grpc-reset", "grpc-deadline"])
def test_an_ensemble_stops_after_the_step_that_executes(place: Place, way: str) -> None:
    request_id = fresh(way)
    executions = place.executions("second")
    leave = EVERY[way](place.server, "chain", request_id)
    place.notes.wait(request_id, "began")
    before = place.metric("naiad_inference_cancelled_total", "chain", where="execution")
    leave()
    place.notes.wait(request_id, "cancelled")
    other = fresh("next")
    place.notes.let_go(other)
    assert place.ask("chain", other)().status == 200
    assert place.executions("second") == executions + 1
    assert place.metric("naiad_inference_cancelled_total", "chain", where="execution") == before + 1
    assert len(place.lines_about(request_id)) == 1


@pytest.mark.parametrize("way", ["http-close", "grpc-reset", "grpc-deadline"])
@pytest.mark.parametrize("model", ["chain", "narrow"])
def test_an_ensemble_whose_step_waits_is_dropped(place: Place, way: str, model: str) -> None:
    waits_in = "held" if model == "chain" else model
    request_id = fresh(way)
    blocking, answer = place.block(model)
    leave = EVERY[way](place.server, model, request_id)
    place.wait_pending(waits_in, 1)
    leave()
    place.wait_pending(waits_in, 0)
    place.wait_in_flight(model, 1)
    place.notes.let_go(blocking)
    assert answer().status == 200
    assert not place.notes.has(request_id, "began")


# --- sequences ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["direct", "oldest"])
def test_a_sequence_ends_when_a_request_that_waits_is_cancelled(place: Place, strategy: str) -> None:
    names = [fresh("sequence") for _ in range(4)]
    answers: dict[str, Any] = {}
    done = {name: threading.Event() for name in names}
    made = triton_grpc.InferInput("IN", [1, 1], "FP32")
    made.set_data_from_numpy(np.ones((1, 1), np.float32))
    with triton_grpc.InferenceServerClient(place.server.grpc_url) as client:

        def send(name: str, sequence_id: int, *, start: bool = False, end: bool = False) -> Any:
            def callback(result: Any, error: Any) -> None:
                answers[name] = error or result.as_numpy("OUT").tolist()
                done[name].set()

            return client.async_infer(
                strategy,
                [made],
                callback,
                request_id=name,
                sequence_id=sequence_id,
                sequence_start=start,
                sequence_end=end,
            )

        first = send(names[0], 7, start=True)
        assert first is not None
        place.notes.wait(names[0], "began")
        waiting = send(names[1], 7)
        place.wait_pending(strategy, 1)
        send(names[2], 7)
        place.wait_pending(strategy, 2)
        waiting.cancel()
        # What waits behind it could not go on without it.
        assert done[names[2]].wait(30)
        assert answers[names[2]].status() == "StatusCode.CANCELLED"
        place.wait_pending(strategy, 0)
        place.notes.let_go(names[0])
        assert done[names[0]].wait(30)
        assert answers[names[0]] == [[2.0]]
        # The slot is free although no END has come.
        place.notes.let_go(names[3])
        send(names[3], 8, start=True, end=True)
        assert done[names[3]].wait(30)
        assert answers[names[3]] == [[2.0]]


# --- the response cache ---------------------------------------------------------------------------------------------


def test_those_who_wait_for_the_same_answer_keep_it_when_the_first_leaves(place: Place) -> None:
    first, other, gone = fresh("first"), fresh("other"), fresh("gone")
    leave_first = EVERY["http-close"](place.server, "cached", first)
    place.notes.wait(first, "began")
    answer = place.ask("cached", other)
    leave_gone = EVERY["http-close"](place.server, "cached", gone)
    place.wait_in_flight("cached", 3)
    leave_first()
    leave_gone()
    place.wait_in_flight("cached", 1)
    executions = place.executions("cached")
    assert not place.notes.has(first, "cancelled")
    place.notes.let_go(first)
    assert answer().json["outputs"][0]["data"] == [2.0]
    assert place.executions("cached") == executions + 1
    assert not place.notes.has(other, "began")
