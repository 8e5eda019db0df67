"""Outputs that are not as the model declares them: kept where no value changes, refused otherwise."""

import numpy as np
import pytest

from naiad.core.datatype import DataType
from naiad.core.errors import InferError
from naiad.tools.predict.rows.declared_output import as_declared
from naiad.tools.values.tensor import ModelTensor

FLOATS = np.arange(4, dtype=np.float32)
TEXTS = np.array([[b"a", b"b"]] * 4, object)


def declared(rows, dims, datatype=DataType.FP32):
    return as_declared(ModelTensor("Y", datatype, dims, is_batched=True), rows)


@pytest.mark.parametrize(
    ("shape", "dims", "wanted"),
    [
        ((4,), (1,), (4, 1)),
        ((4, 1, 1), (1,), (4, 1)),
        ((2, 2), (1, 2), (2, 1, 2)),
        ((2, 1, 2), (2,), (2, 2)),
        ((4,), (-1,), (4, 1)),
        ((4, 1), (), (4,)),
        ((2, 2), (-1,), (2, 2)),
        ((1, 2, 2), (-1, 1, 2), (1, 2, 1, 2)),
    ],
)
def test_axes_of_one_element_are_as_declared(shape, dims, wanted):
    found = declared(FLOATS.reshape(shape), dims)
    assert found.shape == wanted
    np.testing.assert_array_equal(found.ravel(), FLOATS)


@pytest.mark.parametrize(
    ("rows", "dims"),
    [
        (FLOATS.reshape(1, 4), (1,)),
        (FLOATS.reshape(1, 4), (2, 2)),
        (FLOATS.reshape(1, 2, 2), (-1,)),
        (FLOATS.reshape(4, 1)[:, :0], (1,)),
        (FLOATS.reshape(1, 4), (3,)),
        (TEXTS, (1,)),
    ],
)
def test_other_shapes_are_refused(rows, dims):
    datatype = DataType.BYTES if rows.dtype == object else DataType.FP32
    with pytest.raises(InferError, match=r"output 'Y' has shape .* in a row, and the model declares"):
        declared(rows, dims, datatype)


def test_datatypes_that_hold_the_same_values_are_converted():
    whole = np.array([[1], [2]], np.int64)
    assert declared(whole, (1,)).dtype == np.float32
    missing = np.array([[np.nan], [np.inf]])
    np.testing.assert_array_equal(declared(missing, (1,)), missing)
    assert declared(whole, (1,), DataType.UINT8).dtype == np.uint8


@pytest.mark.parametrize(
    ("rows", "datatype"),
    [
        (np.array([[0.5]]), DataType.INT32),
        (np.array([[300]]), DataType.UINT8),
        (np.array([[-1]], np.int8), DataType.UINT8),
        (np.array([[(1 << 53) + 1]]), DataType.FP64),
        (np.array([[1e300]]), DataType.FP32),
        (np.array([[1.0]]), DataType.BYTES),
        (np.array([[b"1"]], object), DataType.FP32),
    ],
)
def test_datatypes_that_change_values_are_refused(rows, datatype):
    with pytest.raises(InferError, match=f"and the model declares {datatype.value}"):
        declared(rows, (1,), datatype)
