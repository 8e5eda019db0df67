"""Memory of the host that a GPU copies to, and of clients on the GPU; the CPU takes the place of the GPU."""

import gc

import numpy as np
import pytest
import torch

from naiad.backend.api import InstanceSpec
from naiad.backend.cuda.dlpack import export_memory
from naiad.backend.pytorch import pinned_outputs
from naiad.backend.pytorch.backend import PyTorchBackend
from naiad.backend.pytorch.pinned_outputs import LEAST_BYTES, PinnedOutputs
from naiad.backend.pytorch.tensors import copy_to
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.datatype import DataType
from support.backend_parts import load_model, make_context

SOURCE = """
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return x * 2, x
"""


@pytest.fixture
def pinning(monkeypatch):
    """A CPU has no page-locked memory; counts what was asked for."""
    asked = []
    empty = torch.empty

    def locked(shape, *, dtype, pin_memory):
        asked.append(pin_memory)
        return empty(shape, dtype=dtype)

    monkeypatch.setattr(pinned_outputs.torch, "empty", locked)
    return asked


def test_page_locked_memory_counts_until_last_view_ends(pinning):
    outputs = PinnedOutputs(most_bytes=100)
    tensor = torch.arange(16, dtype=torch.bfloat16)
    array = outputs.pin(tensor)
    view = memoryview(array[4:].view(np.uint8).reshape(-1))
    assert array.astype(np.float32).tolist() == list(range(16))
    assert outputs.used_bytes == 32
    del array
    gc.collect()
    assert outputs.used_bytes == 32
    del view
    gc.collect()
    assert outputs.used_bytes == 0
    assert pinning == [True]


def test_beyond_the_limit_it_is_ordinary_memory(pinning):
    outputs = PinnedOutputs(most_bytes=100)
    held = outputs.pin(torch.ones(20))
    assert outputs.pin(torch.full((10,), 3.0)).tolist() == [3.0] * 10
    assert len(pinning) == 1
    assert outputs.used_bytes == held.nbytes


def test_system_that_locks_no_pages_costs_nothing(monkeypatch):
    def refuses(*_, **__):
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(pinned_outputs.torch, "empty", refuses)
    outputs = PinnedOutputs()
    assert outputs.pin(torch.ones(4)).tolist() == [1.0] * 4
    assert outputs.used_bytes == 0


def test_outputs_of_the_cpu_are_views():
    tensor = torch.ones(LEAST_BYTES)
    array = PinnedOutputs().take(tensor)
    tensor[0] = 5
    assert array[0] == 5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.int64])
def test_output_is_copied_to_memory_of_the_client(dtype):
    tensor = torch.tensor([[1, 0, 2], [3, 4, 0]]).to(dtype)
    target = memoryview(bytearray(b"\xff" * 64))[3:]
    array = copy_to(target, tensor)
    assert array.astype(np.float64).tolist() == tensor.to(torch.float64).tolist()
    assert bytes(target[tensor.nbytes :]) == b"\xff" * (61 - tensor.nbytes)
    assert copy_to(target[: tensor.nbytes - 1], tensor) is None


def test_instance_writes_into_the_memory_of_the_client(tmp_path):
    config = ModelConfig(name="m", backend="pytorch")
    config.input.add(name="x", data_type="TYPE_FP32", dims=[-1])
    for name in ("OUTPUT__0", "OUTPUT__1"):
        config.output.add(name=name, data_type="TYPE_FP32", dims=[-1])
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "model.py").write_text(SOURCE)
    model, _ = load_model(PyTorchBackend(), make_context(config, tmp_path))
    instance = model.create_instance(InstanceSpec("m_0", 0, "KIND_CPU"))
    names, inputs = ["OUTPUT__0", "OUTPUT__1"], {"x": np.arange(4, dtype=np.float32)}
    target = bytearray(16)
    assert instance.run_into(inputs, names, {"OUTPUT__0": memoryview(target)}) is None
    instance._device = "cpu"
    made = instance.run_into(inputs, names, {"OUTPUT__0": memoryview(target)})
    assert np.frombuffer(target, np.float32).tolist() == [0, 2, 4, 6]
    assert [each.tolist() for each in made] == [[0, 2, 4, 6], [0, 1, 2, 3]]
    assert instance.run_into(inputs, names, {"OUTPUT__0": memoryview(target)[:8]}) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.uint8, torch.int64])
def test_memory_of_client_becomes_tensor_without_copy(dtype):
    memory = torch.tensor([[1, 0, 2], [3, 4, 0]]).to(dtype)
    datatype = {
        torch.float32: DataType.FP32,
        torch.bfloat16: DataType.BF16,
        torch.bool: DataType.BOOL,
        torch.uint8: DataType.UINT8,
        torch.int64: DataType.INT64,
    }[dtype]

    class Region:
        """Refers to the memory."""

        def __dlpack__(self, *, stream=None, **_):
            return export_memory(self, memory.data_ptr(), (2, 3), datatype, (1, 0))

        def __dlpack_device__(self):
            return (1, 0)

    tensor = torch.from_dlpack(Region())
    assert tensor.dtype is dtype
    assert tensor.data_ptr() == memory.data_ptr()
    assert torch.equal(tensor, memory)
