"""Memory of GPUs that models leave: for other models and processes. A real GPU is not needed."""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from naiad.backend.pytorch import backend as pytorch_backend
from naiad.backend.pytorch import library
from naiad.backend.pytorch.backend import PyTorchBackend
from naiad.core.errors import ErrorCode, InferError
from naiad.testing import BackendModel
from support.torch_digits import CONFIG, save_exported, trained_digits

_JAX = """
import json, os
import naiad.backend.jax.backend
print(json.dumps(os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"]))
"""


@pytest.fixture
def cuda(monkeypatch):
    """A PyTorch that has a GPU in use; note when its cache is emptied."""
    emptied = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(True))
    return emptied


def test_held_weights_on_a_gpu_are_released(cuda):
    held = SimpleNamespace(is_cuda=True, data=torch.ones(1000))
    on_host = torch.ones(3)
    library.release([held, on_host])
    assert held.data.numel() == 0
    assert on_host.numel() == 3, "another thread may still read it"
    assert cuda == [True]


def test_process_without_a_context_gets_none(monkeypatch):
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: pytest.fail("this would make a context"))
    library.release([torch.ones(3)])


def test_closed_model_releases_its_weights(tmp_path, monkeypatch):
    released = []
    monkeypatch.setattr(pytorch_backend, "release", lambda weights: released.append(len(weights)))
    digits = trained_digits()
    save_exported(digits.module, tmp_path / "m" / "1" / "model.pt2", digits.images[:2])
    shared = 'parameters { key: "ENABLE_WEIGHT_SHARING" value { string_value: "true" } }'
    with BackendModel(PyTorchBackend(), tmp_path / "m", config=f'name: "m" backend: "pytorch" {CONFIG} {shared}'):
        assert not released
    assert released == [len(list(digits.module.parameters()))]


def test_too_little_memory_names_model_and_fix(tmp_path, monkeypatch):
    def load(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 16.00 GiB")

    digits = trained_digits()
    save_exported(digits.module, tmp_path / "m" / "1" / "model.pt2", digits.images[:2])
    monkeypatch.setattr(pytorch_backend, "load_exported", load)
    with pytest.raises(
        InferError, match=r"model 'm' version 1: .*Tried to allocate 16.00 GiB; unload other"
    ) as caught:
        BackendModel(PyTorchBackend(), tmp_path / "m", config=f'name: "m" backend: "pytorch" {CONFIG}')
    assert caught.value.code is ErrorCode.UNAVAILABLE


@pytest.mark.parametrize(("given", "expected"), [(None, "false"), ("true", "true")])
def test_jax_takes_memory_as_it_needs_it(given, expected):
    environment = {**os.environ, **({} if given is None else {"XLA_PYTHON_CLIENT_PREALLOCATE": given})}
    if given is None:
        environment.pop("XLA_PYTHON_CLIENT_PREALLOCATE", None)
    done = subprocess.run([sys.executable, "-c", _JAX], env=environment, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == expected
