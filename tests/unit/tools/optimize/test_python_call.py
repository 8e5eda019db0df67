"""`naiad.optimize`: what its arguments become, and which are refused."""

import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import naiad
from naiad.core.datatype import DataType
from naiad.core.tensor import TensorSpec
from naiad.tools.optimize import optimization
from naiad.tools.optimize.choices import Options
from naiad.tools.optimize.optimize_source import Format
from naiad.tools.optimize.sources import source_opening
from naiad.tools.optimize.sources.reading_child import read

DATA = np.arange(30, dtype=np.float32).reshape(10, 3)


def model():
    tensors = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 3])] for name in "xy"]
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "g", *tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.fixture
def calls(monkeypatch):
    """What `naiad.optimize` passes on."""
    # In this process: a subprocess takes a second.
    monkeypatch.setattr(source_opening, "read_tensors", lambda reading, examples, limits: read(reading, examples))
    found = []
    monkeypatch.setattr(optimization, "optimize", lambda *arguments: found.append(arguments))
    return found


def test_batches_become_samples_by_name(tmp_path, calls):
    naiad.optimize(model(), iter([DATA[:4], DATA[4:]]), sample_count=7, workspace=tmp_path, name="neg")
    source, samples, workspace, _, _ = calls[0]
    assert (source.name, source.format, workspace) == ("neg", Format.ONNX, tmp_path)
    assert source.inputs == (TensorSpec("x", DataType.FP32, (-1, 3)),)
    assert len(samples) == 7
    np.testing.assert_array_equal([each["x"] for each in samples], DATA[:7])


def test_path_and_samples_by_name(tmp_path, calls):
    onnx.save(model(), tmp_path / "m.onnx")
    items = [{"x": DATA[:2]}, {"x": DATA[2:4]}]
    naiad.optimize(tmp_path / "m.onnx", items, workspace=tmp_path / "work", target_formats=["onnx", "trt"])
    _, samples, _, options, _ = calls[0]
    assert len(samples) == 4
    assert options.formats == [Format.ONNX, Format.TENSORRT]


def test_options_are_passed_on(tmp_path, calls):
    naiad.optimize(model(), [DATA], workspace=tmp_path, options=Options(finalists=1), verify_func=None)
    assert calls[0][3] == Options(finalists=1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"runners": ["OnnxCPU"]}, "runners has no meaning in naiad: .*choose formats with target_formats"),
        ({"verify_func": print}, r"verify_func has no meaning .*correctness=Settings\(budget="),
        ({"target_device": "cuda"}, "target_device is 'cuda'; .*target_device='cpu'"),
        ({"target_formats": ["tf-trt"]}, "target_formats has 'tf-trt'; expected some of .*onnx"),
        ({"output_names": ["z"]}, "output_names are z; the model's outputs are y"),
        ({"input_names": ["a"]}, "dataloader: unknown input 'a', expected x"),
    ],
)
def test_refused_arguments_name_the_fix(tmp_path, calls, arguments, message):
    with pytest.raises(ValueError, match=message):
        naiad.optimize(model(), [DATA], workspace=tmp_path, **arguments)
    assert calls == []


def test_bad_models_and_data_are_refused(tmp_path, calls):
    with pytest.raises(TypeError, match="unexpected keyword argument 'sampels'"):
        naiad.optimize(model(), [DATA], workspace=tmp_path, sampels=3)
    with pytest.raises(ValueError, match=r"model is a builtins\.int; expected a path, or a model of PyTorch"):
        naiad.optimize(3, [DATA], workspace=tmp_path)
    with pytest.raises(ValueError, match="dataloader: the data has no samples"):
        naiad.optimize(model(), [], workspace=tmp_path)
    with pytest.raises(ValueError, match="dataloader: unknown input '#1', expected x"):
        naiad.optimize(model(), [(DATA, DATA[:, 0])], workspace=tmp_path)
    with pytest.raises(ValueError, match=r"dataloader: input 'x': expected shape \[3\], got \[2\]"):
        naiad.optimize(model(), [DATA[:, :2]], workspace=tmp_path)


def test_function_is_measured_as_it_is(tmp_path):
    def negate(values, scale):
        return -values * scale

    items = [(DATA[:2], DATA[:2])]
    result = naiad.optimize(negate, items, workspace=tmp_path, options=Options(profile_s=0.1), output_names=["y"])
    assert result.winner == ""
    assert "no conversions" in result.why
    assert result.source.outputs == (TensorSpec("y", DataType.FP32, (-1, 3)),)
    assert result.baseline.profiles[0].latency.value > 0


def test_function_gets_named_inputs_as_keywords(tmp_path):
    options = Options(profile_s=0.1)
    data = [{"b": DATA, "a": DATA + 1}]
    result = naiad.optimize(lambda a, b: {"difference": a - b}, data, workspace=tmp_path, options=options)
    assert [spec.name for spec in result.source.outputs] == ["difference"]
    with pytest.raises(ValueError, match=r"does not answer the samples; .*ZeroDivisionError"):
        naiad.optimize(lambda a, b: 1 / 0, data, workspace=tmp_path)


def test_import_of_naiad_loads_no_numpy():
    code = "import naiad, sys; assert 'numpy' not in sys.modules; naiad.optimize; assert 'numpy' in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_unknown_attribute_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'naiad' has no attribute 'optimise'"):
        _ = naiad.optimise
