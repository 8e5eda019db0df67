"""Sources of each framework: from a file or from memory, with their tensors and their answers.

Each file is read, and each reference runs, in a process of its own.
"""

import numpy as np
import pytest

from naiad.core.datatype import DataType
from naiad.core.errors import InferError
from naiad.core.tensor import TensorSpec
from naiad.tools.optimize.correctness.runners.model_runner import RunnerError
from naiad.tools.optimize.optimize_source import Format, Source
from naiad.tools.optimize.samples.sample_reader import from_path
from naiad.tools.optimize.sources import NamedSamples, open_source, reference_runner
from naiad.tools.optimize.sources.observation import observe
from naiad.tools.optimize.sources.reading_child import read
from naiad.tools.optimize.sources.saving import save
from naiad.tools.optimize.sources.tensor_reader import Reading

DATA = np.random.default_rng(1).normal(size=(20, 8)).astype(np.float32)
LABELS = (DATA[:, 0] > 0).astype(int)
FP32, FP64 = DataType.FP32, DataType.FP64


@pytest.fixture
def unnamed(tmp_path):
    """Samples as one array without a name."""
    np.save(tmp_path / "data.npy", DATA)
    return from_path(tmp_path / "data.npy", ())


def read_here(path, source_format, samples):
    """Read in this process: a subprocess imports the framework again."""
    seen = observe(samples)
    reading = Reading(source_format, path, seen.inputs, are_observed=True, allow_pickle=True)
    return read(reading, seen.examples)


def network():
    import torch

    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 3), torch.nn.Softmax(-1)).eval()


def test_pickled_module_and_its_answers(tmp_path, unnamed):
    import torch

    module = network()
    path = save(module, tmp_path / "source", "net")
    with pytest.raises(ValueError, match=r"net\.pt: this is a pickle, .*torch\.export\.save"):
        open_source(path)
    source = open_source(path, samples=unnamed, allow_pickle=True)
    assert (source.name, source.format, source.has_batch) == ("net", Format.TORCH, True)
    assert source.inputs == (TensorSpec("input", FP32, (-1, 8)),)
    assert source.outputs == (TensorSpec("OUTPUT__0", FP32, (-1, 3)),)
    runner = reference_runner(source, tmp_path / "work")
    try:
        found = runner.infer({"input": DATA[:1]})["OUTPUT__0"]
        with pytest.raises(RunnerError):
            runner.infer({"input": DATA[:1, :4]})
    finally:
        runner.close()
    np.testing.assert_allclose(found, module(torch.from_numpy(DATA[:1])).detach().numpy(), rtol=1e-5)


def test_state_dict_is_refused_with_the_fix(tmp_path, unnamed):
    import torch

    torch.save(network().state_dict(), tmp_path / "weights.pt")
    with pytest.raises(InferError, match=r"is a state dict, weights without the program; .*torch\.export\.save"):
        read_here(tmp_path / "weights.pt", Format.TORCH, unnamed)


def test_torchscript_takes_samples_by_argument_and_order(tmp_path):
    import torch

    class Scaled(torch.nn.Module):
        def forward(self, values, factor):
            return values * factor, values.sum(-1)

    example = (torch.zeros(2, 8), torch.zeros(2, 1))
    path = save(torch.jit.trace(Scaled(), example), tmp_path, "scaled")
    samples = [{"factor": DATA[0, :1], "values": DATA[0]}]
    found = read_here(path, Format.TORCHSCRIPT, samples)
    assert [(each.name, each.shape) for each in found.inputs] == [("values", (-1, 8)), ("factor", (-1, 1))]
    assert [(each.name, each.shape) for each in found.outputs] == [("OUTPUT__0", (-1, 8)), ("OUTPUT__1", (-1,))]
    with pytest.raises(
        ValueError, match=r"has no datatypes and shapes of its inputs \(values, factor\); give samples"
    ):
        read(Reading(Format.TORCHSCRIPT, path), [])
    with pytest.raises(ValueError, match="the samples have 3 inputs, the model takes 2"):
        read_here(path, Format.TORCHSCRIPT, [{f"#{number}": DATA[0] for number in range(3)}])


def test_exported_program_says_its_tensors(tmp_path, unnamed):
    import torch

    batch = torch.export.Dim("batch", min=1)
    program = torch.export.export(network(), (torch.zeros(2, 8),), dynamic_shapes=({0: batch},))
    found = read_here(save(program, tmp_path, "net"), Format.TORCH_EXPORT, unnamed)
    assert (found.inputs, found.has_batch) == ((TensorSpec("input", FP32, (-1, 8)),), True)


def test_estimator_gives_probabilities(tmp_path, unnamed):
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.linear_model import LinearRegression

    forest = RandomForestClassifier(5, random_state=0).fit(DATA, LABELS)
    path = save(forest, tmp_path, "forest")
    found = read_here(path, Format.SKLEARN, unnamed)
    source = Source("forest", Format.SKLEARN, path, found.inputs, found.outputs)
    assert source.inputs == (TensorSpec("input__0", FP32, (-1, 8)),)
    assert source.outputs == (TensorSpec("predict_proba", FP64, (-1, 2)),)
    samples = NamedSamples(unnamed, ["input__0"])
    answers = []
    for _ in range(2):  # The second time from the workspace.
        runner = reference_runner(source, tmp_path / "work", "digest")
        answers.append([runner.infer({"input__0": each["input__0"][None]})["predict_proba"][0] for each in samples])
        runner.close()
    np.testing.assert_array_equal(*answers)
    np.testing.assert_allclose(answers[0], forest.predict_proba(DATA))
    regression = save(LinearRegression().fit(DATA, DATA[:, 0]), tmp_path, "line")
    assert [each.name for each in read_here(regression, Format.SKLEARN, unnamed).outputs] == ["predict"]


@pytest.mark.parametrize("library", ["xgboost", "lightgbm"])
def test_boosted_trees_from_memory(tmp_path, unnamed, library):
    if library == "xgboost":
        import xgboost

        model, kind = xgboost.XGBClassifier(n_estimators=3).fit(DATA, LABELS), Format.XGBOOST
    else:
        import lightgbm

        model = lightgbm.LGBMClassifier(n_estimators=3, min_child_samples=2, verbose=-1).fit(DATA, LABELS)
        kind = Format.LIGHTGBM
    found = read_here(save(model, tmp_path, "trees"), kind, unnamed)
    assert found.inputs == (TensorSpec("input__0", FP32, (-1, 8)),)
    assert found.outputs == (TensorSpec("output__0", FP32, (-1, 1)),)


def test_keras_model_keeps_its_file(tmp_path, unnamed):
    import keras

    model = keras.Sequential([keras.Input((8,), name="x"), keras.layers.Dense(3)])
    path = save(model, tmp_path / "source", "dense")
    before = path.stat().st_mtime_ns
    assert save(model, tmp_path / "source", "dense") == path
    assert path.stat().st_mtime_ns == before
    model.export(tmp_path / "saved", verbose=False)
    for place, kind in ((path, Format.KERAS), (tmp_path / "saved", Format.SAVED_MODEL)):
        found = read_here(place, kind, unnamed)
        assert (found.inputs, found.has_batch) == ((TensorSpec("x", FP32, (-1, 8)),), True)
        assert [each.shape for each in found.outputs] == [(-1, 3)]


def test_tflite_and_openvino_files(tmp_path, unnamed):
    import openvino
    import tensorflow

    function = tensorflow.function(tensorflow.nn.relu)
    concrete = function.get_concrete_function(tensorflow.TensorSpec((1, 8), tensorflow.float32))
    converter = tensorflow.lite.TFLiteConverter.from_concrete_functions([concrete])
    (tmp_path / "m.tflite").write_bytes(converter.convert())
    found = read_here(tmp_path / "m.tflite", Format.LITERT, unnamed)
    assert (found.has_batch, [each.shape for each in found.inputs]) == (True, [(-1, 8)])
    parameter = openvino.opset13.parameter([-1, 8], np.float32, name="x")
    result = openvino.opset13.relu(parameter)
    openvino.save_model(openvino.Model([result], [parameter]), tmp_path / "m.xml")
    found = read_here(tmp_path / "m.xml", Format.OPENVINO, unnamed)
    assert (found.has_batch, [each.shape for each in found.inputs]) == (True, [(-1, 8)])
