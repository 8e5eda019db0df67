"""`naiad analyze` on real servers: its mistakes and statuses, and analyses that are interrupted or killed."""

import signal
from pathlib import Path

import pytest

from support.analyze_command import SHORT, analyze, recorded, served, start, write_settings
from support.model_repository import write_identity, write_model
from support.server_process import ServerProcess
from support.waiting import wait_until

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


@pytest.mark.long
def test_killed_analysis_goes_on(tmp_path, server):
    file = tmp_path / "reports/identity.measurements.jsonl"
    settings = write_settings(
        tmp_path, tmp_path / "models", triton_launch_mode="remote", client_protocol="http",
        triton_http_endpoint=server.http_url, triton_metrics_url=f"http://{server.metrics_url}/metrics",
    )  # fmt: skip
    before = served(server)
    process = start(tmp_path, "profile", "-f", settings)
    wait_until(lambda: len(recorded(file)) >= 3, "the analysis measured nothing")
    process.process.kill()
    process.end()
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
    process.process.send_signal(signal.SIGINT)
    done = process.end()
    assert "interrupted after" in done.stdout
    assert done.returncode == 130
    assert served(server) == before
    assert (tmp_path / "analysis/identity.html").exists()


@pytest.mark.long
def test_interrupt_spares_the_next_models(tmp_path, repository):
    write_identity(repository, "next")
    process = start(tmp_path, repository, *SHORT, "--shape", "INPUT0:4")
    file = tmp_path / "analysis/identity.measurements.jsonl"
    wait_until(lambda: len(recorded(file)) >= 2, "the analysis measured nothing")
    process.process.send_signal(signal.SIGINT)
    done = process.end()
    assert done.returncode == 130, done.stdout
    assert "next" not in done.stdout + done.stderr
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


@pytest.mark.long
def test_model_without_data_is_skipped(tmp_path, repository):
    warm_up = 'inputs { key: "INPUT0" value { data_type: TYPE_FP32 dims: [ 4 ] zero_data: true } }'
    write_identity(repository, max_batch_size=0)
    write_identity(
        repository, "warmed", max_batch_size=0, extra=f"model_warmup [ {{ name: 'four' batch_size: 1 {warm_up} }} ]\n"
    )
    output = analyze(tmp_path, repository, *SHORT, status=1)
    expected = "Not analysed: input 'INPUT0' of model 'identity' has shape [-1], with a variable dimension; give it"
    assert expected in output
    assert recorded(tmp_path / "analysis/warmed.measurements.jsonl")
    output = analyze(tmp_path, repository, *SHORT, "--shape", "INPUT0:4")
    assert "Not analysed" not in output


def test_unknown_key_has_a_suggestion(tmp_path, repository):
    settings = write_settings(tmp_path, repository, concurency=[1])
    assert "did you mean concurrency?" in analyze(tmp_path, "profile", "-f", settings, status=2)
    assert "--modus" in analyze(tmp_path, repository, "--modus", "quick", status=2)
