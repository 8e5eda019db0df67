"""Tensors between steps of an ensemble stay where the first framework has put them: host memory is not copied."""

import asyncio

import numpy as np
import pytest
import torch
from torch import nn

from naiad.backend.pytorch import instance, pinned_outputs
from naiad.core.datatype import DataType
from naiad.core.request import InferRequest, RequestHeader
from naiad.core.tensor import TensorSpec
from naiad.server.embedded import EmbeddedServer
from support.ensemble_models import tensor, write_ensemble
from support.torch_digits import save_exported

SIZE = 1 << 16
"""Larger than what is cheaper to copy."""
STEPS = ("first", "second", "third")


@pytest.fixture
def repository(tmp_path):
    for name in STEPS:
        save_exported(nn.ReLU(), tmp_path / name / "1" / "model.pt2", torch.ones(2, SIZE))
        config = 'backend: "pytorch" max_batch_size: 8 '
        config += f'input [ {{ name: "INPUT__0" data_type: TYPE_FP32 dims: [ {SIZE} ] }} ] '
        config += f'output [ {{ name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ {SIZE} ] }} ]'
        (tmp_path / name / "config.pbtxt").write_text(config)
    names = ("IN", "a", "b", "OUT")
    steps = [
        (model, {"INPUT__0": names[index]}, {"OUTPUT__0": names[index + 1]}) for index, model in enumerate(STEPS)
    ]
    write_ensemble(tmp_path, "chain", [tensor("IN", dims=str(SIZE))], [tensor("OUT", dims=str(SIZE))], steps)
    return tmp_path


async def response(repository):
    server = EmbeddedServer(str(repository))
    await server.start()
    found = asyncio.get_running_loop().create_future()
    header = RequestHeader(model_name="chain", inputs=[TensorSpec("IN", DataType.FP32, (1, SIZE))])
    data = [np.ones((1, SIZE), np.float32).tobytes()]
    server.submit(InferRequest(header, data, lambda _, response: found.set_result(response)))
    await found
    await server.close()
    return found.result()


def test_steps_read_the_memory_of_the_step_before(repository, monkeypatch):
    given, taken = [], []

    def to_array(value):
        given.append(value.data_ptr())
        kept.append(value)  # so that its memory is not used again
        return to_array_before(value)

    def to_tensor(array):
        made = to_tensor_before(array)
        taken.append(made.data_ptr())
        return made

    kept = []
    to_array_before, to_tensor_before = pinned_outputs.to_array, instance.to_tensor
    monkeypatch.setattr(pinned_outputs, "to_array", to_array)
    monkeypatch.setattr(instance, "to_tensor", to_tensor)
    last = asyncio.run(response(repository))
    assert last.error is None
    assert len(given) == len(taken) == len(STEPS)
    assert taken[1:] == given[:-1]
    assert np.frombuffer(last.data[0], np.uint8).ctypes.data == given[-1]
