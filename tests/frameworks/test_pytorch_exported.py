"""Archives of torch.export without a server: names, dynamic shapes, nested values and errors."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

from naiad.backend.pytorch.backend import PyTorchBackend
from naiad.core.errors import InferError
from naiad.testing import BackendModel, ModelError
from support.server_process import SOURCE as SOURCE_PATH
from support.torch_digits import CONFIG, save_exported, trained_digits

ROWS = torch.export.Dim("rows", min=1, max=32)
TWO = np.array([[1, 2]], np.float32)


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.zeros(1))

    def forward(self, x, options, *, scale):
        self.steps.add_(1)
        x.add_(1)
        return {"logits": x + options["a"], "both": (options["b"] * scale, x)}


def save(tmp_path, module, args, kwargs=None, **options):
    path = tmp_path / "m" / "1" / "model.pt2"
    path.parent.mkdir(parents=True)
    torch.export.save(torch.export.export(module, args, kwargs, **options), path)
    return path.parent.parent


def save_nested(tmp_path):
    rows = torch.ones(2, 2)
    shapes = {"x": {0: ROWS}, "options": {"a": {0: ROWS}, "b": {0: ROWS}}, "scale": {0: ROWS}}
    # One tensor given several times would become one input.
    arguments = (rows.clone(), {"a": rows.clone(), "b": rows.clone()}), {"scale": rows.clone()}
    return save(tmp_path, Nested(), *arguments, dynamic_shapes=shapes)


def load(directory, config="", **options):
    text = f'name: "{directory.name}" backend: "pytorch" {config}' if config else ""
    return BackendModel(PyTorchBackend(), directory, config=text, **options)


def refusal(directory, config=""):
    with pytest.raises(InferError) as caught:
        load(directory, config)
    return caught.value.message


def tensors(kind, *names, dims="2"):
    rows = ", ".join(f'{{ name: "{name}" data_type: TYPE_FP32 dims: [ {dims} ] }}' for name in names)
    return f"{kind} [ {rows} ] "


# --- names ----------------------------------------------------------------------------------------------------------


def test_nested_values_have_names(tmp_path):
    with load(save_nested(tmp_path)) as model:
        assert [tensor.name for tensor in model.config.input] == ["x", "options_a", "options_b", "scale"]
        assert [tensor.name for tensor in model.config.output] == ["logits", "OUTPUT__1", "OUTPUT__2"]
        found = model.infer({"x": TWO, "options_a": TWO, "options_b": TWO, "scale": 3 * TWO})
    np.testing.assert_array_equal(found["logits"], 2 * TWO + 1)
    np.testing.assert_array_equal(found["OUTPUT__1"], 3 * TWO**2)


def test_names_of_triton_are_known(tmp_path):
    config = "max_batch_size: 8 " + tensors("input", "KWARGS[scale]", "ARGS[1][b]", "ARGS[1][a]", "ARGS[0]")
    config += tensors("output", "RESULT[both][0]", "RESULT[logits]")
    with load(save_nested(tmp_path), config) as model:
        found = model.infer({"ARGS[0]": TWO, "ARGS[1][a]": TWO, "ARGS[1][b]": TWO, "KWARGS[scale]": 3 * TWO})
    np.testing.assert_array_equal(found["RESULT[logits]"], 2 * TWO + 1)
    np.testing.assert_array_equal(found["RESULT[both][0]"], 3 * TWO**2)


def test_requests_are_not_written_to(tmp_path):
    given = TWO.copy()
    with load(save_nested(tmp_path)) as model:
        found = model.infer({"x": given, "options_a": TWO, "options_b": TWO, "scale": TWO})
    np.testing.assert_array_equal(given, TWO)
    np.testing.assert_array_equal(found["OUTPUT__2"], TWO + 1)


class Power(nn.Module):
    def forward(self, x, power: int, other=None):
        return x**power, None


def test_constants_are_part_of_the_program(tmp_path):
    with load(save(tmp_path, Power(), (torch.ones(2), 3))) as model:
        assert [tensor.name for tensor in model.config.input] == ["x"]
        assert [tensor.name for tensor in model.config.output] == ["OUTPUT__0"]
        np.testing.assert_array_equal(model.infer({"x": TWO[0]})["OUTPUT__0"], TWO[0] ** 3)


# --- shapes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("max_rows", "size"), [(3, 3), (32, 4), (None, 4)])
def test_batches_follow_the_exported_range(tmp_path, max_rows, size):
    digits = trained_digits()
    path = save_exported(digits.module, tmp_path / "m" / "1" / "model.pt2", digits.images[:2], max_rows)
    with load(path.parent.parent) as model:
        assert model.config.max_batch_size == size
        for rows in range(1, size + 1):
            found = model.infer({"image": digits.images[:rows].numpy()})["OUTPUT__0"]
            np.testing.assert_allclose(found, digits.probabilities(rows), atol=1e-6)


def test_larger_batches_than_exported_are_refused(tmp_path):
    digits = trained_digits()
    path = save_exported(digits.module, tmp_path / "m" / "1" / "model.pt2", digits.images[:2], 8)
    assert "exported for at most 8 rows; write max_batch_size: 8" in refusal(path.parent.parent, CONFIG)


def test_fixed_shapes_turn_batching_off(tmp_path):
    with load(save(tmp_path, nn.Linear(2, 3), (torch.ones(5, 2),))) as model:
        assert model.config.max_batch_size == 0
        assert list(model.config.input[0].dims) == [5, 2]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("1, 8, 8", "1, 8, 9"), "write dims: [1,8,8] in config.pbtxt"),
        (("TYPE_FP32", "TYPE_FP64"), "write data_type: TYPE_FP32"),
        (("OUTPUT__0", "OUTPUT__1"), "refers to an output index which doesn't exist"),
    ],
)
def test_contradicting_configuration_is_refused(tmp_path, change, message):
    digits = trained_digits()
    path = save_exported(digits.module, tmp_path / "m" / "1" / "model.pt2", digits.images[:2])
    assert message in refusal(path.parent.parent, CONFIG.replace(*change))


def test_sizes_outside_the_range_are_errors(tmp_path):
    width = torch.export.Dim("width", min=2, max=4)
    directory = save(tmp_path, nn.ReLU(), (torch.ones(2, 3),), dynamic_shapes={"input": {0: ROWS, 1: width}})
    with load(directory) as model, pytest.raises(ModelError, match="PyTorch execute failure"):
        model.infer({"input": np.ones((1, 9), np.float32)})


def test_files_may_have_any_name(tmp_path):
    directory = save(tmp_path, nn.Linear(2, 3), (torch.ones(5, 2),))
    (directory / "1" / "model.pt2").rename(directory / "1" / "linear.bin")
    with load(directory, 'default_model_filename: "linear.bin"') as model:
        assert model.infer({"input": np.ones((5, 2), np.float32)})["OUTPUT__0"].shape == (5, 3)


def test_truncated_archive_is_refused(tmp_path):
    directory = save(tmp_path, nn.Linear(2, 3), (torch.ones(5, 2),))
    path = directory / "1" / "model.pt2"
    path.write_bytes(path.read_bytes()[:-500])
    assert f"{path} is truncated" in refusal(directory)


AFTER_TENSORFLOW = """
import sys
import tensorflow
from naiad.backend.pytorch.backend import PyTorchBackend
from naiad.testing import BackendModel
with BackendModel(PyTorchBackend(), sys.argv[1]) as model:
    print(model.config.input[0].name)
"""


def test_archives_load_after_tensorflow(tmp_path):
    directory = save(tmp_path, nn.Linear(2, 3), (torch.ones(5, 2),))
    command = [sys.executable, "-W", "ignore", "-c", AFTER_TENSORFLOW, str(directory)]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE_PATH)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == ["input"]
