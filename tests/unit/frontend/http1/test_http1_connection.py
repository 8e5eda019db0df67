import asyncio

import numpy as np
import pytest

from naiad.frontend.context import CancelReason
from naiad.frontend.http1.connection import Http1Server
from support.http1_scene import GET, Loop, Peer, answer, post


def test_peer_that_fills_the_buffer_lets_others_pass():
    peer = Peer()
    peer.send(b"\r\n" * 32_768)
    assert not peer.transport.reading
    for callback in peer.loop.next:
        callback()
    assert peer.transport.reading
    peer.send(GET)
    assert (len(peer.contexts), peer.transport.reading) == (1, True)


def test_known_length_body_is_read_without_pause():
    peer = Peer()
    peer.send(post(bytes(1_000_000)))
    assert (len(peer.contexts), peer.transport.pauses) == (1, 0)


def test_pause_ends_only_when_reading_is_allowed():
    peer = Peer(pipelined_requests=1)
    peer.send(GET + GET + b"\r\n" * 32_739)
    assert not peer.transport.reading
    for callback in peer.loop.next:
        callback()
    assert not peer.transport.reading
    answer(peer.contexts[0])
    answer(peer.contexts[1])
    assert peer.transport.reading


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_empty_lines_before_request_are_ignored(size):
    peer = Peer()
    text = b"\r\n" * 40 + GET + b"\n\r\n" * 500 + GET
    for at in range(0, len(text), size):
        peer.send(text[at : at + size])
        while peer.contexts and peer.output.count(b"200 OK") != len(peer.contexts):
            answer(peer.contexts[-1])
    assert peer.statuses == [200, 200]


POST = b"POST /a HTTP/1.1\r\nHost: x\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "data",
    [
        b"GET /a HTTP/1.1\nHost: x\n\n",
        b"GET /a HTTP/1.1\r\nHost: x\n\r\n",
        b"GET /a HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
        b"GET /a HTTP/1.1\r\nHost: x\r\nhost: x\r\n\r\n",
        POST + b"Content-Length: 3\nX: y\r\n\r\nabc",
        POST + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        POST + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        POST + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
        POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
        POST + b"Content-Length: +3\r\n\r\nabc",
        POST + b"Content-Length: 3, 3\r\n\r\nabc",
        POST + b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
        POST + b"Content-Length: 0x3\r\n\r\nabc",
        POST + b"Content-Length:\r\n\r\n",
        POST + b"X: y\r\n Transfer-Encoding: chunked\r\n\r\n",
        POST + b"X: a\rb\r\n\r\n",
        CHUNKED + b"3\n\nabc\r\n0\r\n\r\n",
        CHUNKED + b"3\rX\nabc\r\n0\r\n\r\n",
        CHUNKED + b"3;a\rb\r\nabc\r\n0\r\n\r\n",
        CHUNKED + b"3\r\nabc\n\n0\r\n\r\n",
        CHUNKED + b"3\r\nabc\n0\r\n\r\n",
        CHUNKED + b"3\r\nabc\r\n0\r\n\n",
        CHUNKED + b"0\r\nX: a\rb\r\n\r\n",
    ],
)
@pytest.mark.parametrize("size", [1, 1000])
def test_ambiguous_framing_is_rejected(data, size):
    peer = Peer()
    for at in range(0, len(data), size):
        peer.send(data[at : at + size])
    assert (peer.statuses, peer.contexts) == ([400], [])


def test_response_has_status_fields_date_and_length():
    peer = Peer()
    peer.send(GET)
    (context,) = peer.contexts
    assert (context.method, context.path, context.body) == ("GET", "/a", b"")
    assert context.arrival_ns > 0
    answer(context)
    head, _, body = peer.output.partition(b"\r\n\r\n")
    line, *fields = head.split(b"\r\n")
    assert line == b"HTTP/1.1 200 OK"
    assert [field.split(b":")[0] for field in fields] == [b"Content-Type", b"Date", b"Content-Length"]
    assert fields[-1] == b"Content-Length: 2"
    assert body == b"ok"
    assert not peer.transport.closed


def test_request_gets_one_response():
    peer = Peer()
    peer.send(GET)
    answer(peer.contexts[0])
    answer(peer.contexts[0])
    assert peer.statuses == [200]


@pytest.mark.parametrize("size", [1, 5000, 70_000, 1_000_000])
def test_body_arrives_whole_and_its_tensors_aligned(size):
    body = bytes(range(256)) * (size // 256 + 1)
    peer = Peer()
    peer.send(post(body, b"Inference-Header-Content-Length: 7"))
    received = peer.contexts[0].body
    assert bytes(received) == body
    if size >= 5000:
        assert np.frombuffer(received[7:], np.uint8).ctypes.data % 64 == 0


def test_body_of_known_length_is_received_in_place():
    peer = Peer()
    whole = post(b"x" * 200_000)
    peer.send(whole[:100])
    assert len(peer.connection.get_buffer(-1)) == 65536 - (100 - len(whole) + 200_000)


def test_chunked_body_and_the_request_behind_it():
    peer = Peer()
    head = b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    peer.send(head + b"2\r\nab\r\n1\r\nc\r\n0\r\n\r\n" + GET)
    assert [(e.method, bytes(e.body)) for e in peer.contexts] == [("POST", b"abc"), ("GET", b"")]


def test_empty_lines_before_a_request_are_ignored():
    peer = Peer()
    peer.send(b"\r\n\r\n" + GET)
    peer.send(b"\r\n")
    peer.send(GET)
    assert len(peer.contexts) == 2


def test_pipelined_responses_leave_in_order_of_the_requests():
    peer = Peer()
    peer.send(GET * 3)
    first, second, third = peer.contexts
    answer(third, b"3")
    answer(second, b"2")
    assert peer.output == b""
    answer(first, b"1")
    assert [part[:1] for part in peer.output.split(b"\r\n\r\n")[1:]] == [b"1", b"2", b"3"]


def test_responses_during_input_leave_with_one_write():
    server = Http1Server(answer, Loop())
    peer = Peer(server)
    peer.send(GET * 10)
    assert peer.statuses == [200] * 10
    assert peer.transport.writes == 1


def test_large_parts_are_written_without_a_copy():
    peer = Peer()
    peer.send(GET)
    written = []
    peer.transport.writelines = written.extend
    large = memoryview(bytes(100_000))
    peer.contexts[0].respond(200, (), (b"small", large, b"tail"))
    assert written[1] is large
    assert written[0].endswith(b"small")
    assert written[2] == b"tail"


def test_too_many_pipelined_requests_pause_reading_until_answered():
    peer = Peer(pipelined_requests=2)
    peer.send(GET * 5)
    assert len(peer.contexts) == 2
    assert not peer.transport.reading
    answer(peer.contexts[0])
    assert len(peer.contexts) == 3
    for _ in range(3):
        answer(peer.contexts[len(peer.statuses)])
    assert len(peer.contexts) == 5
    assert peer.transport.reading
    answer(peer.contexts[4])
    assert peer.statuses == [200] * 5


def test_unsent_responses_pause_reading():
    peer = Peer(write_buffer_bytes=77)
    assert peer.transport.high == 77
    peer.connection.pause_writing()
    assert not peer.transport.reading
    peer.connection.resume_writing()
    assert peer.transport.reading


def test_peer_without_progress_is_dropped_unlike_slow_one():
    peer = Peer(send_timeout_s=5)
    peer.transport.unsent = 1000
    peer.connection.pause_writing()
    peer.sweep(1, 5)
    peer.transport.unsent = 900
    peer.sweep(7, 8, 11)
    assert not peer.transport.aborted
    peer.sweep(14)
    assert peer.transport.aborted


def test_head_request_gets_the_length_but_no_body():
    peer = Peer()
    peer.send(GET.replace(b"GET", b"HEAD"))
    answer(peer.contexts[0], b"12345")
    assert peer.output.endswith(b"Content-Length: 5\r\n\r\n")


@pytest.mark.parametrize(
    ("request_bytes", "option", "closed"),
    [
        (GET, None, False),
        (GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"), b"close", True),
        (b"GET /a HTTP/1.0\r\n\r\n", b"close", True),
        (b"GET /a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", b"keep-alive", False),
    ],
)
def test_persistence(request_bytes, option, closed):
    peer = Peer()
    peer.send(request_bytes)
    answer(peer.contexts[0])
    assert peer.transport.closed is closed
    assert (b"\r\nConnection: " + (option or b"")) in peer.output or option is None
    assert (b"Connection" in peer.output) is (option is not None)


def test_requests_behind_connection_close_are_not_served():
    peer = Peer()
    peer.send(GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n") + GET)
    assert len(peer.contexts) == 1


def test_expectation_is_met_before_the_body():
    peer = Peer()
    request = post(b"abc", b"Expect: 100-continue")
    peer.send(request[:-3])
    assert peer.output == b"HTTP/1.1 100 Continue\r\n\r\n"
    peer.send(request[-3:])
    assert bytes(peer.contexts[0].body) == b"abc"


def test_unused_expectation_does_not_apply_to_next_request():
    peer = Peer()
    peer.send(GET)
    peer.send(post(b"abc", b"Expect: 100-continue")[:-3])
    peer.send(b"abc" + post(b"body")[:-1])
    answer(peer.contexts[0])
    answer(peer.contexts[1])
    assert peer.statuses == [200, 200]


def test_expectation_follows_earlier_responses_unless_body_arrives():
    peer = Peer()
    request = post(b"abc", b"Expect: 100-continue")
    peer.send(GET + request[:-3])
    assert peer.output == b""
    answer(peer.contexts[0])
    assert peer.output.endswith(b"HTTP/1.1 100 Continue\r\n\r\n")
    other = Peer()
    other.send(request)
    assert len(other.contexts) == 1
    assert other.output == b""


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\x16\x03\x01", 400),
        (b"GET / HTTP/1.1\r\nBad Header: x", 400),
        (b"GET /" + b"a" * 9000, 414),
        (GET[:-2] + b"A: " + b"b" * 40_000, 431),
        (GET[:-2] + b"A: " + b"b" * 40_000 + b"\r\n\r\n", 431),
        (b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999\r\n\r\n", 413),
        (b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
    ],
)
def test_rejection_responses_then_lingers_then_drops(data, status):
    peer = Peer()
    peer.send(GET + data)
    answer(peer.contexts[0])
    assert peer.statuses == [200, status]
    assert b"Connection: close" in peer.output
    assert peer.transport.eof_written
    peer.send(b"more unread input here" * 10)
    peer.sweep(1, 2)
    assert not peer.transport.aborted
    peer.sweep(10)
    assert peer.transport.aborted
    assert len(peer.contexts) == 1


def test_false_length_uses_no_memory_and_is_reported():
    peer = Peer()
    peer.send(b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 8000000000\r\n\r\nabc")
    peer.connection.eof_received()
    assert peer.statuses == [400]
    assert b"body ended after 3 bytes" in peer.output
    assert peer.transport.closed
    assert not peer.transport.eof_written


def test_incomplete_headers_are_reported():
    peer = Peer()
    peer.send(GET[:-5])
    peer.connection.eof_received()
    assert peer.statuses == [400]


def test_half_closed_peer_gets_responses_to_complete_requests():
    peer = Peer()
    peer.send(GET * 2 + GET[:-5])
    assert peer.connection.eof_received()
    answer(peer.contexts[1])
    answer(peer.contexts[0])
    assert peer.statuses == [200, 200]
    assert peer.transport.closed
    peer.loop.run_later()  # a peer without open requests is not probed
    assert peer.statuses == [200, 200]


def test_waiting_half_closed_peer_is_probed_once():
    peer = Peer()
    peer.send(GET)
    assert peer.connection.eof_received()
    assert peer.output == b""
    peer.loop.run_later()
    assert peer.output == b"HTTP/1.1 100 Continue\r\n\r\n"
    peer.loop.run_later()
    peer.sweep(1, 2)
    assert not peer.transport.is_closing()
    answer(peer.contexts[0])
    assert peer.statuses == [100, 200]
    assert b"Connection: close" in peer.output
    assert peer.transport.closed


@pytest.mark.parametrize("notices", [lambda peer: peer.loop.run_later(), lambda peer: peer.sweep(1)])
def test_closed_peer_is_dropped_after_reset(notices):
    peer = Peer()
    peer.send(GET)
    peer.connection.eof_received()
    peer.loop.run_later()
    peer.transport.socket_error = 104
    notices(peer)
    assert peer.transport.aborted


def test_half_closed_peer_is_not_read_again():
    peer = Peer(pipelined_requests=2)
    peer.send(GET)
    assert peer.connection.eof_received()
    peer.connection.pause_writing()
    peer.connection.resume_writing()
    assert peer.transport.reading  # as before: the loop itself has stopped at the end
    answer(peer.contexts[0])
    assert peer.transport.closed


def test_half_closed_http10_peer_gets_response_without_probe():
    peer = Peer()
    peer.send(GET.replace(b"1.1", b"1.0"))
    assert peer.connection.eof_received()
    peer.loop.run_later()
    assert peer.output == b""
    answer(peer.contexts[0])
    assert peer.statuses == [200]
    assert peer.transport.closed


def test_peer_closing_during_stream_counts_as_disconnected():
    peer = Peer()
    peer.send(GET)
    peer.contexts[0].start_stream(200, ())
    assert not peer.connection.eof_received()


def test_slow_headers_slow_body_and_idleness_time_out():
    slow_head, slow_body, idle = Peer(head_timeout_s=5), Peer(body_timeout_s=5), Peer(idle_timeout_s=5)
    slow_head.send(GET[:-4])
    slow_body.send(post(b"abc")[:-1])
    for peer in (slow_head, slow_body, idle):
        peer.sweep(1, 5)
        assert peer.statuses == []
        assert not peer.transport.closed
        peer.sweep(7)
    assert (slow_head.statuses, slow_body.statuses, idle.statuses) == ([408], [408], [])
    assert idle.transport.closed


def test_body_time_limit_grows_with_received_bytes():
    peer = Peer(body_timeout_s=5, body_rate_bytes_per_s=1000)
    peer.send(post(bytes(100_000))[:100])
    for second in range(1, 21):
        peer.send(bytes(1000))
        peer.sweep(second)
    peer.sweep(24)
    assert peer.statuses == []
    peer.sweep(25)
    assert peer.statuses == [408]


def test_connection_waiting_for_response_never_times_out():
    peer = Peer(idle_timeout_s=5)
    peer.send(GET)
    peer.sweep(1, 1000)
    answer(peer.contexts[0])
    assert peer.statuses == [200]
    peer.sweep(1001, 1002)
    assert not peer.transport.closed


def test_lost_connection_cancels_its_requests():
    peer = Peer()
    peer.send(GET * 2)
    ended = []
    for i, context in enumerate(peer.contexts):
        context.on_disconnect = lambda why, i=i: ended.append((i, why))
    answer(peer.contexts[0])
    peer.connection.connection_lost(None)
    assert ended == [(1, CancelReason.DISCONNECTED)]
    answer(peer.contexts[1])
    assert peer.statuses == [200]
    assert peer.server.connection_count == 0


def test_response_on_a_dropped_connection_goes_nowhere():
    peer = Peer()
    peer.send(GET)
    peer.server.abort()
    answer(peer.contexts[0])
    assert peer.transport.aborted
    assert peer.output == b""


def test_slow_reader_of_last_response_gets_all():
    peer = Peer(send_timeout_s=5)
    peer.transport.unsent = 1000
    peer.send(GET[:-2] + b"Connection: close\r\n\r\n")
    answer(peer.contexts[0])
    assert peer.transport.closed
    for second in range(1, 100):
        peer.transport.unsent -= 1
        peer.sweep(second)
    peer.sweep(103)
    assert not peer.transport.aborted
    peer.sweep(105)
    assert peer.transport.aborted


def test_peer_may_close_shortly_after_last_response():
    peer = Peer()
    peer.send(GET[:-2] + b"Connection: close\r\n\r\n")
    answer(peer.contexts[0])
    peer.sweep(1, 5)
    assert not peer.transport.aborted
    peer.sweep(6)
    assert peer.transport.aborted


def test_rejected_peer_keeps_time_for_earlier_responses():
    peer = Peer(linger_s=2, send_timeout_s=60)
    peer.send(GET + b"nonsense\r\n\r\n")
    peer.transport.unsent = 1000
    answer(peer.contexts[0])
    peer.sweep(1, 30)
    assert not peer.transport.aborted
    peer.transport.unsent = 0
    peer.sweep(31, 32)
    assert not peer.transport.aborted
    peer.sweep(33)
    assert peer.transport.aborted


def test_too_many_connections_are_rejected():
    first = Peer(connections=1)
    second = Peer(first.server)
    assert second.statuses == [503]
    assert second.transport.closed
    second.connection.connection_lost(None)
    assert first.server.connection_count == 1


def test_drain_marks_busy_connections_and_serves_idle_ones():
    busy = Peer()
    idle = Peer(busy.server)
    busy.send(GET)
    busy.server.drain()
    busy.sweep(1)
    answer(busy.contexts[0])
    assert b"Connection: close" in busy.output
    assert busy.transport.eof_written
    busy.sweep(3, 20)
    assert not idle.transport.closed
    for _ in range(2):  # the connection continues
        idle.send(GET)
        answer(busy.contexts[-1])
    assert idle.statuses == [200, 200]
    assert b"Connection" not in idle.output


def test_the_end_of_a_drain_closes_idle_connections():
    idle = Peer()
    last = Peer(idle.server)
    idle.server.drain()
    idle.sweep(1)
    last.send(GET)
    idle.server.finish()
    assert idle.transport.closed
    assert not last.transport.closed
    answer(idle.contexts[0])
    assert b"Connection: close" in last.output
    assert last.transport.eof_written


def test_drain_lets_pipelined_requests_finish():
    peer = Peer()
    peer.send(GET * 2)
    peer.server.drain()
    answer(peer.contexts[0])
    assert b"Connection" not in peer.output
    answer(peer.contexts[1])
    assert b"Connection: close" in peer.output
    assert peer.transport.eof_written
    peer.connection.eof_received()
    peer.loop.next.pop()()
    assert peer.transport.closed


def test_drain_does_not_reset_pipelining_peer():
    """Closing a socket with unread input discards responses on their way to the peer."""
    peer = Peer()
    peer.send(GET + post(b"body")[:-1])
    peer.server.drain()
    answer(peer.contexts[0])
    assert peer.transport.eof_written
    assert not peer.transport.closed
    peer.send(b"y" + GET)
    assert len(peer.contexts) == 1  # the response marked as the last one stays the last
    peer.sweep(1, 4)
    assert peer.transport.aborted


def test_wait_closed_returns_after_last_connection():
    async def scenario():
        peer = Peer()
        waiting = asyncio.ensure_future(peer.server.wait_closed())
        await asyncio.sleep(0)
        assert not waiting.done()
        peer.connection.connection_lost(None)
        await waiting
        await peer.server.wait_closed()

    asyncio.run(scenario())


def test_route_that_raises_is_answered_500(caplog):
    def fail(context):
        raise ValueError("broken")

    peer = Peer(Http1Server(fail, Loop()))
    peer.send(GET)
    assert peer.statuses == [500]
    assert "broken" in caplog.text


def test_streamed_response_is_chunked():
    peer = Peer()
    peer.send(GET)
    (context,) = peer.contexts
    context.start_stream(200, ((b"Content-Type", b"text/event-stream"),))
    context.send((b"ab", b"c"))
    context.send(())
    context.end()
    head, _, body = peer.output.partition(b"\r\n\r\n")
    assert b"Transfer-Encoding: chunked" in head
    assert b"Content-Length" not in head
    assert body == b"3\r\nabc\r\n0\r\n\r\n"
    assert not peer.transport.closed


def test_streamed_http10_response_ends_by_closing():
    peer = Peer()
    peer.send(b"GET /a HTTP/1.0\r\n\r\n")
    peer.contexts[0].start_stream(200, ())
    peer.contexts[0].send((b"abc",))
    peer.contexts[0].end()
    assert peer.output.endswith(b"\r\n\r\nabc")
    assert peer.transport.closed


def test_streamed_response_waits_for_its_turn():
    peer = Peer()
    peer.send(GET * 2)
    first, second = peer.contexts
    second.start_stream(200, ())
    second.send((b"xyz",))
    assert peer.output == b""
    answer(first)
    assert b"xyz" in peer.output
    second.end()
    assert peer.output.endswith(b"0\r\n\r\n")


def test_stream_is_paused_and_resumed_with_peer():
    peer = Peer()
    peer.send(GET)
    (context,) = peer.contexts
    ended = []
    context.on_pause = ended.append
    context.start_stream(200, ())
    peer.connection.pause_writing()
    context.send((b"abc",))
    assert ended == [True]
    peer.connection.resume_writing()
    peer.connection.pause_writing()
    assert ended == [True, False, True]
    context.end()
    peer.connection.resume_writing()
    assert ended == [True, False, True]


def test_peer_with_too_much_unread_stream_is_dropped(caplog):
    peer = Peer(streamed_bytes=1000)
    gone = []
    peer.send(GET)
    (context,) = peer.contexts
    context.on_disconnect = gone.append
    context.start_stream(200, ())
    peer.transport.unsent = 2000
    context.send((b"abc",))
    # One large piece is not enough: only unsent bytes count.
    assert not peer.transport.aborted
    peer.connection.pause_writing()
    peer.transport.unsent = 1000
    context.send((b"abc",))
    assert not peer.transport.aborted
    peer.transport.unsent = 1001
    context.send((b"abc",))
    context.send((b"abc",))
    assert peer.transport.aborted
    assert caplog.text.count("1001 unread bytes of streamed responses") == 1
    peer.connection.connection_lost(None)
    assert gone == [CancelReason.DISCONNECTED]


def test_streams_that_wait_for_their_turn_are_bounded():
    peer = Peer(write_buffer_bytes=10, streamed_bytes=100)
    peer.send(GET * 3)
    first, second, third = peer.contexts
    ended = {context: [] for context in (second, third)}
    for context in ended:
        context.on_pause = ended[context].append
        context.start_stream(200, ())
    second.send((b"x" * 10,))
    assert ended[second] == [True]
    third.send((b"x" * 50,))
    assert not peer.transport.aborted
    answer(first)
    assert (ended[second], ended[third]) == ([True, False], [True])
    third.send((b"x" * 50,))
    assert peer.transport.aborted


def test_pieces_that_have_left_count_no_more():
    peer = Peer(streamed_bytes=100)
    peer.send(GET * 3)
    first, second, third = peer.contexts
    for context in (second, third):
        context.start_stream(200, ())
    second.send((b"x" * 80,))
    answer(first)
    third.send((b"x" * 80,))
    assert not peer.transport.aborted


def test_stream_waits_while_peer_does_not_read():
    peer = Peer(write_buffer_bytes=10)
    peer.send(GET * 2)
    first, second = peer.contexts
    ended = []
    second.on_pause = ended.append
    second.start_stream(200, ())
    second.send((b"x",))
    peer.connection.pause_writing()
    answer(first)
    assert ended == [True]
    peer.connection.resume_writing()
    assert ended == [True, False]


def test_a_stream_counts_its_unread_bytes():
    peer = Peer()
    peer.send(GET * 2)
    first, second = peer.contexts
    for context in (first, second):
        context.start_stream(200, ())
    peer.transport.unsent = 70
    second.send((b"x" * 50,))
    assert first.unread_bytes == 70
    assert second.unread_bytes == len(b"32\r\n\r\n") + 50
    first.end()
    assert second.unread_bytes == 70  # it is the transport's now
    peer.connection.connection_lost(None)
    assert second.unread_bytes == 0


def test_a_connection_without_a_first_byte_is_closed():
    silent, used = Peer(), Peer()
    used.send(GET)
    answer(used.contexts[0])
    for peer in (silent, used):
        peer.sweep(1, 30)
        assert not peer.transport.closed
        peer.sweep(31)
    assert silent.transport.closed
    assert not used.transport.closed


def test_a_body_that_stops_after_much_is_late():
    peer = Peer(body_timeout_s=60)
    peer.send(post(bytes(10_000_000))[:9_000_000])
    peer.sweep(1, 60)
    assert peer.statuses == []
    peer.sweep(61)
    assert peer.statuses == [408]


def test_client_reading_single_bytes_is_dropped(monkeypatch):
    taken = [1]
    monkeypatch.setattr("naiad.frontend.connections.linger.acknowledged_bytes", lambda transport: taken[0])
    peer = Peer()
    peer.send(GET)
    gone = []
    peer.contexts[0].on_disconnect = gone.append
    peer.contexts[0].start_stream(200, ())
    peer.transport.unsent = 2_000_000
    peer.connection.pause_writing()
    for second in range(1, 60):
        taken[0] += second % 15 == 0
        peer.transport.unsent -= second % 15 == 0
        peer.sweep(second)
    assert not peer.transport.aborted
    peer.sweep(60, 61, 62)
    assert peer.transport.aborted


def test_client_reading_at_minimum_rate_is_kept(monkeypatch):
    taken = [1]
    monkeypatch.setattr("naiad.frontend.connections.linger.acknowledged_bytes", lambda transport: taken[0])
    peer = Peer()
    peer.send(GET)
    peer.contexts[0].start_stream(200, ())
    peer.transport.unsent = 2_000_000  # the model adds as much as the client reads
    peer.connection.pause_writing()
    for second in range(1, 300):
        taken[0] += 1100
        peer.sweep(second)
    assert not peer.transport.aborted
