"""The converter to TensorRT with a builder that writes what it was asked for."""

import json
import sys
from pathlib import Path

import onnx
import pytest
from onnx import helper

from naiad.tools.optimize.converters import tensorrt_engine
from naiad.tools.optimize.converters.conversion_job import ConversionJob, JobTensor
from naiad.tools.optimize.converters.operators import missing_operator
from naiad.tools.optimize.converters.tensorrt_engine import profile_shapes
from naiad.tools.optimize.samples.chunks import write_chunks
from support.fake_tensorrt_builder import package
from support.sensitive_networks import SAMPLES, SIZE, outlier_network, write_network

RANGES = {"x": ((1, SIZE), (8, SIZE), (8, SIZE))}


def job(tmp_path, precision, ranges=None, **settings):
    if not (tmp_path / "network.onnx").exists():
        outlier_network(tmp_path / "network.onnx")
    write_chunks(SAMPLES, tmp_path / "samples" / "a", 24)
    (tmp_path / "out" / "files").mkdir(parents=True, exist_ok=True)
    tensors = (JobTensor("x", "FP32", (-1, SIZE)),)
    return ConversionJob(
        "onnx",
        str(tmp_path / "network.onnx"),
        "tensorrt",
        precision,
        settings,
        tensors,
        (),
        True,
        ranges or RANGES,
        str(tmp_path / "samples" / "a"),
        str(tmp_path / "out" / "files"),
    )


@pytest.fixture(params=[10, 11])
def tensorrt(request, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorrt", package(request.param))
    return request.param


def built(wanted):
    tensorrt_engine.convert(wanted)
    return json.loads(Path(wanted.output, "model.plan").read_bytes())


def test_precisions_are_flags_or_types(tensorrt, tmp_path):
    assert built(job(tmp_path, "fp32"))["precision"] == []
    assert built(job(tmp_path, "tf32"))["precision"] == ["TF32"]
    assert built(job(tmp_path, "fp32"))["flags"] == 2  # strongly typed


def test_bf16_needs_a_release_with_its_flag(tensorrt, tmp_path):
    if tensorrt == 10:
        plan = built(job(tmp_path, "bf16"))
        assert (plan["precision"], plan["flags"]) == (["BF16"], 0)
    else:
        with pytest.raises(ValueError, match=r"TensorRT 11.4.0 takes BF16 from the graph only.*tensorrt-fp16"):
            built(job(tmp_path, "bf16"))


def test_int8_has_symmetric_pairs(tensorrt, tmp_path):
    plan = built(job(tmp_path, "int8", keep_nodes=["layer3"]))
    assert plan["ops"].count("MatMul") == 6
    assert {"QuantizeLinear", "DequantizeLinear"} <= set(plan["ops"])
    graph = onnx.load(tmp_path / "out" / "typed.onnx").graph
    points = [each for each in graph.initializer if "zero_point" in each.name]
    assert points
    assert all(not onnx.numpy_helper.to_array(each).any() for each in points)
    assert {"w0_quantized", "w3"} <= set(plan["initializers"])


def test_profile_comes_from_samples_or_settings(tensorrt, tmp_path):
    assert built(job(tmp_path, "fp32"))["profiles"] == [{"x": [[1, SIZE], [8, SIZE], [8, SIZE]]}]
    other = [[2, SIZE], [4, SIZE], [16, SIZE]]
    assert built(job(tmp_path, "fp32", profile={"x": other}))["profiles"] == [{"x": other}]


def test_next_engine_starts_with_known_timings(tensorrt, tmp_path):
    assert built(job(tmp_path, "fp32"))["timings"] == ""
    assert built(job(tmp_path, "tf32"))["timings"] == "kernel;"
    assert (tmp_path / "tensorrt-timing.cache").read_bytes() == b"kernel;kernel;"


def test_operator_without_importer_is_named(tensorrt, tmp_path):
    write_network(tmp_path / "network.onnx", [helper.make_node("UnknownOp", ["x"], ["y"])], [])
    with pytest.raises(ValueError, match="cannot read the graph: No importer registered for op: UnknownOp") as error:
        built(job(tmp_path, "fp32"))
    assert missing_operator(str(error.value)) == "UnknownOp"


def test_failed_build_has_the_message(tensorrt, tmp_path):
    write_network(tmp_path / "network.onnx", [helper.make_node("If", ["x"], ["y"])], [])
    with pytest.raises(RuntimeError, match="builds no engine: Could not find any implementation for node If"):
        built(job(tmp_path, "fp32"))


def test_graph_input_without_samples_is_named(tensorrt, tmp_path):
    with pytest.raises(ValueError, match="input 'x' of the graph has no samples, the samples have z"):
        built(job(tmp_path, "fp32", {"z": RANGES["x"]}))


def test_fixed_sizes_stay_in_profiles():
    shapes = ((1, 3, 10), (8, 3, 20), (8, 3, 30))
    assert profile_shapes("x", (-1, 3, -1), shapes) == ([1, 3, 10], [8, 3, 20], [8, 3, 30])
    assert profile_shapes("x", (1, 3, -1), shapes) == ([1, 3, 10], [1, 3, 20], [1, 3, 30])
    assert profile_shapes("x", (4,), ((1,), (8,), (8,))) is None


def test_fixed_size_that_samples_lack_is_named():
    with pytest.raises(ValueError, match="input 'x' has the fixed size 20 at dimension 1, the samples have 10 to 30"):
        profile_shapes("x", (-1, 20), ((1, 10), (8, 20), (8, 30)))
    with pytest.raises(ValueError, match="input 'x' has 3 dimensions in the graph, 2 in the samples"):
        profile_shapes("x", (-1, 2, 2), ((1, 10), (8, 20), (8, 30)))
