"""BYTES elements: decoder and counter accept the same data and reject other data with the same message."""

import struct

from hypothesis import given
from hypothesis import strategies as st

from naiad.core.errors import InferError
from naiad.core.slices import finish
from naiad.core.tensor import count_bytes_elements, decode_bytes_elements, encode_bytes_elements

ELEMENTS = st.lists(st.binary(max_size=9), max_size=6)


def decoded_count(data):
    try:
        return len(decode_bytes_elements(data, "here"))
    except InferError as error:
        return error.message


def counted(data):
    try:
        return finish(count_bytes_elements(data, "here"))
    except InferError as error:
        return error.message


@given(ELEMENTS)
def test_decoding_inverts_encoding(elements):
    assert decode_bytes_elements(encode_bytes_elements(elements)) == elements


@given(ELEMENTS, st.integers(1, 20))
def test_decoder_and_counter_agree_on_truncated_data(elements, missing):
    whole = encode_bytes_elements(elements)
    data = whole[: max(0, len(whole) - missing)]
    count = decoded_count(data)
    assert count == counted(data)
    ends = [0, *(len(encode_bytes_elements(elements[: i + 1])) for i in range(len(elements)))]
    assert isinstance(count, int) == (len(data) in ends)


@given(st.lists(st.one_of(st.integers(0, 6).map(struct.Struct("<I").pack), st.binary(max_size=6)), max_size=8))
def test_decoder_and_counter_agree_on_any_bytes(parts):
    data = b"".join(parts)
    assert decoded_count(data) == counted(data)
