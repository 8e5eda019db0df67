"""NVIDIA's Model Analyzer profiles a model with naiad's perf_analyzer, and writes its report."""

import csv
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support.long_run import mostly_long
from support.model_analyzer import UnavailableError, find_model_analyzer
from support.model_repository import write_identity
from support.server_process import SOURCE, ServerProcess

PERF_ANALYZER = f"""#!{sys.executable}
import sys

sys.path.insert(0, "{SOURCE}")
from naiad.cli.perf.command import perf_analyzer

sys.exit(perf_analyzer())
"""


@pytest.fixture(scope="module")
def model_analyzer() -> Path:
    try:
        return find_model_analyzer()
    except UnavailableError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("protocol", mostly_long(["http", "grpc"], "grpc".__eq__))
def test_profile_is_complete(
    tmp_path: Path, start_server: Callable[..., ServerProcess], model_analyzer: Path, protocol: str
) -> None:
    write_identity(tmp_path / "models")
    server = start_server(tmp_path / "models", "--model-control-mode=explicit")
    server.wait_ready()
    program = tmp_path / "perf_analyzer"
    program.write_text(PERF_ANALYZER)
    program.chmod(0o755)
    settings = {
        "triton_launch_mode": "remote",
        "client_protocol": protocol,
        "triton_grpc_endpoint": server.grpc_url,
        "triton_http_endpoint": server.http_url,
        "triton_metrics_url": f"http://{server.metrics_url}/metrics",
        "model_repository": str(tmp_path / "models"),
        "output_model_repository_path": str(tmp_path / "variants"),
        "export_path": str(tmp_path / "results"),
        "checkpoint_directory": str(tmp_path / "checkpoints"),
        "perf_analyzer_path": str(program),
        "run_config_search_disable": True,
        "concurrency": [2],
        "skip_detailed_reports": True,
        # How steady the machine is at the moment is no concern of this test.
        "perf_analyzer_flags": {"shape": "INPUT0:4", "stability-percentage": 999, "max-trials": 10},
        "profile_models": {"identity": {"cpu_only": True}},
    }
    (tmp_path / "results").mkdir()
    (tmp_path / "profile.yaml").write_text(json.dumps(settings))  # JSON is YAML
    done = subprocess.run(
        [str(model_analyzer), "profile", "-f", str(tmp_path / "profile.yaml")],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": ""}, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    text = done.stdout + done.stderr
    assert done.returncode == 0, text
    (measurements,) = (tmp_path / "results").glob("**/metrics-model-inference.csv")
    with measurements.open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert (row["Model"], row["Concurrency"]) == ("identity", "2")
    assert float(row["Throughput (infer/sec)"]) > 0
    assert list((tmp_path / "results").glob("reports/summaries/**/*.html")), text
