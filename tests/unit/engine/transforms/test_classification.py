"""Top classes: order, ties, formats, shapes and labels, held against a plain sort."""

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from naiad.core.datatype import BY_NAME, DataType
from naiad.core.errors import ErrorCode, InferError
from naiad.core.tensor import TensorSpec, decode_bytes_elements
from naiad.engine.transforms.classification import MAX_CLASSES, MAX_VALUES, class_shape, classify, top_indices


def classes(values, count, labels=(), *, datatype="FP32", is_batching=False):
    kind = BY_NAME[datatype]
    array = np.array(values, kind.numpy)
    raw = classify(TensorSpec("OUT", kind, array.shape), array.tobytes(), count, labels, is_batching=is_batching)
    return [text.decode() for text in decode_bytes_elements(raw)]


def test_values_descend_with_their_indices():
    assert classes([1.5, 3.3, 2], 2) == ["3.300000:1", "2.000000:2"]


def test_labels_stand_behind():
    assert classes([1, 3, 2, 4], 4, ["zero", "", "two words"]) == [
        "4.000000:3",
        "3.000000:1",
        "2.000000:2:two words",
        "1.000000:0:zero",
    ]


def test_every_entry_of_a_batch_has_its_own():
    assert classes([[1, 2], [4, 3]], 1, ["a", "b"], is_batching=True) == ["2.000000:1:b", "4.000000:0:a"]


def test_without_batching_all_dimensions_are_one_entry():
    assert classes([[1, 2], [4, 3]], 2) == ["4.000000:2", "3.000000:3"]


def test_entries_of_several_dimensions():
    assert classes([[[1, 2], [4, 3]]], 2, is_batching=True) == ["4.000000:2", "3.000000:3"]


def test_of_equal_values_the_first_comes_first():
    assert classes([3] * 20, 3) == ["3.000000:0", "3.000000:1", "3.000000:2"]
    assert classes([1, 5, 2, 5, 5], 2) == ["5.000000:1", "5.000000:3"]


def test_floats_are_written_as_c_writes_them():
    assert classes([1e20, -0.0, float("inf"), float("-inf")], 4) == [
        "inf:2",
        "100000002004087734272.000000:0",
        "-0.000000:1",
        "-inf:3",
    ]


def test_what_is_no_number_comes_last():
    assert classes([float("nan"), -1, float("nan"), float("-inf")], 4) == [
        "-1.000000:1",
        "-inf:3",
        "nan:0",
        "nan:2",
    ]


@pytest.mark.parametrize(
    ("datatype", "values", "expected"),
    [
        ("UINT8", [0, 255, 7], ["255:1", "7:2"]),
        ("INT8", [-128, 127, 0], ["127:1", "0:2"]),
        ("UINT16", [0, 65535, 7], ["65535:1", "7:2"]),
        ("INT16", [-1, 5, 5], ["5:1", "5:2"]),
        ("UINT32", [0, 2**32 - 1, 7], ["4294967295:1", "7:2"]),
        ("INT32", [-(2**31), 3, 4], ["4:2", "3:1"]),
        ("UINT64", [0, 2**64 - 1, 2**63], ["18446744073709551615:1", "9223372036854775808:2"]),
        ("INT64", [-(2**63), 2**63 - 1, 0], ["9223372036854775807:1", "0:2"]),
        ("FP64", [0.1, 1e-7, 0.2], ["0.200000:2", "0.100000:0"]),
    ],
)
def test_datatypes(datatype, values, expected):
    assert classes(values, 2, datatype=datatype) == expected


@pytest.mark.parametrize("datatype", ["BOOL", "FP16", "BF16", "BYTES"])
def test_datatypes_that_are_refused(datatype):
    with pytest.raises(InferError) as caught:
        classify(TensorSpec("OUT", BY_NAME[datatype], (0,)), b"", 1, (), is_batching=False)
    assert caught.value.code is ErrorCode.INVALID_ARG
    expected = f"class result not available for output due to unsupported type '{datatype}'"
    assert caught.value.message == expected


@pytest.mark.parametrize(
    ("shape", "count", "is_batching"),
    [
        ((MAX_VALUES + 1,), 1, False),
        ((MAX_CLASSES + 1,), MAX_CLASSES + 1, False),
        ((MAX_CLASSES + 1, 2), 1, True),
        ((1001, 100), 1, True),
    ],
)
def test_limits(shape, count, is_batching):
    spec = TensorSpec("OUT", DataType.UINT8, shape)
    with pytest.raises(
        InferError, match=r"class result not available for output 'OUT': .* a response may have"
    ) as caught:
        classify(spec, bytes(spec.byte_size), count, (), is_batching=is_batching)
    assert caught.value.code is ErrorCode.INVALID_ARG


def test_four_million_values_take_little():
    values = np.random.default_rng(0).standard_normal(MAX_VALUES).astype(np.float32)
    began_s = time.thread_time()
    found = top_indices(values, 3)
    assert time.thread_time() - began_s < 0.5
    assert found.tolist() == np.argsort(-values)[:3].tolist()


def test_many_short_entries_are_sorted_together():
    values = np.arange(50_000 * 10, dtype=np.int32).reshape(50_000, 10)
    began_s = time.thread_time()
    found = classes(values, 1, datatype="INT32", is_batching=True)
    assert time.thread_time() - began_s < 0.5
    assert found == [f"{row * 10 + 9}:9" for row in range(50_000)]


@pytest.mark.parametrize(
    ("shape", "count", "is_batching", "expected"),
    [
        ((2, 10), 3, True, (2, 3)),
        ((2, 10), 30, True, (2, 10)),
        ((2, 10), 30, False, (20,)),
        ((10,), 3, False, (3,)),
        ((4,), 3, True, (4, 1)),
        ((0, 10), 3, True, (0, 3)),
        ((2, 0), 3, True, (2, 0)),
    ],
)
def test_shapes(shape, count, is_batching, expected):
    assert class_shape(shape, count, is_batching=is_batching) == expected
    spec = TensorSpec("OUT", DataType.FP32, shape)
    raw = classify(spec, bytes(spec.byte_size), count, (), is_batching=is_batching)
    assert len(decode_bytes_elements(raw)) == np.prod(expected)


_FLOATS = arrays(np.float32, st.integers(0, 40), elements=st.sampled_from([0, 1, -1, np.nan, np.inf, -np.inf, 2.5]))
_INTEGERS = arrays(np.uint64, st.integers(0, 40), elements=st.sampled_from([0, 1, 2**63, 2**64 - 1]))


@given(values=_FLOATS | _INTEGERS, count=st.integers(0, 45))
def test_order_is_that_of_a_stable_sort(values, count):
    def key(index):
        value = values[index].item()
        return (True, 0) if value != value else (False, -value)

    expected = sorted(range(len(values)), key=key)[:count]
    assert top_indices(values, min(count, len(values))).tolist() == expected
