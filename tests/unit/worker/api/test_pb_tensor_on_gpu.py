"""`pb_utils.Tensor.from_dlpack` of tensors on a GPU, with a driver whose device memory is the host's."""

import ctypes

import ml_dtypes
import numpy as np
import pytest
import triton_python_backend_utils as pb_utils

from naiad.worker.api import cuda
from naiad.worker.api.dlpack import export_array, header_of

GPU = 3


class Driver:
    """The calls of libcuda; device memory is memory of the process. Calls fail that `failing` names."""

    def __init__(self, failing=""):
        self.calls = []
        self._failing = failing

    def __getattr__(self, name):
        def call(*arguments):
            self.calls.append(name)
            if name == self._failing:
                return 700
            if name == "cuDeviceGet":
                assert arguments[1].value == GPU
            if name == "cuMemcpyDtoH_v2":
                target, source, size = (each.value for each in arguments)
                ctypes.memmove(target, source, size)
            return 0

        return call


@pytest.fixture
def driver(monkeypatch):
    made = Driver()
    monkeypatch.setattr(cuda, "_driver", made)
    return made


class OnGpu:
    """A tensor that says of itself that it is on a GPU; its memory is that of an array."""

    def __init__(self, array, datatype="FP32", kind=2):
        self._array, self._datatype, self._kind = array, datatype, kind

    def __dlpack_device__(self):
        return (self._kind, GPU)

    def __dlpack__(self, **_):
        capsule = export_array(self._array, self._datatype)
        device = header_of(capsule).device
        device.kind, device.number = self._kind, GPU
        return capsule


@pytest.mark.parametrize("kind", [2, 13], ids=["device", "managed"])
@pytest.mark.parametrize(
    ("array", "datatype"),
    [
        (np.arange(6, dtype=np.float32).reshape(2, 3), "FP32"),
        (np.arange(6, dtype=np.float16), "FP16"),
        (np.arange(-3, 3, dtype=np.int64), "INT64"),
        (np.arange(5, dtype=np.uint8), "UINT8"),
        (np.array([[True], [False]]), "BOOL"),
        (np.array(7.5), "FP64"),
        (np.zeros((2, 0), np.int32), "INT32"),
    ],
)
def test_tensor_on_a_gpu_is_copied(driver, array, datatype, kind):
    tensor = pb_utils.Tensor.from_dlpack("x", OnGpu(array, datatype, kind))
    assert tensor.triton_dtype() == pb_utils.Tensor("y", array).triton_dtype()
    np.testing.assert_array_equal(tensor.as_numpy(), array)
    assert tensor.as_numpy().dtype == array.dtype
    assert not np.shares_memory(tensor.as_numpy(), array)


def test_capsule_of_bf16_is_copied(driver):
    values = np.arange(4).astype(ml_dtypes.bfloat16)
    capsule = OnGpu(values.view(np.uint16), "BF16").__dlpack__()
    tensor = pb_utils.Tensor.from_dlpack("x", capsule)
    assert tensor.triton_dtype() == 14
    np.testing.assert_array_equal(pb_utils.Tensor.from_dlpack("y", tensor)._array, values.view(np.uint16))


def test_work_on_the_gpu_ends_before_the_copy(driver):
    pb_utils.Tensor.from_dlpack("x", OnGpu(np.ones(3, np.float32)))
    calls = driver.calls
    assert calls.index("cuCtxSynchronize") < calls.index("cuMemcpyDtoH_v2")
    assert calls.count("cuDevicePrimaryCtxRetain") == calls.count("cuDevicePrimaryCtxRelease_v2") == 1
    assert calls.count("cuCtxPushCurrent_v2") == calls.count("cuCtxPopCurrent_v2") == 1


def test_transposed_tensor_is_refused(driver):
    with pytest.raises(pb_utils.TritonModelException, match="DLPack tensor is not contiguous"):
        pb_utils.Tensor.from_dlpack("x", OnGpu(np.ones((2, 3), np.float32).T))


def test_dimension_of_one_may_have_any_stride(driver):
    array = np.arange(8, dtype=np.float32).reshape(4, 2)[:1]
    np.testing.assert_array_equal(pb_utils.Tensor.from_dlpack("x", OnGpu(array)).as_numpy(), array)


@pytest.mark.parametrize("failing", ["cuCtxSynchronize", "cuMemcpyDtoH_v2", "cuDevicePrimaryCtxRetain"])
def test_failed_copy_names_call_and_gpu(monkeypatch, failing):
    driver = Driver(failing)
    monkeypatch.setattr(cuda, "_driver", driver)
    said = f"DLPack tensor on GPU {GPU} cannot be copied: {failing} failed with error 700"
    with pytest.raises(pb_utils.TritonModelException, match=said):
        pb_utils.Tensor.from_dlpack("x", OnGpu(np.ones(3, np.float32)))
    assert driver.calls.count("cuCtxPushCurrent_v2") == driver.calls.count("cuCtxPopCurrent_v2")


def test_no_driver(monkeypatch):
    monkeypatch.setattr(cuda, "_driver", None)
    monkeypatch.setattr(cuda, "_LIBRARY", "libcuda-that-is-not-there.so")
    with pytest.raises(pb_utils.TritonModelException, match="cannot be loaded"):
        pb_utils.Tensor.from_dlpack("x", OnGpu(np.ones(3, np.float32)))
