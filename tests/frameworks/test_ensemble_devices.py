"""Tensors of PyTorch and JAX between steps of an ensemble, with the CPU in the place of a device."""

import asyncio
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import torch
from torch import nn

from naiad.backend import device_tensors
from naiad.backend.jax import backend as jax_backend
from naiad.backend.pytorch import instance as torch_instance
from naiad.core.datatype import DataType
from naiad.core.device_tensor import DeviceTensor
from naiad.core.request import InferRequest, RequestHeader
from naiad.core.tensor import TensorSpec
from naiad.server.embedded import EmbeddedServer
from support.ensemble_models import tensor, write_ensemble
from support.jax_models import serialise, shapes_of_one_scope
from support.torch_digits import save_exported

CPU = (1, 0)
ROWS = 3


class Shift(nn.Module):
    """Returns a tensor that is not contiguous, and numbers that need 64 bits."""

    def forward(self, x):
        return (x.t() + 1).t(), x.to(torch.int64) * (1 << 40)


def scale(x, numbers):
    return {"Y": x * 2, "N": numbers // (1 << 40)}


@pytest.fixture
def noted(monkeypatch):
    """Make the CPU a device, and note the shapes of tensors that are copied from it."""
    noted = []

    def to_host(self):
        noted.append(self.shape)
        return to_host_before(self)

    to_host_before = DeviceTensor.to_host
    monkeypatch.setattr(device_tensors, "_HOST_KINDS", ())
    monkeypatch.setattr(DeviceTensor, "to_host", to_host)
    monkeypatch.setattr(torch_instance, "dlpack_device", lambda device: CPU)
    monkeypatch.setattr(jax_backend, "dlpack_device", lambda kind, number: CPU)
    stream = SimpleNamespace(synchronize=lambda: noted.append("synchronized"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    return noted


def write_member(repository, name, backend, inputs, outputs):
    text = f'backend: "{backend}" max_batch_size: 8 '
    text += f"input [ {', '.join(inputs)} ] output [ {', '.join(outputs)} ]"
    (repository / name / "config.pbtxt").write_text(text)


@pytest.fixture
def repository(tmp_path):
    save_exported(Shift(), tmp_path / "shift" / "1" / "model.pt2", torch.ones(2, 4))
    outputs = [tensor("OUTPUT__0", dims="4"), tensor("OUTPUT__1", "INT64", "4")]
    write_member(tmp_path, "shift", "pytorch", [tensor("INPUT__0", dims="4")], outputs)
    (tmp_path / "scale" / "1").mkdir(parents=True)
    with jax.enable_x64(True):
        function = serialise(scale, *shapes_of_one_scope("b, 4", np.float32, np.int64))
    (tmp_path / "scale" / "1" / "model.jaxexport").write_bytes(function)
    inputs = [tensor("input_0", dims="4"), tensor("input_1", "INT64", "4")]
    write_member(tmp_path, "scale", "jax", inputs, [tensor("Y", dims="4"), tensor("N", "INT64", "4")])
    save_exported(nn.ReLU(), tmp_path / "relu" / "1" / "model.pt2", torch.ones(2, 4))
    write_member(tmp_path, "relu", "pytorch", [tensor("INPUT__0", dims="4")], [tensor("OUTPUT__0", dims="4")])
    steps = [
        ("shift", {"INPUT__0": "IN"}, {"OUTPUT__0": "a", "OUTPUT__1": "b"}),
        ("scale", {"input_0": "a", "input_1": "b"}, {"Y": "c", "N": "NUMBERS"}),
        ("relu", {"INPUT__0": "c"}, {"OUTPUT__0": "OUT"}),
    ]
    outputs = [tensor("OUT", dims="4"), tensor("NUMBERS", "INT64", "4")]
    write_ensemble(tmp_path, "chain", [tensor("IN", dims="4")], outputs, steps)
    return tmp_path


async def response_of(repository, array):
    server = EmbeddedServer(str(repository))
    await server.start()
    found = asyncio.get_running_loop().create_future()
    header = RequestHeader(model_name="chain", inputs=[TensorSpec("IN", DataType.FP32, array.shape)])
    server.submit(InferRequest(header, [array.tobytes()], lambda _, response: found.set_result(response)))
    await found
    await server.close()
    return found.result()


def test_frameworks_exchange_tensors_without_copies(repository, noted, monkeypatch):
    imported = []
    from_dlpack = torch.from_dlpack
    monkeypatch.setattr(torch, "from_dlpack", lambda each: imported.append(type(each)) or from_dlpack(each))
    array = np.arange(-6, 6, dtype=np.float32).reshape(ROWS, 4)
    response = asyncio.run(response_of(repository, array))
    assert response.error is None
    data = dict(zip([spec.name for spec in response.header.outputs], response.data, strict=True))
    floats, numbers = np.frombuffer(data["OUT"], np.float32), np.frombuffer(data["NUMBERS"], np.int64)
    np.testing.assert_array_equal(floats.reshape(ROWS, 4), np.maximum(array * 2 + 2, 0))
    np.testing.assert_array_equal(numbers.reshape(ROWS, 4), array)
    assert noted == ["synchronized"], "nothing is copied, and the outputs of the first step are complete"
    assert [issubclass(kind, jax.Array) for kind in imported] == [True]
