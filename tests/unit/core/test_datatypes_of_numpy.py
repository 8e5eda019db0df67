"""Dtypes of numpy and the datatypes of the protocol."""

import numpy as np
import pytest

from naiad.core.datatype import CONVERSIONS, DataType, conversion_hint, from_numpy
from naiad.core.tensor import decode_bytes_elements, to_buffer
from naiad.worker.api import tensor as worker_tensor

TEXTS = ["a", "Öl", ""]


@pytest.mark.parametrize(
    "array", [np.array(TEXTS), np.array(TEXTS, object), np.array(TEXTS, np.dtypes.StringDType())], ids=["U", "O", "T"]
)
def test_all_kinds_of_strings_are_bytes(array):
    assert from_numpy(array.dtype) is DataType.BYTES
    assert decode_bytes_elements(to_buffer(array)) == [text.encode() for text in TEXTS]


@pytest.mark.parametrize("dtype", ["datetime64[s]", "timedelta64[s]", "complex64", "V2"])
def test_dtypes_that_the_protocol_lacks(dtype):
    assert from_numpy(np.dtype(dtype)) is None


def test_numbers_have_their_datatype():
    assert from_numpy(np.dtype(">f4")) is DataType.FP32
    assert from_numpy(np.dtype(bool)) is DataType.BOOL


@pytest.mark.parametrize("unit", ["", "[s]", "[ns]"])
def test_server_and_workers_name_the_same_conversions(unit):
    assert CONVERSIONS.items() <= worker_tensor.CONVERSIONS.items()
    for kind in ("datetime64", "timedelta64"):
        dtype = np.dtype(f"{kind}{unit}")
        assert "astype('int64')" in conversion_hint(dtype) == worker_tensor.conversion_hint(dtype)
    assert "FP32, FP64" in conversion_hint(np.dtype("V2"))
