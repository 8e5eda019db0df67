"""Server-sent events, cut anywhere, inside a chunked response."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from naiad.wire.event_stream import EventParser, EventStreamResponse, ServerSentEvent
from naiad.wire.http1_client import ResponseError

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
TEXT = b': beat\n\nevent: sample\ndata: {"a":1}\n\ndata: x\r\ndata:y\r\n\r\nevent: empty\n\nevent: gone\ndata: {}\n\n'
EVENTS = [ServerSentEvent("sample", b'{"a":1}'), ServerSentEvent("message", b"x\ny"), ServerSentEvent("gone", b"{}")]


@given(st.lists(st.integers(0, len(TEXT)), max_size=8))
def test_events_do_not_depend_on_the_pieces(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(TEXT)]
    pieces = [TEXT[start:end] for start, end in itertools.pairwise(edges)]
    parser = EventParser()
    assert [event for piece in pieces for event in parser.feed(piece)] == EVENTS
    response = EventStreamResponse()
    found = response.feed(HEAD)
    for piece in pieces:
        if piece:
            found += response.feed(b"%x\r\n%s\r\n" % (len(piece), piece))
    assert found == EVENTS
    assert not response.is_complete
    response.feed(b"0\r\n\r\n")
    assert response.is_complete


def test_refusal_is_collected() -> None:
    response = EventStreamResponse()
    body = b'{"error":"no"}'
    assert response.feed(b"HTTP/1.1 403 Forbidden\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)) == []
    assert (response.status, bytes(response.error_body), response.is_complete) == (403, body, True)


def test_endless_event_is_refused() -> None:
    parser = EventParser(max_event_bytes=100)
    parser.feed(b"data: " + b"a" * 90)
    with pytest.raises(ResponseError, match="more than 100 bytes"):
        parser.feed(b"a" * 10)


def test_endless_head_is_refused() -> None:
    response = EventStreamResponse()
    response.feed(b"HTTP/1.1 200 OK\r\n")
    with pytest.raises(ResponseError, match="head of the response"):
        response.feed(b"a: " + b"b" * 70_000)
