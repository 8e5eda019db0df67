import json
import math

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from naiad.core.datatype import DataType
from naiad.core.errors import InferError
from naiad.core.request import RequestHeader
from naiad.core.tensor import TensorSpec
from naiad.protocol.header_memory import SIGHTINGS
from naiad.protocol.json.infer.header import InputData, JsonRequest
from naiad.protocol.json.infer.infer import InferJsonDecoder
from naiad.protocol.json.infer.json_template import JsonTemplate, cut, learn
from naiad.protocol.json.tensor import decode_data, flatten

SPEC = TensorSpec("A", DataType.FP32, (2,))
HEADER = RequestHeader(model_name="m", inputs=[SPEC])
REQUEST = JsonRequest(HEADER, "", [InputData(inline=bytes(8))])


def document(values, name="A", **members):
    entry = {"name": name, "shape": [len(values)], "datatype": "FP32", "data": values}
    return json.dumps({**members, "inputs": [entry]}).encode()


def test_a_document_is_cut_around_its_arrays():
    around, pieces = cut(b'{"x":[{"data":[1,2],"name":"A"},{"data": [3]}]}')
    assert around == b'{"x":[{\0,"name":"A"},{\0}]}'
    assert pieces == [b"[1,2]", b" [3]"]


@pytest.mark.parametrize(
    "around",
    [
        pytest.param(b'{"extra":"\\"",\0}', id="an escape"),
        pytest.param(b'{"extra":"data",\0}', id="a name that may be another member's"),
        pytest.param(b"{\0\0}", id="more data than inputs"),
        pytest.param(b"{}", id="less data than inputs"),
        pytest.param(b"{" + b" " * 9000 + b"\0}", id="too long to keep"),
    ],
)
def test_nothing_is_learned_where_it_is_not_safe(around):
    assert learn(REQUEST, HEADER, around, [b"[1,2]"]) is None


def test_template_decodes_only_arrays():
    template = learn(REQUEST, HEADER, b"{\0}", [b"[1,2]"])
    assert template is not None
    assert template.fill([b"[0.5, 2]"]) == [b"\0\0\0\x3f\0\0\0\x40"]
    for piece in (b"[1,2,3]", b"[1,NaN]", b'[1,"2"]', b"[1,2", b"7", b"", b"[1e40,1]"):
        assert template.fill([piece]) is None
    assert template.fill([]) is None


NUMERIC = [
    datatype for datatype in DataType if datatype not in (DataType.BYTES, DataType.BOOL, DataType.FP16, DataType.BF16)
]
ELEMENTS = st.one_of(
    st.integers(-(1 << 64), 1 << 65),
    st.floats(allow_nan=False, allow_infinity=False),
    st.booleans(),
    st.none(),
    st.text(),
)


def converted(spec, piece, *, nan_is_null):
    """The raw bytes as the careful reader makes them; None where it refuses."""
    try:
        return bytes(decode_data(spec, orjson.loads(piece), nan_is_null=nan_is_null))
    except (ValueError, InferError):
        return None


ARRAYS = st.lists(ELEMENTS, min_size=1, max_size=3)
ARRAYS = st.one_of(ARRAYS, st.lists(st.one_of(ARRAYS, ELEMENTS), min_size=1, max_size=2), st.lists(st.lists(ARRAYS)))


@given(st.sampled_from(NUMERIC), st.lists(ARRAYS, max_size=2), st.booleans())
@example(DataType.FP32, [[True, 1]], False)
@example(DataType.INT8, [[False]], False)
@example(DataType.FP64, [[None, 1]], True)
@example(DataType.FP32, [[math.ulp(0), 3.4028235677973366e38]], False)
@example(DataType.UINT64, [[1 << 64]], False)
@example(DataType.FP32, [[[1, 2.5], [3, 4]], [[[5]], [[-6]]]], False)
@example(DataType.INT32, [[[1], [True]]], False)
@example(DataType.INT32, [[[], [1]]], False)
def test_read_equals_decode_data(datatype, lists, nan_is_null):
    specs = [TensorSpec(str(number), datatype, (len(flatten(each)),)) for number, each in enumerate(lists)]
    text = json.dumps({"inputs": [{"data": each} for each in lists]}).encode()
    around, pieces = cut(text)
    header = RequestHeader(model_name="m", inputs=specs, nan_is_null=nan_is_null)
    template = JsonTemplate(header, "", specs, around)
    expected = [
        converted(spec, json.dumps(each), nan_is_null=nan_is_null) for spec, each in zip(specs, lists, strict=True)
    ]
    assert template.read(text) in (None, expected)
    filled = template.fill(pieces)
    assert filled is None or list(map(bytes, filled)) == expected


@pytest.mark.parametrize(
    "data", [b"[1,2.5,-3,4e0]", b" [1, 2.5, -3, 4]", b"[[1,2.5],[-3,4]]", b"[[[1], [2.5], [-3], [4]]]"]
)
def test_regular_numbers_are_read_at_once(data):
    spec = TensorSpec("A", DataType.FP32, (4,))
    template = JsonTemplate(HEADER, "", [spec], b"{\0}")
    assert template.read(b'{"data":%b}' % data) == [bytes.fromhex("0000803f00002040000040c000008040")]


def outcome(decoder, text):
    try:
        header, request_id, data = decoder.decode("m", "", text, None)
    except InferError as error:
        return error.code, error.message
    return header.inputs, header.parameters, header.priority, request_id, list(map(bytes, data))


MARKS = [b"]", b"[", b"{},", b'"",', b'"data":', b'"data":[1,2]', b",", b"true", b"\\", b'"', b"}", b"0", b"\0", b"x"]


@pytest.mark.parametrize("values", [[1, 2], [[1], [2]]], ids=["flat", "nested"])
@pytest.mark.parametrize("taken", [0, 1])
def test_changed_text_is_decoded_as_if_unknown(values, taken):
    text = document(values, id="a")
    decoder = InferJsonDecoder()
    for _ in range(SIGHTINGS + 2):
        header, *_ = decoder.decode("m", "", text, None)
        header.admission = "admitted"
    for at in range(len(text) + 1):
        for mark in MARKS:
            changed = text[:at] + mark + text[at + taken :]
            assert outcome(decoder, changed) == outcome(InferJsonDecoder(), changed)
            decoder.decode("m", "", text, None)
            assert decoder._recent["m", ""].header is header


@pytest.mark.parametrize("space", [b"", b" "])
@pytest.mark.parametrize("depth", [2, 99, 100])
def test_deep_data_is_decoded_as_if_unknown(depth, space):
    text = b'{"inputs":[{"name":"A","shape":[1],"datatype":"FP32","data":%b}]}'
    decoder = InferJsonDecoder()
    for _ in range(SIGHTINGS + 2):
        header, *_ = decoder.decode("m", "", text % b"[7]", None)
        header.admission = "admitted"
    deep = text % ((b"[[" + space) * (depth // 2) + b"[" * (depth % 2) + b"7" + b"]" * depth)
    assert outcome(decoder, deep) == outcome(InferJsonDecoder(), deep)


NUMBER = b'{"inputs":[{"name":"A","shape":[1],"datatype":"INT32","data":%b}]}'


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b'[[1] ]}],"parameters":{"priority":7},"x":[{"y":[[1]]', id="members of the request"),
        pytest.param(b'[[1] ],"x":[[1]]', id="members of the input"),
        pytest.param(b"[ [1]]", id="a space between its brackets"),
    ],
)
@pytest.mark.parametrize("later", [b"[1]", b"[[1]]", b"[1]]"])
def test_members_in_a_piece_have_no_template(data, later):
    decoder = InferJsonDecoder()
    for _ in range(SIGHTINGS + 2):
        header, *_ = decoder.decode("m", "", NUMBER % data, None)
        header.admission = "admitted"
    assert outcome(decoder, NUMBER % later) == outcome(InferJsonDecoder(), NUMBER % later)


def test_requests_without_id_stay_without_one():
    decoder = InferJsonDecoder()
    text = NUMBER % b"[1]"
    for _ in range(SIGHTINGS + 2):
        header, *_ = decoder.decode("m", "", b'{"id":"a",' + text[1:], None)
        header.admission = "admitted"
    assert decoder.decode("m", "", text, None)[1] == ""


def test_last_template_is_tried_first():
    decoder = InferJsonDecoder()
    for name in ["A", "B"] * (SIGHTINGS + 1) + ["A"]:
        header, *_ = decoder.decode("m", "", document([1, 2], name), None)
        header.admission = "admitted"
    assert decoder._recent["m", ""].header.inputs[0].name == "A"
    assert decoder.decode("m", "", document([3, 4], "A"), None)[0] is header


def test_requests_differing_in_id_and_numbers_share_header():
    decoder = InferJsonDecoder()
    for _ in range(SIGHTINGS + 1):
        first, first_id, _ = decoder.decode("m", "", document([1, 2], id="a"), None)
        first.admission = "admitted"
    second, second_id, (data,) = decoder.decode("m", "", document([3, 4], id="b"), None)
    assert second is first
    assert (first_id, second_id) == ("a", "b")
    assert bytes(data) == bytes.fromhex("0000404000008040")


def test_the_oldest_template_is_forgotten():
    decoder = InferJsonDecoder(cached_headers=2)
    for name in ["A", "B", "C", "A", "C"] * SIGHTINGS:
        header, _, _ = decoder.decode("m", "", document([1, 2], name), None)
        assert header.inputs[0].name == name
        header.admission = "admitted"
    decoder.decode("m", "", document([1, 2], "D"), None)
    assert len(decoder._templates) == 2
