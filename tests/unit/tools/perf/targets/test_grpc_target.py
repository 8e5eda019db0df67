"""Unary gRPC calls against servers that answer by script."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from naiad.client import ConnectionFailedError
from naiad.protocol.service_pb2 import ModelInferRequest, ModelInferResponse
from naiad.tools.perf.targets import make_target
from naiad.wire.compression import WINDOW_BITS, decompress
from naiad.wire.grpc import HEADER_BLOCK, OK_TRAILER_BLOCK, encode_trailers
from naiad.wire.http2.frames import DATA, HEADERS, PING, Http2Code, frame, goaway, rst_stream
from naiad.wire.http2.headers import encode_fields
from support.perf_targets import GrpcScript, Last, Sender, opened, run, server_of, service

MESSAGE = ModelInferResponse(model_name="m", id="1").SerializeToString()
BODY = b"\0" + len(MESSAGE).to_bytes(4, "big") + MESSAGE


def answer(stream_id, body=BODY, trailers=OK_TRAILER_BLOCK):
    data = frame(DATA, 0, stream_id, body) if body else b""
    return frame(HEADERS, 4, stream_id, HEADER_BLOCK) + data + frame(HEADERS, 5, stream_id, trailers)


def refusal(stream_id, status=14, text="busy"):
    return frame(HEADERS, 5, stream_id, encode_trailers(status, text, is_only=True))


def with_script(respond, body, connections=1, settings=None, **fields):
    script = GrpcScript(respond, settings)

    async def all_of_it():
        async with server_of(script.handle, "grpc") as url, opened(url, connections, **fields) as target:
            await body(Sender(target))

    run(all_of_it())
    return script


def bodies(script):
    return [payload for kind, flags, payload in script.frames if kind == DATA]


def test_requests_vary_by_id_and_sequence():
    async def body(sender):
        for fields in ({}, {"request_id": "ä"}, {"request_id": "1", "sequence_id": 1 << 40, "sequence_start": True}):
            assert not (await sender.send(**fields)).failure
        assert not (await sender.send(sequence_id=7, sequence_end=True)).failure

    script = with_script(lambda number, stream_id, body: answer(stream_id), body)
    assert [int.from_bytes(each[1:5], "big") == len(each) - 5 for each in bodies(script)] == [True] * 4
    plain, named, first, last = [ModelInferRequest.FromString(each[5:]) for each in bodies(script)]
    assert (plain.model_name, plain.id, len(plain.parameters)) == ("m", "", 0)
    assert (named.id, named.inputs, named.raw_input_contents) == ("ä", plain.inputs, plain.raw_input_contents)
    assert (first.id, first.parameters["sequence_id"].int64_param) == ("1", 1 << 40)
    assert first.parameters["sequence_start"].bool_param
    assert last.parameters["sequence_end"].bool_param
    assert "sequence_start" not in last.parameters
    assert script.connections == 1


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_messages_are_compressed(coding):
    async def body(sender):
        assert not (await sender.send(request_id="9")).failure

    script = with_script(lambda number, stream_id, body: answer(stream_id), body, compression=coding)
    (message,) = bodies(script)
    assert message[0] == 1
    plain = decompress(message[5:], WINDOW_BITS[coding.encode()], 10_000)
    assert ModelInferRequest.FromString(bytes(plain)).id == "9"


def test_timing_is_asked_for_and_kept():
    trailers = encode_trailers(0, fields=((b"server-timing", b"queue;dur=1"),))

    async def body(sender):
        assert (await sender.send()).timing == ""
        assert (await sender.send(wants_timing=True)).timing == "queue;dur=1"

    script = with_script(lambda number, stream_id, body: answer(stream_id, trailers=trailers), body)
    blocks = [payload for kind, flags, payload in script.frames if kind == HEADERS]
    assert [b"x-naiad-timing" in block for block in blocks] == [False, True]


def test_metadata_is_sent():
    async def body(sender):
        assert not (await sender.send()).failure

    script = with_script(lambda number, stream_id, body: answer(stream_id), body, headers={"X-Key": "k"})
    assert encode_fields(((b"x-key", b"k"),)) in next(
        payload for kind, _, payload in script.frames if kind == HEADERS
    )


def test_calls_wait_in_the_order_of_their_arrival(monkeypatch):
    monkeypatch.setattr("naiad.tools.perf.targets.grpc._MAX_CONNECTIONS", 1)

    async def body(sender):
        begun = [sender.begin() for _ in range(5)]
        await asyncio.gather(*begun)
        assert sender.ends == [0, 1, 2, 3, 4]

    with_script(lambda number, stream_id, body: answer(stream_id), body, settings={3: 1})


def test_slots_are_spread_over_connections():
    numbers = []

    def respond(number, stream_id, body):
        numbers.append(number)
        return answer(stream_id)

    async def body(sender):
        for ended in [sender.begin() for _ in range(24)]:
            assert not (await ended).failure

    assert with_script(respond, body, connections=12).connections == 2
    assert sorted(numbers) == [1] * 12 + [2] * 12


def test_stream_limit_makes_requests_wait():
    async def body(sender):
        for ended in [sender.begin() for _ in range(200)]:
            exchange = await ended
            assert not exchange.failure
            assert exchange.sent_ns >= exchange.start_ns

    assert with_script(lambda number, stream_id, body: answer(stream_id), body, settings={3: 1}).connections > 1


@pytest.mark.parametrize(
    ("respond", "kind", "words"),
    [
        (refusal, "unavailable", "busy"),
        (lambda stream_id: answer(stream_id, b""), "internal", "without a complete message"),
        (lambda stream_id: answer(stream_id, BODY[:-1]), "internal", "without a complete message"),
        (lambda stream_id: answer(stream_id, BODY + BODY), "internal", "more than one message"),
        (lambda stream_id: answer(stream_id, b"\1" + BODY[1:]), "internal", "compressed message"),
        (lambda stream_id: answer(stream_id, b"\0\0\0\0\3abc"), "wrong_answer", "cannot be decoded"),
        (lambda stream_id: rst_stream(stream_id, Http2Code.CANCEL), "cancelled", "reset the call: CANCEL"),
        (lambda stream_id: rst_stream(stream_id, Http2Code.REFUSED_STREAM), "unavailable", "refused the call"),
        (lambda stream_id: rst_stream(stream_id, 99), "internal", "reset the call: 99"),
        (lambda stream_id: frame(DATA, 1, stream_id, BODY), "internal", "malformed: PROTOCOL_ERROR"),
        (lambda stream_id: b"\0\0\1\7\0\0\0\0\0\0", "connection", "GOAWAY is too short"),
        (lambda stream_id: goaway(0, Http2Code.NO_ERROR), "unavailable", "refused the call"),
        (lambda stream_id: Last(answer(stream_id)[:-3]), "connection", "the server closed the connection"),
        (lambda stream_id: None, "connection", "the server closed the connection"),
    ],
)
def test_bad_responses_are_failures(respond, kind, words):
    async def body(sender):
        exchange = await sender.send(wants_body=True)
        assert exchange.failure == kind
        assert words in exchange.failure_message
        while (await sender.send()).failure:
            await asyncio.sleep(0.01)
        assert len(set(sender.ends)) == len(sender.ends)

    answers = [respond]
    with_script(lambda number, stream_id, body: (answers.pop() if answers else answer)(stream_id), body)


def test_proxy_errors_have_the_http_status():
    head = encode_fields(((b":status", b"503"), (b"content-type", b"text/html")))

    def respond(number, stream_id, body):
        return frame(HEADERS, 4, stream_id, head) + frame(DATA, 1, stream_id, b"<html>")

    async def body(sender):
        exchange = await sender.send()
        assert (exchange.failure, exchange.failure_message) == (
            "unavailable",
            "the server answered with HTTP status 503",
        )

    with_script(respond, body)


def test_responses_may_come_in_pieces():
    whole = answer(1)

    async def handle(reader, writer):
        await reader.readexactly(24)
        writer.write(frame(4, 0, 0))
        while (await reader.readexactly(9))[3] != DATA:
            pass
        for position in range(len(whole)):
            writer.write(whole[position : position + 1])
            await asyncio.sleep(0)

    async def body():
        async with server_of(handle, "grpc") as url, opened(url) as target:
            exchange = await Sender(target).send(wants_body=True)
            assert (exchange.failure, exchange.body) == ("", [((), [])])

    run(body())


def test_silent_server_times_out():
    async def body(sender):
        for ended in [sender.begin() for _ in range(3)]:
            exchange = await ended
            assert (exchange.failure, exchange.failure_message) == ("timeout", "no response within 0.05 s")

    script = with_script(
        lambda number, stream_id, body: frame(PING, 0, 0, bytes(8)),
        body,
        settings={3: 2},
        request_timeout_s=0.05,
    )
    assert script.connections >= 1


def test_server_of_http1_is_recognized():
    async def handle(reader, writer):
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        await reader.read()
        writer.close()

    async def body():
        async with server_of(handle, "grpc") as url:
            with pytest.raises(ConnectionFailedError, match="answers in HTTP/1"):
                await make_target(service(url)).open(1)

    run(body())


def test_closing_ends_outstanding_requests():
    async def body(sender):
        begun = [sender.begin() for _ in range(5)]
        await sender.target.close()
        assert [each.done() and each.result().failure for each in begun] == ["connection"] * 5
        assert len(sender.ends) == 5

    with_script(lambda number, stream_id, body: b"", body, settings={3: 2})


ANSWERS = [
    answer,
    refusal,
    lambda stream_id: b"",
    lambda stream_id: None,
    lambda stream_id: rst_stream(stream_id, Http2Code.INTERNAL_ERROR),
    lambda stream_id: goaway(0, Http2Code.NO_ERROR),
    lambda stream_id: answer(stream_id) + goaway(stream_id, Http2Code.NO_ERROR),
    lambda stream_id: answer(stream_id)[:-3],
    lambda stream_id: answer(stream_id) + answer(stream_id),
    lambda stream_id: Last(answer(stream_id)),
]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from(ANSWERS), min_size=1, max_size=20), st.integers(1, 20))
def test_every_request_ends_once(answers, connections):
    left = list(answers)

    async def body(sender):
        for ended in [sender.begin() for _ in range(2 * len(answers))]:
            await ended
        while (await sender.send()).failure:
            await asyncio.sleep(0.01)
        assert len(sender.ends) == len(set(sender.ends))

    def respond(number, stream_id, body):
        return (left.pop() if left else answer)(stream_id)

    with_script(respond, body, connections, request_timeout_s=0.1)
