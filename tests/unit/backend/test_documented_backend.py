"""The backend in docs/backends.md works as it is printed there."""

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from naiad.backend.registry import BackendRegistry
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import InferError
from support.backend_parts import execute, make_context, make_header, make_request, new_instance, output_arrays
from support.model_repository import write_model

PAGE = Path(__file__).parents[3] / "docs" / "backends.md"


@pytest.fixture
def registry(monkeypatch):
    """Return a registry that knows the documented package."""
    text = PAGE.read_text()
    code, _ = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    ((name, value),) = re.findall(r'^(\w+) = "(\w+:\w+)"$', text, re.MULTILINE)
    module = ModuleType(value.split(":")[0])
    exec(compile(code, str(PAGE), "exec"), module.__dict__)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return BackendRegistry({name: value})


@pytest.fixture
def context(tmp_path):
    config = ModelConfig(name="m", backend="doubler", max_batch_size=4)
    config.input.add(name="INPUT0", data_type="TYPE_FP32", dims=[-1])
    config.output.add(name="OUTPUT0", data_type="TYPE_FP32", dims=[-1])
    return make_context(config, tmp_path)


def test_it_serves_batches(registry, context):
    context.version_dir.mkdir()
    (context.version_dir / "factor.txt").write_text("2")
    backend = registry.get("doubler")
    assert backend.default_instance_count(context) == 1
    assert backend.auto_complete(context) is context.config
    instance = new_instance(backend.load(context))
    arrays = [np.full((1, 3), number, np.float32) for number in range(3)]
    header = make_header({"INPUT0": arrays[0]})
    responses = execute(instance, [make_request({"INPUT0": a}, header=header) for a in arrays])
    for response, array in zip(responses, arrays, strict=True):
        np.testing.assert_array_equal(output_arrays(response)["OUTPUT0"], array * 2)


def test_its_test_runs(registry, tmp_path, monkeypatch):
    _, code = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    tensor = '[ { name: "%s" data_type: TYPE_FP32 dims: [ 3 ] } ]'
    config = f'backend: "doubler" max_batch_size: 8 input {tensor % "INPUT0"} output {tensor % "OUTPUT0"}'
    write_model(tmp_path / "models", "double", config, {"1/factor.txt": "2"})
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(code, str(PAGE), "exec"), names)
    for found in (names["outputs"], names["first"], names["second"]):
        np.testing.assert_array_equal(found["OUTPUT0"], np.full((2, 3), 2))


def test_it_names_the_file_that_is_missing(registry, context):
    with pytest.raises(InferError, match=r"model 'm': there is no file .*factor\.txt"):
        registry.get("doubler").load(context)
