"""HTTP/2 clients: requests and responses survive any cut and any window; no bytes of a server do harm."""

from contextlib import suppress

from hypothesis import given, settings
from hypothesis import strategies as st

from naiad.wire.http2 import frames as wire
from naiad.wire.http2.client_connection import ClientConnection
from naiad.wire.http2.connection_limits import Http2Limits
from naiad.wire.http2.frames import Http2Error, frame
from support.http2_pair import REQUEST_BLOCK, RESPONSE_BLOCK, ClientRecorder, Exchange, Pair
from support.http2_peer import SETTINGS_FRAME, data_frame
from support.long_run import examples

SMALL = Http2Limits(frame_bytes=16_384, stream_window_bytes=65_535, connection_window_bytes=65_535)
BODIES = st.one_of(st.binary(max_size=30), st.integers(1, 150_000).map(lambda size: b"\x07" * size))
KINDS = st.integers(0, 11)
SIZES = st.lists(st.integers(0, 300), max_size=6)


@given(st.lists(BODIES, min_size=1, max_size=5), st.lists(SIZES, min_size=2, max_size=8), st.booleans())
@settings(max_examples=examples(100))
def test_bodies_survive_any_cut_and_window(bodies, cuts, is_small):
    limits = SMALL if is_small else None
    pair = Pair(limits, limits)
    exchanges = [pair.open(body) for body in bodies]
    for sizes in cuts:
        pair.carry(pair.client, pair.server, sizes)
        pair.carry(pair.server, pair.client, sizes)
    pair.settle()
    assert [(each.ending, bytes(each.body)) for each in exchanges] == [("end", body) for body in bodies]
    assert not pair.client.streams
    assert pair.client.output.queued_bytes == 0


@st.composite
def server_bytes(draw):
    data = bytearray(SETTINGS_FRAME)
    for _ in range(draw(st.integers(0, 8))):
        stream_id = draw(st.sampled_from([0, 1, 3, 5, 2]))
        data += draw(
            st.sampled_from(
                [
                    frame(wire.HEADERS, 4, stream_id, RESPONSE_BLOCK),
                    frame(wire.HEADERS, 5, stream_id, RESPONSE_BLOCK),
                    data_frame(stream_id, b"abc"),
                    data_frame(stream_id, b"abc", end=True),
                    frame(wire.RST_STREAM, 0, stream_id, bytes(4)),
                    frame(wire.GOAWAY, 0, 0, bytes([0, 0, 0, stream_id, 0, 0, 0, 0])),
                    frame(
                        draw(st.integers(0, 11)), draw(st.integers(0, 255)), stream_id, draw(st.binary(max_size=9))
                    ),
                ]
            )
        )
    return bytes(data)


@given(server_bytes() | st.binary(max_size=100), st.lists(st.integers(1, 40), max_size=8))
@settings(max_examples=examples(300))
def test_each_request_ends_once_for_any_input(data, sizes):
    endings = []

    class Recorder(ClientRecorder):
        def end_received(self, stream, trailers):
            endings.append(stream)

        def stream_reset(self, stream, code):
            endings.append(stream)

        stream_broken = stream_reset

    client = ClientConnection(Recorder(), Http2Limits())
    exchanges = [Exchange(), Exchange()]
    for exchange in exchanges:
        client.open(exchange, REQUEST_BLOCK, ends_stream=True)
    with suppress(Http2Error):
        for size in sizes:
            client.receive_data(data[:size], 1)
            data = data[size:]
        client.receive_data(data, 1)
    ended = [id(each) for each in endings]
    assert len(ended) == len(set(ended))
    assert {each.id for each in exchanges if id(each) not in ended} == set(client.streams)
