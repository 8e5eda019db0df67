"""Validation of responses: equal ones pass, and the first difference is named."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from naiad.core.datatype import DataType, from_numpy
from naiad.core.tensor import TensorSpec, to_buffer
from naiad.tools.perf.inputs.templates import validate
from naiad.tools.values.conversion import strings


def response(**outputs):
    specs = [TensorSpec(name, from_numpy(array.dtype), array.shape) for name, array in outputs.items()]
    return specs, [to_buffer(array) for array in outputs.values()]


def difference(expected, got, tolerance=0.0):
    return validate({"A": expected}, [response(A=got)], tolerance)


DTYPES = st.sampled_from([each.numpy for each in DataType if each not in (DataType.BYTES, DataType.BF16)])


@given(DTYPES.flatmap(lambda dtype: arrays_of.arrays(dtype, (2, 2))), st.sampled_from([0.0, 0.1]))
def test_equal_arrays_pass(array, tolerance):
    assert difference(array, array.copy(), tolerance) == ""


@given(arrays_of.arrays(np.int16, (2, 3)), st.integers(0, 5), st.integers(1, 65535))
def test_first_difference_is_named(array, index, change):
    other = array.copy()
    other.view(np.uint16).flat[index] ^= np.uint16(change)
    place = [index // 3, index % 3]
    assert difference(array, other) == f"output 'A'{place}: expected {array.flat[index]}, got {other.flat[index]}"


@pytest.mark.parametrize(
    ("expected", "got", "tolerance", "words"),
    [
        (np.float32([1.0, 2.0]), np.float32([1.0, 2.1]), 0.1, ""),
        (np.float32([1.0, 2.0]), np.float32([1.0, 2.3]), 0.1, "[1]: expected 2.0, got 2.3"),
        (np.float32([np.nan, np.inf]), np.float32([np.nan, np.inf]), 0.1, ""),
        (np.array([1, 256], ml_dtypes.bfloat16), np.array([1, 258], ml_dtypes.bfloat16), 0.01, ""),
        (np.array([1, 256], ml_dtypes.bfloat16), np.array([1, 258], ml_dtypes.bfloat16), 0, "[1]: expected 256"),
        (np.float32([0.0]), np.float32([-0.0]), 0, "[0]: expected 0.0, got -0.0"),
        (np.int32([100]), np.int32([101]), 0.1, "[0]: expected 100, got 101"),
        (np.int32([1]), np.int32([1, 2]), 0, ": expected shape [1], got [2]"),
        (np.int32([1]), np.int64([1]), 0, ": expected values of int32, got INT64"),
        (strings([b"a", b"b"]), strings([b"a", b"b"]), 0, ""),
        (strings([b"a", b"b"]), strings([b"a", b""]), 0, "[1]: expected b'b', got b''"),
        (np.int32(3), np.int32(4), 0, "[]: expected 3, got 4"),
        (np.empty((0, 2), np.int32), np.empty((0, 2), np.int32), 0, ""),
    ],
)
def test_differences_follow_the_datatype(expected, got, tolerance, words):
    found = difference(np.asarray(expected), np.asarray(got), tolerance)
    assert found.removeprefix("output 'A'").startswith(words)
    assert bool(found) == bool(words)


def test_missing_output_is_named():
    assert "output 'B': missing in the response; it has 'A'" in validate(
        {"B": np.int32([1])}, [response(A=np.int32([1]))]
    )


def test_outputs_may_come_in_several_responses():
    body = [response(A=np.int32([1])), response(A=np.int32([2]), B=np.int32([3]))]
    assert validate({"A": np.int32([1]), "B": np.int32([3])}, body) == ""


def test_short_data_is_a_difference():
    body = [([TensorSpec("A", DataType.INT32, (2,))], [b"\0\0\0\0"])]
    assert "Expected 8, got 4" in validate({"A": np.int32([0, 0])}, body)
