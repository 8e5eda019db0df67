"""`naiad split`: a network in stages gives the results of the whole one, through a real server."""

import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import tritonclient.http as httpclient
from onnx import TensorProto, helper, numpy_helper

from support.commands import run_command
from support.server_process import serving

CHANNELS, LAYERS, SIZE = 16, 5, 12
IMAGES = np.random.default_rng(1).standard_normal((3, 3, SIZE, SIZE), np.float32)


def split(*arguments: object) -> "subprocess.CompletedProcess[str]":
    return run_command("split", *arguments, status=None)


def save(
    path: Path,
    nodes: Sequence[onnx.NodeProto],
    dims: Sequence[str | int],
    outputs: Sequence[onnx.ValueInfoProto],
    weights: Sequence[onnx.TensorProto] = (),
    **external: object,
) -> Path:
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, dims)]
    graph = helper.make_graph(list(nodes), "g", inputs, list(outputs), list(weights))
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save_model(made, str(path), **external)
    return path


def write_network(path: Path, **external: object) -> Path:
    """Convolutions with residuals; the means of channels and the class are its outputs."""
    random = np.random.default_rng(0)
    nodes, weights, last = [], [], "x"
    for index in range(LAYERS):
        shape = (CHANNELS, CHANNELS if index else 3, 3, 3)
        weight = random.standard_normal(shape).astype(np.float32) / np.float32(3 * CHANNELS**0.5)
        weights.append(numpy_helper.from_array(weight, f"w{index}"))
        nodes.append(helper.make_node("Conv", [last, f"w{index}"], [f"c{index}"], pads=[1, 1, 1, 1]))
        nodes.append(helper.make_node("Relu", [f"c{index}"], [f"r{index}"]))
        if index:
            nodes.append(helper.make_node("Add", [f"r{index}", last], [f"a{index}"]))
        last = f"a{index}" if index else f"r{index}"
    nodes += [
        helper.make_node("GlobalAveragePool", [last], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["means"]),
        helper.make_node("ArgMax", ["means"], ["class"], axis=1, keepdims=1),
    ]
    outputs = [
        helper.make_tensor_value_info("means", TensorProto.FLOAT, ["N", CHANNELS]),
        helper.make_tensor_value_info("class", TensorProto.INT64, ["N", 1]),
    ]
    return save(path, nodes, ["N", 3, SIZE, SIZE], outputs, weights, **external)


def infer(url: str, model: str, images: np.ndarray, outputs: Sequence[str]) -> list[np.ndarray]:
    with httpclient.InferenceServerClient(url) as client:
        tensor = httpclient.InferInput("x", list(images.shape), "FP32")
        tensor.set_data_from_numpy(images)
        result = client.infer(model, [tensor])
        return [result.as_numpy(name) for name in outputs]


@pytest.mark.parametrize("flags", [("--stages=2",), ("--stages=3", "--by=bytes", "--isolation=process")])
def test_stages_are_served_as_the_whole(tmp_path: Path, flags: Sequence[str]) -> None:
    np.savez(tmp_path / "inputs.npz", x=IMAGES)
    path = write_network(tmp_path / "net.onnx")
    done = split(path, *flags, "--data", tmp_path / "inputs.npz", "--output", tmp_path / "models")
    assert done.returncode == 0, done.stderr
    stages = int(flags[0][-1])
    assert done.stdout.count("net_stage") == stages
    assert f"naiad serve {tmp_path / 'models'}" in done.stdout
    expected = onnxruntime.InferenceSession(str(path)).run(None, {"x": IMAGES})
    with serving(tmp_path / "log", f"--model-repository={tmp_path / 'models'}") as server:
        server.wait_ready()
        means, classes = infer(server.http_url, "net", IMAGES, ["means", "class"])
    np.testing.assert_allclose(means, expected[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(classes, expected[1])


def test_external_data_is_read(tmp_path: Path) -> None:
    path = write_network(tmp_path / "net.onnx", save_as_external_data=True, location="weights", size_threshold=0)
    done = split(path, "--stages=2", "--output", tmp_path / "models")
    assert done.returncode == 0, done.stderr
    first = onnxruntime.InferenceSession(str(tmp_path / "models" / "net_stage0" / "1" / "model.onnx"))
    assert [each.name for each in first.get_inputs()] == ["x"]


def test_values_of_other_rows_prevent_batching(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Constant", [], ["minus"], value_float=-1.0),
        helper.make_node("Neg", ["minus"], ["one"]),
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("ReduceMax", ["x"], ["largest"], keepdims=0),
        helper.make_node("Mul", ["x", "one"], ["same"]),
        helper.make_node("Exp", ["same"], ["e"]),
        helper.make_node("Flatten", ["e"], ["flat"]),
        helper.make_node("Mul", ["flat", "largest"], ["scaled"]),
        helper.make_node("Reshape", ["scaled", "shape"], ["y"]),
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", "M", 4])]
    path = save(tmp_path / "shapes.onnx", nodes, ["N", "M", 4], outputs)
    done = split(path, "--stages=3", "--output", tmp_path / "models")
    assert done.returncode == 0, done.stderr
    assert "no batching" in done.stdout
    value = np.random.default_rng(3).standard_normal((2, 5, 4), np.float32)
    with serving(tmp_path / "log", f"--model-repository={tmp_path / 'models'}") as server:
        server.wait_ready()
        (answer,) = infer(server.http_url, "shapes", value, ["y"])
    np.testing.assert_allclose(answer, np.exp(value) * value.max(), rtol=1e-5)


def write_wrong_inputs(path: Path, **arrays: np.ndarray) -> Path:
    np.savez(path, **arrays)
    return path


def test_invalid_commands_give_reasons(tmp_path: Path) -> None:
    path = write_network(tmp_path / "net.onnx")
    text = tmp_path / "text.onnx"
    text.write_text("no model")
    wrong_shape = write_wrong_inputs(tmp_path / "shape.npz", x=IMAGES[:, :1])
    wrong_name = write_wrong_inputs(tmp_path / "name.npz", image=IMAGES)
    random = save(
        tmp_path / "random.onnx",
        [helper.make_node("RandomNormalLike", ["x"], ["r"]), helper.make_node("Add", ["x", "r"], ["y"])],
        ["N"],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N"])],
    )
    output = tmp_path / "models"
    for arguments, reason in [
        ((path, "--stages=99"), "use --stages"),
        ((text, "--stages=2"), "not a valid ONNX model"),
        ((tmp_path / "none.onnx", "--stages=2"), "is not a file"),
        ((path, "--stages=2", "--data", wrong_shape), "input 'x' is float32"),
        ((path, "--stages=2", "--data", wrong_name), "no input 'image'"),
        ((path, "--stages=2", "--data", text), "is not a .npz file"),
        ((path, "--stages=2", "--data", tmp_path / "none.npz"), "none.npz cannot be read: No such file"),
        ((random, "--stages=2"), "differs from the whole model's"),
    ]:
        done = split(*arguments, "--output", output)
        assert done.returncode == 1
        assert reason in done.stderr
        assert not output.exists()
    assert split(path, "--stages=1").returncode == 2


def test_output_on_another_file_system(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as elsewhere:
        if Path(elsewhere).stat().st_dev == tmp_path.stat().st_dev:
            pytest.skip("/dev/shm is on the file system of temporary files")
        output = tmp_path / "models"
        output.symlink_to(elsewhere)
        done = split(write_network(tmp_path / "net.onnx"), "--stages=2", "--output", output)
        assert done.returncode == 0, done.stderr
        assert sorted(each.name for each in output.iterdir()) == ["net", "net_stage0", "net_stage1"]


def test_output_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    done = split(write_network(tmp_path / "net.onnx"), "--stages=2", "--output", "/proc/models")
    assert done.returncode == 1
    assert "--output /proc/models cannot be written: No such file or directory" in done.stderr


def test_output_that_is_no_tensor_is_named(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Identity", ["x"], ["y"]),
        helper.make_node("ZipMap", ["y"], ["z"], domain="ai.onnx.ml", classlabels_int64s=[0, 1]),
    ]
    values = helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    output = helper.make_value_info("z", helper.make_sequence_type_proto(values))
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 2])]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 1)]
    graph = helper.make_graph(nodes, "g", inputs, [output])
    onnx.save_model(helper.make_model(graph, opset_imports=opsets, ir_version=8), str(tmp_path / "zip.onnx"))
    done = split(tmp_path / "zip.onnx", "--stages=2", "--output", tmp_path / "models")
    assert done.returncode == 1
    assert done.stderr.startswith("naiad split: output 'z' is of type seq(map(int64,tensor(float)))")


def test_existing_models_are_kept(tmp_path: Path) -> None:
    path = write_network(tmp_path / "net.onnx")
    (tmp_path / "models" / "net_stage1").mkdir(parents=True)
    done = split(path, "--stages=2", "--output", tmp_path / "models")
    assert done.returncode == 1
    assert "exists" in done.stderr
    assert [each.name for each in (tmp_path / "models").iterdir()] == ["net_stage1"]
