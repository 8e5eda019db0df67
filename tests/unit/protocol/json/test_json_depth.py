"""How deep documents are nested, without parsing them."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from naiad.core.errors import ErrorCode, InferError
from naiad.protocol.json import tree as json_depth
from naiad.protocol.json.infer.infer import InferJsonDecoder
from naiad.protocol.json.tree import check_depth, parse_document, parse_infer_document, parse_members

VALUES = st.recursive(
    st.none() | st.integers() | st.text(alphabet='[]{}"\\a\n'),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(alphabet='[{"\\', max_size=4), inner, max_size=4)
    ),
    max_leaves=40,
)


def depth_of(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth_of, value.values()), default=0)
    return 1 + max(map(depth_of, value), default=0) if isinstance(value, list) else 0


@given(VALUES, st.booleans())
def test_documents_are_refused_exactly_beyond_the_limit(value: Any, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only).encode()
    depth = depth_of(value)
    check_depth(text, depth)
    if depth:
        with pytest.raises(InferError, match=f"more than {depth - 1} levels"):
            check_depth(text, depth - 1)


@given(st.binary())
def test_invalid_json_is_left_to_parser(text: bytes) -> None:
    check_depth(memoryview(text), len(text))


def test_depth_is_carried_from_piece_to_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_depth, "_PIECE", 3)
    for text in (b'[[[["]]]]", 1]]]]', b"[" * 50 + b"]" * 50, b'{"a[":[{"]":[[]]}]}'):
        depth = depth_of(json.loads(text))
        check_depth(text, depth)
        with pytest.raises(InferError):
            check_depth(text, depth - 1)


def test_wide_documents_are_not_deep() -> None:
    check_depth(b"[" + b",".join([b"[1,2]"] * 100_000) + b"]", 2)


@pytest.mark.parametrize("parse", [parse_document, parse_infer_document, parse_members])
def test_every_parser_refuses_what_is_nested_too_deeply(parse: Any) -> None:
    for depth in (1100, 1_000_000):
        with pytest.raises(InferError, match="nested more than 512 levels deep") as caught:
            parse(b'{"a":' + b"[" * depth + b"]" * depth + b"}")
        assert caught.value.code is ErrorCode.INVALID_ARG


def test_allowed_depth_is_accepted_by_every_parser() -> None:
    around = json_depth.MAX_DATA_DEPTH
    data = b"[" * around + b"1, NaN" + b"]" * around
    body = b'{"inputs":[{"name":"A","datatype":"FP32","shape":[2],"data":' + data + b"}]}"
    for text in (body, body.replace(b"NaN", b"2")):
        header, _, (values,) = InferJsonDecoder().decode("m", "", text, None)
        assert header.inputs[0].shape == (2,)
        assert len(values) == 8


@pytest.mark.parametrize(
    ("datatype", "element"), [("FP32", b"1"), ("INT64", b"1"), ("FP32", b"NaN"), ("BYTES", b'"a"'), ("BOOL", b"true")]
)
@pytest.mark.parametrize("count", [1, 2000, 3_000_000])
def test_tensor_data_is_refused_beyond_its_depth(datatype: str, element: bytes, count: int) -> None:
    if count > 2000 and element != b"1":
        pytest.skip("one datatype is enough for a document that is decoded in slices")
    for around, is_allowed in ((99, True), (100, False), (120, False)):
        data = b"[" * around + b",".join([element] * count) + b"]" * around
        start = b'{"inputs":[{"name":"A","datatype":"%s","shape":[%d],"data":' % (datatype.encode(), count)
        if is_allowed:
            header, _, _ = InferJsonDecoder().decode("m", "", start + data + b"}]}", None)
            assert header.inputs[0].shape == (count,)
            continue
        with pytest.raises(InferError, match=r"^JSON nesting depth exceeds maximum allowed limit \(100\)") as caught:
            InferJsonDecoder().decode("m", "", start + data + b"}]}", None)
        assert caught.value.code is ErrorCode.INVALID_ARG
