"""Long documents are read in slices, with the result of the parser for short ones, in any chunking."""

import json
from unittest.mock import patch

from hypothesis import example, given, settings
from hypothesis import strategies as st

from naiad.core.errors import InferError
from naiad.core.slices import finish
from naiad.protocol.json import document as json_document
from naiad.protocol.json.infer import infer as infer_json
from naiad.protocol.json.infer import long_data as json_long_data
from naiad.protocol.json.infer.infer import InferJsonDecoder
from support.long_run import examples

NUMBERS = st.one_of(st.integers(-3, 300), st.floats(width=32, allow_nan=False, allow_infinity=False))
TEXTS = st.text(max_size=60)
BAD = st.sampled_from([None, "x", {"a": 1}, [], True])


def nested(element):
    return st.one_of(st.lists(element, max_size=30), st.lists(st.lists(element, min_size=2, max_size=2), max_size=12))


def count(data):
    return sum(count(each) if isinstance(each, list) else 1 for each in data)


@st.composite
def documents(draw):
    datatype, element = draw(
        st.sampled_from(
            [("FP32", NUMBERS), ("INT32", NUMBERS), ("UINT8", NUMBERS), ("BOOL", st.booleans()), ("BYTES", TEXTS)]
        )
    )
    data = draw(nested(element))
    if draw(st.integers(0, 5)) == 0:
        data.append(draw(BAD))
    size = count(data) + draw(st.sampled_from([0, 0, 0, 1]))
    tensor = {"name": draw(TEXTS), "shape": [size], "datatype": datatype, "data": data}
    members = list(tensor.items())
    tensor = dict(draw(st.permutations(members)))
    document = {"id": draw(TEXTS), "inputs": [tensor], "parameters": {"p": draw(TEXTS)}}
    escaped = draw(st.booleans())
    text = json.dumps(document, ensure_ascii=escaped, indent=draw(st.sampled_from([None, 1])))
    try:
        encoded = text.encode()
    except UnicodeEncodeError:
        encoded = json.dumps(document).encode()
    if draw(st.integers(0, 3)) == 0 and encoded:
        # An element is missing or duplicate.
        at = draw(st.integers(0, len(encoded) - 1))
        encoded = encoded[:at] + draw(st.sampled_from([b"", b",", b"[", b"]", b'"', b"\\", b" "])) + encoded[at + 1 :]
    return encoded


def outcome(decode):
    try:
        header, request_id, data = decode()
    except InferError as error:
        return error.code
    return header.inputs, dict(header.parameters), request_id, [bytes(each) for each in data]


HALF_SURROGATE = (
    b'{"id": "ud800\\udc00", "inputs": [{"name": "", "shape": [0], "datatype": "FP32", "data": []}],'
    b' "parameters": {"p": "\\ud800\\udc00"}}'
)


@settings(max_examples=examples(600), deadline=None)
@example(HALF_SURROGATE, 24, 32)
@given(documents(), st.integers(24, 90), st.integers(32, 120))
def test_slices_decode_what_the_parser_decodes(text, short_bytes, slice_bytes):
    whole = outcome(lambda: InferJsonDecoder().decode("m", "", text, None))
    with (
        patch.object(infer_json, "SHORT_BYTES", 0),
        patch.object(json_document, "SHORT_BYTES", short_bytes),
        patch.object(json_document, "SLICE_BYTES", slice_bytes),
        patch.object(json_document, "_FIRST_WINDOW_BYTES", slice_bytes),
        patch.object(json_long_data, "SLICE_BYTES", slice_bytes),
    ):
        sliced = outcome(lambda: finish(InferJsonDecoder().decode_in_slices("m", "", text, None)))
    if isinstance(whole, tuple) or isinstance(sliced, tuple):
        assert sliced == whole
