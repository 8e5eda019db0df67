"""`naiad compare`: two files, a file and a server, two servers; its three statuses."""

import json

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from support import onnx_models
from support.commands import command_here, run_command
from support.conversions_here import reading_here


def compare(folder, *arguments):
    return run_command("compare", *arguments, "--data", "samples.npz", folder=folder, status=None)


def compare_here(folder, *arguments):
    """Compare in this process, which reads the files, too."""
    with reading_here():
        return command_here("compare", *arguments, "--data", "samples.npz", folder=folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A network of two layers with three outputs of different sizes, and one whose last column is wrong."""
    folder = tmp_path_factory.mktemp("compare")
    random = np.random.default_rng(0)
    weights = {
        "w0": random.normal(size=(8, 16)).astype(np.float32),
        "w1": (random.normal(size=(16, 3)) * [1e4, 1, 0.1]).astype(np.float32),
    }
    nodes = [
        onnx.helper.make_node("MatMul", ["X", "w0"], ["h"]),
        onnx.helper.make_node("Relu", ["h"], ["r"]),
        onnx.helper.make_node("MatMul", ["r", "w1"], ["Y"]),
    ]
    tensors = [onnx_models.value("X", ["N", 8]), onnx_models.value("Y", ["N", 3])]
    for name, factor in (("source", 1), ("same", 1), ("wrong", -1)):
        arrays = {**weights, "w1": weights["w1"] * np.array([1, 1, factor], np.float32)}
        initializers = [numpy_helper.from_array(array, key) for key, array in arrays.items()]
        graph = onnx.helper.make_graph(nodes, "g", tensors[:1], tensors[1:], initializers)
        opsets = [onnx.helper.make_opsetid("", 17)]
        onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10), folder / f"{name}.onnx")
    np.savez(folder / "samples.npz", X=random.normal(size=(20, 8)).astype(np.float32))
    return folder


def test_equal_files_are_within(folder):
    done = compare(folder, "source.onnx", "same.onnx")
    assert done.returncode == 0, done.stderr
    assert "output 'Y': differs by 0 at most in 20 samples" in done.stdout


def test_same_file_proves_nothing_of_another_one(folder):
    note = "both are the same model: this shows only that its answers repeat"
    assert note in compare_here(folder, "source.onnx", "./source.onnx").stdout
    assert note not in compare_here(folder, "source.onnx", "same.onnx").stdout


def test_different_file_is_shown_with_its_element(folder):
    done = compare(folder, "source.onnx", "wrong.onnx")
    assert done.returncode == 1, done.stderr
    heading, row = done.stdout.splitlines()[2:4]
    assert heading.split() == ["output", "check", "sample", "element", "source", "candidate", "limit"]
    assert row.split()[:2] == ["Y", "values"]
    assert "[0, 2]" in row


def test_json_has_the_verdict(folder):
    found = json.loads(compare_here(folder, "source.onnx", "wrong.onnx", "--json", "--precision", "int8").stdout)
    assert (found["is_within"], found["precision"]) == (False, "int8")
    assert found["verdict"]["failures"][0]["index"][-1] == 2


def test_tolerance_of_the_user_counts(folder):
    done = compare_here(folder, "source.onnx", "wrong.onnx", "--tolerance", "Y=100,0", "--no-probes")
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["source.onnx", "missing.onnx"], "missing.onnx: no such file"),
        (["source.onnx", "same.onnx", "--tolerance", "Z=1,1"], "the model has Y"),
        (["source.onnx", "same.onnx", "--tolerance", "Y=1"], "write Y=1e-4,1e-3"),
        (["source.onnx", "http://127.0.0.1:9/"], "names no model; write http://127.0.0.1:9/MODEL"),
        (["source.onnx", "http://127.0.0.1:9/model"], "127.0.0.1:9"),
    ],
)
def test_error_has_a_status_of_its_own(folder, arguments, message):
    done = compare_here(folder, *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_models_of_servers_are_compared(folder, server, tmp_path):
    (tmp_path / "add_sub.onnx").write_bytes(onnx_models.add_sub())
    random = np.random.default_rng(1)
    rows = {name: random.normal(size=(12, 16)).astype(np.float32) for name in ("INPUT0", "INPUT1")}
    np.savez(tmp_path / "samples.npz", **rows)
    remote = f"{server.http_url}/add_sub"
    for pair in ((tmp_path / "add_sub.onnx", remote), (f"http://{remote}/1", f"grpc://{server.grpc_url}/add_sub")):
        done = compare(tmp_path, *pair)
        assert done.returncode == 0, done.stderr + done.stdout
    other = compare_here(tmp_path, remote, f"{server.http_url}/identity")
    assert other.returncode == 2
    assert "the source has 2 (INPUT0, INPUT1)" in other.stderr
