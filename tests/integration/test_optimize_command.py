"""`naiad optimize` from an ONNX file to a served winner, as a user runs it."""

import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from support.commands import RunningCommand
from support.waiting import wait_until

CASE_TIMEOUT_S = 240
FLAGS = (
    "--seconds",
    "0.1",
    "--tuning-seconds",
    "0.5",
    "--sensitivity-steps",
    "0",
    "--finalists",
    "2",
    "--accept",
    "source",
)
"""On a machine that other tests use, no winner would be proven."""


def write_model(path, scale=1.0):
    random = np.random.default_rng(0)
    weights = [random.standard_normal(shape).astype(np.float32) * 0.1 for shape in ((64, 128), (128, 10))]
    weights[1] *= scale
    names = ["image", "first", "hidden", "logits"]
    nodes = [
        helper.make_node("MatMul", [names[0], "w0"], [names[1]], name="matmul0"),
        helper.make_node("Relu", [names[1]], [names[2]], name="relu"),
        helper.make_node("MatMul", [names[2], "w1"], [names[3]], name="matmul1"),
    ]
    tensors = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", size])
        for name, size in ((names[0], 64), (names[3], 10))
    ]
    arrays = [numpy_helper.from_array(array, f"w{index}") for index, array in enumerate(weights)]
    graph = helper.make_graph(nodes, "m", tensors[:1], tensors[1:], arrays)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("optimize")
    write_model(folder / "digits.onnx")
    np.savez(folder / "samples.npz", image=np.random.default_rng(1).random((24, 64), np.float32))
    np.save(folder / "one_label.npy", np.zeros(1, np.int64))
    return folder


def start(folder, *arguments):
    return RunningCommand("optimize", "digits.onnx", "--data", "samples.npz", *arguments, folder=folder)


def optimize(folder, *arguments):
    return start(folder, *arguments).end()


@pytest.fixture(scope="module")
def finished(folder):
    done = optimize(folder, "--candidates", "onnx-optimized-all,onnx-int8-dynamic", "--output", "best", *FLAGS)
    assert done.returncode == 0, done.stderr
    return done


def test_winner_is_packaged_and_reported(folder, finished):
    found = json.loads((folder / "optimization/result.json").read_text())
    outcomes = {each["candidate"]["name"]: each for each in found["outcomes"]}
    assert outcomes[found["winner"]]["status"] == "passed"
    assert outcomes["source"]["status"] == "passed"
    assert all(each["served"]["throughput"]["value"] > 0 for each in outcomes.values() if each["served"])
    assert (folder / "best/config.pbtxt").exists()
    assert found["winner"] in (folder / "optimization/report/index.html").read_text()
    assert "naiad serve best" in finished.stdout


def test_second_run_repeats_no_step(folder, finished):
    again = optimize(folder, "--candidates", "onnx-optimized-all,onnx-int8-dynamic", "--output", "best", *FLAGS)
    assert again.returncode == 0, again.stderr
    lines = [line for line in again.stderr.splitlines() if line.startswith(("compared", "measured"))]
    assert all("from an earlier run" in line for line in lines), again.stderr


def kill_after(folder, stage, arguments):
    """Run until the second step of a stage has ended, kill the command, and return its lines."""
    running = start(folder, *arguments)

    def has_ended_two_steps():
        steps = [line for line in running.errors.splitlines() if line.startswith(stage)]
        return len(steps) >= 2 or running.process.poll() is not None

    wait_until(has_ended_two_steps, f"no second {stage}", CASE_TIMEOUT_S)
    running.process.kill()
    return running.end().stderr.splitlines()


def test_killed_run_repeats_no_finished_step(folder):
    arguments = ("--candidates", "onnx-optimized-all,onnx-optimized-basic", "--workspace", "killed", *FLAGS)
    finished, made = set(), {}
    for stage in ("conversion", "compared", "measured"):
        lines = kill_after(folder, stage, arguments)
        assert {line for line in lines if line.split(":")[0] in finished and "earlier run" not in line} == set()
        finished |= {line.split(":")[0] for line in lines if line.startswith("compared")}
        found = {each: each.stat().st_mtime_ns for each in (folder / "killed/conversions").glob("*/conversion.json")}
        assert all(found[each] == time_ns for each, time_ns in made.items())
        made = found
    done = optimize(folder, *arguments, "--output", "survivor")
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert all("earlier run" in line for line in lines if line.startswith("compared"))
    assert len(finished) == len([line for line in lines if line.startswith("compared")])


def test_list_shows_the_plan(folder):
    done = optimize(folder, "--list")
    assert done.returncode == 0, done.stderr
    assert "onnx-int8-dynamic" in done.stdout
    assert "input image FP32 [-1, 64]" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--formats", "onnxx"], "--formats has 'onnxx'; write some of"),
        (["--tolerance", "probabilities=1,1"], "the model has logits"),
        (["--tolerance", "logits=1"], "write logits=1e-4,1e-3"),
        (["--metric", "accuracy"], "needs --labels"),
        (["--strategy", "max-throughput-within-latency"], "needs --latency-budget"),
        (["--latency-budget", "20"], "write a time with its unit"),
        (["--data", "missing.npz"], "missing.npz: no such file or folder"),
        (["--output", "samples.npz"], "samples.npz exists and is no package; give another path"),
        (["--output", "samples.npz/best"], "--output samples.npz cannot be written: samples.npz is a file"),
        (["--report", "samples.npz"], "--report samples.npz cannot be written: samples.npz is a file"),
        (["--workspace", "samples.npz/x"], "--workspace samples.npz/x cannot be written: samples.npz is a file"),
        (["--candidate", "own"], "--candidate is 'own'; write NAME=FILE"),
        (["--candidate", "own=missing.onnx"], "missing.onnx: no such file"),
        (["--candidate", "source=digits.onnx"], "give each conversion a name of its own"),
        (["--candidate-precision", "own=int8"], "--candidate has none"),
        (["--metric", "accuracy", "--labels", "one_label.npy"], "1 labels for 24 samples; give one for each"),
    ],
)
def test_bad_flags_are_explained(folder, arguments, message):
    done = optimize(folder, *arguments)
    assert done.returncode == 2
    assert message in done.stderr


def test_no_accepted_candidate_writes_no_package(folder):
    done = optimize(
        folder, "--tolerance", "logits=0,0", "--candidates", "onnx-int8-dynamic", "--workspace", "strict", *FLAGS
    )
    assert "logits" in done.stdout
    found = json.loads((folder / "strict/result.json").read_text())
    rejected = next(each for each in found["outcomes"] if each["candidate"]["name"] == "onnx-int8-dynamic")
    assert rejected["status"] == "rejected"
    assert found["winner"] == "source"


def test_own_conversion_is_judged_and_packaged(folder):
    write_model(folder / "own.onnx")
    write_model(folder / "other.onnx", scale=1.5)
    own = ("--candidates", "none", "--candidate", "own=own.onnx", "--candidate", "other=other.onnx")
    flags = [*FLAGS[:-1], "own", "--workspace", "own", "--output", "packaged"]
    done = optimize(folder, *own, *flags)
    assert done.returncode == 0, done.stderr
    found = json.loads((folder / "own/result.json").read_text())
    outcomes = {each["candidate"]["name"]: each for each in found["outcomes"]}
    assert (found["winner"], outcomes["own"]["status"], outcomes["other"]["status"]) == ("own", "passed", "rejected")
    assert outcomes["own"]["served"]["cpu"]["value"] > 0
    assert (folder / "packaged/1/model.onnx").read_bytes() == (folder / "own.onnx").read_bytes()
    refused = optimize(folder, *own, *FLAGS[:-1], "other", "--workspace", "own")
    assert refused.returncode == 1
    assert "'other' cannot be accepted: it is rejected" in refused.stderr
