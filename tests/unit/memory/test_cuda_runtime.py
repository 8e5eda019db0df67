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


class Library:
    """A library that has every call, with these results; 0 for all that are not given."""

    def __init__(self, **results):
        self._functions = {name: Function(result) for name, result in results.items()}

    def __getattr__(self, name):
        default = b"no \xff device" if name == "cudaGetErrorString" else 0
        return self._functions.setdefault(name, Function(default))


def test_missing_call():
    with pytest.raises(cuda.CudaError, match="the CUDA runtime lacks a call"):
        cuda.CudaRuntime(types.SimpleNamespace())


def test_no_device():
    with pytest.raises(cuda.CudaError, match="there is no GPU"):
        cuda.CudaRuntime(Library())


def test_failure_has_the_runtimes_message():
    with pytest.raises(cuda.CudaError, match=r"cudaGetDeviceCount failed with error 100: no . device"):
        cuda.CudaRuntime(Library(cudaGetDeviceCount=100))


def test_no_library(monkeypatch):
    monkeypatch.setattr(cuda, "_candidates", lambda: ["/nonexistent/libcudart.so"])
    with pytest.raises(cuda.CudaError, match="libcudart was not found"):
        cuda.load_runtime()
