"""Frames: decoding inverts encoding, and malformed frames are rejected."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from naiad.worker.channel.frame import (
    EXECUTE,
    MAX_FRAME_BYTES,
    PREFIX,
    ChannelError,
    decode_frame,
    encode_frame,
    frame_bytes,
)

words = st.lists(st.integers(0, 2**64 - 1), max_size=200)
texts = st.text(max_size=50)
notes = st.none() | st.dictionaries(st.text(max_size=5), st.integers() | st.lists(st.text(max_size=3)), max_size=3)
parts = st.lists(st.binary(max_size=100), max_size=5)


def encoded(*, words=(), text="", extra=None, parts=(), block=0):
    return encode_frame(EXECUTE, words, text, extra, parts, sum(map(len, parts)), block, 77)


@given(words, texts, notes, parts)
def test_what_is_encoded_is_decoded(words, text, extra, parts):
    data = encoded(words=words, text=text, extra=extra, parts=parts)
    assert frame_bytes(data) == len(data)
    frame = decode_frame(data, bytes)
    assert frame.kind == EXECUTE
    assert list(frame.words) == words
    assert frame.text == text
    assert frame.extra == (extra or {})
    assert frame.payload == b"".join(parts)
    assert frame.payload_bytes == len(frame.payload)
    assert frame.allowance_bytes == 77


def test_lone_surrogates_survive():
    assert decode_frame(encoded(text="\ud800x"), bytes).text == "\ud800x"


def test_payload_in_block_is_not_in_frame():
    data = encode_frame(EXECUTE, [1], "a", None, [], 10**12, 3, 0)
    assert len(data) == PREFIX.size + 8 + 1
    frame = decode_frame(data, bytes)
    assert (frame.block, frame.payload_bytes, frame.payload) == (3, 10**12, b"")


@given(st.binary(min_size=PREFIX.size, max_size=200))
def test_arbitrary_bytes_are_decoded_or_refused(data):
    try:
        frame = decode_frame(data, bytes)
    except ChannelError:
        return
    assert PREFIX.size + 8 * len(frame.words) <= len(data)


@given(words, texts, parts, st.integers(0, PREFIX.size - 1), st.integers(0, 255))
def test_damaged_prefix_yields_nothing_beyond_frame(words, text, parts, at, value):
    data = bytearray(encoded(words=words, text=text, parts=parts))
    data[at] = value
    try:
        frame = decode_frame(bytes(data), bytes)
    except ChannelError:
        return
    inline = 0 if frame.block else frame.payload_bytes
    assert len(frame.payload) == inline <= len(data)


@pytest.mark.parametrize("size", [0, PREFIX.size - 1, MAX_FRAME_BYTES + 1])
def test_absurd_length_is_refused(size):
    with pytest.raises(ChannelError, match=f"a frame of {size} bytes"):
        frame_bytes(struct.pack("<I", size))


@pytest.mark.parametrize("extra", [b"[1]", b"{", b"\xff"])
def test_notes_that_are_no_object_are_refused(extra):
    data = bytearray(PREFIX.pack(PREFIX.size + len(extra), EXECUTE, 0, 0, len(extra), 0, 0, 0) + extra)
    with pytest.raises(ChannelError, match="unreadable frame"):
        decode_frame(bytes(data), bytes)
