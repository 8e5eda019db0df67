"""`naiad analyze` as a command, on real servers: its results, its statuses, and analyses that end early."""

import csv
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from naiad.config.profile import parse_profile
from support.ensemble_models import tensor, write_ensemble
from support.model_repository import write_identity, write_model, write_python_add_sub
from support.server_process import SOURCE, ServerProcess
from support.waiting import wait_until

LIMITS = ("--seconds", "0.3", "--concurrency", "2", "--max-batch-size", "2", "--max-instances", "1")
SHORT = (*LIMITS, "--mode", "brute", "--max-batch-size", "1")
"""A search of few seconds: the default mode computes more than it measures."""
FAILS_AT_TWO = """
import json
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, arguments):
        if json.loads(arguments["model_config"])["max_batch_size"] == 2:
            raise MemoryError("no room for batches of two")

    def execute(self, requests):
        tensors = [pb_utils.get_input_tensor_by_name(request, "I").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("O", each)]) for each in tensors]
"""
FAILS_AT_TWO_CONFIG = """
backend: "python" max_batch_size: 4
input [ { name: "I" data_type: TYPE_FP32 dims: [ 1 ] } ] output [ { name: "O" data_type: TYPE_FP32 dims: [ 1 ] } ]
"""


SLOW_ABOVE_TWO = """
import json
import time
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, arguments):
        self.seconds = 0.05 if json.loads(arguments["model_config"])["max_batch_size"] > 2 else 0.001

    def execute(self, requests):
        time.sleep(self.seconds)
        tensors = [pb_utils.get_input_tensor_by_name(request, "I").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("O", each)]) for each in tensors]
"""


ENVIRONMENT = {**os.environ, "PYTHONPATH": str(SOURCE), "PATH": str(Path(sys.executable).parent)}
"""Without Chromium, whose PDF takes seconds."""


def start(folder: Path, *arguments: object) -> "subprocess.Popen[str]":
    """Start the command in a folder, which gets its reports."""
    return subprocess.Popen(
        [sys.executable, "-m", "naiad", "analyze", *map(str, arguments)],
        cwd=folder,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def analyze(folder: Path, *arguments: object, status: int = 0) -> str:
    """Run the command to its end; return what it printed."""
    process = start(folder, *arguments)
    output, _ = process.communicate(timeout=240)
    assert process.returncode == status, output
    return output


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def recorded(path: Path) -> list[dict]:
    """The measurements of a checkpoint."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def served(server: ServerProcess) -> dict:
    return server.get("/v2/models/identity/config").json


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "models"
    write_identity(root)
    return root


@pytest.fixture
def server(repository, start_server) -> ServerProcess:
    running = start_server(repository, "--model-control-mode=explicit", "--load-model=identity")
    running.wait_ready()
    return running


def write_settings(folder: Path, repository: Path, **more: object) -> Path:
    """Write a file of Model Analyzer with four variants, which JSON is, too."""
    document = {
        "model_repository": str(repository),
        "profile_models": {
            "identity": {"model_config_parameters": {"max_batch_size": [2, 4], "instance_group": [{"count": [1, 2]}]}}
        },
        "concurrency": [2],
        "duration_seconds": 0.3,
        "perf_analyzer_flags": {"shape": "INPUT0:4"},
        "export_path": "reports",
        **more,
    }
    path = folder / "profile.yaml"
    path.write_text(json.dumps(document))
    return path


def test_own_server_is_analysed(tmp_path, repository):
    output = analyze(tmp_path, repository / "identity", *LIMITS, "--shape", "INPUT0:4", "-o", "best")
    assert "throughput/s" in output
    assert "max_batch_size" in (tmp_path / "best/identity/config.pbtxt").read_text()
    profile = parse_profile((tmp_path / "best/identity/naiad-profile.json").read_text())
    assert profile.fixed_us + profile.row_us > 0
    assert profile.memory_mb > 0
    assert profile.warm_batch_sizes[0] == 1
    assert "<svg" in (tmp_path / "analysis/identity.html").read_text()
    assert rows(tmp_path / "analysis/results/identity/metrics-model-inference.csv")


def test_running_server_is_restored(tmp_path, server):
    before = served(server)
    output = analyze(tmp_path, "identity", "--url", f"http://{server.http_url}", *SHORT, "--shape", "INPUT0:4")
    assert "throughput/s" in output
    assert served(server) == before
    assert not list(tmp_path.glob("*.journal.json"))


def test_manual_lists_are_measured_in_full(tmp_path, repository):
    settings = write_settings(tmp_path, repository, gpus=["0"])
    output = analyze(tmp_path, "profile", "-f", settings)
    assert "gpus has no effect" in output
    found = rows(tmp_path / "reports/results/identity/metrics-model-inference.csv")
    assert {row["Model Config Path"] for row in found} == {
        "identity_config_default",
        *(f"identity_config_{number}" for number in range(4)),
    }
    assert all(float(row["Throughput (infer/sec)"]) > 0 for row in found)


def test_unmet_constraint_says_by_how_much(tmp_path, repository):
    settings = write_settings(tmp_path, repository, constraints={"perf_throughput": {"min": 10**9}})
    output = analyze(tmp_path, "profile", "-f", settings, status=1)
    assert "No configuration meets the constraints" in output
    assert "100 % under 1e+09" in output


def test_failing_variant_is_named(tmp_path):
    root = tmp_path / "models"
    write_model(root, "fails", FAILS_AT_TWO_CONFIG, {"1/model.py": FAILS_AT_TWO})
    settings = write_settings(
        tmp_path, root, profile_models={"fails": {"model_config_parameters": {"max_batch_size": [2, 4]}}},
        perf_analyzer_flags={},
    )  # fmt: skip
    analyze(tmp_path, "profile", "-f", settings)
    errors = {each["error"] for each in recorded(tmp_path / "reports/fails.measurements.jsonl")}
    assert any("no room for batches of two" in error for error in errors)
    assert "no room for batches of two" in (tmp_path / "reports/fails.html").read_text()


def test_killed_analysis_goes_on(tmp_path, server):
    file = tmp_path / "reports/identity.measurements.jsonl"
    settings = write_settings(
        tmp_path, tmp_path / "models", triton_launch_mode="remote", client_protocol="http",
        triton_http_endpoint=server.http_url, triton_metrics_url=f"http://{server.metrics_url}/metrics",
    )  # fmt: skip
    before = served(server)
    process = start(tmp_path, "profile", "-f", settings)
    wait_until(lambda: len(recorded(file)) >= 3, "the analysis measured nothing")
    process.kill()
    process.communicate()
    measured = recorded(file)
    analyze(tmp_path, "profile", "-f", settings)
    after = recorded(file)
    assert after[: len(measured)] == measured
    assert len({each["fingerprint"] for each in after}) == 1
    first = [each["point"]["variants"][0]["name"] for each in after][:5]
    assert len(set(first)) == len(first)  # each variant once before any is compared again
    assert served(server) == before


def test_interrupt_restores_and_reports(tmp_path, server):
    before = served(server)
    file = tmp_path / "analysis/identity.measurements.jsonl"
    process = start(tmp_path, "identity", "--url", f"http://{server.http_url}", *SHORT, "--shape", "INPUT0:4")
    wait_until(lambda: len(recorded(file)) >= 2, "the analysis measured nothing")
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=30)
    assert "interrupted after" in output
    assert process.returncode == 130
    assert served(server) == before
    assert (tmp_path / "analysis/identity.html").exists()


def test_interrupt_spares_the_next_models(tmp_path, repository):
    write_identity(repository, "next")
    process = start(tmp_path, repository, *SHORT, "--shape", "INPUT0:4")
    file = tmp_path / "analysis/identity.measurements.jsonl"
    wait_until(lambda: len(recorded(file)) >= 2, "the analysis measured nothing")
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 130, output
    assert "next" not in output
    assert [path.name for path in (tmp_path / "analysis").glob("*.html")] == ["identity.html"]


def test_wrong_model_leaves_no_journal(tmp_path, repository, start_server):
    polling = start_server(repository)
    polling.wait_ready()
    for model in ("missing", "identity"):
        output = analyze(tmp_path, model, "--url", polling.http_url, *SHORT, "--shape", "INPUT0:4", status=1)
        assert "--model-control-mode=explicit" in output
        assert not list(tmp_path.glob("*.journal.json"))


def test_output_is_checked_before_measuring(tmp_path, repository):
    (tmp_path / "best/identity").mkdir(parents=True)
    output = analyze(tmp_path, repository, *SHORT, "-o", "best", status=2)
    assert "best/identity exists; remove it, choose another repository (--output)" in output
    assert "measurements" not in output


def test_unwritable_folders_are_named(tmp_path, repository):
    (tmp_path / "file").touch()
    for flag in ("--report", "--output"):
        output = analyze(tmp_path, repository, *SHORT, flag, "file/x", status=2)
        assert output == f"naiad analyze: {flag} file/x cannot be written: file is a file; give another path\n"


def test_data_that_does_not_fit_ends_the_analysis(tmp_path, repository):
    data = tmp_path / "data.json"
    data.write_text('{"data": 3}')
    output = analyze(tmp_path, repository, *SHORT, "--input-data", data, status=1)
    assert output.splitlines()[-1].startswith(f"naiad analyze: {data}: expected an object with a list of samples")
    assert not recorded(tmp_path / "analysis/identity.measurements.jsonl")


def test_model_without_data_is_skipped(tmp_path, repository):
    warm_up = 'inputs { key: "INPUT0" value { data_type: TYPE_FP32 dims: [ 4 ] zero_data: true } }'
    write_identity(repository, "warmed", extra=f"model_warmup [ {{ name: 'four' batch_size: 1 {warm_up} }} ]\n")
    output = analyze(tmp_path, repository, *SHORT, status=1)
    expected = "Not analysed: input 'INPUT0' of model 'identity' has shape [-1], with a variable dimension; give it"
    assert expected in output
    assert recorded(tmp_path / "analysis/warmed.measurements.jsonl")
    output = analyze(tmp_path, repository, *SHORT, "--shape", "INPUT0:4")
    assert "Not analysed" not in output


def test_other_data_is_measured_again(tmp_path, repository):
    data, file = tmp_path / "data.json", tmp_path / "analysis/identity.measurements.jsonl"
    for value in (1, 1, 2):
        data.write_text(json.dumps({"data": [{"INPUT0": {"content": [value] * 4, "shape": [4]}}]}))
        analyze(tmp_path, repository, *SHORT, "--input-data", data)
    counts = Counter(each["fingerprint"] for each in recorded(file))
    assert len(counts) == 2


def test_unknown_key_has_a_suggestion(tmp_path, repository):
    settings = write_settings(tmp_path, repository, concurency=[1])
    assert "did you mean concurrency?" in analyze(tmp_path, "profile", "-f", settings, status=2)
    assert "--modus" in analyze(tmp_path, repository, "--modus", "quick", status=2)


def test_members_of_an_ensemble_vary(tmp_path):
    root = tmp_path / "models"
    write_python_add_sub(root, "a")
    inputs = {name: name for name in ("INPUT0", "INPUT1")}
    outputs = {name: name for name in ("OUTPUT0", "OUTPUT1")}
    write_ensemble(root, "chain", [tensor(name) for name in inputs], [tensor(name) for name in outputs],
                   [("a", inputs, outputs)])  # fmt: skip
    analyze(tmp_path, root, "--models", "chain", *SHORT)
    found = rows(tmp_path / "analysis/results/chain/metrics-model-inference.csv")
    assert len(found) > 1
    measured = recorded(tmp_path / "analysis/chain.measurements.jsonl")
    assert {variant["model"] for each in measured for variant in each["point"]["variants"]} == {"a"}


def test_applied_member_takes_its_ensemble_along(tmp_path, start_server):
    root = tmp_path / "models"
    write_model(root, "member", FAILS_AT_TWO_CONFIG, {"1/model.py": SLOW_ABOVE_TWO})
    ends = [tensor("I", dims="1")], [tensor("O", dims="1")]
    write_ensemble(root, "chain", *ends, [("member", {"I": "I"}, {"O": "O"})], max_batch_size=4)
    server = start_server(root, "--model-control-mode=explicit", "--load-model=chain")
    server.wait_ready()
    url = f"http://{server.http_url}"
    output = analyze(tmp_path, "chain", "--url", url, *SHORT, "--apply", "-o", "best")
    assert "The server now has this configuration." in output
    chain, member = (server.get(f"/v2/models/{name}/config").json["max_batch_size"] for name in ("chain", "member"))
    assert chain == member <= 2
    assert f"max_batch_size: {chain}" in (tmp_path / "best/chain/config.pbtxt").read_text()
