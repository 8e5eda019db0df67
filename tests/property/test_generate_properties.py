"""Any input to generate is a request or an InferError; flat JSON in gives the same flat JSON out."""

import contextlib
import json

from hypothesis import given, settings
from hypothesis import strategies as st

from naiad.core.datatype import DataType
from naiad.core.errors import InferError
from naiad.core.response import InferResponse, ResponseHeader
from naiad.core.slices import finish
from naiad.core.tensor import TensorSpec
from naiad.protocol import generate as generate_json
from support.long_run import examples


def decode_generate(*arguments):
    return finish(generate_json.decode_generate(*arguments))


def encode_generate(*arguments):
    return b"".join(finish(generate_json.encode_generate(*arguments)))


LIMIT = 1 << 20
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
ELEMENTS = {
    DataType.BOOL: st.booleans(),
    DataType.INT8: st.integers(-128, 127),
    DataType.UINT64: st.integers(0, (1 << 64) - 1),
    DataType.INT64: st.integers(-(1 << 63), (1 << 63) - 1),
    DataType.FP32: st.floats(width=32, allow_nan=False),
    DataType.FP64: st.floats(allow_nan=False),
    DataType.BYTES: TEXT,
}
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)
DIMS = st.lists(st.integers(-1, 3), max_size=3).map(tuple)


@settings(max_examples=examples(100))
@given(
    st.sampled_from(list(ELEMENTS)).flatmap(
        lambda datatype: st.tuples(st.just(datatype), st.lists(ELEMENTS[datatype], min_size=1, max_size=9))
    ),
    TEXT,
    st.dictionaries(TEXT.map(lambda name: "p" + name), st.booleans() | st.integers(-9, 9) | TEXT, max_size=4),
)
def test_values_survive_both_ways(case, request_id, parameters):
    datatype, values = case
    inputs = {"A": TensorSpec("A", datatype, (-1,))}
    body = json.dumps({"A": values, "id": request_id, "parameters": parameters}).encode()
    header, found_id, data = decode_generate("m", "", body, inputs, LIMIT)
    assert found_id == request_id
    assert dict(header.parameters) == {"id": request_id, **parameters}
    answer = InferResponse(ResponseHeader("m", "1", header.inputs), data, parameters=parameters)
    text = encode_generate(request_id, answer)
    assert b"\n" not in text
    tree = json.loads(text)
    assert tree.pop("A") == (values if len(values) > 1 else values[0])
    assert tree.pop("id", "") == request_id
    assert tree == {"model_name": "m", "model_version": "1", **parameters}
    assert list(json.loads(text)) == sorted(json.loads(text))


@given(DIMS, st.integers(0, 40))
def test_shape_has_exact_elements_and_fits_declaration(dims, count):
    inputs = {"A": TensorSpec("A", DataType.INT8, dims)}
    with contextlib.suppress(InferError):
        header, _, (data,) = decode_generate("m", "", json.dumps({"A": [1] * count}).encode(), inputs, LIMIT)
        (spec,) = header.inputs
        assert spec.element_count == len(data) == count
        assert len(spec.shape) == len(dims)
        assert all(want in (-1, got) for want, got in zip(dims, spec.shape, strict=True))


NAMES = st.sampled_from(["A", "B", "id", "parameters", "x"])
MEMBERS = st.lists(st.tuples(NAMES, JSON | st.dictionaries(NAMES, JSON, max_size=3)), max_size=6)


@given(MEMBERS, st.sampled_from(list(DataType)), st.sampled_from(list(DataType)), DIMS)
def test_any_object_is_a_request_or_refused_cleanly(members, first, second, dims):
    inputs = {"A": TensorSpec("A", first, dims), "B": TensorSpec("B", second, (-1,))}
    text = "{" + ",".join(f"{json.dumps(name)}:{json.dumps(value)}" for name, value in members) + "}"
    with contextlib.suppress(InferError):
        header, _, data = decode_generate("m", "", text.encode(), inputs, LIMIT)
        assert len(header.inputs) == len(data)
        assert all(type(value) in (str, bool, int, float) for value in header.parameters.values())


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_cleanly(body):
    with contextlib.suppress(InferError):
        decode_generate("m", "", body, {"A": TensorSpec("A", DataType.FP32, (-1,))}, LIMIT)


@given(MEMBERS)
def test_both_parsers_read_the_same(members):
    """The standard library's parser replaces simdjson where that fails, for example at a NaN."""
    inputs = {"A": TensorSpec("A", DataType.INT32, (-1,)), "B": TensorSpec("B", DataType.BYTES, (-1,))}
    text = ",".join(f"{json.dumps(name)}:{json.dumps(value)}" for name, value in members)

    def outcome(document):
        try:
            header, request_id, data = decode_generate("m", "", document.encode(), inputs, LIMIT)
        except InferError as error:
            return error.code
        header.parameters.pop("nan", None)
        return header.inputs, repr(header.parameters), request_id, [bytes(buffer) for buffer in data]

    separator = "," if text else ""
    assert outcome("{" + text + separator + '"nan":1}') == outcome("{" + text + separator + '"nan":NaN}')
