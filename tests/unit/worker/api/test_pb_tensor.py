"""`pb_utils.Tensor`: datatypes, strings, layout, DLPack."""

import ml_dtypes
import numpy as np
import pytest
import triton_python_backend_utils as pb_utils

from naiad.worker.api.tensor import (
    ReceivedStrings,
    ReceivedTensor,
    TensorPlan,
    decode_strings,
    encode_strings,
)

NUMERIC = [
    np.bool_,
    np.uint8,
    np.uint16,
    np.uint32,
    np.uint64,
    np.int8,
    np.int16,
    np.int32,
    np.int64,
    np.float16,
    np.float32,
    np.float64,
]


@pytest.mark.parametrize("number", range(1, 13))
def test_every_numeric_type_has_its_triton_number(number):
    kind = NUMERIC[number - 1]
    tensor = pb_utils.Tensor("x", np.zeros((2, 3), kind))
    assert tensor.triton_dtype() == number
    assert pb_utils.triton_to_numpy_type(number) is kind
    assert pb_utils.numpy_to_triton_type(kind) == number
    assert tensor.shape() == [2, 3]
    assert tensor.name() == "x"
    assert tensor.is_cpu()


def test_array_is_the_one_given():
    array = np.arange(4, dtype=np.float32)
    tensor = pb_utils.Tensor("x", array)
    assert tensor.as_numpy() is array


@pytest.mark.parametrize(
    "array", [np.array(["a", "é"]), np.array([b"a", b"\xff"]), np.array([b"a", "b", 3], object)], ids="USO"
)
def test_strings_of_every_kind(array):
    tensor = pb_utils.Tensor("x", array)
    assert tensor.triton_dtype() == 13
    assert tensor.as_numpy() is array


def test_layout_becomes_c_order():
    tensor = pb_utils.Tensor("x", np.arange(6, dtype=np.int32).reshape(2, 3).T)
    assert tensor.as_numpy().flags.c_contiguous
    assert tensor.as_numpy().tolist() == [[0, 3], [1, 4], [2, 5]]


def test_foreign_byte_order_becomes_native():
    tensor = pb_utils.Tensor("x", np.array([1, 2], ">i4"))
    assert tensor.as_numpy().dtype == np.int32
    assert tensor.as_numpy().tolist() == [1, 2]


def test_scalars_keep_their_shape():
    assert pb_utils.Tensor("x", np.array(3.0)).shape() == []


@pytest.mark.parametrize("kind", [np.complex64, "datetime64[s]", [("a", int)]])
def test_types_that_the_protocol_lacks_are_refused(kind):
    with pytest.raises(pb_utils.TritonModelException, match="NumPy dtype is not supported"):
        pb_utils.Tensor("x", np.zeros(1, kind))


@pytest.mark.parametrize("kind", ["complex64", "datetime64[s]", "timedelta64[ms]"])
def test_refused_dtypes_are_named(kind):
    with pytest.raises(pb_utils.TritonModelException, match=f"Tensor 'when' has {kind.split('[')[0]}.*: "):
        pb_utils.Tensor("when", np.zeros(1, kind))


@pytest.mark.skipif(not hasattr(np.dtypes, "StringDType"), reason="NumPy 1 has no StringDType")
def test_strings_of_numpy_2_are_bytes():
    tensor = pb_utils.Tensor("x", np.array([["a", "Ölfeld"]], np.dtypes.StringDType()))
    assert tensor.triton_dtype() == 13
    assert tensor.as_numpy().tolist() == [["a", "Ölfeld"]]
    assert encode_strings(tensor.as_numpy()) == b"\1\0\0\0a\7\0\0\0" + "Ölfeld".encode()
    missing = np.array(["a", None], np.dtypes.StringDType(na_object=None))
    with pytest.raises(pb_utils.TritonModelException, match="it has missing values; replace them"):
        pb_utils.Tensor("x", missing)


def test_series_are_refused_with_the_way():
    class Series:
        def to_numpy(self):
            return np.zeros(1)

    with pytest.raises(TypeError, match=r"expected a numpy.ndarray, found Series: use its to_numpy\(\)"):
        pb_utils.Tensor("x", Series())


def test_misuse_is_refused():
    with pytest.raises(pb_utils.TritonModelException, match="Tensor name cannot be an empty string"):
        pb_utils.Tensor("", np.zeros(1))
    with pytest.raises(TypeError, match=r"expected a numpy.ndarray, found list"):
        pb_utils.Tensor("x", [1, 2])


# --- received ---------------------------------------------------------------------------------------------------


def test_received_tensor_is_a_writable_view():
    payload = bytearray(np.arange(8, dtype=np.int16).tobytes())
    tensor = ReceivedTensor(TensorPlan("x", "INT16", (1, 4)), payload, 8)
    assert tensor.as_numpy().tolist() == [[4, 5, 6, 7]]
    assert tensor.as_numpy() is tensor.as_numpy()
    tensor.as_numpy()[0, 0] = 9
    assert payload[8] == 9


def test_received_strings_are_bytes():
    data = encode_strings(np.array([b"a\x00", "é"], object))
    tensor = ReceivedStrings(TensorPlan("x", "BYTES", (2, 1)), bytearray(b"??" + data), 2, len(data))
    assert tensor.shape() == [2, 1]
    assert tensor.as_numpy().ravel().tolist() == [b"a\x00", "é".encode()]
    assert tensor.as_numpy() is tensor.as_numpy()
    assert tensor.triton_dtype() == 13


def test_wrong_number_of_strings_is_refused():
    with pytest.raises(
        pb_utils.TritonModelException, match=r"unexpected number of string elements 1 for shape \[2\]"
    ):
        decode_strings(encode_strings(np.array([b"a"])), (2,))


def test_helpers_for_strings_are_tritons():
    array = np.array([b"a", "é", 5], object)
    data = pb_utils.serialize_byte_tensor(array)
    assert data == b"\x01\0\0\0a\x02\0\0\0\xc3\xa9\x01\0\0\x005"
    assert pb_utils.deserialize_bytes_tensor(data).tolist() == [b"a", "é".encode(), b"5"]
    assert pb_utils.serialize_byte_tensor(np.zeros(0, object)) == ()
    assert pb_utils.serialize_byte_tensor(np.zeros(1)) is None


def test_type_helpers():
    assert pb_utils.triton_string_to_numpy("TYPE_STRING") is np.object_
    assert pb_utils.triton_string_to_numpy("TYPE_BOOL") is bool
    assert pb_utils.triton_to_numpy_type(14) is None
    assert pb_utils.numpy_to_triton_type(np.bytes_) == pb_utils.numpy_to_triton_type(np.object_) == 13
    assert pb_utils.numpy_to_triton_type(np.complex64) is None
    with pytest.raises(KeyError):
        pb_utils.triton_string_to_numpy("TYPE_BF16")


# --- DLPack -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", NUMERIC)
def test_dlpack_there_and_back_shares_memory(kind):
    array = np.zeros((2, 2), kind)
    tensor = pb_utils.Tensor.from_dlpack("y", pb_utils.Tensor("x", array))
    assert tensor.name() == "y"
    assert tensor.as_numpy().dtype == kind
    array[1, 1] = 1
    assert tensor.as_numpy()[1, 1] == 1


def test_dlpack_capsule():
    capsule = pb_utils.Tensor("x", np.arange(3)).to_dlpack()
    assert pb_utils.Tensor.from_dlpack("y", capsule).as_numpy().tolist() == [0, 1, 2]
    with pytest.raises(pb_utils.TritonModelException, match="cannot be used"):
        pb_utils.Tensor.from_dlpack("z", capsule)


def test_dlpack_device_is_the_cpu():
    assert pb_utils.Tensor("x", np.zeros(1)).__dlpack_device__() == (1, 0)


def test_bf16_travels_through_dlpack_only():
    tensor = pb_utils.Tensor("x", np.array([1.0, -2.0], ml_dtypes.bfloat16))
    assert tensor.triton_dtype() == 14
    again = pb_utils.Tensor.from_dlpack("y", tensor)
    assert again.triton_dtype() == 14
    assert again.shape() == [2]
    for each in (tensor, again):
        with pytest.raises(pb_utils.TritonModelException, match="BF16 and cannot be converted to NumPy"):
            each.as_numpy()
    assert again._array.view(ml_dtypes.bfloat16).tolist() == [1.0, -2.0]


class OnAmdGpu:
    def __dlpack_device__(self):
        return (10, 0)

    def __dlpack__(self):
        raise AssertionError("never asked")


class Strided:
    def __dlpack_device__(self):
        return (1, 0)

    def __dlpack__(self):
        return np.zeros((4, 4))[:, ::2].__dlpack__()


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (3, "Provided tensor is not supported"),
        (OnAmdGpu(), "only the CPU and NVIDIA GPUs are supported"),
        (Strided(), "DLPack tensor is not contiguous"),
    ],
)
def test_dlpack_refuses(source, said):
    with pytest.raises(pb_utils.TritonModelException, match=said):
        pb_utils.Tensor.from_dlpack("x", source)


def test_dlpack_has_no_strings():
    with pytest.raises(pb_utils.TritonModelException, match="DLPack does not have support for string tensors"):
        pb_utils.Tensor("x", np.array([b"a"])).to_dlpack()


@pytest.mark.parametrize("values", [[1.0, 2.0], ["a", "b"]])
def test_masked_elements_are_refused(values):
    masked = np.ma.masked_array(values, [True, False])
    with pytest.raises(pb_utils.TritonModelException, match=r"'x' has masked elements.*array.filled\(value\)"):
        pb_utils.Tensor("x", masked)
    whole = pb_utils.Tensor("x", np.ma.masked_array(values))
    assert type(whole.as_numpy()) is np.ndarray
    assert whole.as_numpy().tolist() == values
