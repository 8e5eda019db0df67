"""Libraries that are not a usable CUDA runtime; usable ones are part of the integration tests."""

import types

import pytest

from naiad.memory import cuda


class Function:
    """A C function that returns the same value for all arguments."""

    def __init__(self, result=0):
        self.result = result

    def __call__(self, *arguments):
        return self.result


def library(**functions):
    names = ("cudaGetDeviceCount", "cudaSetDevice", "cudaIpcOpenMemHandle", "cudaIpcCloseMemHandle", "cudaMemcpy")
    described = {name: Function() for name in names} | {"cudaGetErrorString": Function(b"no \xff device")}
    return types.SimpleNamespace(**(described | functions))


def test_missing_call():
    with pytest.raises(cuda.CudaError, match="the CUDA runtime lacks a call"):
        cuda.CudaRuntime(types.SimpleNamespace())


def test_no_device():
    with pytest.raises(cuda.CudaError, match="there is no GPU"):
        cuda.CudaRuntime(library())


def test_failure_has_the_runtimes_message():
    with pytest.raises(cuda.CudaError, match=r"cudaGetDeviceCount failed with error 100: no . device"):
        cuda.CudaRuntime(library(cudaGetDeviceCount=Function(100)))


def test_no_library(monkeypatch):
    monkeypatch.setattr(cuda, "_candidates", lambda: ["/nonexistent/libcudart.so"])
    with pytest.raises(cuda.CudaError, match="libcudart was not found"):
        cuda.load_runtime()
