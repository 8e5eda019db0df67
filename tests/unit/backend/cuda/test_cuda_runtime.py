"""Libraries that are not a usable CUDA runtime; usable ones are part of the integration tests."""

import types

import pytest

from naiad.backend.cuda import cuda


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


def test_write_ends_when_the_device_has_the_bytes():
    calls = []

    class Noting(Library):
        def __getattr__(self, name):
            function = super().__getattr__(name)
            return lambda *arguments: calls.append((name, arguments)) or function(*arguments)

    runtime = object.__new__(cuda.CudaRuntime)
    runtime._library = Noting()
    runtime.write(4096, b"abcd", 0)
    assert [name for name, _ in calls] == ["cudaSetDevice", "cudaMemcpy", "cudaStreamSynchronize"]
    assert calls[-1][1] == (0,), "the stream of cudaMemcpy"
    calls.clear()
    runtime.write(4096, b"", 0)
    assert not calls


def test_runtime_too_new_for_the_driver(monkeypatch):
    class Fitting(Library):
        @property
        def cudaGetDeviceCount(self):
            def call(count):
                count._obj.value = 2
                return 0

            call.argtypes = call.restype = None
            return call

    libraries = {"new": Library(cudaGetDeviceCount=35), "old": Fitting()}
    monkeypatch.setattr(cuda, "_candidates", lambda: ["missing", "new", "old"])

    def load(name):
        if name not in libraries:
            raise OSError(name)
        return libraries[name]

    monkeypatch.setattr(cuda.ctypes, "CDLL", load)
    assert cuda.load_runtime().device_count == 2
    del libraries["old"]
    with pytest.raises(cuda.CudaError, match="cudaGetDeviceCount failed with error 35"):
        cuda.load_runtime()


def test_runtime_in_a_package(tmp_path, monkeypatch):
    library = tmp_path / "nvidia" / "cu13" / "lib" / "libcudart.so.13"
    library.parent.mkdir(parents=True)
    library.touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert str(library) in cuda._candidates()
