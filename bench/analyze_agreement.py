"""NVIDIA's Model Analyzer and `naiad analyze` search the same variants on one running naiad: which wins?

    python -m bench.analyze_agreement [--batches 1,4,16] [--instances 1] [--concurrency 16] [--repeats 3]

Both read the same file: a manual search over instances and largest batches, remote, one concurrency. Model Analyzer
measures with NVIDIA's perf_analyzer. The script prints both rankings of each repeat, and ends with 1 unless the
winners are the same every time.
"""

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench import analyzer, model_analyzer, models
from bench.peers import Naiad, Running

_TIMEOUT_S = 900
_MODEL = "deep_1_0"
"""A batch of 32 is about 6 times as fast as its rows one by one."""
_FIELDS = ["model_name", "model_config_path", "instance_group", "max_batch_size", "concurrency", "perf_throughput"]
_THROUGHPUT = "Throughput (infer/sec)"

Ranking = list[tuple[str, float]]
"""Variants with their throughput, the best first."""


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def document(server: Running, arguments: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Return the file for both programs."""
    return {
        "triton_launch_mode": "remote",
        "client_protocol": "grpc",
        "triton_grpc_endpoint": f"127.0.0.1:{server.grpc_port}",
        "triton_http_endpoint": f"127.0.0.1:{server.http_port}",
        "triton_metrics_url": f"http://127.0.0.1:{server.metrics_port}/metrics",
        "model_repository": str(work / "models"),
        "run_config_search_mode": "brute",
        "concurrency": [arguments.concurrency],
        "inference_output_fields": _FIELDS,
        "perf_analyzer_path": analyzer.program(),
        "perf_analyzer_flags": {"measurement-interval": 1000, "stability-percentage": 50},
        "skip_detailed_reports": True,
        "override_output_model_repository": True,
        "profile_models": {
            _MODEL: {
                "cpu_only": True,
                "model_config_parameters": {
                    "max_batch_size": _numbers(arguments.batches),
                    "instance_group": [
                        [{"kind": "KIND_CPU", "count": count}] for count in _numbers(arguments.instances)
                    ],
                },
            }
        },
    }


def ranked(program: list[str], settings: dict[str, Any], work: Path, environment: dict[str, str]) -> Ranking:
    """Run a program with the settings in a folder of its own; return its ranking."""
    work.mkdir()
    for folder in ("results", "checkpoints", "variants"):
        (work / folder).mkdir()
    settings = settings | {
        "export_path": str(work / "results"),
        "checkpoint_directory": str(work / "checkpoints"),
        "output_model_repository_path": str(work / "variants"),
    }
    (work / "profile.yaml").write_text(json.dumps(settings))
    done = subprocess.run(
        [*program, "profile", "-f", str(work / "profile.yaml")],
        cwd=work, env=environment, timeout=_TIMEOUT_S, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise RuntimeError(f"{program} failed with {done.returncode}:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    (table,) = (work / "results").glob("**/metrics-model-inference.csv")
    with table.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if not row["Model Config Path"].endswith("_default")]
    found = [
        (f"{row['Instance Group']}, batches up to {row['Max Batch Size']}", float(row[_THROUGHPUT])) for row in rows
    ]
    return sorted(found, key=lambda entry: -entry[1])


def compare(arguments: argparse.Namespace, work: Path) -> int:
    """Search with both, repeatedly; return the exit status."""
    models.write_repository(work / "models", ["deep"])
    flags = ("--model-control-mode", "explicit")
    agreements = 0
    server = Naiad(*flags).start(work / "models", work / "server")
    try:
        for number in range(arguments.repeats):
            settings = document(server, arguments, work)
            theirs = ranked(
                [str(model_analyzer.HOME / "bin" / "model-analyzer")], settings, work / f"theirs-{number}",
                analyzer.environment() | {"PYTHONPATH": ""},
            )  # fmt: skip
            ours = ranked(
                [sys.executable, "-m", "naiad", "analyze"], settings, work / f"ours-{number}", dict(os.environ)
            )
            for name, ranking in (("Model Analyzer", theirs), ("naiad analyze", ours)):
                print(f"{name:15} {'; '.join(f'{variant}: {value:.0f}/s' for variant, value in ranking)}", flush=True)
            agreements += theirs[0][0] == ours[0][0]
    finally:
        server.stop()
    print(f"the winner is the same in {agreements} of {arguments.repeats} searches")
    return 0 if agreements == arguments.repeats else 1


def main() -> int:
    """Read the arguments and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", default="1,4,16")
    parser.add_argument("--instances", default="1")
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    reason = analyzer.unavailable()
    if reason is not None:
        print(reason, file=sys.stderr)
        return 1
    model_analyzer.install()
    with tempfile.TemporaryDirectory(prefix="agreement-") as work:
        return compare(arguments, Path(work))


if __name__ == "__main__":
    sys.exit(main())
