"""The number of usable GPUs, and backends without support of GPUs."""

import onnxruntime
import pytest

from naiad.backend import cores
from naiad.backend.identity import IdentityBackend
from naiad.backend.onnx.backend import OnnxRuntimeBackend
from naiad.backend.python.backend import PythonBackend
from naiad.telemetry.metrics.gpus import Gpu, NvmlError, NvmlPackageError


class TwoGpus:
    def gpus(self):
        return [Gpu(1, "GPU-a", "A"), Gpu(2, "GPU-b", "B")]

    def close(self):
        pass


@pytest.fixture(autouse=True)
def asks_again():
    cores.gpu_count.cache_clear()
    yield
    cores.gpu_count.cache_clear()


@pytest.mark.parametrize(("setting", "count"), [(None, 2), ("1", 1), ("", 0)])
def test_count_comes_from_driver_and_environment(monkeypatch, setting, count):
    monkeypatch.setattr(cores, "load_nvml", TwoGpus)
    if setting is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", setting)
    assert cores.gpu_count() == count


def test_without_a_runner_there_is_none(monkeypatch):
    def missing():
        raise NvmlError("there is none")

    monkeypatch.setattr(cores, "load_nvml", missing)
    assert cores.gpu_count() == 0


def test_count_without_package_comes_from_the_driver(monkeypatch):
    def missing():
        raise NvmlPackageError("install it")

    monkeypatch.setattr(cores, "load_nvml", missing)
    monkeypatch.setattr(cores, "gpus_of_driver", TwoGpus().gpus)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-b,0")
    assert cores.gpu_count() == 2


def test_backends_with_gpu_support(monkeypatch):
    assert PythonBackend().gpu_unsupported_reason() == ""
    assert IdentityBackend().gpu_unsupported_reason() == "backend 'identity' does not use GPUs"
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    assert (
        "has no CUDAExecutionProvider: install onnxruntime-gpu instead"
        in OnnxRuntimeBackend().gpu_unsupported_reason()
    )
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CUDAExecutionProvider"])
    assert OnnxRuntimeBackend().gpu_unsupported_reason() == ""
