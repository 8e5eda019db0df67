"""`naiad optimize` from an ONNX file to a served winner, as a user runs it."""

import json

import pytest

from support.commands import command_here
from support.conversions_here import reading_here
from support.optimize_command import FLAGS, optimize, write_files, write_network

OWN = ("--candidate", "own=own.onnx", "--candidate", "other=other.onnx")
ARGUMENTS = ("--candidates", "onnx-optimized-all", *OWN, "--output", "best", *FLAGS[:-1])
"""A conversion, and two files of the user, of which one answers as the source does; a name to accept follows."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = write_files(tmp_path_factory.mktemp("optimize"))
    write_network(folder / "own.onnx")
    write_network(folder / "other.onnx", scale=1.5)
    return folder


@pytest.fixture(scope="module")
def finished(folder):
    done = optimize(folder, *ARGUMENTS, "own")
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


def test_own_conversion_is_judged_and_packaged(folder, finished):
    found = json.loads((folder / "optimization/result.json").read_text())
    outcomes = {each["candidate"]["name"]: each for each in found["outcomes"]}
    assert (found["winner"], outcomes["own"]["status"], outcomes["other"]["status"]) == ("own", "passed", "rejected")
    assert outcomes["own"]["served"]["cpu"]["value"] > 0
    assert (folder / "best/1/model.onnx").read_bytes() == (folder / "own.onnx").read_bytes()


def test_rejected_conversion_cannot_be_accepted(folder, finished):
    refused = optimize(folder, *ARGUMENTS, "other")
    assert refused.returncode == 1
    assert "'other' cannot be accepted: it is rejected" in refused.stderr


@pytest.mark.long
def test_second_run_repeats_no_step(folder, finished):
    again = optimize(folder, *ARGUMENTS, "own")
    assert again.returncode == 0, again.stderr
    lines = [line for line in again.stderr.splitlines() if line.startswith(("compared", "measured"))]
    assert all("from an earlier run" in line for line in lines), again.stderr


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
    with reading_here():
        done = command_here("optimize", "digits.onnx", "--data", "samples.npz", *arguments, folder=folder)
    assert done.returncode == 2
    assert message in done.stderr


def test_no_accepted_candidate_writes_no_package(folder):
    only_one = ("--candidates", "onnx-int8-dynamic", *FLAGS, "--tuning-seconds", "0")
    done = optimize(folder, "--tolerance", "logits=0,0", "--workspace", "strict", *only_one)
    assert "logits" in done.stdout
    found = json.loads((folder / "strict/result.json").read_text())
    rejected = next(each for each in found["outcomes"] if each["candidate"]["name"] == "onnx-int8-dynamic")
    assert rejected["status"] == "rejected"
    assert found["winner"] == "source"
