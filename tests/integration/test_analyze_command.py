"""`naiad analyze` as a command, on real servers: what it measures, writes and applies."""

import json
from collections import Counter
from pathlib import Path

import pytest

from naiad.config.model_profile import parse_profile
from support.analyze_command import LIMITS, SHORT, analyze, recorded, rows, served, write_settings
from support.ensemble_models import tensor, write_ensemble
from support.model_repository import write_identity, write_model, write_python_add_sub
from support.server_process import ServerProcess

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
SLOW_ABOVE_TWO_CONFIG = """
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


@pytest.mark.long
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


@pytest.mark.long
def test_other_data_is_measured_again(tmp_path, repository):
    data, file = tmp_path / "data.json", tmp_path / "analysis/identity.measurements.jsonl"
    write_identity(repository, max_batch_size=0)
    for value in (1, 1, 2):
        data.write_text(json.dumps({"data": [{"INPUT0": {"content": [value] * 4, "shape": [4]}}]}))
        analyze(tmp_path, repository, *SHORT, "--input-data", data)
    counts = Counter(each["fingerprint"] for each in recorded(file))
    assert len(counts) == 2


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


@pytest.mark.long
def test_applied_member_takes_its_ensemble_along(tmp_path, start_server):
    root = tmp_path / "models"
    write_model(root, "member", SLOW_ABOVE_TWO_CONFIG, {"1/model.py": SLOW_ABOVE_TWO})
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
