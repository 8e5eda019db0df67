"""A model of another server, whose answers the test decides."""

import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

from naiad.config.forms.pbtxt.text_format import parse_pbtxt
from naiad.config.model_config_pb2 import ModelConfig
from naiad.config.remote_settings import RemoteAccess
from naiad.core.datatype import DataType
from naiad.core.errors import ErrorCode, InferError, internal, unavailable
from naiad.core.request import ExecutionTimes, InferRequest, RequestHeader
from naiad.core.response import InferResponse, ResponseHeader
from naiad.core.tensor import Buffer, TensorSpec
from naiad.engine.remote.remote_loading import load_remote
from naiad.engine.remote.remote_model import RemoteModel
from naiad.engine.remote.remote_port import OnRemote, RemoteFailure

THERE = """
name: "far" max_batch_size: 8
input { name: "A" data_type: TYPE_FP32 dims: [ 2 ] } output { name: "Y" data_type: TYPE_FP32 dims: [ 2 ] }
"""
SPEC = TensorSpec("A", DataType.FP32, (1, 2))
DATA = np.ones((1, 2), np.float32).tobytes()


def parsed(text: str) -> ModelConfig:
    return parse_pbtxt(text, "config.pbtxt").config


class Sent:
    """A request that a server has got."""

    def __init__(self, header: RequestHeader, timeout_s: float, traceparent: str, on_done: Any) -> None:
        self.header, self.timeout_s, self.traceparent, self.on_done = header, timeout_s, traceparent, on_done
        self.is_cancelled = False
        self.is_paused: Any = None
        self.deadline_s: float | None = None

    def cancel(self) -> None:
        self.is_cancelled = True

    def answer(self, datatype: DataType = DataType.FP32) -> None:
        self.answer_with([("Y", datatype, (1, 2))], [DATA])

    def answer_with(self, outputs: Sequence[tuple[str, DataType, tuple[int, ...]]], data: Sequence[bytes]) -> None:
        specs = [TensorSpec(*each) for each in outputs]
        self.on_done(InferResponse(ResponseHeader("far", "9", specs), list(data)))

    def respond(self, value: float | None = 0.0, *, is_final: bool = False, rows: int = 1) -> None:
        """Send a response of a decoupled model; None for one without outputs."""
        specs = [] if value is None else [TensorSpec("Y", DataType.FP32, (rows, 2))]
        data = [np.full((rows, 2), value, np.float32).tobytes()] if specs else []
        header = ResponseHeader("far", "9", specs)
        self.on_done(InferResponse(header, data, final=is_final, empty_final=not specs))

    def fail(self, error: InferError, *, has_begun: bool = True, is_away: bool = False) -> None:
        self.on_done(RemoteFailure(error, has_begun, is_away))


class Server:
    """A server that keeps what it gets."""

    def __init__(self, url: str, found: ModelConfig | InferError) -> None:
        self.url, self.found = url, found
        self.sent: list[Sent] = []
        self.is_closed = False

    def submit(
        self,
        header: RequestHeader,
        request_id: str,
        data: Sequence[Buffer],
        *,
        timeout_s: float,
        traceparent: str,
        on_done: OnRemote,
    ) -> Sent:
        self.sent.append(Sent(header, timeout_s, traceparent, on_done))
        return self.sent[-1]

    def stream(self, header: RequestHeader, request_id: str, data: Sequence[Buffer], **more: Any) -> Sent:
        del request_id, data
        self.sent.append(Sent(header, more["timeout_s"], more["traceparent"], more["on_stream"]))
        self.sent[-1].is_paused, self.sent[-1].deadline_s = more["is_paused"], more["deadline_s"]
        return self.sent[-1]

    def describe(self, model: str, version: str) -> "Future[ModelConfig]":
        future: Future[ModelConfig] = Future()
        if isinstance(self.found, InferError):
            future.set_exception(self.found)
        else:
            future.set_result(self.found)
        return future

    def close(self) -> None:
        self.is_closed = True


class Loop:
    """Calls at once."""

    def call_soon_threadsafe(self, callback: Any, *arguments: Any) -> None:
        callback(*arguments)


class Port:
    """Connects to servers by their position."""

    def __init__(self, *found: ModelConfig | InferError) -> None:
        self.servers = [Server(f"grpc://{index}", each) for index, each in enumerate(found)]
        self.count = 0

    def connect(self, url: str, access: RemoteAccess) -> Server:
        del access
        return next(each for each in self.servers if each.url == url)


def load(port: Port, text: str = "") -> RemoteModel:
    urls = ",".join(each.url for each in port.servers)
    server = f'parameters {{ key: "server" value {{ string_value: "{urls}" }} }}'
    loop: Any = Loop()
    return load_remote(
        parsed(f'name: "near" backend: "remote" {server} {text}'), 1, lambda each: each, port, loop, ""
    )


class Answers(list[InferResponse]):
    """The responses of requests."""

    def send(self, model: RemoteModel, *, deadline_ns: int = 0, **header: Any) -> InferRequest:
        made = RequestHeader(model_name="near", inputs=[SPEC], **header)
        request = InferRequest(
            made, [DATA], lambda _, response: self.append(response), arrival_ns=time.monotonic_ns()
        )
        request.deadline_ns = deadline_ns
        request.times = ExecutionTimes()
        request.times.traceparent = "00-trace"
        model.submit(request)
        return request


def test_requests_and_answers_keep_what_they_have() -> None:
    port, answers = Port(parsed(THERE)), Answers()
    model = load(port)
    deadline_ns = time.monotonic_ns() + 5_000_000_000
    answers.send(model, deadline_ns=deadline_ns, sequence_id=3, sequence_start=True, priority=2, parameters={"k": 1})
    (sent,) = port.servers[0].sent
    assert (sent.header.model_name, sent.header.sequence_id, sent.header.sequence_start) == ("near", 3, True)
    assert (sent.header.priority, dict(sent.header.parameters), sent.traceparent) == (2, {"k": 1}, "00-trace")
    assert [each.name for each in sent.header.outputs] == ["Y"]
    assert 0 < sent.timeout_s <= 5
    assert model.in_flight_count == 1
    sent.answer()
    (response,) = answers
    assert (response.header.model_name, response.header.model_version) == ("near", "1")
    assert response.data == [DATA]
    counts = model.statistics.snapshot()
    assert (counts.success.count, model.in_flight_count) == (1, 0)


def test_only_requests_never_begun_go_elsewhere() -> None:
    port, answers = Port(parsed(THERE), parsed(THERE)), Answers()
    model = load(port)
    answers.send(model)
    port.servers[0].sent[0].fail(unavailable("no connection to grpc://0"), has_begun=False, is_away=True)
    assert not answers
    port.servers[1].sent[0].answer()
    assert answers[0].error is None
    answers.send(model)
    assert [len(each.sent) for each in port.servers] == [1, 2], "a server that is away gets nothing"
    port.servers[1].sent[1].fail(unavailable("the connection was lost"))
    assert answers[1].error is not None
    assert answers[1].error.message == "remote model 'near' at grpc://1: the connection was lost"
    assert [len(each.sent) for each in port.servers] == [1, 2]


def test_refusals_are_sent_on_within_a_budget() -> None:
    port, answers = Port(parsed(THERE), parsed(THERE)), Answers()
    model = load(port)
    count = 400
    for _ in range(count):
        answers.send(model)
        while any(each.sent for each in port.servers):
            next(each for each in port.servers if each.sent).sent.pop().fail(unavailable("full"), has_begun=False)
            port.count += 1
    assert 0 < port.count - count <= 100 + 0.2 * count, "each second has a few retries more"
    assert all(each.error is not None and not each.error.has_begun for each in answers)


def test_health_follows_the_servers() -> None:
    port, answers = Port(parsed(THERE)), Answers()
    model = load(port)
    assert model.health == ""
    answers.send(model)
    port.servers[0].sent[0].fail(unavailable("no connection to grpc://0"), has_begun=False, is_away=True)
    assert answers[0].error is not None
    assert answers[0].error.message == "remote model 'near': no connection to grpc://0"
    assert model.health == "remote model 'near': grpc://0: no connection to grpc://0"
    with pytest.raises(InferError, match="remote model 'near': grpc://0: no connection"):
        answers.send(model)
    model.check(time.monotonic_ns())
    assert model.health, "it is asked again only after a second"
    model.check(time.monotonic_ns() + 2_000_000_000)
    assert model.health == ""


def test_a_model_that_changes_gets_no_requests() -> None:
    port = Port(parsed(THERE))
    model = load(port)
    port.servers[0].found = parsed(THERE.replace("FP32", "FP64"))
    model.check(time.monotonic_ns() + 10_000_000_000)
    assert "other tensors: input 'A' is FP32 [2] here and FP64 [2] there" in model.health
    port.servers[0].found = unavailable("not ready there")
    model.check(time.monotonic_ns() + 20_000_000_000)
    assert model.health.endswith("grpc://0: not ready there")


def test_a_response_with_other_tensors_is_an_error() -> None:
    port, answers = Port(parsed(THERE)), Answers()
    answers.send(load(port))
    port.servers[0].sent[0].answer(DataType.INT32)
    assert answers[0].error is not None
    assert answers[0].error.code is ErrorCode.INTERNAL
    assert "the response has 'Y' INT32 [1, 2]" in answers[0].error.message


Y = ("Y", DataType.FP32, (1, 2))


@pytest.mark.parametrize(
    ("outputs", "data", "message"),
    [
        ([Y], [b"1234"], "has 4 bytes; expected 8"),
        ([("Y", DataType.FP32, (2, 2))], [DATA * 2], "has 2 rows; expected 1"),
        ([("Y", DataType.FP32, (1, 5))], [bytes(20)], "does not fit"),
        ([("Y", DataType.FP32, (-1, 2))], [DATA], "does not fit"),
        ([("Y", DataType.FP32, (10**12, 2))], [b""], "rows; expected 1"),
        ([("Y", DataType.FP32, (2,))], [DATA], "does not fit"),
        ([Y, Y], [DATA, DATA], "does not fit"),
        ([Y, ("Z", DataType.FP32, (1, 2))], [DATA, DATA], "does not fit"),
        ([], [], "has the outputs none; expected 'Y'"),
        ([Y], [], "has data for 0 of 1 outputs"),
    ],
)
def test_a_response_that_contradicts_itself_is_an_error(outputs: Any, data: Any, message: str) -> None:
    port, answers = Port(parsed(THERE)), Answers()
    answers.send(load(port))
    port.servers[0].sent[0].answer_with(outputs, data)
    assert answers[0].error is not None
    assert answers[0].error.code is ErrorCode.INTERNAL
    assert message in answers[0].error.message


@pytest.mark.parametrize("data", [b"\x02\0\0\0ab", b"\x01\0\0\0a\x09\0\0\0b"])
def test_strings_of_a_response_are_counted(data: bytes) -> None:
    port, answers = Port(parsed(THERE.replace('"Y" data_type: TYPE_FP32', '"Y" data_type: TYPE_STRING'))), Answers()
    answers.send(load(port))
    port.servers[0].sent[0].answer_with([("Y", DataType.BYTES, (1, 2))], [data])
    assert answers[0].error is not None
    assert "output 'Y'" in answers[0].error.message


def test_an_unknown_datatype_makes_it_unready() -> None:
    port = Port(parsed(THERE))
    model = load(port)
    changed = parsed(THERE)
    changed.output[0].ClearField("data_type")
    port.servers[0].found = changed
    model.check(time.monotonic_ns() + 10**12)
    assert "datatype 0" in model.health


def test_a_cancelled_request_is_answered_and_cancelled_there() -> None:
    port, answers = Port(parsed(THERE)), Answers()
    model = load(port)
    request = answers.send(model)
    assert model.cancel(request)
    (sent,) = port.servers[0].sent
    assert sent.is_cancelled
    assert answers[0].error is not None
    assert answers[0].error.code is ErrorCode.CANCELLED
    sent.fail(internal("late"))
    assert len(answers) == 1
    assert not model.cancel(request)


def test_too_many_requests_are_rejected() -> None:
    port, answers = Port(parsed(THERE)), Answers()
    model = load(port, 'parameters { key: "max_in_flight" value { string_value: "2" } }')
    answers.send(model)
    answers.send(model)
    with pytest.raises(InferError, match="has 2 requests in flight, its max_in_flight"):
        answers.send(model)
    port.servers[0].sent[0].answer()
    answers.send(model)


def test_a_stop_answers_what_does_not_end() -> None:
    port, answers = Port(parsed(THERE)), Answers()
    model = load(port)
    answers.send(model)
    assert not model.stop(0.0)
    assert answers[0].error is not None
    assert port.servers[0].is_closed
    with pytest.raises(InferError, match="stopping"):
        answers.send(model)
    idle = load(Port(parsed(THERE)))
    assert idle.stop(0.0)


def test_a_load_compares_and_completes() -> None:
    tensors = (
        'input { name: "A" data_type: TYPE_FP32 dims: [ 2 ] } output { name: "Y" data_type: TYPE_FP32 dims: [ 2 ] }'
    )
    other = Port(parsed(THERE), parsed(THERE.replace("FP32", "FP64")))
    with pytest.raises(InferError, match=r"at grpc://1: input 'A' is FP32 \[2\] here and FP64 \[2\] there"):
        load(other)
    assert all(each.is_closed for each in other.servers)
    away = unavailable("no connection to grpc://0")
    with pytest.raises(InferError, match="write them to load the model while its servers are away: no connection"):
        load(Port(away))
    waiting = load(Port(away), f"max_batch_size: 8 {tensors}")
    assert "no connection to grpc://0" in waiting.health
    assert load(Port(away, parsed(THERE))).config.input[0].name == "A"


DECOUPLED = f"{THERE} model_transaction_policy {{ decoupled: true }}"


def values(answers: Answers) -> list[tuple[float | None, bool]]:
    """Return the number in each response, and whether it was final."""
    found = []
    for each in answers:
        assert each.error is None, each.error
        found.append((float(np.frombuffer(each.data[0], np.float32)[0]) if each.data else None, each.final))
    return found


@pytest.mark.parametrize("ending", ["final", "empty", "end"])
def test_a_decoupled_model_has_many_responses(ending: str) -> None:
    port, answers = Port(parsed(DECOUPLED)), Answers()
    model = load(port)
    assert model.is_decoupled
    answers.send(model)
    (sent,) = port.servers[0].sent
    assert (sent.header.wants_empty_final, sent.timeout_s, sent.deadline_s) == (True, 60, None)
    sent.respond(1)
    sent.respond(2, rows=3)
    assert (values(answers), model.in_flight_count) == ([(1, False), (2, False)], 1)
    if ending == "final":
        sent.respond(3, is_final=True)
    elif ending == "empty":
        sent.respond(None, is_final=True)
    else:
        sent.on_done(None)
    assert values(answers)[2:] == [(3 if ending == "final" else None, True)]
    assert answers[-1].empty_final == (ending != "final")
    sent.on_done(None)
    sent.respond(9)
    assert (len(answers), model.in_flight_count, model.statistics.snapshot().success.count) == (3, 0, 1)


def test_a_stream_moves_until_its_first_response() -> None:
    port, answers = Port(parsed(DECOUPLED), parsed(DECOUPLED)), Answers()
    model = load(port)
    answers.send(model)
    port.servers[0].sent[0].fail(unavailable("full"), has_begun=False)
    moved = port.servers[1].sent[0]
    moved.respond(1)
    moved.fail(unavailable("full"), has_begun=False)
    assert [len(each.sent) for each in port.servers] == [1, 1]
    assert answers[1].error is not None
    assert answers[1].error.has_begun
    assert answers[1].error.message == "remote model 'near' at grpc://1: full"


def test_a_stream_with_other_tensors_ends() -> None:
    port, answers = Port(parsed(DECOUPLED)), Answers()
    model = load(port)
    answers.send(model)
    (sent,) = port.servers[0].sent
    sent.answer(DataType.INT32)
    assert answers[0].error is not None
    assert answers[0].final
    assert (sent.is_cancelled, model.in_flight_count) == (True, 0)


def test_a_client_that_does_not_read_is_ended() -> None:
    port, answers = Port(parsed(DECOUPLED)), Answers()
    model = load(port)
    request = answers.send(model)
    (sent,) = port.servers[0].sent
    second_ns = 1_000_000_000
    request.is_paused = True
    assert sent.is_paused()
    model.check(second_ns)
    model.check(30 * second_ns)
    sent.respond(1)
    model.check(40 * second_ns)
    model.check(70 * second_ns)
    assert len(answers) == 1, "it has taken a response meanwhile"
    model.check(71 * second_ns)
    assert answers[1].error is not None
    assert "has not taken the responses of remote model 'near' for 30 s" in answers[1].error.message
    assert (sent.is_cancelled, model.in_flight_count) == (True, 0)


def test_a_cancelled_stream_is_cancelled_there() -> None:
    port, answers = Port(parsed(DECOUPLED)), Answers()
    model = load(port)
    request = answers.send(model, deadline_ns=time.monotonic_ns() + 5_000_000_000)
    (sent,) = port.servers[0].sent
    assert sent.deadline_s is not None
    assert 0 < sent.deadline_s <= 5
    sent.respond(1)
    assert model.cancel(request)
    assert sent.is_cancelled
    sent.respond(2)
    assert [each.error and each.error.code for each in answers] == [None, ErrorCode.CANCELLED]
