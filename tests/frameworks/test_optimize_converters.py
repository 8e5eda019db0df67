"""Each conversion of a tiny model in a process; the answers of the files are compared with the source's."""

import numpy as np
import pytest

from naiad.core.datatype import DataType
from naiad.core.tensor import TensorSpec
from naiad.tools.optimize.candidate import Status
from naiad.tools.optimize.converters.conversion_plan import candidates, installed_packages
from naiad.tools.optimize.converters.conversions import Converter
from naiad.tools.optimize.optimize_source import Format, Source
from naiad.tools.optimize.samples.sample_reader import ArraySamples, shape_ranges
from support.conversions_here import forked_conversions
from support.long_run import mostly_long

DATA = np.random.default_rng(1).normal(size=(20, 8)).astype(np.float32)
X = TensorSpec("x", DataType.FP32, (-1, 8))
Y = TensorSpec("y", DataType.FP32, (-1, 3))
CLOSE = {"fp32": 1e-4, "fp16": 0.02, "mixed": 0.02, "int8_dynamic": 0.15, "int8": 0.15}


@pytest.fixture
def forked():
    # Most conversions of PyTorch import TorchDynamo and ONNX Script, in two seconds of CPU time.
    with forked_conversions("torch", "torch._dynamo", "onnxscript", "openvino", "tensorflow", "keras", "onnxruntime"):
        yield


def convert_all(source, workspace, without=()):
    samples = ArraySamples({"x": DATA}, source.inputs)
    planned = candidates(source, shape_ranges(samples), installed_packages())
    runnable = [each for each in planned if not each.not_run and each.name not in without]
    made = {each.candidate.name: each for each in Converter.open(source, samples, workspace).convert_all(runnable)}
    assert {name: each.reason for name, each in made.items() if each.status is not Status.CONVERTED} == {}
    return made


def answer(conversion):
    """Return the answer to DATA, by the framework of the candidate's format."""
    folder, kind = conversion.folder, conversion.candidate.format
    if kind is Format.ONNX:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        for name, value in conversion.backend_parameters.items():
            if name.startswith("session."):
                options.add_session_config_entry(name, value)
        session = onnxruntime.InferenceSession(str(folder / "model.onnx"), options, ["CPUExecutionProvider"])
        return session.run(None, {session.get_inputs()[0].name: DATA})[-1]
    if kind is Format.OPENVINO:
        import openvino

        settings = {"INFERENCE_PRECISION_HINT": "f32"}
        return openvino.Core().compile_model(folder / "model.xml", "CPU", settings)(DATA)[0]
    if kind is Format.LITERT:
        from ai_edge_litert.interpreter import Interpreter

        interpreter = Interpreter(str(folder / "model.tflite"))  # The outputs are in its memory.
        return np.array(next(iter(interpreter.get_signature_runner()(x=DATA).values())))
    return _answer_of_torch(folder, kind)


def _answer_of_torch(folder, kind):
    import torch

    data = torch.from_numpy(DATA)
    if kind is Format.TORCHSCRIPT:
        return torch.jit.load(folder / "model.pt")(data).detach().numpy()
    if kind is Format.TORCH_EXPORT:
        return torch.export.load(folder / "model.pt2").module()(data).detach().numpy()
    return torch._inductor.aoti_load_package(str(folder / "model.pt2"))(data).detach().numpy()


def check(made, expected):
    scale = np.abs(expected).max()
    for name, conversion in made.items():
        found = np.asarray(answer(conversion)).reshape(expected.shape)
        worst = np.abs(found - expected).max() / scale
        assert worst <= CLOSE[conversion.candidate.precision.value], (name, worst)


@pytest.mark.usefixtures("forked")
def test_pytorch_module_in_all_formats(tmp_path):
    import torch

    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3)).eval()
    torch.save(module, tmp_path / "module.pt")
    source = Source("module", Format.TORCH, tmp_path / "module.pt", (X,), (Y,))
    # AOTInductor has a test of its own; the levels of optimization and calibrations are tested with ONNX graphs.
    without = (
        "aot-inductor",
        "aot-inductor-tuned",
        "onnx-optimized-basic",
        "onnx-optimized-extended",
        "onnx-int8-entropy",
    )
    made = convert_all(source, tmp_path / "work", without)
    check(made, module(torch.from_numpy(DATA)).detach().numpy())
    assert len(made) == 13


@pytest.mark.parametrize("compiled", mostly_long(["aot-inductor", "aot-inductor-tuned"], "aot-inductor".__eq__))
def test_exported_program_in_aot_inductor(compiled, tmp_path):
    """The tuned one is compiled as the plain one is, with more kernels to choose from."""
    import torch

    module = torch.nn.Linear(8, 3).eval()
    batch = torch.export.Dim("batch", min=1)
    program = torch.export.export(module, (torch.zeros(2, 8),), dynamic_shapes=({0: batch},))
    torch.export.save(program, tmp_path / "program.pt2")
    source = Source("program", Format.TORCH_EXPORT, tmp_path / "program.pt2", (X,), (Y,))
    names = {"source", "onnx-fp32", compiled}
    planned = candidates(source, {}, installed_packages())
    made = convert_all(source, tmp_path / "work", [each.name for each in planned if each.name not in names])
    check(made, module(torch.from_numpy(DATA)).detach().numpy())


def test_torchscript_in_onnx(tmp_path):
    import torch

    module = torch.jit.script(torch.nn.Sequential(torch.nn.Linear(8, 3)).eval())
    module.save(tmp_path / "module.pt")
    source = Source("module", Format.TORCHSCRIPT, tmp_path / "module.pt", (X,), (Y,))
    names = {"source", "onnx-fp32"}
    planned = candidates(source, {}, installed_packages())
    made = convert_all(source, tmp_path / "work", [each.name for each in planned if each.name not in names])
    check(made, module(torch.from_numpy(DATA)).detach().numpy())


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_keras_model_in_litert_and_onnx(activation, tmp_path):
    """GELU: tf2onnx writes an operator that ONNX lacks."""
    import keras

    keras.utils.set_random_seed(0)
    layers = [keras.Input((8,), name="x"), keras.layers.Dense(16, activation=activation), keras.layers.Dense(3)]
    model = keras.Sequential(layers)
    model.save(tmp_path / "model.keras")
    source = Source("model", Format.KERAS, tmp_path / "model.keras", (X,), (Y,))
    names = {"source", "litert-fp32", "litert-fp16", "litert-int8-dynamic", "litert-int8", "onnx-fp32"}
    planned = candidates(source, {}, installed_packages())
    if activation == "gelu":
        names = {"source", "onnx-fp32"}
    made = convert_all(source, tmp_path / "work", [each.name for each in planned if each.name not in names])
    assert set(made) == names
    assert made.pop("source").folder.joinpath("model.keras").is_file()
    check(made, model.predict(DATA, verbose=0))


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("library", ["xgboost", "lightgbm"])
def test_boosted_trees_in_treelite_and_onnx(tmp_path, library):
    import treelite

    labels = (DATA[:, 0] > 0).astype(int)
    if library == "xgboost":
        import xgboost

        model = xgboost.train({"objective": "binary:logistic"}, xgboost.DMatrix(DATA, labels), 5)
        expected, file, kind = model.predict(xgboost.DMatrix(DATA)), "xgboost.json", Format.XGBOOST
    else:
        import lightgbm

        settings = {"objective": "binary", "verbose": -1, "min_data_in_leaf": 2, "num_threads": 1}
        model = lightgbm.train(settings, lightgbm.Dataset(DATA, labels), 5)
        expected, file, kind = model.predict(DATA), "model.txt", Format.LIGHTGBM
    model.save_model(tmp_path / file)
    outputs = (TensorSpec("output__0", DataType.FP32, (-1, 1)),)  # The score of class 1, as naiad serves it.
    made = convert_all(Source("trees", kind, tmp_path / file, (X,), outputs), tmp_path / "work")
    assert set(made) == {"source", "treelite", "onnx-fp32"}
    np.testing.assert_allclose(answer(made["onnx-fp32"]), expected[:, None], atol=1e-5)
    forest = treelite.Model.deserialize(str(made["treelite"].folder / "checkpoint.tl"))
    np.testing.assert_allclose(treelite.gtil.predict(forest, DATA).reshape(-1), expected, atol=1e-5)


@pytest.mark.usefixtures("forked")
def test_random_forest_in_treelite(tmp_path):
    import joblib
    import treelite
    from sklearn.ensemble import RandomForestClassifier

    estimator = RandomForestClassifier(5, random_state=0).fit(DATA, DATA[:, 0] > 0)
    joblib.dump(estimator, tmp_path / "forest.joblib")
    made = convert_all(Source("forest", Format.SKLEARN, tmp_path / "forest.joblib", (X,)), tmp_path / "work")
    forest = treelite.Model.deserialize(str(made["treelite"].folder / "checkpoint.tl"))
    found = treelite.gtil.predict(forest, DATA).reshape(20, 2)
    np.testing.assert_allclose(found, estimator.predict_proba(DATA), atol=1e-5)
