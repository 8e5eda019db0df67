"""Requests over a gRPC stream against servers that answer by script."""

import asyncio
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from naiad.core.errors import InferError
from naiad.protocol.grpc.client import read_stream_response
from naiad.protocol.service_pb2 import ModelInferRequest, ModelStreamInferResponse
from naiad.tools.perf.perf_plan import Mode
from naiad.tools.perf.targets.grpc_stream import StreamCall
from naiad.wire.grpc import HEADER_BLOCK, GrpcError, encode_trailers
from naiad.wire.http2.frames import DATA, HEADERS, Http2Code, frame, goaway, rst_stream
from support.http2_peer import settings_frame
from support.perf_targets import Sender, opened, run, server_of


def message(request_id="", error="", final=None, outputs=1):
    found = ModelStreamInferResponse(error_message=error)
    response = found.infer_response
    response.model_name, response.id = "m", request_id
    if final is not None:
        response.parameters["triton_final_response"].bool_param = final
        response.parameters["other"].string_param = "x"
    for number in range(outputs):
        response.outputs.add(name=f"OUTPUT{number}", datatype="FP32", shape=[1])
        response.raw_output_contents.append(bytes(4))
    text = found.SerializeToString()
    return b"\0" + len(text).to_bytes(4, "big") + text


class StreamScript:
    """Answers each request with what `respond(connection number, request)` yields: messages, frames or None.

    A frame is made by a function of the stream id, which may end the stream; None closes the connection.
    """

    def __init__(self, respond):
        self.respond = respond
        self.requests = []
        self.connections = 0

    async def handle(self, reader, writer):
        self.connections += 1
        number = self.connections
        try:
            await reader.readexactly(24)
            writer.write(settings_frame({}))
            begun = set()
            while not writer.is_closing():
                header = await reader.readexactly(9)
                payload = await reader.readexactly(int.from_bytes(header[:3], "big"))
                stream_id = int.from_bytes(header[5:], "big")
                if header[3] == DATA:
                    self.answer(number, payload, stream_id, begun, writer)
        except (asyncio.IncompleteReadError, ConnectionResetError):
            pass
        writer.close()

    def answer(self, number, payload, stream_id, begun, writer):
        request = ModelInferRequest.FromString(payload[5:])
        self.requests.append(request)
        for each in self.respond(number, request):
            if each is None:
                writer.close()
            elif callable(each):
                writer.write(each(stream_id))
            else:
                if stream_id not in begun:
                    begun.add(stream_id)
                    writer.write(frame(HEADERS, 4, stream_id, HEADER_BLOCK))
                writer.write(frame(DATA, 0, stream_id, each))


def with_script(respond, body, connections=1, **fields):
    script = StreamScript(respond)

    async def all_of_it():
        async with (
            server_of(script.handle, "grpc") as url,
            opened(url, connections, Mode.STREAM, **fields) as target,
        ):
            await body(Sender(target))

    run(all_of_it())
    return script


def test_responses_are_matched_by_id():
    held = []

    def respond(number, request):
        held.append(request.id)
        return [message(each) for each in reversed(held)] if len(held) == 3 else []

    async def body(sender):
        begun = [sender.begin(request_id=each) for each in ("a", "", "a")]
        for ended in begun:
            exchange = await ended
            assert (exchange.failure, exchange.responses) == ("", 1)
            assert exchange.start_ns <= exchange.sent_ns <= exchange.first_ns == exchange.end_ns
        assert sender.ends == [2, 1, 0]

    script = with_script(respond, body)
    assert len({request.id for request in script.requests}) == 3
    assert script.requests[0].id == "a"
    assert script.requests[0].parameters["triton_enable_empty_final_response"].bool_param


def test_responses_without_ids_are_in_order():
    async def body(sender):
        for ended in [sender.begin() for _ in range(5)]:
            assert (await ended).responses == 1
        assert sender.ends == [0, 1, 2, 3, 4]

    with_script(lambda number, request: [message()], body)


@pytest.mark.parametrize(("ends_empty", "count"), [(True, 3), (False, 3), (True, 0)])
def test_decoupled_responses_are_counted(ends_empty, count):
    def respond(number, request):
        for index in range(count):
            yield message(request.id, final=index == count - 1 and not ends_empty)
        if ends_empty:
            yield message(request.id, final=True, outputs=0)

    async def body(sender):
        exchange = await sender.send(wants_body=True)
        assert (exchange.failure, exchange.responses) == ("", count)
        assert len(exchange.body or ()) == count
        assert len(exchange.gaps_ns or ()) == max(count - 1, 0)
        assert all(gap >= 0 for gap in exchange.gaps_ns or ())
        assert exchange.first_ns <= exchange.end_ns

    with_script(respond, body)


def test_sequence_stays_on_a_stream():
    connections = {}

    def respond(number, request):
        connections.setdefault(request.parameters["sequence_id"].int64_param, set()).add(number)
        return [message(request.id)]

    async def body(sender):
        for ended in [sender.begin(sequence_id=2 + 4 * (index % 8)) for index in range(80)]:
            assert not (await ended).failure

    with_script(respond, body, connections=18)
    assert all(len(each) == 1 for each in connections.values())
    assert len(set.union(*connections.values())) > 1


def test_errors_fail_one_request():
    def respond(number, request):
        if request.id == "bad":
            error = message(request.id, error="no", outputs=0, final=False)
            return [error, message(request.id, final=True, outputs=0)]
        return [message(request.id)]

    async def body(sender):
        begun = [sender.begin(request_id=each) for each in ("1", "bad", "2")]
        found = [await each for each in begun]
        assert [each.failure for each in found] == ["", "unknown", ""]
        assert found[1].failure_message == "no"

    assert with_script(respond, body).connections == 1


def end(stream_id):
    return frame(HEADERS, 5, stream_id, encode_trailers(14, "busy", is_only=True))


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (end, "unavailable", "busy"),
        (
            lambda stream_id: frame(HEADERS, 5, stream_id, encode_trailers(0, is_only=True)),
            "internal",
            "the server ended the stream",
        ),
        (lambda stream_id: rst_stream(stream_id, Http2Code.CANCEL), "cancelled", "reset the call: CANCEL"),
        (lambda stream_id: goaway(0, Http2Code.NO_ERROR), "unavailable", "refused the call"),
        (b"\0\0\0\0\3abc", "internal", "not a ModelStreamInferResponse"),
        (b"\1\0\0\0\3abc", "internal", "compressed message"),
        (None, "connection", "closed the connection"),
    ],
)
def test_broken_streams_fail_their_requests(answer, kind, words):
    answers = [answer]

    async def body(sender):
        begun = [sender.begin() for _ in range(3)]
        for ended in begun:
            exchange = await ended
            assert exchange.failure == kind
            assert words in exchange.failure_message
        while (await sender.send()).failure:
            await asyncio.sleep(0.01)
        assert len(set(sender.ends)) == len(sender.ends)

    def respond(number, request):
        if answers and len(script_requests) < 2:
            script_requests.append(request)
            return []
        return [answers.pop()] if answers else [message(request.id)]

    script_requests = []
    with_script(respond, body)


def test_silent_server_times_out():
    seen = []

    def respond(number, request):
        seen.append(request.id)
        return [] if len(seen) < 3 else [message(each) for each in seen]

    async def body(sender):
        for ended in [sender.begin() for _ in range(2)]:
            assert (await ended).failure == "timeout"
        exchange = await sender.send()
        assert (exchange.failure, exchange.responses) == ("", 1)

    assert with_script(respond, body, request_timeout_s=0.2).connections == 1


def test_going_away_lets_the_stream_finish():
    held = []

    def respond(number, request):
        if number > 1:
            return [message(request.id)]
        held.append(request.id)
        if len(held) == 1:
            return [lambda stream_id: goaway(stream_id, Http2Code.NO_ERROR), message(held[0])]
        return []

    async def body(sender):
        assert not (await sender.send()).failure
        while (await sender.send()).failure:
            await asyncio.sleep(0.01)

    assert with_script(respond, body).connections == 2


@pytest.mark.parametrize("data", [b"\x12\x05abc", b"\x0b"])
def test_malformed_messages_are_errors(data):
    with pytest.raises(InferError, match="not a ModelStreamInferResponse"):
        read_stream_response(data)


def test_unusual_final_parameter_is_read():
    entry = b"\x12\x02\x08\x00\x0a\x15triton_final_response"  # the value before the key
    response = b"\x1a\x01a\x22%c%b" % (len(entry), entry)
    found = read_stream_response(b"\x12%c%b" % (len(response), response))
    assert (found.request_id, found.is_final, found.is_empty) == ("a", True, True)


CHOICES = ["answer", "decoupled", "silent", "error", end, None, b"\0\0\0\0\3abc"]
CHOICES += [lambda stream_id: rst_stream(stream_id, Http2Code.INTERNAL_ERROR)]
CHOICES += [lambda stream_id: goaway(stream_id, Http2Code.NO_ERROR)]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from(CHOICES), min_size=1, max_size=20), st.integers(1, 20))
def test_every_request_ends_once(choices, connections):
    left = list(choices)
    answers = {
        "answer": lambda request_id: [message(request_id)],
        "decoupled": lambda request_id: [message(request_id, final=False), message(request_id, final=True)],
        "silent": lambda request_id: [],
        "error": lambda request_id: [message(request_id, error="no", outputs=0)],
    }

    def respond(number, request):
        choice = left.pop() if left else "answer"
        return answers[choice](request.id) if isinstance(choice, str) else [choice]

    async def body(sender):
        for ended in [sender.begin() for _ in range(2 * len(choices))]:
            await ended
        while (await sender.send()).failure:
            await asyncio.sleep(0.01)
        assert len(sender.ends) == len(set(sender.ends))

    with_script(respond, body, connections, request_timeout_s=0.1)


def stream_call():
    connection = SimpleNamespace(has_served=False, http2=SimpleNamespace(message_count=0), now_ns=0)
    return StreamCall(connection)


def test_response_to_no_request_ends_the_stream():
    with pytest.raises(GrpcError, match="a second response to '7', or one to no request"):
        stream_call().message_received(message("7")[5:])
    with pytest.raises(GrpcError, match="too many responses"):
        stream_call().message_received(message()[5:])


def test_late_response_of_an_expired_request_is_dropped():
    call = stream_call()
    call.expired.add("7")
    call.message_received(message("7", final=False)[5:])
    call.message_received(message("7", final=True)[5:])
    assert not call.expired
    with pytest.raises(GrpcError):
        call.message_received(message("7", final=True)[5:])


def test_requests_that_are_forgotten_may_get_responses():
    call = stream_call()
    call.knows_all = False
    call.message_received(message("7")[5:])


@pytest.mark.parametrize("request_id", ["7", ""])
def test_decoupled_responses_after_the_end_are_wrong(request_id):
    call = stream_call()
    call.has_single = False
    call.message_received(message("7", outputs=0, final=True)[5:])  # the end after an error, which ended the request
    with pytest.raises(GrpcError, match="its end must be marked" if request_id else "a response without an id"):
        call.message_received(message(request_id)[5:])


def test_unmarked_end_of_decoupled_responses_is_a_failure():
    """The first response would be taken for the last one, and its time for that of all."""

    async def body(sender):
        begun = [sender.begin() for _ in range(2)]
        failures = [(await each).failure for each in begun]
        assert failures == ["", "internal"]

    with_script(lambda number, request: [message(request.id)] * 3 if number == 1 else [], body)


def test_response_that_lacks_its_id_is_wrong():
    answers = []

    def respond(number, request):
        answers.append(request.id)
        return [message(request.id)] if len(answers) == 1 else [message("")] if len(answers) == 3 else []

    async def body(sender):
        assert not (await sender.send()).failure
        begun = [sender.begin() for _ in range(2)]
        for ended in begun:
            exchange = await ended
            assert exchange.failure == "internal"
            assert "without an id, after responses with one" in exchange.failure_message

    with_script(respond, body)
