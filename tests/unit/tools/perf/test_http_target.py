"""Requests over HTTP/1.1 against servers that answer by script."""

import asyncio
import json
import ssl
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from naiad.client import ConnectionFailedError, InferError
from naiad.tools.perf.perf_plan import Mode, Protocol, ServerTarget
from naiad.tools.perf.targets import make_target
from naiad.tools.perf.targets.connections import client_tls
from support.perf_targets import HttpScript, Last, Sender, opened, run, server_of, service, template


def response(body=b"{}", status=b"200 OK", fields=b""):
    return b"HTTP/1.1 %b\r\n%bContent-Length: %d\r\n\r\n%b" % (status, fields, len(body), body)


OK = response()
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
UNTIL_EOF = b"HTTP/1.1 200 OK\r\n\r\n{}"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"


def with_script(respond, body, connections=1, **fields):
    async def all_of_it():
        script = HttpScript(respond)
        async with server_of(script.handle) as url, opened(url, connections, **fields) as target:
            await body(Sender(target))
        return script

    scripts = []

    async def keep():
        scripts.append(await all_of_it())

    run(keep())
    return scripts[0]


def json_of(request):
    head, _, body = request.partition(b"\r\n\r\n")
    length = head.partition(b"Inference-Header-Content-Length: ")[2].partition(b"\r\n")[0]
    return json.loads(body[: int(length)] if length else body)


def test_host_name_is_checked_unless_switched_off():
    checked = [
        client_tls(ServerTarget("https://localhost", Protocol.HTTP, verifies_host=each)) for each in (True, False)
    ]
    assert [(each.check_hostname, each.verify_mode) for each in checked] == [
        (True, ssl.CERT_REQUIRED),
        (False, ssl.CERT_REQUIRED),
    ]


def test_requests_vary_by_id_and_sequence():
    async def body(sender):
        assert not (await sender.send()).failure
        assert not (await sender.send(request_id='a"b')).failure
        assert not (await sender.send(request_id="1", sequence_id=7, sequence_start=True)).failure
        assert not (await sender.send(sequence_id=7, sequence_end=True)).failure

    script = with_script(lambda number, request: OK, body, headers={"X-Key": "k"})
    first, second, third, last = map(json_of, script.requests)
    assert "id" not in first
    assert "sequence_id" not in first["parameters"]
    assert (second["id"], second["inputs"]) == ('a"b', first["inputs"])
    parameters = first["parameters"]
    assert parameters == {"binary_data_output": True}
    assert (third["id"], third["parameters"]) == ("1", {**parameters, "sequence_id": 7, "sequence_start": True})
    assert last["parameters"] == {**parameters, "sequence_id": 7, "sequence_end": True}
    assert all(each.startswith(b"POST /v2/models/m/infer HTTP/1.1\r\nHost: ") for each in script.requests)
    assert all(b"\r\nX-Key: k\r\n" in each for each in script.requests)
    assert script.connections == 1


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_json_bodies_are_compressed(coding):
    async def body(sender):
        assert not (await sender.send(request_id="9")).failure

    script = with_script(lambda number, request: OK, body, compression=coding, has_binary_inputs=False)
    (request,) = script.requests
    head, _, content = request.partition(b"\r\n\r\n")
    assert b"Content-Encoding: " + coding.encode() in head
    decoded = json.loads(zlib.decompress(content, 31 if coding == "gzip" else 15))
    assert decoded["id"] == "9"
    assert decoded["inputs"][0]["data"] == [0, 1, 2, 3]


def test_timing_is_asked_for_and_kept():
    fields = b"Server-Timing: queue;dur=1\r\n"

    async def body(sender):
        assert (await sender.send()).timing == ""
        assert (await sender.send(wants_timing=True)).timing == "queue;dur=1"

    script = with_script(lambda number, request: response(fields=fields), body)
    assert [b"x-naiad-timing: 1\r\n" in each for each in script.requests] == [False, True]


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (response(b'{"error":"gone"}', b"404 Not Found"), "not_found", "gone"),
        (response(b"", b"503 No"), "unavailable", "HTTP status 503"),
        (response(b"[]"), "wrong_answer", "cannot be decoded: the response is not a JSON object"),
        (b"garbage\r\n\r\n", "connection", "malformed HTTP response"),
        (Last(OK[:-1]), "connection", "closed the connection within"),
        (None, "connection", "closed the connection"),
    ],
)
def test_bad_responses_are_failures(answer, kind, words):
    async def body(sender):
        exchange = await sender.send(wants_body=True)
        assert exchange.failure == kind
        assert words in exchange.failure_message
        while (await sender.send()).failure:
            await asyncio.sleep(0.01)
        assert len(set(sender.ends)) == len(sender.ends)

    answers = [answer]
    with_script(lambda number, request: answers.pop() if answers else OK, body)


@pytest.mark.parametrize(
    "answer",
    [OK, CHUNKED, b"HTTP/1.1 100 Continue\r\n\r\n" + OK, response(fields=b"Connection: close\r\n"), Last(UNTIL_EOF)],
)
def test_forms_of_responses_are_read(answer):
    async def body(sender):
        for _ in range(3):
            assert (await sender.send(wants_body=True)).body == [((), [])]

    with_script(lambda number, request: answer, body)


def test_long_json_is_sent_whole():
    request = template(array=np.arange(1 << 20, dtype=np.float32))

    async def body(sender):
        sender.prepared = sender.target.prepare(request)
        for ended in [sender.begin() for _ in range(3)]:
            assert not (await ended).failure

    script = with_script(lambda number, request: OK, body, has_binary_inputs=False)
    assert [len(json_of(each)["inputs"][0]["data"]) for each in script.requests] == [1 << 20] * 3


def test_silent_server_times_out():
    async def body(sender):
        waiting = [sender.begin() for _ in range(3)]
        for ended in waiting:
            exchange = await ended
            assert (exchange.failure, exchange.failure_message) == ("timeout", "no response within 0.05 s")

    with_script(lambda number, request: b"", body, request_timeout_s=0.05)


def test_missing_server_is_named():
    async def body():
        async with server_of(lambda reader, writer: None) as url:
            pass
        with pytest.raises(ConnectionFailedError, match="no connection to http://127"):
            await make_target(service(url)).open(3)

    run(body())


def test_requests_wait_in_the_order_of_their_arrival():
    async def body(sender):
        begun = [sender.begin() for _ in range(5)]
        await asyncio.gather(*begun)
        assert sender.ends == [0, 1, 2, 3, 4]

    with_script(lambda number, request: OK, body)


class Transport(asyncio.Transport):
    """One without a socket."""

    def __init__(self):
        super().__init__({"sslcontext": True})

    def abort(self):
        pass


def test_server_that_closes_each_connection_ends_open(monkeypatch):
    made = []

    async def make(connector, factory):
        made.append(factory())
        made[-1].connection_made(Transport())
        return made[-1]

    async def body():
        target = make_target(service("http://127.0.0.1:9"))
        connect = target._connect

        async def connect_and_lose(count):
            before = len(made)
            opened_count = await connect(count)
            for each in made[before:]:
                each.connection_lost(None)
            return opened_count

        monkeypatch.setattr(target, "_connect", connect_and_lose)
        await target.open(100)
        assert len(made) == 100
        await target.close()

    monkeypatch.setattr("naiad.client.connecting.Connector.open", make)
    run(body())


def test_connections_lost_while_they_open_are_a_failure(monkeypatch):
    async def open_lost(connector, factory):
        return factory()

    monkeypatch.setattr("naiad.client.connecting.Connector.open", open_lost)

    async def body():
        with pytest.raises(ConnectionFailedError, match="closes connections before a response"):
            await make_target(service("http://127.0.0.1:9")).open(3)

    run(body())


def test_more_connections_than_files_are_refused_at_once(monkeypatch):
    monkeypatch.setattr("resource.getrlimit", lambda _: (1000, 1000))

    async def body():
        with pytest.raises(
            ConnectionFailedError, match=r"5000 outstanding requests need 5000 connections, .* 1000 fi"
        ):
            await make_target(service("http://127.0.0.1:9")).open(5000)

    run(body())


def test_opening_many_connections_ends(monkeypatch):
    made = []

    async def make(connector, factory):
        made.append(factory())
        made[-1].connection_made(Transport())
        return made[-1]

    monkeypatch.setattr("naiad.client.connecting.Connector.open", make)
    monkeypatch.setattr("naiad.tools.perf.targets.connections._LONGEST_OPEN_S", 0.0)

    async def body():
        target = make_target(service("http://127.0.0.1:9"))
        with pytest.raises(
            ConnectionFailedError, match=r"were not open after 0 s.*; 64 of 500 connections were open"
        ):
            await target.open(500)
        assert len(made) == 64

    run(body())


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_close_leaves_no_connection_of_a_silent_server(scheme):
    arrived, left = [], []

    async def silent(reader, writer):
        arrived.append(writer)
        while await reader.read(65536):
            pass
        left.append(writer)
        writer.close()

    async def body():
        async with server_of(silent, scheme) as url:
            target = make_target(service(url))
            opening = asyncio.ensure_future(target.open(3))
            while not arrived:
                await asyncio.sleep(0.001)
            opening.cancel()
            await asyncio.wait((opening,))
            await target.close()
            while len(left) < len(arrived):
                await asyncio.sleep(0.001)
        assert not target._alive

    run(body())


def test_server_that_returns_is_used_again():
    async def body():
        script = HttpScript(lambda number, request: OK if number == 1 else None)
        async with server_of(script.handle) as url, opened(url) as target:
            sender = Sender(target)
            assert not (await sender.send()).failure
            for writer in target._connections:
                writer.transport.abort()
        port = int(url.rpartition(":")[2])
        script = HttpScript(lambda number, request: OK)
        target = make_target(service(url))
        async with server_of(script.handle, port=port):
            await target.open(2)
            sender = Sender(target)
            assert not (await sender.send()).failure
        for connection in list(target._connections):
            connection.transport.abort()
        failures = set()
        while "no connection to" not in "".join(failures):
            exchange = await sender.send()
            assert exchange.failure == "connection"
            failures.add(exchange.failure_message)
        async with server_of(script.handle, port=port):
            while (await sender.send()).failure:
                await asyncio.sleep(0.01)
            await target.close()
        assert (await sender.send()).failure_message == "the target was closed"

    run(body())


def test_closing_ends_outstanding_requests():
    async def body(sender):
        begun = [sender.begin() for _ in range(5)]
        await sender.target.close()
        assert [each.done() and each.result().failure for each in begun] == ["connection"] * 5
        assert len(sender.ends) == 5

    with_script(lambda number, request: b"", body, connections=3)


def test_closed_target_opens_again():
    async def body(sender):
        await sender.target.close()
        await sender.target.open(3)
        for ended in [sender.begin() for _ in range(9)]:
            assert not (await ended).failure

    assert with_script(lambda number, request: OK, body).connections == 4


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"url": "grpc://h"}, "not an address of http"),
        ({"headers": {"A": "1\r\nB: 2"}}, "header field 'A'"),
        ({"mode": Mode.STREAM}, "streams need gRPC"),
        ({"url": "https://h", "ca_file": "/missing.pem"}, "cannot read the TLS files /missing.pem"),
    ],
)
def test_wrong_services_are_named(fields, words):
    with pytest.raises(InferError, match=words):
        make_target(ServerTarget(**{"url": "http://h", "protocol": Protocol.HTTP, **fields}))


ANSWERS = [
    OK,
    Last(OK[:20]),
    CHUNKED,
    b"",
    None,
    b"garbage\r\n\r\n",
    OK + OK,
    response(b"", b"503 No"),
    Last(UNTIL_EOF),
]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from(ANSWERS), min_size=1, max_size=20), st.integers(1, 4))
def test_every_request_ends_once(answers, connections):
    left = list(answers)

    async def body(sender):
        begun = [sender.begin() for _ in range(2 * len(answers))]
        for ended in begun:
            await ended
        while (await sender.send()).failure:
            await asyncio.sleep(0.01)
        assert len(sender.ends) == len(set(sender.ends))

    with_script(lambda n, r: left.pop() if left else OK, body, connections, request_timeout_s=0.1)
