import json

import pytest

from naiad.core.datatype import DataType
from naiad.core.request import RequestHeader
from naiad.core.tensor import TensorSpec
from naiad.protocol.header_memory import SIGHTINGS
from naiad.protocol.json.infer.header import InputData, JsonRequest
from naiad.protocol.json.infer.infer import InferJsonDecoder, cut, learn

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
    assert learn(REQUEST, HEADER, around, 1) is None


def test_template_decodes_only_arrays():
    template = learn(REQUEST, HEADER, b"{\0}", 1)
    assert template is not None
    assert template.fill([b"[0.5, 2]"]) == [b"\0\0\0\x3f\0\0\0\x40"]
    for piece in (b"[1,2,3]", b"[1,NaN]", b'[1,"2"]', b"[1,2", b"7", b"", b"[1e40,1]"):
        assert template.fill([piece]) is None
    assert template.fill([]) is None


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
