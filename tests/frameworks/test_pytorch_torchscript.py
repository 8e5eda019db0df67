"""TorchScript archives without a server: names of tensors, datatypes, results and errors."""

import numpy as np
import pytest
import torch
from ml_dtypes import bfloat16
from torch import Tensor, nn

from naiad.backend.pytorch.backend import PyTorchBackend
from naiad.core.errors import InferError
from naiad.testing import BackendModel, ModelError
from support.torch_digits import CONFIG, save_torchscript, trained_digits

TWO = np.array([[1, 2]], np.float32)


class Difference(nn.Module):
    def forward(self, minuend, subtrahend):
        return minuend - subtrahend, minuend + subtrahend


def tensors(kind, *names, datatype="FP32", dims="2"):
    rows = ", ".join(f'{{ name: "{name}" data_type: TYPE_{datatype} dims: [ {dims} ] }}' for name in names)
    return f"{kind} [ {rows} ] "


def load(tmp_path, module, config, **options):
    path = save_torchscript(module, tmp_path / "m" / "1" / "model.pt")
    return BackendModel(
        PyTorchBackend(), path.parent.parent, config=f'name: "m" backend: "pytorch" {config}', **options
    )


def refusal(tmp_path, module, config):
    with pytest.raises(InferError) as caught:
        load(tmp_path, module, config)
    return caught.value.message


def parameter(name, text):
    return f' parameters {{ key: "{name}" value {{ string_value: "{text}" }} }}'


# --- names ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "names", [("INPUT__1", "INPUT__0"), ("subtrahend", "minuend")], ids=["numbers", "argument names"]
)
def test_inputs_are_found_by_name(tmp_path, names):
    config = "max_batch_size: 4 " + tensors("input", *names) + tensors("output", "OUTPUT__1", "OUTPUT__0")
    with load(tmp_path, Difference(), config) as model:
        found = model.infer({names[0]: TWO, names[1]: 3 * TWO})
    np.testing.assert_array_equal(found["OUTPUT__0"], 2 * TWO)
    np.testing.assert_array_equal(found["OUTPUT__1"], 4 * TWO)


def test_other_names_have_the_configured_order(tmp_path):
    config = "max_batch_size: 4 " + tensors("input", "a", "b") + tensors("output", "difference", "sum")
    with load(tmp_path, Difference(), config) as model:
        found = model.infer({"b": TWO, "a": 3 * TWO}, outputs=["sum", "difference"])
    np.testing.assert_array_equal(found["difference"], 2 * TWO)
    np.testing.assert_array_equal(found["sum"], 4 * TWO)


@pytest.mark.parametrize(
    ("inputs", "outputs", "message"),
    [
        (("INPUT__0",), ("OUTPUT__0",), "configuration expects 1 inputs, model provides 2"),
        (("INPUT__0", "INPUT__2"), ("OUTPUT__0",), "INPUT__0 (minuend), INPUT__1 (subtrahend)"),
        (("INPUT__0", "OTHER__0"), ("OUTPUT__0",), "several inputs are one argument of forward"),
        (("INPUT__0", "INPUT__1"), ("OUTPUT__2",), "refers to an output index which doesn't exist"),
    ],
    ids=["too few", "number", "twice", "output"],
)
def test_wrong_names_are_refused(tmp_path, inputs, outputs, message):
    config = "max_batch_size: 4 " + tensors("input", *inputs) + tensors("output", *outputs)
    assert message in refusal(tmp_path, Difference(), config)


def test_incomplete_configuration_names_the_arguments(tmp_path):
    message = refusal(tmp_path, Difference(), "max_batch_size: 4 ")
    assert "'input' (minuend, subtrahend) and 'output' (OUTPUT__0, ...: 2)" in message


# --- kinds of arguments and results ---------------------------------------------------------------------------------


class Joined(nn.Module):
    def forward(self, texts: list[str]) -> list[str]:
        return [text + "!" for text in texts]


def test_lists_of_strings_are_bytes(tmp_path):
    config = tensors("input", "texts", datatype="STRING", dims="-1")
    config += tensors("output", "OUTPUT__0", datatype="STRING", dims="-1")
    with load(tmp_path, Joined(), config) as model:
        found = model.infer({"texts": np.array(["a", "zwölf"], object)})["OUTPUT__0"]
        assert [text.decode() for text in found] == ["a!", "zwölf!"]
        with pytest.raises(ModelError, match="an element that is not UTF-8"):
            model.infer({"texts": np.array([b"\xff"], object)})


def test_strings_of_several_dimensions_are_refused(tmp_path):
    config = tensors("input", "texts", datatype="STRING", dims="-1, 2")
    config += tensors("output", "OUTPUT__0", datatype="STRING", dims="-1")
    assert "only supports 1 dimensional List of String" in refusal(tmp_path, Joined(), config)


class TakesDictionary(nn.Module):
    def forward(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"total": tensors["a"] + tensors["b"], "a": tensors["a"]}


def test_dictionaries_have_the_names_as_keys(tmp_path):
    config = "max_batch_size: 4 " + tensors("input", "a", "b") + tensors("output", "a", "total")
    with load(tmp_path, TakesDictionary(), config) as model:
        found = model.infer({"a": TWO, "b": TWO})
    np.testing.assert_array_equal(found["total"], 2 * TWO)
    np.testing.assert_array_equal(found["a"], TWO)


class TakesNumber(nn.Module):
    def forward(self, x, power: int):
        return x**power


class HasDefaults(nn.Module):
    def forward(self, x, y: Tensor | None = None, power: int = 2):
        return x**power if y is None else x + y


def test_argument_of_another_type_is_refused(tmp_path):
    message = refusal(tmp_path, TakesNumber(), tensors("input", "x", "power") + tensors("output", "OUTPUT__0"))
    assert "An input of type 'int' was detected in the model" in message
    assert "argument 'power' of forward" in message


def test_absent_inputs_have_their_defaults(tmp_path):
    optional = 'input [ { name: "x" data_type: TYPE_FP32 dims: [ 2 ] }, '
    optional += '{ name: "y" data_type: TYPE_FP32 dims: [ 2 ] optional: true } ] '
    with load(tmp_path, HasDefaults(), "max_batch_size: 4 " + optional + tensors("output", "OUTPUT__0")) as model:
        np.testing.assert_array_equal(model.infer({"x": TWO})["OUTPUT__0"], TWO**2)
        np.testing.assert_array_equal(model.infer({"x": TWO, "y": TWO})["OUTPUT__0"], 2 * TWO)


class ListOfTensors(nn.Module):
    def forward(self, x):
        return [x, x + 1]


def test_lists_are_results_by_number(tmp_path):
    config = "max_batch_size: 4 " + tensors("input", "x")
    with load(tmp_path, ListOfTensors(), config + tensors("output", "OUTPUT__1")) as model:
        np.testing.assert_array_equal(model.infer({"x": TWO})["OUTPUT__1"], TWO + 1)
    with (
        load(tmp_path, ListOfTensors(), config + tensors("output", "OUTPUT__2")) as model,
        pytest.raises(ModelError, match="This model has 2 outputs"),
    ):
        model.infer({"x": TWO})


# --- datatypes, memory ----------------------------------------------------------------------------------------------


class Twice(nn.Module):
    def forward(self, x):
        return x + x


@pytest.mark.parametrize(
    ("datatype", "dtype"),
    [
        ("FP16", np.float16),
        ("BF16", bfloat16),
        ("FP64", np.float64),
        ("INT8", np.int8),
        ("UINT8", np.uint8),
        ("INT16", np.int16),
        ("INT32", np.int32),
        ("INT64", np.int64),
    ],
)
def test_datatypes_match_pytorch(tmp_path, datatype, dtype):
    config = tensors("input", "x", datatype=datatype) + tensors("output", "OUTPUT__0", datatype=datatype)
    with load(tmp_path, Twice(), config) as model:
        found = model.infer({"x": np.array([1, 2], dtype)})["OUTPUT__0"]
    assert found.dtype == dtype
    assert found.astype(float).tolist() == [2, 4]


class WritesToInput(nn.Module):
    def forward(self, x):
        x.add_(1)
        return x


def test_requests_are_not_written_to(tmp_path):
    config = tensors("input", "x", dims="-1") + tensors("output", "OUTPUT__0", dims="-1")
    given = np.arange(9000, dtype=np.float32)
    with load(tmp_path, WritesToInput(), config) as model:
        found = model.infer({"x": given})["OUTPUT__0"]
    np.testing.assert_array_equal(given, np.arange(9000))
    np.testing.assert_array_equal(found, given + 1)


class Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(9000))

    def forward(self, x):
        self.count.add_(x)
        return self.count


def test_results_stay_when_buffers_change(tmp_path):
    config = tensors("input", "x", dims="1") + tensors("output", "OUTPUT__0", dims="9000")
    with load(tmp_path, Counts(), config) as model:
        first, second = (model.infer({"x": np.ones(1, np.float32)})["OUTPUT__0"] for _ in range(2))
    assert (first[0], second[0]) == (1, 2)


# --- errors ---------------------------------------------------------------------------------------------------------


def test_wrong_shape_of_a_result_names_the_fix(tmp_path):
    config = "max_batch_size: 4 " + tensors("input", "x") + tensors("output", "OUTPUT__0", dims="3")
    with load(tmp_path, Twice(), config) as model, pytest.raises(ModelError) as caught:
        model.infer({"x": TWO})
    assert "output 'OUTPUT__0' with shape [1, 2]" in str(caught.value)
    assert "write dims: [2]" in str(caught.value)


def test_wrong_datatype_of_a_result_names_both(tmp_path):
    config = tensors("input", "x") + tensors("output", "OUTPUT__0", datatype="INT32")
    with (
        load(tmp_path, Twice(), config) as model,
        pytest.raises(ModelError, match="datatype FP32, but the model configuration says TYPE_INT32"),
    ):
        model.infer({"x": TWO[0]})


class Looks(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(3, 2)

    def forward(self, index):
        return self.table(index)


def test_index_out_of_range_fails_one_request(tmp_path):
    config = "max_batch_size: 4 " + tensors("input", "index", datatype="INT64", dims="1")
    with load(tmp_path, Looks(), config + tensors("output", "OUTPUT__0", dims="1, 2")) as model:
        good, bad = model.infer_batch([{"index": np.array([[1]])}, {"index": np.array([[9]])}])
    assert good["OUTPUT__0"].shape == (1, 1, 2)
    assert "index out of range" in str(bad)


def test_errors_of_the_interpreter_are_short(tmp_path):
    config = CONFIG.replace("8, 8", "8, 9")
    module = trained_digits().module
    with load(tmp_path, module, config) as model, pytest.raises(ModelError) as caught:
        model.infer({"INPUT__0": np.zeros((1, 1, 8, 9), np.float32)})
    assert "mat1 and mat2 shapes cannot be multiplied" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-500]), "is truncated"),
        (lambda path: path.write_bytes(b"something else"), "is not a model of PyTorch"),
        (lambda path: torch.save(Difference().state_dict(), path), "is a state dict, weights without the program"),
    ],
    ids=["truncated", "other", "state dict"],
)
def test_other_files_are_refused(tmp_path, content, message):
    path = save_torchscript(Difference(), tmp_path / "m" / "1" / "model.pt")
    content(path)
    with pytest.raises(InferError) as caught:
        BackendModel(PyTorchBackend(), tmp_path / "m", config=f'name: "m" backend: "pytorch" {CONFIG}')
    assert f"{path} {message}" in caught.value.message


# --- parameters -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "parameters",
    [
        parameter("DISABLE_OPTIMIZED_EXECUTION", "true"),
        parameter("INFERENCE_MODE", "false"),
        parameter("ENABLE_WEIGHT_SHARING", "true"),
        parameter("INTRA_OP_THREAD_COUNT", "1") + parameter("INTER_OP_THREAD_COUNT", "1"),
        parameter("ENABLE_JIT_PROFILING", "true") + parameter("ENABLE_JIT_EXECUTOR", "true"),
        parameter("ENABLE_CACHE_CLEANING", "true") + parameter("ENABLE_NVFUSER", "true"),
    ],
)
def test_parameters_keep_the_results(tmp_path, parameters):
    digits = trained_digits()
    with load(tmp_path, digits.module, CONFIG + parameters) as model:
        found = model.infer({"INPUT__0": digits.images[:5].numpy()})["OUTPUT__0"]
    np.testing.assert_allclose(found, digits.probabilities(5), atol=1e-6)


def test_compile_is_refused(tmp_path):
    message = refusal(tmp_path, Difference(), CONFIG + parameter("TORCH_COMPILE_OPTIONAL_PARAMETERS", "{}"))
    assert "torch.compile has no effect on a TorchScript archive" in message
