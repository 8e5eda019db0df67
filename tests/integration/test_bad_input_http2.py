"""What a server does with HTTP/2 that is wrong or hostile, frame by frame; RFC 9113 says which error it is."""

import struct
from collections.abc import Iterator

import pytest

from support.process_resources import ProcessResources
from support.raw_http1 import HttpPeer, connect, http_request
from support.raw_http2 import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    GRPC_INFER,
    GRPC_LIVE,
    HEADERS,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Http2Peer,
    frame,
    grpc_head,
    grpc_message,
)
from support.server_process import ServerProcess

PROTOCOL_ERROR, FLOW_CONTROL_ERROR, STREAM_CLOSED, FRAME_SIZE_ERROR = 1, 3, 5, 6
COMPRESSION_ERROR, ENHANCE_YOUR_CALM = 9, 11
OPENING = PREFACE + frame(SETTINGS, 0, 0)
LIVE = b"\x08\x01"


@pytest.fixture(scope="module", autouse=True)
def nothing_leaks(server: ServerProcess) -> Iterator[None]:
    """After all that is done here, the server holds what it held before."""
    good_call(server)
    resources = ProcessResources(server.process.pid)
    yield
    good_call(server)
    resources.assert_back()
    assert "Traceback" not in server.log_text()


@pytest.fixture(autouse=True)
def still_serving(server: ServerProcess) -> Iterator[None]:
    """After each test a new connection is served."""
    yield
    good_call(server)


@pytest.fixture
def peer(server: ServerProcess) -> Iterator[Http2Peer]:
    with Http2Peer(server.grpc_url) as opened:
        yield opened


def good_call(server: ServerProcess) -> None:
    with Http2Peer(server.grpc_url) as peer:
        assert_good_call(peer, 1)


def assert_good_call(peer: Http2Peer, stream_id: int) -> None:
    answer = peer.call(stream_id, GRPC_LIVE, b"")
    assert answer.grpc_status == 0
    assert answer.body == grpc_message(LIVE)


def repeated_block(peer: Http2Peer, head: list[tuple[str, str]]) -> bytes:
    """Open and reset stream 1 with `head`; return the block that all later streams can use, which is short."""
    peer.send(peer.headers(1, head) + frame(RST_STREAM, 0, 1, bytes(4)))
    return peer.block(head)


class TestOpening:
    @pytest.mark.parametrize(
        "data",
        [
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
            bytes(24),
            b"nonsense",
            PREFACE[:-1] + b"x",
            PREFACE.lower(),
        ],
    )
    def test_invalid_preface(self, server: ServerProcess, data: bytes) -> None:
        with Http2Peer(server.grpc_url, opening=data) as peer:
            assert peer.wait_goaway() == PROTOCOL_ERROR

    @pytest.mark.parametrize("data", [http_request(), http_request("/v2/models/identity/infer", b"{}")])
    def test_http_1_client_gets_protocol_of_port(self, server: ServerProcess, data: bytes) -> None:
        with HttpPeer(server.grpc_url) as peer:
            peer.send(data)
            answer = peer.answer()
            assert answer.status == 400
            assert b"gRPC" in answer.body

    @pytest.mark.parametrize("data", [b"", PREFACE[:5], PREFACE, PREFACE + b"\0\0"])
    def test_clients_that_vanish(self, server: ServerProcess, data: bytes) -> None:
        for _ in range(10):
            with connect(server.grpc_url) as connected:
                connected.sendall(data)

    @pytest.mark.parametrize(
        "first", [frame(PING, 0, 0, bytes(8)), frame(HEADERS, END_HEADERS, 1), frame(SETTINGS, ACK, 0)]
    )
    def test_first_frame_is_not_settings(self, server: ServerProcess, first: bytes) -> None:
        with Http2Peer(server.grpc_url, opening=PREFACE + first) as peer:
            assert peer.wait_goaway() == PROTOCOL_ERROR

    def test_http_2_on_the_http_port(self, server: ServerProcess) -> None:
        with Http2Peer(server.http_url, opening=PREFACE + frame(PING, 0, 0, bytes(8))) as peer:
            assert peer.wait_goaway() == PROTOCOL_ERROR


class TestFrames:
    @pytest.mark.parametrize(
        ("data", "code"),
        [
            (frame(SETTINGS, 0, 0, bytes(5)), FRAME_SIZE_ERROR),
            (frame(SETTINGS, ACK, 0, bytes(6)), FRAME_SIZE_ERROR),
            (frame(SETTINGS, 0, 1), PROTOCOL_ERROR),
            (frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 2**31)), FLOW_CONTROL_ERROR),
            (frame(SETTINGS, 0, 0, struct.pack(">HI", 5, 100)), PROTOCOL_ERROR),
            (frame(SETTINGS, 0, 0, struct.pack(">HI", 5, 2**24)), PROTOCOL_ERROR),
            (frame(SETTINGS, 0, 0, struct.pack(">HI", 2, 2)), PROTOCOL_ERROR),
            (frame(SETTINGS, 0, 0, struct.pack(">HI", 99, 1) * 1000), ENHANCE_YOUR_CALM),
            (frame(PING, 0, 0, bytes(7)), FRAME_SIZE_ERROR),
            (frame(PING, 0, 1, bytes(8)), PROTOCOL_ERROR),
            (frame(RST_STREAM, 0, 1, bytes(4)), PROTOCOL_ERROR),
            (frame(RST_STREAM, 0, 0, bytes(4)), PROTOCOL_ERROR),
            (frame(RST_STREAM, 0, 1, bytes(3)), FRAME_SIZE_ERROR),
            (frame(PRIORITY, 0, 0, bytes(5)), PROTOCOL_ERROR),
            (frame(WINDOW_UPDATE, 0, 0, bytes(4)), PROTOCOL_ERROR),
            (frame(WINDOW_UPDATE, 0, 0, bytes(5)), FRAME_SIZE_ERROR),
            (frame(WINDOW_UPDATE, 0, 1, struct.pack(">I", 1)), PROTOCOL_ERROR),
            (frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 2**31 - 1)), FLOW_CONTROL_ERROR),
            (frame(PUSH_PROMISE, END_HEADERS, 1, bytes(4)), PROTOCOL_ERROR),
            (frame(CONTINUATION, END_HEADERS, 1), PROTOCOL_ERROR),
            (frame(GOAWAY, 0, 0, bytes(7)), FRAME_SIZE_ERROR),
            (frame(GOAWAY, 0, 1, bytes(8)), PROTOCOL_ERROR),
            (frame(DATA, 0, 1, b"idle"), PROTOCOL_ERROR),
            (frame(DATA, 0, 0, b"x"), PROTOCOL_ERROR),
            (frame(DATA, 0, 2, b"x"), PROTOCOL_ERROR),
            (frame(HEADERS, END_HEADERS, 0), PROTOCOL_ERROR),
            (frame(HEADERS, END_HEADERS, 2), PROTOCOL_ERROR),
            (frame(HEADERS, END_HEADERS | PADDED, 1, b"\xff\0"), PROTOCOL_ERROR),
            (frame(HEADERS, END_HEADERS | PADDED, 1), FRAME_SIZE_ERROR),
            (b"\xff\xff\xff\x00\x00\x00\x00\x00\x01", FRAME_SIZE_ERROR),
            (b"\xff\xff\xff\x04\x00\x00\x00\x00\x00", FRAME_SIZE_ERROR),
            (bytes(range(256)) * 4, FRAME_SIZE_ERROR),
        ],
    )
    def test_connection_errors(self, peer: Http2Peer, data: bytes, code: int) -> None:
        peer.send(data)
        assert peer.wait_goaway() == code
        assert peer.goaway_text

    def test_header_block_that_another_frame_interrupts(self, peer: Http2Peer) -> None:
        peer.send(frame(HEADERS, 0, 1, peer.block(grpc_head())) + frame(PING, 0, 0, bytes(8)))
        assert peer.wait_goaway() == PROTOCOL_ERROR

    def test_headers_on_a_closed_stream(self, peer: Http2Peer) -> None:
        assert_good_call(peer, 5)
        peer.send(peer.headers(3))
        assert peer.wait_goaway() == STREAM_CLOSED

    def test_unknown_frames_and_settings_are_ignored(self, peer: Http2Peer) -> None:
        peer.send(frame(77, 0xFF, 1, b"x" * 100) + frame(SETTINGS, 0, 0, struct.pack(">HI", 99, 1)))
        peer.send(frame(PRIORITY, 0, 1, bytes(5)))
        assert_good_call(peer, 1)

    def test_goaway_of_a_client_that_still_waits(self, peer: Http2Peer) -> None:
        peer.send(peer.headers(1) + frame(GOAWAY, 0, 0, bytes(8)))
        peer.send(frame(DATA, END_STREAM, 1, grpc_message(b"")))
        assert peer.answer(1).grpc_status == 0


class TestStreams:
    """Errors that cost a stream and leave the connection as it is."""

    @pytest.mark.parametrize(
        "head",
        [
            [(":method", "POST")],
            [*grpc_head(), (":path", "/late")],
            [(":nonsense", "1"), *grpc_head()],
            [*grpc_head(), ("Upper", "case")],
            [*grpc_head(), ("connection", "close")],
            [*grpc_head(), ("transfer-encoding", "chunked")],
            [*grpc_head(), ("te", "gzip")],
            [*grpc_head(), ("x", "line\nbreak")],
            [*grpc_head(), ("content-length", "-1")],
            [*grpc_head(), ("content-length", "1"), ("content-length", "2")],
            grpc_head(""),
            grpc_head("no-slash"),
        ],
    )
    def test_malformed_head(self, peer: Http2Peer, head: list[tuple[str, str]]) -> None:
        peer.send(peer.headers(1, head, end=True))
        assert peer.answer(1).reset_code == PROTOCOL_ERROR
        assert_good_call(peer, 3)

    @pytest.mark.parametrize("length", ["4", "6", "0"])
    def test_content_length_that_lies(self, peer: Http2Peer, length: str) -> None:
        head = grpc_head(GRPC_LIVE, content_length=length)
        peer.send(peer.headers(1, head) + frame(DATA, END_STREAM, 1, grpc_message(b"")))
        assert peer.answer(1).reset_code == PROTOCOL_ERROR
        assert_good_call(peer, 3)

    def test_window_of_a_stream_overflows(self, peer: Http2Peer) -> None:
        peer.send(peer.headers(1) + frame(WINDOW_UPDATE, 0, 1, struct.pack(">I", 2**31 - 1)))
        assert peer.answer(1).reset_code == FLOW_CONTROL_ERROR
        assert_good_call(peer, 3)

    def test_window_update_of_nothing(self, peer: Http2Peer) -> None:
        peer.send(peer.headers(1) + frame(WINDOW_UPDATE, 0, 1, bytes(4)))
        assert peer.answer(1).reset_code == PROTOCOL_ERROR
        assert_good_call(peer, 3)

    def test_data_after_the_end(self, peer: Http2Peer) -> None:
        assert_good_call(peer, 1)
        peer.send(frame(DATA, 0, 1, b"more"))
        peer.send(frame(PING, 0, 0, b"was read"))
        peer.wait_ping(b"was read")
        assert peer.answer(1).reset_code == STREAM_CLOSED
        assert_good_call(peer, 3)

    def test_trailers_that_do_not_end_the_stream(self, peer: Http2Peer) -> None:
        peer.send(peer.headers(1) + peer.headers(1, [("a", "b")]))
        assert peer.answer(1).reset_code == PROTOCOL_ERROR
        assert_good_call(peer, 3)

    def test_header_list_over_the_limit(self, peer: Http2Peer) -> None:
        big = [*grpc_head(), *(("x-large", f"{number:02}" + "v" * 1000) for number in range(80))]
        block = peer.block(big)
        peer.send(frame(HEADERS, END_STREAM, 1, block[:16_000]))
        pieces = [block[at : at + 16_000] for at in range(16_000, len(block), 16_000)]
        for piece in pieces[:-1]:
            peer.send(frame(CONTINUATION, 0, 1, piece))
        peer.send(frame(CONTINUATION, END_HEADERS, 1, pieces[-1]))
        fields = peer.answer(1).fields
        assert (fields[":status"], fields["grpc-status"]) == ("200", "8")
        assert "--grpc-max-header-size" in fields["grpc-message"]
        assert_good_call(peer, 3)


class TestCompression:
    PLANT = b"\x40\x01x\x7f\xe0\x1e" + b"v" * 4063
    """Inserts a field that fills the table: 1 byte of name, 4063 of value and 32 of overhead."""

    @pytest.mark.parametrize(
        "block",
        [
            b"\x80",
            b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
            b"\xc6",
            b"\x40\x7f\xff\xff\xff\x0f",
            b"\x40\x81\xff\x00",
            b"\x3f\xe1\xff\xff\x0f",
            b"\x82\x20",
            b"\x00",
        ],
    )
    def test_block_that_cannot_be_decoded(self, peer: Http2Peer, block: bytes) -> None:
        peer.send(frame(HEADERS, END_HEADERS, 1, block))
        assert peer.wait_goaway() == COMPRESSION_ERROR

    def test_bomb_of_references_to_one_large_field(self, peer: Http2Peer) -> None:
        """RFC 7541 7.3: 4 KB in the table, then one byte for each use of them."""
        peer.send(frame(HEADERS, END_HEADERS, 1, self.PLANT + b"\xbe" * 16_000))
        assert peer.wait_goaway() == ENHANCE_YOUR_CALM

    def test_bomb_does_not_cost_memory(self, server: ServerProcess) -> None:
        before = ProcessResources(server.process.pid).resident_bytes()
        for _ in range(10):
            with Http2Peer(server.grpc_url) as peer:
                peer.send(frame(HEADERS, END_HEADERS, 1, self.PLANT + b"\xbe" * 100_000))
                peer.wait_goaway()
        assert ProcessResources(server.process.pid).resident_bytes() - before < 2**25


class TestFloods:
    """Frames that cost their sender nothing: beyond a burst that honest clients never reach, the connection ends."""

    @staticmethod
    def flood(peer: Http2Peer, data: bytes, times: int) -> int:
        for _ in range(times):
            if not peer.send(data):
                break
        return peer.wait_goaway()

    @pytest.mark.parametrize(
        "one",
        [
            frame(PING, 0, 0, bytes(8)),
            frame(PING, ACK, 0, bytes(8)),
            frame(SETTINGS, 0, 0),
            frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 65_535)),
        ],
    )
    def test_control_frames(self, peer: Http2Peer, one: bytes) -> None:
        assert self.flood(peer, one * 100, 200) == ENHANCE_YOUR_CALM

    def test_empty_data(self, peer: Http2Peer) -> None:
        peer.send(peer.headers(1))
        assert self.flood(peer, frame(DATA, 0, 1) * 100, 200) == ENHANCE_YOUR_CALM

    @pytest.mark.parametrize("size", [0, 1, 4096])
    def test_continuation(self, peer: Http2Peer, size: int) -> None:
        peer.send(frame(HEADERS, 0, 1, peer.block(grpc_head())))
        assert self.flood(peer, frame(CONTINUATION, 0, 1, b"\0" * size), 1000) == ENHANCE_YOUR_CALM

    def test_rapid_reset(self, peer: Http2Peer) -> None:
        """CVE-2023-44487."""
        block = repeated_block(peer, grpc_head(GRPC_INFER))
        storm = [
            frame(HEADERS, END_HEADERS, stream_id, block) + frame(RST_STREAM, 0, stream_id, struct.pack(">I", 8))
            for stream_id in range(3, 60_001, 2)
        ]
        for at in range(0, len(storm), 500):
            if not peer.goes_on(b"".join(storm[at : at + 500])):
                break
        assert peer.wait_goaway() == ENHANCE_YOUR_CALM

    def test_resets_that_the_server_is_made_to_send(self, peer: Http2Peer) -> None:
        """CVE-2025-8671: a mistake on each stream."""
        block = repeated_block(peer, grpc_head())
        storm = [
            frame(HEADERS, END_HEADERS, stream_id, block) + frame(WINDOW_UPDATE, 0, stream_id, bytes(4))
            for stream_id in range(3, 60_001, 2)
        ]
        for at in range(0, len(storm), 500):
            if not peer.goes_on(b"".join(storm[at : at + 500])):
                break
        assert peer.wait_goaway() == ENHANCE_YOUR_CALM

    def test_excess_streams_are_refused_one_by_one(self, peer: Http2Peer) -> None:
        block = repeated_block(peer, grpc_head())
        for stream_id in range(3, 2 * 1100, 2):
            peer.send(frame(HEADERS, END_HEADERS, stream_id, block))
        assert peer.answer(3 + 2 * 1024).reset_code == 7  # REFUSED_STREAM: safe to retry
        peer.send(frame(DATA, END_STREAM, 3, grpc_message(b"")))
        assert peer.answer(3).grpc_status == 0

    def test_client_that_reads_no_answers_is_held_back(self, server: ServerProcess) -> None:
        """With its window at 0 the answers of thousands of calls wait, within bounds."""
        window = frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 0))
        before = ProcessResources(server.process.pid).resident_bytes()
        with Http2Peer(server.grpc_url, opening=PREFACE + window) as peer:
            for stream_id in range(1, 5001, 2):
                body = frame(DATA, END_STREAM, stream_id, grpc_message(b""))
                peer.send(peer.headers(stream_id) + body)
            good_call(server)
            assert ProcessResources(server.process.pid).resident_bytes() - before < 2**25
