"""Clients that give their requests up: what waits is never executed, what executes is notified."""

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

from naiad.protocol.service_pb2 import ModelInferRequest
from support.certificates import Certificates
from support.departures import (
    CANCEL,
    CLIENT_DEADLINE_S,
    DEADLINES,
    EVERY,
    CancelReason,
    grpc_body,
    grpc_deadline,
    grpc_reset,
    json_body,
)
from support.ensemble_models import tensor, write_ensemble
from support.held_models import Notes, write_held
from support.model_repository import write_model
from support.process_resources import ProcessResources
from support.raw_http1 import HttpPeer, http_request
from support.raw_http2 import (
    DATA,
    END_STREAM,
    GRPC_INFER,
    GRPC_LIVE,
    RST_STREAM,
    Http2Peer,
    frame,
    grpc_head,
    grpc_message,
)
from support.server_process import Answer, ServerProcess
from support.waiting import wait_until

_numbers = itertools.count()
PROMPT_S = 30.0
"""What takes milliseconds is done after this, however busy the machine is."""
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
        self._blocking: list[str] = []

    def ask(
        self, model: str, request_id: str, values: tuple[float, ...] = (1.0,), **parameters: object
    ) -> Callable[[], Answer]:
        """Send a request from a client that stays; return what waits for its answer."""
        answers: list[Answer] = []
        body = json_body(request_id, values, **parameters)

        def infer() -> None:
            answers.append(self.server.request("POST", f"/v2/models/{model}/infer", body))

        thread = threading.Thread(target=infer)
        thread.start()

        def wait() -> Answer:
            thread.join(60)
            return answers[0]

        return wait

    def block(self, model: str) -> tuple[str, Callable[[], Answer]]:
        """Occupy the model's instance; return the request's id and what waits for its answer."""
        request_id = f"blocks-{next(_numbers)}"
        self._blocking.append(request_id)
        wait = self.ask(model, request_id)
        self.notes.wait(request_id, "began")
        return request_id, wait

    def unblock(self) -> None:
        """Release what a failed test has left."""
        for request_id in self._blocking:
            self.notes.release(request_id)
        self._blocking.clear()

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
        wait_until(lambda: measure(model) == count, lambda: f"{measure(model)} requests instead of {count}")

    def executions(self, model: str) -> int:
        (row,) = self.server.get(f"/v2/models/{model}/stats").json["model_stats"]
        return int(row["execution_count"])

    def lines_about(self, request_id: str) -> list[str]:
        """Wait for the log to say something of a request, and return all that it says."""
        mark = f"[request id: {request_id}]"
        self.server.wait_log(re.escape(mark))
        return [line for line in self.server.log_text().splitlines() if mark in line]


GIVES_UP = """
  backend: "python"
  input [ { name: "IN" data_type: TYPE_FP32 dims: [ -1, -1 ] } ]
  output [ { name: "OUT" data_type: TYPE_FP32 dims: [ -1, -1 ] } ]
"""
GIVES_UP_SOURCE = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        error = pb_utils.TritonError("had enough", pb_utils.TritonError.CANCELLED)
        return [pb_utils.InferenceResponse(error=error) for _ in requests]
"""


def write_models(root: Path, notes: Path) -> None:
    write_held(root, "held", notes)
    write_held(root, "second", notes)
    write_held(root, "emits", notes, decoupled=True)
    write_model(root, "gives-up", GIVES_UP, {"1/model.py": GIVES_UP_SOURCE})
    delay = "dynamic_batching { preferred_batch_size: [ 3 ] max_queue_delay_microseconds: 60000000 }"
    write_held(root, "batch", notes, max_batch_size=3, extra=delay)
    write_held(root, "full", notes, extra="dynamic_batching { default_queue_policy { max_queue_size: 2 } }")
    policy = "default_timeout_microseconds: 300000 allow_timeout_override: true"
    write_held(root, "queued", notes, extra=f"dynamic_batching {{ default_queue_policy {{ {policy} }} }}")
    policy = "default_timeout_microseconds: 600000000 allow_timeout_override: true"
    write_held(root, "patient", notes, extra=f"dynamic_batching {{ default_queue_policy {{ {policy} }} }}")
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
def shared_place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
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


@pytest.fixture
def place(shared_place: Place) -> Iterator[Place]:
    yield shared_place
    shared_place.unblock()


@pytest.fixture(params=EVERY, ids=str)
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def leaves(way: str) -> CancelReason:
    return EVERY[way]


def leave_at(leave: Callable[[], object], way: str) -> float:
    """Have a client leave, and return when it did, on the monotonic clock."""
    left = time.monotonic()
    leave()
    # Whose deadline passes leaves then, which `leave` has waited for.
    return time.monotonic() if way in DEADLINES else left


def fresh(way: str) -> str:
    return f"{way}-{next(_numbers)}"


# --- requests that wait ---------------------------------------------------------------------------------------------


def test_what_waits_is_dropped_while_instance_is_busy(place: Place, way: str, leaves: CancelReason) -> None:
    request_id = fresh(way)
    before = place.metric("naiad_inference_cancelled_total", "held", where="queue")
    blocking, answer = place.block("held")
    failed = place.metric("nv_inference_request_failure", "held", reason="CANCELED")
    leave = leaves(place.server, "held", request_id)
    place.wait_pending("held", 1)
    executions = place.executions("held")
    left = leave_at(leave, way)
    place.wait_pending("held", 0)
    assert time.monotonic() - left < PROMPT_S
    assert not place.notes.has(blocking, "go")
    place.notes.release(blocking)
    assert answer().status == 200
    assert not place.notes.has(request_id, "began")
    assert place.executions("held") == executions + 1
    assert place.metric("naiad_inference_cancelled_total", "held", where="queue") == before + 1
    assert place.metric("nv_inference_request_failure", "held", reason="CANCELED") == failed + 1
    (line,) = place.lines_about(request_id)
    code = "DEADLINE_EXCEEDED" if way == "grpc-deadline" else "(CANCELLED|DEADLINE_EXCEEDED)"
    protocol = "gRPC" if way.startswith("grpc") else "HTTP"
    assert re.search(rf"^W.* {protocol} request for model 'held' version \S+ failed: {code}: .*while it waited", line)


# --- requests that execute ------------------------------------------------------------------------------------------


EXECUTING = [("held", way) for way in EVERY] + [("emits", way) for way in EVERY if "stream" in way or "lines" in way]


@pytest.mark.parametrize(("model", "way"), EXECUTING)
def test_executing_request_is_notified(place: Place, way: str, model: str) -> None:
    request_id = fresh(way)
    before = place.metric("naiad_inference_cancelled_total", model, where="execution")
    failed = place.metric("nv_inference_request_failure", model, reason="CANCELED")
    leave = EVERY[way](place.server, model, request_id)
    place.notes.wait(request_id, "began")
    left = leave_at(leave, way)
    assert place.notes.wait(request_id, "cancelled") - left < PROMPT_S
    # The instance is free for the next.
    place.wait_in_flight(model, 0)
    assert place.metric("naiad_inference_cancelled_total", model, where="execution") == before + 1
    # The model answered: that no client took the answer is not its failure.
    assert place.metric("nv_inference_request_failure", model, reason="CANCELED") == failed
    (line,) = place.lines_about(request_id)
    assert re.search(r"failed: (CANCELLED|DEADLINE_EXCEEDED): .*while it was executed", line)


def test_batch_mates_get_their_answers(place: Place, way: str, leaves: CancelReason) -> None:
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
    place.notes.release(first)
    place.notes.release(second)
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
    place.notes.release(other)
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
    place.notes.release(blocking)
    assert answer().status == 200
    assert not place.notes.has(request_id, "began")


# --- sequences ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["direct", "oldest"])
def test_sequence_ends_when_request_that_waits_is_cancelled(place: Place, strategy: str) -> None:
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
        assert done[names[2]].wait(60)
        assert answers[names[2]].status() == "StatusCode.CANCELLED"
        place.wait_pending(strategy, 0)
        place.notes.release(names[0])
        assert done[names[0]].wait(60)
        assert answers[names[0]] == [[2.0]]
        # The slot is free although no END has come.
        place.notes.release(names[3])
        send(names[3], 8, start=True, end=True)
        assert done[names[3]].wait(60)
        assert answers[names[3]] == [[2.0]]


# --- the response cache ---------------------------------------------------------------------------------------------


def test_waiters_for_one_response_survive_first_cancellation(place: Place) -> None:
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
    place.notes.release(first)
    assert answer().json["outputs"][0]["data"] == [2.0]
    assert place.executions("cached") == executions + 1
    assert not place.notes.has(other, "began")


# --- timeouts -------------------------------------------------------------------------------------------------------


def grpc_infer(server: ServerProcess, model: str, request_id: str, *, timeout_us: int = 0) -> tuple[int, str]:
    """Return status and message of a call without a deadline."""
    message = ModelInferRequest()
    message.ParseFromString(grpc_body(model, request_id))
    if timeout_us:
        message.parameters["timeout"].int64_param = timeout_us
    with Http2Peer(server.grpc_url) as peer:
        answer = peer.call(1, GRPC_INFER, message.SerializeToString())
    return answer.grpc_status, answer.grpc_message


@pytest.mark.parametrize(("model", "timeout_us", "waits_s"), [("queued", 0, 0.3), ("patient", 50_000, 0.05)])
@pytest.mark.parametrize("protocol", ["HTTP", "gRPC"])
def test_timeout_in_queue_is_answered_on_time(
    place: Place, protocol: str, model: str, timeout_us: int, waits_s: float
) -> None:
    blocking, answer = place.block(model)
    rejected = place.metric("nv_inference_request_failure", model, reason="REJECTED")
    cancelled = place.metric("naiad_inference_cancelled_total", model, where="queue")
    request_id, start = fresh("late"), time.monotonic()
    if protocol == "HTTP":
        late = place.ask(model, request_id, **({"timeout": timeout_us} if timeout_us else {}))()
        assert (late.status, late.json["error"]) == (503, "Request timeout expired")
        assert late.headers["Retry-After"] == "1"
    else:
        status, message = grpc_infer(place.server, model, request_id, timeout_us=timeout_us)
        assert (status, message) == (14, "Request timeout expired")
    assert waits_s <= time.monotonic() - start < waits_s + PROMPT_S
    assert not place.notes.has(blocking, "go")
    place.notes.release(blocking)
    assert answer().status == 200
    assert not place.notes.has(request_id, "began")
    assert place.metric("nv_inference_request_failure", model, reason="REJECTED") == rejected + 1
    assert place.metric("naiad_inference_cancelled_total", model, where="queue") == cancelled
    assert len(place.lines_about(request_id)) == 1


@pytest.mark.parametrize("model", ["held", "patient"])
def test_a_grpc_deadline_is_answered_on_time(place: Place, model: str) -> None:
    blocking, answer = place.block(model)
    start = time.monotonic()
    # Asserts the status and the request's id.
    grpc_deadline(place.server, model, fresh("late"))()
    assert CLIENT_DEADLINE_S <= time.monotonic() - start < CLIENT_DEADLINE_S + PROMPT_S
    place.notes.release(blocking)
    assert answer().status == 200


def test_full_queue_refuses_at_once_until_cancellation(place: Place) -> None:
    blocking, answer = place.block("full")
    waits = fresh("waits")
    waiting = place.ask("full", waits)
    leave = EVERY["http-close"](place.server, "full", fresh("leaves"))
    place.wait_pending("full", 2)
    # Nothing is released before it is answered.
    refused = place.ask("full", fresh("refused"))()
    assert refused.status == 503
    assert "Exceeds maximum queue size" in refused.json["error"]
    leave()
    place.wait_pending("full", 1)
    comes = fresh("comes")
    coming = place.ask("full", comes)
    place.wait_pending("full", 2)
    for request_id in (waits, comes, blocking):
        place.notes.release(request_id)
    assert [wait().status for wait in (answer, waiting, coming)] == [200, 200, 200]


def test_a_timeout_of_a_step_is_the_ensembles(place: Place) -> None:
    blocking, answer = place.block("queued")
    request_id = fresh("late")
    late = place.ask("strict", request_id)()
    assert late.status == 503
    assert "in ensemble 'strict', Request timeout expired" in late.json["error"]
    status, message = grpc_infer(place.server, "strict", fresh("late"))
    assert (status, "Request timeout expired" in message) == (14, True)
    place.notes.release(blocking)
    assert answer().status == 200


# --- codes ----------------------------------------------------------------------------------------------------------


def test_a_model_that_answers_cancelled(place: Place) -> None:
    before = place.metric("nv_inference_request_success", "gives-up")
    failed = place.metric("nv_inference_request_failure", "gives-up", reason="CANCELED")
    answer = place.ask("gives-up", fresh("asks"))()
    assert (answer.status, answer.json["error"]) == (499, "had enough")
    assert grpc_infer(place.server, "gives-up", fresh("asks")) == (1, "had enough")
    # naiad: Triton counts such an answer of a Python model as a success.
    assert place.metric("nv_inference_request_success", "gives-up") == before
    assert place.metric("nv_inference_request_failure", "gives-up", reason="CANCELED") == failed + 2
    assert place.metric("naiad_inference_cancelled_total", "gives-up", where="execution") == 0


def test_what_waits_behind_cancelled_request_of_its_sequence(place: Place) -> None:
    names = [fresh("sequence") for _ in range(3)]
    first = place.ask("direct", names[0], sequence_id=21, sequence_start=True)
    place.notes.wait(names[0], "began")
    leave = grpc_reset(place.server, "direct", names[1], sequence_id=21)
    place.wait_pending("direct", 1)
    last = place.ask("direct", names[2], sequence_id=21)
    place.wait_pending("direct", 2)
    leave()
    answer = last()
    assert answer.status == 499
    assert "a request before it in its sequence was cancelled" in answer.json["error"]
    place.notes.release(names[0])
    assert first().status == 200


# --- many -----------------------------------------------------------------------------------------------------------

STORM = 10_000


def grpc_storm(server: ServerProcess, model: str, count: int) -> None:
    """Send requests over one connection and reset each of them, a hundred at a time."""
    stream_ids = itertools.count(1, 2)
    with Http2Peer(server.grpc_url) as peer:
        body = grpc_message(grpc_body(model, "storm"))
        for _ in range(count // 100):
            ids = [next(stream_ids) for _ in range(100)]
            sent = [peer.headers(each, grpc_head(GRPC_INFER)) + frame(DATA, END_STREAM, each, body) for each in ids]
            assert peer.send(b"".join(sent))
            assert peer.send(b"".join([frame(RST_STREAM, 0, each, CANCEL) for each in ids]))
        # All that was sent before has been read when this is answered.
        assert peer.call(next(stream_ids), GRPC_LIVE, b"").grpc_status == 0


def http_storm(server: ServerProcess, model: str, count: int) -> None:
    """Send requests over connections of their own, and close these."""
    message = http_request(f"/v2/models/{model}/infer", json_body("storm"))
    for _ in range(count):
        with HttpPeer(server.http_url) as peer:
            peer.send(message)


@pytest.mark.parametrize(("storm", "count"), [(grpc_storm, STORM), (http_storm, STORM // 10)])
@pytest.mark.parametrize("model", ["held", "patient", "narrow"])
def test_a_storm_leaves_nothing(
    place: Place, model: str, storm: Callable[[ServerProcess, str, int], None], count: int
) -> None:
    blocking, answer = place.block(model)
    storm(place.server, model, 100)  # what grows once
    place.wait_in_flight(model, 1)
    before = place.metric("naiad_inference_cancelled_total", model, where="queue")
    resources = ProcessResources(place.server.process.pid)
    resident_bytes = resources.resident_bytes()
    storm(place.server, model, count)
    place.wait_in_flight(model, 1)
    resources.assert_back()
    cancelled = place.metric("naiad_inference_cancelled_total", model, where="queue") - before
    # HTTP: what ends with its connection before it was read is no request.
    assert cancelled == count if storm is grpc_storm else 0 < cancelled <= count
    # Each would hold some KB, were it still there.
    assert resources.resident_bytes() - resident_bytes < 16 << 20
    place.notes.release(blocking)
    assert answer().status == 200
    place.wait_in_flight(model, 0)
    assert not place.notes.has("storm", "began")


# --- other servers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["http-close", "http-aio-task", "grpc-reset", "grpc-deadline", "grpc-stream-stop"])
def test_in_several_processes(processes: Place, way: str) -> None:
    request_id = fresh(way)
    leave = EVERY[way](processes.server, "held", request_id)
    processes.notes.wait(request_id, "began")
    left = leave_at(leave, way)
    assert processes.notes.wait(request_id, "cancelled") - left < PROMPT_S


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    directory = tmp_path_factory.mktemp("processes")
    root, notes = directory / "models", directory / "notes"
    write_held(root, "held", notes)
    server = ServerProcess(directory / "log", f"--model-repository={root}", "--processes=2")
    try:
        server.wait_ready()
        yield Place(server, Notes(notes))
    finally:
        server.stop()


def test_over_tls(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    root, notes = tmp_path / "models", tmp_path / "notes"
    write_held(root, "held", notes)
    server = ServerProcess(tmp_path / "log", f"--model-repository={root}", *certificates.flags("http"))
    server.tls = certificates.client_context()
    try:
        server.wait_ready()
        place = Place(server, Notes(notes))
        request_id = fresh("tls")
        leave = EVERY["http-close"](server, "held", request_id)
        place.notes.wait(request_id, "began")
        left = leave_at(leave, "http-close")
        assert place.notes.wait(request_id, "cancelled") - left < PROMPT_S
    finally:
        server.stop()
