"""Conversions that need no large framework, with their answers compared; most of them in this process."""

import hashlib

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from naiad.core.datatype import DataType
from naiad.core.tensor import TensorSpec
from naiad.tools.optimize.candidate import Status
from naiad.tools.optimize.converters.conversion_plan import candidates, installed_packages
from naiad.tools.optimize.converters.conversions import Converter
from naiad.tools.optimize.optimize_source import Format, Source
from naiad.tools.optimize.samples.sample_reader import ArraySamples, shape_ranges
from support.conversions_here import conversions_here

INPUTS = (TensorSpec("x", DataType.FP32, (-1, 8)),)
DATA = np.random.default_rng(1).normal(size=(20, 8)).astype(np.float32)


@pytest.fixture
def in_this_process():
    with conversions_here():
        yield


def write_network(path):
    random = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(random.normal(size=shape).astype(np.float32), name)
        for name, shape in (("w1", (8, 16)), ("w2", (16, 4)))
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["h"], "first"),
        helper.make_node("Relu", ["h"], ["r"], "relu"),
        helper.make_node("Identity", ["r"], ["i"], "nothing"),
        helper.make_node("MatMul", ["i", "w2"], ["y"], "second"),
    ]
    tensors = (
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", size])] for name, size in (("x", 8), ("y", 4))
    )
    model = helper.make_model(
        helper.make_graph(nodes, "g", *tensors, weights), opset_imports=[helper.make_opsetid("", 17)], ir_version=9
    )
    onnx.save(model, path)


def convert_all(source, workspace, names, data=DATA):
    samples = ArraySamples({"x": data}, source.inputs)
    planned = candidates(source, shape_ranges(samples), installed_packages())
    wanted = [each for each in planned if each.name in ("source", *names)]
    return {each.candidate.name: each for each in Converter.open(source, samples, workspace).convert_all(wanted)}


def answers(conversion, output=0):
    session = onnxruntime.InferenceSession(str(conversion.folder / "model.onnx"), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": DATA})[output]


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    folder = tmp_path_factory.mktemp("network")
    write_network(folder / "network.onnx")
    return Source("network", Format.ONNX, folder / "network.onnx", INPUTS)


def test_optimized_graphs_answer_as_the_source(network, tmp_path):
    names = ("onnx-optimized-basic", "onnx-optimized-extended", "onnx-optimized-all")
    made = convert_all(network, tmp_path, names)
    assert {each.status for each in made.values()} == {Status.CONVERTED}
    for name in names:
        np.testing.assert_allclose(answers(made[name]), answers(made["source"]), rtol=1e-5, atol=1e-5)
        assert len(onnx.load(made[name].folder / "model.onnx").graph.node) < 4


@pytest.mark.usefixtures("in_this_process")
def test_int8_graphs_answer_nearly_as_the_source(network, tmp_path):
    names = ("onnx-int8-dynamic", "onnx-int8-minmax", "onnx-int8-entropy", "onnx-int8-percentile")
    made = convert_all(network, tmp_path, names)
    for name in names:
        assert made[name].status is Status.CONVERTED, made[name].log
        kinds = {node.op_type for node in onnx.load(made[name].folder / "model.onnx").graph.node}
        assert kinds & {"MatMulInteger", "DynamicQuantizeLinear", "QuantizeLinear"}
        assert made[name].backend_parameters == {"session.x64quantprecision": "1"}
        difference = np.abs(answers(made[name]) - answers(made["source"])).mean()
        assert 0 < difference < 0.1 * np.abs(answers(made["source"])).mean()


@pytest.mark.usefixtures("in_this_process")
def test_estimator_becomes_onnx(tmp_path):
    import joblib
    from sklearn.linear_model import LogisticRegression

    estimator = LogisticRegression().fit(DATA, np.arange(20) % 3)
    joblib.dump(estimator, tmp_path / "estimator.joblib")
    source = Source("estimator", Format.SKLEARN, tmp_path / "estimator.joblib", INPUTS)
    made = convert_all(source, tmp_path / "work", ("onnx-fp32",))
    assert made["source"].folder.joinpath("model.joblib").is_file()
    np.testing.assert_array_equal(answers(made["onnx-fp32"]), estimator.predict(DATA))
    np.testing.assert_allclose(answers(made["onnx-fp32"], 1), estimator.predict_proba(DATA), atol=1e-5)


@pytest.mark.usefixtures("in_this_process")
def test_estimator_keeps_outputs_of_source(tmp_path):
    import joblib
    from sklearn.linear_model import LogisticRegression

    estimator = LogisticRegression().fit(DATA, np.arange(20) % 2)
    joblib.dump(estimator, tmp_path / "estimator.joblib")
    outputs = (TensorSpec("probabilities", DataType.FP64, (-1, 2)),)
    source = Source("estimator", Format.SKLEARN, tmp_path / "estimator.joblib", INPUTS, outputs)
    made = convert_all(source, tmp_path / "work", ("onnx-fp32",))
    np.testing.assert_allclose(answers(made["onnx-fp32"]), estimator.predict_proba(DATA), atol=1e-5)
    # The server executes this pickle's code, no other.
    digest = hashlib.sha256((tmp_path / "estimator.joblib").read_bytes()).hexdigest()
    assert made["source"].backend_parameters == {"sha256": digest}


def test_damaged_source_is_a_failure(tmp_path):
    (tmp_path / "damaged.onnx").write_bytes(b"no graph")
    source = Source("damaged", Format.ONNX, tmp_path / "damaged.onnx", INPUTS)
    made = convert_all(source, tmp_path / "work", ("onnx-optimized-basic",))
    assert made["onnx-optimized-basic"].status is Status.FAILED
    assert made["onnx-optimized-basic"].reason


@pytest.mark.usefixtures("in_this_process")
def test_calibration_takes_samples_of_differing_lengths(tmp_path):
    weights = numpy_helper.from_array(np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32), "w")
    tensors = ([helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", "l", s])] for n, s in (("x", 8), ("y", 4)))
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"], "product")], "g", *tensors, [weights])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), tmp_path / "m.onnx"
    )
    inputs = (TensorSpec("x", DataType.FP32, (-1, -1, 8)),)
    random = np.random.default_rng(1)
    samples = [{"x": random.normal(size=(length, 8)).astype(np.float32)} for length in (3, 5, 5, 4, 5)]
    source = Source("m", Format.ONNX, tmp_path / "m.onnx", inputs)
    planned = candidates(source, shape_ranges(samples), installed_packages())
    wanted = [each for each in planned if each.name in ("source", "onnx-int8-entropy", "onnx-int8-percentile")]
    made = list(Converter.open(source, samples, tmp_path / "work").convert_all(wanted))
    assert [(each.status, each.reason) for each in made] == [(Status.CONVERTED, "")] * 3


@pytest.mark.usefixtures("in_this_process")
def test_bias_of_two_dimensions_is_quantized(tmp_path):
    """ONNX Runtime's quantizer takes its elements for truth values."""
    random = np.random.default_rng(2)
    weights = [
        numpy_helper.from_array(random.normal(size=shape).astype(np.float32), name)
        for name, shape in (("w", (8, 4)), ("b", (1, 4)))
    ]
    tensors = ([helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", s])] for n, s in (("x", 8), ("y", 4)))
    graph = helper.make_graph([helper.make_node("Gemm", ["x", "w", "b"], ["y"], "product")], "g", *tensors, weights)
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), tmp_path / "m.onnx"
    )
    source = Source("m", Format.ONNX, tmp_path / "m.onnx", INPUTS)
    made = convert_all(source, tmp_path / "work", ("onnx-int8-minmax",))
    assert made["onnx-int8-minmax"].reason == ""
    difference = np.abs(answers(made["onnx-int8-minmax"]) - answers(made["source"])).mean()
    assert 0 < difference < 0.1 * np.abs(answers(made["source"])).mean()
