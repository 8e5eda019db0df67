"""NVIDIA's Model Analyzer profiles a running naiad in remote mode, from its first call to its report.

    python -m bench.model_analyzer
    python -m bench.model_analyzer --perf-analyzer naiad
    python -m bench.model_analyzer --protocol http --model add_sub_py --batches 1,4 --concurrency 1,8 --instances 1,4

The script installs `triton-model-analyzer` into an environment of its own (`bench/.peers/model_analyzer`) and takes
perf_analyzer from where the benchmarks have it, or the one that naiad installs. The server runs with explicit model
control, because Model Analyzer loads each variant of a configuration with the repository protocol. The process ends
with 1 when Model Analyzer fails or a measurement of its search is missing.
"""

import argparse
import csv
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench import analyzer, models
from bench.peers import PEERS_DIR, Naiad, Running, make_venv

REQUIREMENTS = ("triton-model-analyzer==1.58.0",)
HOME = PEERS_DIR / "model_analyzer"
_TIMEOUT_S = 1800
_MAX_BATCH_SIZE = 8
_MEASUREMENTS = "metrics-model-inference.csv"


def install() -> None:
    """Create the environment once."""
    marker = HOME / ".installed"
    if marker.exists() and marker.read_text() == repr(REQUIREMENTS):
        return
    make_venv(HOME)
    subprocess.run([str(HOME / "bin" / "python"), "-m", "pip", "install", "-q", *REQUIREMENTS], check=True)
    marker.write_text(repr(REQUIREMENTS))


def write_settings(server: Running, arguments: argparse.Namespace, work: Path) -> Path:
    """Write the configuration file of a remote profile; return its path."""
    settings = {
        "triton_launch_mode": "remote",
        "client_protocol": arguments.protocol,
        "triton_grpc_endpoint": f"127.0.0.1:{server.grpc_port}",
        "triton_http_endpoint": f"127.0.0.1:{server.http_port}",
        "triton_metrics_url": f"http://127.0.0.1:{server.metrics_port}/metrics",
        "model_repository": str(work / "models"),
        "output_model_repository_path": str(work / "variants"),
        "override_output_model_repository": True,
        "export_path": str(work / "results"),
        "checkpoint_directory": str(work / "checkpoints"),
        "perf_analyzer_path": _program(arguments.perf_analyzer),
        "run_config_search_mode": "brute",
        "concurrency": _numbers(arguments.concurrency),
        "batch_sizes": _numbers(arguments.batches),
        "skip_detailed_reports": True,  # in PDF, which needs a browser
        "profile_models": {
            arguments.model: {
                "cpu_only": True,
                "model_config_parameters": {
                    "max_batch_size": [_MAX_BATCH_SIZE],
                    "instance_group": [
                        [{"kind": "KIND_CPU", "count": count}] for count in _numbers(arguments.instances)
                    ],
                },
            }
        },
    }
    path = work / "profile.yaml"
    path.write_text(json.dumps(settings, indent=2))  # JSON is YAML
    return path


def _program(which: str) -> str:
    return str(Path(sys.executable).with_name("perf_analyzer")) if which == "naiad" else analyzer.program()


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def expected_count(arguments: argparse.Namespace) -> int:
    """Return how many measurements the search has: the default configuration and each variant."""
    variants = 1 + len(_numbers(arguments.instances))
    return variants * len(_numbers(arguments.batches)) * len(_numbers(arguments.concurrency))


def profile(arguments: argparse.Namespace, work: Path) -> int:
    """Run Model Analyzer against a fresh server; print its measurements. Return the exit status."""
    repository = work / "models"
    models.write_repository(repository, [arguments.model])
    server = Naiad("--model-control-mode", "explicit").start(repository, work / "server")
    try:
        done = subprocess.run(
            [str(HOME / "bin" / "model-analyzer"), "profile", "-f", str(write_settings(server, arguments, work))],
            env=analyzer.environment(),
            cwd=work,
            timeout=_TIMEOUT_S,
            check=False,
        )
    finally:
        server.stop()
    if done.returncode != 0:
        print(f"Model Analyzer failed with {done.returncode}", file=sys.stderr)
        return 1
    rows = _measurements(work)
    for row in rows:
        print(", ".join(f"{name}: {value}" for name, value in row.items()))
    wanted = expected_count(arguments)
    if len(rows) < wanted:
        print(f"Model Analyzer made {len(rows)} measurements of {wanted}", file=sys.stderr)
        return 1
    if not list((work / "results").glob("reports/summaries/**/*.*")):
        print("Model Analyzer wrote no report", file=sys.stderr)
        return 1
    print(
        f"Model Analyzer made {len(rows)} measurements over {arguments.protocol} with the perf_analyzer of "
        f"{arguments.perf_analyzer}, and its report"
    )
    return 0


def _measurements(work: Path) -> Sequence[dict[str, str]]:
    found = sorted((work / "results").glob(f"**/{_MEASUREMENTS}"))
    if not found:
        return []
    with found[0].open(newline="") as file:
        return list(csv.DictReader(file))


def main() -> int:
    """Read the arguments and profile."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--protocol", choices=("grpc", "http"), default="grpc")
    parser.add_argument("--model", default="add_sub")
    parser.add_argument("--batches", default="1")
    parser.add_argument("--concurrency", default="1,4")
    parser.add_argument("--instances", default="1,2")
    parser.add_argument("--perf-analyzer", choices=("nvidia", "naiad"), default="nvidia")
    arguments = parser.parse_args()
    reason = analyzer.unavailable() if arguments.perf_analyzer == "nvidia" else None
    if reason is not None:
        print(reason, file=sys.stderr)
        return 1
    install()
    with tempfile.TemporaryDirectory(prefix="model-analyzer-") as work:
        return profile(arguments, Path(work))


if __name__ == "__main__":
    sys.exit(main())
