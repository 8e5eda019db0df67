"""The search where FP16 overflows, and for OpenVINO's int8."""

import numpy as np
import openvino
import pytest
from onnx import helper, numpy_helper

from naiad.tools.optimize import sensitivity
from naiad.tools.optimize.candidate import Candidate, Precision
from naiad.tools.optimize.converters.conversions import Converter
from naiad.tools.optimize.correctness.gate import judge
from naiad.tools.optimize.correctness.judgement_settings import Settings
from naiad.tools.optimize.correctness.runners.model_runner import CallableRunner
from naiad.tools.optimize.optimize_source import Format
from support.conversions_here import conversions_here
from support.sensitive_networks import SAMPLES, SIZE, judge_onnx, onnx_runner, outlier_network, write_network


@pytest.fixture(scope="module", autouse=True)
def in_this_process():
    with conversions_here():  # A search makes ten conversions, and nncf takes seconds to import.
        yield


def searched(tmp_path, source, candidate, verdict):
    converter = Converter.open(source, SAMPLES, tmp_path / "work")
    after = converter.convert(Candidate("source", Format.ONNX, Precision.FP32, "onnxruntime"))
    made, _, curve = sensitivity.search(converter, candidate, after, verdict, max_steps=12)
    assert made is not None, curve
    assert not curve[0].is_accepted
    return made.candidate


def half_search(tmp_path, source):
    candidate = Candidate("onnx-fp16", Format.ONNX, Precision.FP16, "onnxruntime", {}, "source")
    return searched(tmp_path, source, candidate, lambda made: judge_onnx(source, made))


def test_weight_above_half_precision_stays(tmp_path):
    found = half_search(tmp_path, outlier_network(tmp_path / "network.onnx", feature=1e-3, outlier=2e5))
    assert found.settings["keep_nodes"] == ["layer3"]


def test_reader_of_an_overflow_stays(tmp_path):
    steps = [
        helper.make_node("Mul", ["x", "one"], ["a"], "before"),
        helper.make_node("Mul", ["a", "large"], ["b"], "grows"),
        helper.make_node("Mul", ["b", "large"], ["c"], "overflows"),
        helper.make_node("Mul", ["c", "small"], ["d"]),  # A node without a name has that of its result.
        helper.make_node("Add", ["d", "one"], ["e"], "after"),
        helper.make_node("Relu", ["e"], ["y"], "last"),
    ]
    values = {"one": 1.0, "large": 1000.0, "small": 1e-6}
    weights = [numpy_helper.from_array(np.full(SIZE, value, np.float32), name) for name, value in values.items()]
    source = write_network(tmp_path / "network.onnx", steps, weights)
    # On a CPU, ONNX Runtime computes c in FP32, and does not round it for a node in FP32.
    assert half_search(tmp_path, source).settings["keep_nodes"] == ["d"]


def test_openvino_keeps_nodes_by_their_onnx_names(tmp_path):
    source = outlier_network(tmp_path / "network.onnx")

    def verdict(made):
        settings = {"INFERENCE_PRECISION_HINT": "f32"}
        compiled = openvino.Core().compile_model(made.folder / "model.xml", "CPU", settings)
        runner = CallableRunner(lambda inputs: {"y": compiled(dict(inputs))["y"]})
        return judge(onnx_runner(source.path), runner, SAMPLES, made.candidate, Settings(behaviour_samples=1))

    candidate = Candidate("openvino-int8", Format.OPENVINO, Precision.INT8, "openvino", {}, "source")
    kept = searched(tmp_path, source, candidate, verdict).settings["keep_nodes"]
    # Whether its neighbour has to be kept as well depends on the int8 arithmetic of the processor.
    assert "layer3" in kept
    assert len(kept) <= 2
