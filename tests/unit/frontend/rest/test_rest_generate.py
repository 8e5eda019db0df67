import json
import logging
import re
import struct
import types
from types import SimpleNamespace

import pytest

from naiad.config.forms.pbtxt.text_format import parse_pbtxt
from naiad.core.datatype import DataType
from naiad.core.errors import ErrorCode, InferError, invalid_argument, not_found
from naiad.core.model import ModelMetadata
from naiad.core.response import InferResponse, ResponseHeader
from naiad.core.tensor import TensorSpec
from naiad.frontend.context import CancelReason
from naiad.frontend.control.control import ControlCalls
from naiad.frontend.header_forwarding import HeaderForwarding
from naiad.frontend.long_work.slice_runner import SliceRunner
from naiad.frontend.rest.routes import RestApi
from support.recording_engine import RecordingEngine

CONFIG = """
model_transaction_policy { decoupled: true }
input [ { name: "IN" data_type: TYPE_INT32 dims: [ -1 ] } ]
output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
"""
OUT = (TensorSpec("OUT", DataType.INT32, (1,)),)
EVENTS = {
    b"Content-Type": b"text/event-stream; charset=utf-8",
    b"Cache-Control": b"no-cache",
    b"X-Accel-Buffering": b"no",
}
LINES = {**EVENTS, b"Content-Type": b"application/x-ndjson"}
JSON = {b"Content-Type": b"application/json"}
COUNT = "generate expects model to produce exactly 1 response"


class Engine(RecordingEngine):
    """One decoupled model "m" that emits the responses of the test."""

    is_draining = False

    def __init__(self):
        super().__init__()
        self.config = parse_pbtxt(CONFIG).config
        self.decoupled = True

    def served(self, name, version=""):
        self.model_config(name, version)
        return SimpleNamespace(is_decoupled=self.decoupled)

    def model_config(self, name, version=""):
        if name != "m":
            raise not_found(f"Request for unknown model: '{name}' is not found")
        return self.config

    def model_metadata(self, name, version=""):
        return ModelMetadata("m", ["1"], "repeat", [TensorSpec("IN", DataType.INT32, (-1,))], OUT)

    def emit(self, value=None, *, final=False, error=None, datatype=DataType.INT32):
        (request,) = self.submitted
        if value is None:
            header, data = ResponseHeader("m", "1", ()), ()
        else:
            header = ResponseHeader("m", "1", (TensorSpec("OUT", datatype, (1,)),))
            data = (struct.pack("<i", value)[: datatype.item_bytes],)
        empty = value is None and error is None
        request.on_response(request, InferResponse(header, data, error=error, final=final, empty_final=empty))


class Exchange:
    client = None
    unread_bytes = 0
    query = ""

    method = "POST"
    arrival_ns = 5

    def __init__(self, path, body, headers):
        self.path, self.body, self.headers = path, body, headers
        self.on_disconnect = self.on_pause = None
        self.status = self.answer_headers = self.is_streamed = None
        self._answer = bytearray()
        self.ended = False

    @property
    def answer(self):
        return bytes(self._answer)

    def respond(self, status, headers, parts):
        assert self.status is None
        self._begin(status, headers)
        self._answer += b"".join(parts)
        self.end()

    def _begin(self, status, headers):
        self.status, self.answer_headers = status, dict(headers)

    def start_stream(self, status, headers):
        assert self.status is None
        self._begin(status, headers)
        self.is_streamed = True

    def send(self, parts):
        assert self.is_streamed
        assert not self.ended
        self._answer += b"".join(parts)

    def end(self):
        assert not self.ended
        self.ended = True
        self.on_disconnect = self.on_pause = None


@pytest.fixture
def server(monkeypatch):
    engine = Engine()
    logged = []
    monkeypatch.setattr("naiad.frontend.failed_requests.log_request_failure", lambda **fields: logged.append(fields))
    router = RestApi(engine, max_input_bytes=300).router()

    def call(verb, body=b'{"IN":[1,2]}', *, model="m", **headers):
        fields = {name.replace("_", "-").encode(): value for name, value in headers.items()}
        context = Exchange(f"/v2/models/{model}/{verb}", body, fields)
        router.handle(context)
        return context

    return types.SimpleNamespace(engine=engine, call=call, logged=logged, router=router)


def answer_of(value, **more):
    return {"OUT": value, "model_name": "m", "model_version": "1", **more}


def events(context):
    """The objects of a well-formed event stream."""
    pieces = context.answer.decode().split("\n\n")
    assert pieces.pop() == ""
    assert all(piece.startswith("data: ") for piece in pieces)
    return [json.loads(piece[6:]) for piece in pieces]


def lines(context):
    assert not context.answer or context.answer.endswith(b"\n")
    return [json.loads(line) for line in context.answer.splitlines()]


def failed(message="broke"):
    return InferError(ErrorCode.INTERNAL, message)


# --- both endpoints -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["generate", "generate_stream", "versions/1/generate", "versions/1/generate_stream"])
def test_request_is_submitted_with_model_tensors(server, verb):
    server.call(verb, b'{"IN":[1,2],"id":"7","n":3}')
    (request,) = server.engine.submitted
    header = request.header
    assert (header.model_name, header.model_version) == ("m", "1" if "versions" in verb else "")
    assert header.inputs == (TensorSpec("IN", DataType.INT32, (2,)),)
    assert bytes(request.data[0]) == struct.pack("<2i", 1, 2)
    assert header.parameters == {"id": "7", "n": 3}
    assert (request.id, request.arrival_ns) == ("7", 5)


@pytest.mark.parametrize("verb", ["generate", "generate_stream"])
@pytest.mark.parametrize(
    ("body", "headers", "status", "message"),
    [
        (b'{"IN":"x","id":"7"}', {}, 400, "Unable to parse 'data'"),
        (b'{"id":"7","IN":1}', {"content_encoding": b"gzip"}, 400, "Unsupported content-encoding, only 'identity'"),
        (b'{"id":"7","IN":[1]}' + b" " * 300, {}, 400, "request JSON size of 319 bytes"),
        (b'{"id":"7","IN":[' + b"1," * 80 + b"1]}", {}, 400, "request size of 0 bytes with input 'IN' of size 324"),
    ],
)
def test_invalid_request_gets_json_error_and_log_line(server, verb, body, headers, status, message):
    context = server.call(verb, body, **headers)
    assert context.status == status
    request_id = context.answer_headers[b"triton-request-id"].decode()
    assert context.answer_headers[b"Content-Type"] == b"application/json"
    assert json.loads(context.answer)["error"].startswith(message)
    (line,) = server.logged
    assert line["request_id"] == request_id
    assert request_id == "7" or len(body) > 300
    assert not server.engine.submitted


@pytest.mark.parametrize("verb", ["generate", "generate_stream"])
def test_rejection_at_admission_is_json(server, verb):
    server.engine.rejection = invalid_argument("no")
    context = server.call(verb, b'{"id":"7","IN":1}')
    assert (context.status, json.loads(context.answer)) == (400, {"error": "no"})
    assert context.answer_headers == {**JSON, b"triton-request-id": b"7"}
    assert [line["level"] for line in server.logged] == [logging.WARNING]


@pytest.mark.parametrize("verb", ["generate", "generate_stream", "infer"])
def test_unknown_model_wins_over_a_bad_body(server, verb):
    assert server.call(verb, b"{", model="z").status == 404


def test_inputs_of_reloaded_model_are_read_again(server):
    server.call("generate", b'{"IN":1}')
    server.engine.config = parse_pbtxt(CONFIG.replace('"IN"', '"OTHER"')).config
    server.call("generate", b'{"IN":1}')
    assert [len(request.header.inputs) for request in server.engine.submitted] == [1, 0]


def test_header_fields_are_forwarded_as_parameters():
    engine = Engine()
    router = RestApi(engine, forwarding=HeaderForwarding(re.compile("^x-"))).router()
    router.handle(Exchange("/v2/models/m/generate", b'{"IN":1}', {b"x-user": b"me", b"y": b"no"}))
    assert engine.submitted[0].header.parameters == {"x-user": "me"}


# --- generate ---------------------------------------------------------------------------------------------------


def test_one_response_is_the_response(server):
    context = server.call("generate", b'{"IN":1,"id":"7"}')
    server.engine.emit(5, final=True)
    assert (context.status, context.answer_headers) == (200, JSON)
    assert json.loads(context.answer) == answer_of(5, id="7")


def test_one_response_may_precede_empty_final_one(server):
    context = server.call("generate")
    server.engine.emit(5)
    assert context.status is None
    server.engine.emit(final=True)
    assert json.loads(context.answer) == answer_of(5)


def test_no_response_is_an_error(server):
    context = server.call("generate")
    server.engine.emit(final=True)
    assert context.status == 400
    assert json.loads(context.answer)["error"].startswith(COUNT)


@pytest.mark.parametrize("first", [{"value": 5}, {"error": failed()}])
@pytest.mark.parametrize("second", [{"value": 6}, {"error": failed(), "final": True}])
def test_second_response_is_error_and_cancels_request(server, first, second):
    context = server.call("generate")
    server.engine.emit(**first)
    server.engine.emit(**second)
    assert context.status == 400
    assert json.loads(context.answer)["error"].startswith(COUNT)
    assert server.engine.cancelled == server.engine.submitted
    server.engine.emit(7)
    server.engine.emit(final=True)
    assert len(server.logged) == 1


@pytest.mark.parametrize("final", [True, False])
def test_failed_response_is_the_response(server, final):
    context = server.call("generate", b'{"IN":1,"id":"7"}')
    server.engine.emit(error=failed(), final=final)
    if not final:
        server.engine.emit(final=True)
    assert (context.status, json.loads(context.answer)) == (500, {"error": "broke"})
    assert context.answer_headers == {**JSON, b"triton-request-id": b"7"}
    assert len(server.logged) == 1


def test_response_that_json_cannot_carry_is_a_failure(server):
    context = server.call("generate")
    server.engine.emit(1, datatype=DataType.FP16, final=True)
    assert context.status == 400
    assert "FP16" in json.loads(context.answer)["error"]


def test_disconnected_client_cancels_its_request(server):
    context = server.call("generate")
    context.on_disconnect(CancelReason.DISCONNECTED)
    assert server.engine.cancelled == server.engine.submitted
    server.engine.emit(5)
    server.engine.emit(final=True)
    assert [line["error"].code for line in server.logged] == [ErrorCode.CANCELLED]


# --- generate_stream --------------------------------------------------------------------------------------------


def test_every_response_is_an_event_when_it_comes(server):
    context = server.call("generate_stream", b'{"IN":1,"id":"7"}')
    assert context.status is None
    server.engine.emit(5)
    assert (context.status, context.answer_headers) == (200, EVENTS)
    assert events(context) == [answer_of(5, id="7")]
    server.engine.emit(6, final=True)
    assert events(context) == [answer_of(5, id="7"), answer_of(6, id="7")]
    assert context.ended


def test_empty_final_response_ends_the_events(server):
    context = server.call("generate_stream")
    server.engine.emit(5)
    server.engine.emit(final=True)
    assert events(context) == [answer_of(5)]
    assert context.ended


def test_stream_without_responses_is_empty(server):
    context = server.call("generate_stream")
    server.engine.emit(final=True)
    assert (context.status, context.answer_headers, context.answer) == (200, EVENTS, b"")
    assert context.ended


def test_first_response_decides_about_the_status(server):
    context = server.call("generate_stream", b'{"IN":1,"id":"7"}')
    server.engine.emit(error=failed())
    assert (context.status, context.answer_headers) == (500, {**EVENTS, b"triton-request-id": b"7"})
    server.engine.emit(6, final=True)
    assert events(context) == [{"error": "broke"}, answer_of(6, id="7")]


def test_error_after_the_first_response_is_an_event(server):
    context = server.call("generate_stream")
    server.engine.emit(5)
    server.engine.emit(error=failed(), final=True)
    assert context.status == 200
    assert events(context) == [answer_of(5), {"error": "broke"}]
    assert context.ended
    assert len(server.logged) == 1


def test_response_without_json_form_is_error_event(server):
    context = server.call("generate_stream")
    server.engine.emit(1, datatype=DataType.FP16)
    server.engine.emit(2, final=True)
    assert context.status == 400
    first, second = events(context)
    assert "FP16" in first["error"]
    assert second == answer_of(2)


@pytest.mark.parametrize("emitted", [0, 1])
def test_client_that_leaves_a_stream_cancels_its_request(server, emitted):
    context = server.call("generate_stream")
    for number in range(emitted):
        server.engine.emit(number)
    sent = context.answer
    context.on_disconnect(CancelReason.DISCONNECTED)
    assert server.engine.cancelled == server.engine.submitted
    server.engine.emit(5)
    server.engine.emit(final=True)
    assert context.answer == sent
    assert [line["error"].code for line in server.logged] == [ErrorCode.CANCELLED]


class TestStreamByGet:
    def ask(self, server, query, *, method="GET", model="m"):
        context = Exchange(f"/v2/models/{model}/generate_stream", b"", {})
        context.method, context.query = method, query
        server.router.handle(context)
        return context

    def test_the_query_is_the_request(self, server):
        context = self.ask(server, "IN=1&IN=2&id=007&n=3&on=true&name=a%20b+c&text=%22%C3%A9%22&empty=")
        (request,) = server.engine.submitted
        assert (request.id, struct.unpack("<2i", bytes(request.data[0]))) == ("007", (1, 2))
        expected = {"id": "007", "n": 3, "on": True, "name": "a b c", "text": "é", "empty": ""}
        assert request.header.parameters == expected
        server.engine.emit(5)
        server.engine.emit(final=True)
        assert context.answer_headers[b"Content-Type"].startswith(b"text/event-stream")
        assert [event["OUT"] for event in events(context)] == [5]

    @pytest.mark.parametrize("query", ["IN=[1,2]", "IN=%5B1%2C2%5D", "IN=1&IN=2"])
    def test_a_list_is_repeated_or_written_as_json(self, server, query):
        self.ask(server, query)
        assert bytes(server.engine.submitted[0].data[0]) == struct.pack("<2i", 1, 2)

    @pytest.mark.parametrize(
        ("query", "message"),
        [
            ("IN=one", "'IN'"),
            ("IN=%ff", "not valid UTF-8"),
            ("&".join(["IN=1"] * 1025), "more than 1024 fields"),
            ("IN=" + "[" * 200, "'IN'"),
            ("IN=1&n=[1]", "parameter 'n' has invalid type"),
        ],
    )
    def test_a_wrong_query_is_refused(self, server, query, message):
        context = self.ask(server, query)
        assert context.status == 400
        assert message in context.answer.decode()
        assert not server.engine.submitted

    def test_head_executes_nothing(self, server):
        context = self.ask(server, "IN=1", method="HEAD")
        assert (context.status, server.engine.submitted) == (200, [])

    def test_an_unknown_model_is_not_found(self, server):
        assert self.ask(server, "IN=1", model="unknown").status in (400, 404)

    def test_generate_is_not_served_by_get(self, server):
        context = Exchange("/v2/models/m/generate", b"", {})
        context.method = "GET"
        server.router.handle(context)
        assert context.status == 405


def test_request_knows_that_its_client_is_slow(server):
    context = server.call("generate_stream")
    (request,) = server.engine.submitted
    context.on_pause(True)
    assert request.is_paused
    # By this number the model's backend distinguishes a client that reads nothing from a slow one.
    context.unread_bytes = 70_000
    assert request.unread_bytes == 70_000
    context.on_pause(False)
    assert not request.is_paused


# --- large responses --------------------------------------------------------------------------------------------

LONG_OUT = (TensorSpec("OUT", DataType.BYTES, (1,)),)
LONG_TEXT = "x" * 600_000


class LeaderFollowerLock:
    """An event loop whose turns the test runs, and a clock with time for one slice per turn."""

    def __init__(self):
        self._soon = []
        self._now_ns = 0

    def call_soon(self, callback):
        self._soon.append(callback)

    def now_ns(self):
        self._now_ns += 1_000_000
        return self._now_ns

    def take(self, count=1000):
        for _ in range(count):
            if self._soon:
                self._soon.pop(0)()


@pytest.fixture
def turns():
    return LeaderFollowerLock()


@pytest.fixture
def busy(monkeypatch, turns):
    """A stream of a server that encodes large responses in slices."""
    engine = Engine()
    logged = []
    monkeypatch.setattr("naiad.frontend.failed_requests.log_request_failure", lambda **fields: logged.append(fields))
    runner = SliceRunner(turns.call_soon, clock_ns=turns.now_ns)
    context = Exchange("/v2/models/m/generate_stream", b'{"IN":1,"id":"7"}', {})
    RestApi(engine, calls=ControlCalls(engine, runner=runner)).router().handle(context)
    turns.take()
    return types.SimpleNamespace(engine=engine, context=context, logged=logged, runner=runner)


def emit_long(engine, text=LONG_TEXT):
    (request,) = engine.submitted
    data = struct.pack("<I", len(text)) + text.encode()
    request.on_response(request, InferResponse(ResponseHeader("m", "1", LONG_OUT), (data,), final=False))


def test_responses_behind_a_large_one_keep_order(busy, turns):
    emit_long(busy.engine)
    busy.engine.emit(5)
    emit_long(busy.engine)
    busy.engine.emit(6, final=True)
    assert busy.context.answer == b""
    turns.take()
    assert [event["OUT"] for event in events(busy.context)] == [LONG_TEXT, 5, LONG_TEXT, 6]
    assert busy.context.ended


def test_failure_behind_large_response_is_reported(busy, turns):
    """The engine fails the request of a slow client, and marks it as cancelled so that its model stops."""
    (request,) = busy.engine.submitted
    emit_long(busy.engine)
    busy.engine.emit(5)
    busy.engine.emit(error=failed("too slow"), final=True)
    request.cancelled = True
    turns.take()
    *responses, last = events(busy.context)
    assert [event["OUT"] for event in responses] == [LONG_TEXT, 5]
    assert last == {"error": "too slow"}
    assert busy.context.ended
    assert [(line["request_id"], line["error"].message) for line in busy.logged] == [("7", "too slow")]


@pytest.mark.parametrize("is_marked", [False, True])
def test_client_leaves_while_responses_wait(busy, turns, is_marked):
    (request,) = busy.engine.submitted
    emit_long(busy.engine)
    busy.engine.emit(5)
    if is_marked:
        busy.engine.emit(error=failed("too slow"), final=True)
        request.cancelled = True
    busy.context.on_disconnect(CancelReason.DISCONNECTED)
    turns.take()
    busy.engine.emit(6)
    assert (busy.context.answer, busy.context.ended) == (b"", False)
    assert [line["error"].code for line in busy.logged] == [ErrorCode.CANCELLED]
    assert busy.runner.job_count == busy.runner.waiting_bytes == 0


def test_too_many_waiting_responses_end_the_stream(busy, turns):
    emit_long(busy.engine)
    for number in range(2000):
        busy.engine.emit(number)
    turns.take()
    (event,) = events(busy.context)
    assert event["error"].startswith("responses arrive faster")
    assert busy.context.ended
    assert busy.engine.cancelled == busy.engine.submitted
    assert len(busy.logged) == 1


def test_many_large_responses_take_turns(busy, turns):
    """Each is encoded in a turn of its own: neither in one turn, nor by recursion."""
    emit_long(busy.engine)
    for _ in range(400):
        emit_long(busy.engine, "x" * 70_000)
    busy.engine.emit(final=True)
    turns.take(200)
    assert not busy.context.ended
    turns.take()
    assert busy.context.answer.count(b"\n\n") == 401
    assert busy.context.ended


def test_request_is_paused_while_a_response_is_written(busy, turns):
    (request,) = busy.engine.submitted
    emit_long(busy.engine)
    assert request.is_paused
    turns.take()
    assert not request.is_paused
    busy.context.on_pause(True)
    emit_long(busy.engine)
    turns.take()
    assert request.is_paused


# --- infer, streamed --------------------------------------------------------------------------------------------

INFER = b'{"id":"7","inputs":[{"name":"IN","shape":[1],"datatype":"INT32","data":[1]}]}'


@pytest.mark.parametrize(
    ("accept", "headers"),
    [
        (b"application/x-ndjson", LINES),
        (b"Application/X-NDJSON;q=0.9", LINES),
        (b"application/json, application/x-ndjson", LINES),
        (b"text/event-stream", EVENTS),
        (b"text/event-stream, application/x-ndjson", EVENTS),
    ],
)
def test_infer_is_streamed_when_the_client_accepts_that(server, accept, headers):
    context = server.call("infer", INFER, accept=accept)
    server.engine.emit(5)
    assert (context.status, context.answer_headers) == (200, headers)
    server.engine.emit(6)
    server.engine.emit(final=True)
    assert context.ended
    found = events(context) if headers is EVENTS else lines(context)
    assert [tree["outputs"] for tree in found] == [
        [{"name": "OUT", "datatype": "INT32", "shape": [1], "data": [value]}] for value in (5, 6)
    ]
    assert {tree["id"] for tree in found} == {"7"}


@pytest.mark.parametrize("accept", [b"*/*", b"application/json", b"x/ndjson", b"application/x-ndjson-seq", b""])
def test_decoupled_model_is_rejected_to_others(server, accept):
    context = server.call("infer", INFER, accept=accept)
    assert context.status == 501
    assert not server.engine.submitted


def test_ordinary_model_responses_with_one_line(server):
    server.engine.decoupled = False
    context = server.call("infer", INFER, accept=b"application/x-ndjson")
    server.engine.emit(5, final=True)
    assert len(lines(context)) == 1
    assert context.ended


def test_lines_are_json_despite_binary_outputs(server):
    body = json.loads(INFER)
    body["outputs"] = [{"name": "OUT", "parameters": {"binary_data": True}}]
    body["parameters"] = {"binary_data_output": True}
    context = server.call("infer", json.dumps(body).encode(), accept=b"application/x-ndjson")
    server.engine.emit(5, final=True)
    assert lines(context)[0]["outputs"][0]["data"] == [5]


def test_raw_request_may_be_answered_in_lines(server):
    context = server.call("infer", b"abcd", accept=b"application/x-ndjson", inference_header_content_length=b"0")
    server.engine.emit(5, final=True)
    assert lines(context)[0]["outputs"][0]["data"] == [5]


@pytest.mark.parametrize("accept", [b"application/x-ndjson", b"text/event-stream"])
def test_infer_failing_before_stream_gets_plain_error(server, accept):
    context = server.call("infer", INFER, accept=accept)
    server.engine.emit(error=failed(), final=True)
    assert (context.status, json.loads(context.answer)) == (500, {"error": "broke"})
    assert context.answer_headers == {**JSON, b"triton-request-id": b"7"}


def test_error_before_the_end_is_line(server):
    context = server.call("infer", INFER, accept=b"application/x-ndjson")
    server.engine.emit(error=failed())
    server.engine.emit(5)
    server.engine.emit(error=failed("again"), final=True)
    assert context.status == 500
    assert context.answer_headers == {**LINES, b"triton-request-id": b"7"}
    first, second, third = lines(context)
    assert (first, third) == ({"error": "broke"}, {"error": "again"})
    assert second["outputs"][0]["data"] == [5]


def test_rejected_streamed_infer_gets_plain_error(server):
    server.engine.rejection = invalid_argument("no")
    context = server.call("infer", INFER, accept=b"application/x-ndjson")
    assert (context.status, json.loads(context.answer)) == (400, {"error": "no"})


def test_client_that_leaves_lines_cancels_its_request(server):
    context = server.call("infer", INFER, accept=b"application/x-ndjson")
    server.engine.emit(5)
    context.on_disconnect(CancelReason.DISCONNECTED)
    assert server.engine.cancelled == server.engine.submitted
