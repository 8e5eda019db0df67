"""A decoder with a history of documents gives the same result as a new one."""

import json

from hypothesis import example, given
from hypothesis import strategies as st

from naiad.core.errors import InferError
from naiad.protocol.json.infer.infer import InferJsonDecoder

NUMBERS = st.lists(st.integers(-3, 300) | st.floats(-2, 2, width=32), min_size=2, max_size=2)
STRINGS = st.lists(
    st.sampled_from(["a", "]", '"data":', '","data":[1,2]', "\\", "é", "\0", ""]), min_size=2, max_size=2
)
NESTED = st.sampled_from([[[1], [2]], [[1, 2]], [True, False], [1, None], [], 7, "x", {"data": [1, 2]}])
EXTRAS = st.dictionaries(
    st.sampled_from(["parameters", "extra", "data", 'x"data', "id"]), NESTED | STRINGS, max_size=2
)


@st.composite
def entries(draw):
    datatype = draw(st.sampled_from(["FP32", "INT8", "BYTES", "BOOL", "UINT64"]))
    entry = {"name": draw(st.sampled_from(["A", "data", '"data":'])), "shape": [2], "datatype": datatype}
    entry["data"] = draw(STRINGS if datatype == "BYTES" else NUMBERS | NESTED)
    entry.update(draw(EXTRAS))
    return dict(draw(st.permutations(list(entry.items()))))


@st.composite
def documents(draw):
    tree = {"id": draw(st.sampled_from(["", "7", "x\\", '"', "\n"]))} if draw(st.booleans()) else {}
    tree["inputs"] = draw(st.lists(entries(), min_size=1, max_size=2))
    tree.update(draw(EXTRAS))
    text = json.dumps(tree, separators=draw(st.sampled_from([(",", ":"), (", ", ": "), (",", " : ")])))
    return text.encode()


PIECES = st.sampled_from(
    [b'"data":', b'"data"', b'"data":[1,2]', b"[1,2]", b"]", b"[", b'"', b"\\", b"\0", b",", b"1", b"", b'"id":"9",']
)


@st.composite
def pairs(draw):
    """Draw two similar documents."""
    first = draw(documents())
    second = first
    for _ in range(draw(st.integers(0, 2))):
        start = draw(st.integers(0, len(second)))
        end = min(len(second), start + draw(st.integers(0, 6)))
        second = second[:start] + draw(PIECES) + second[end:]
    return first, second


def outcome(decoder, document):
    try:
        header, request_id, data = decoder.decode("m", "", document, None)
    except InferError as error:
        return error.code, error.message
    return header.inputs, header.outputs, dict(header.parameters), request_id, [bytes(part) for part in data]


@given(pairs())
@example(
    (
        b'{"inputs":[{"name":"A","shape":[2],"datatype":"FP32","data":[1,2]}]}',
        b'{"inputs":[{"name":"A","shape":[2],"datatype":"FP32",\0}]}',
    )
)
@example(
    (
        b'{"id":"1","inputs":[{"name":"A","shape":[2],"datatype":"FP32","data":[1,2]}],"id":"2"}',
        b'{"inputs":[{"name":"A","shape":[2],"datatype":"FP32","data":[1,2]}],"id":"2"}',
    )
)
@example(
    (
        b'{"inputs":[{"name":"A","shape":[2],"datatype":"FP32","data":[1,2]}]}',
        b'{"inputs":[{"name":"A","shape":[2],"datatype":"FP32","data":[1,2]],[3]}]}',
    )
)
def test_what_was_seen_before_changes_nothing(pair):
    decoder = InferJsonDecoder()
    for document in (*pair, *pair):
        assert outcome(decoder, document) == outcome(InferJsonDecoder(), document)
