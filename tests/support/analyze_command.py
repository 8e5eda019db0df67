"""`naiad analyze` on models of the identity backend: its command line, its measurements and its tables."""

import csv
import json
import os
import sys
from pathlib import Path
from typing import Any

from support.commands import RunningCommand
from support.server_process import SOURCE, ServerProcess

LIMITS = ("--seconds", "0.3", "--concurrency", "2", "--max-batch-size", "2", "--max-instances", "1")
SHORT = (*LIMITS, "--seconds", "0.1", "--mode", "brute", "--max-batch-size", "1")
"""A search of few seconds: the default mode computes more than it measures.

A model that does not batch has a single configuration for it, and is measured twice.
"""
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(SOURCE), "PATH": str(Path(sys.executable).parent)}
"""Without Chromium, whose PDF takes seconds."""


def start(folder: Path, *arguments: object) -> RunningCommand:
    """Start the command in a folder, which gets its reports."""
    return RunningCommand("analyze", *arguments, folder=folder, environment=ENVIRONMENT)


def analyze(folder: Path, *arguments: object, status: int = 0) -> str:
    """Run the command to its end; return what it printed."""
    done = start(folder, *arguments).end()
    assert done.returncode == status, done.stdout + done.stderr
    return done.stderr + done.stdout


def rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a table."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def recorded(path: Path) -> list[dict[str, Any]]:
    """Return the measurements of a checkpoint; a line that is still being written is none."""
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def served(server: ServerProcess) -> dict[str, Any]:
    """Return the configuration that a server has for the model."""
    config: dict[str, Any] = server.get("/v2/models/identity/config").json
    return config


def write_settings(folder: Path, repository: Path, **more: object) -> Path:
    """Write a file of Model Analyzer with four variants, which JSON is, too; only the best one is compared."""
    document = {
        "model_repository": str(repository),
        "profile_models": {
            "identity": {"model_config_parameters": {"max_batch_size": [2, 4], "instance_group": [{"count": [1, 2]}]}}
        },
        "concurrency": [2],
        "duration_seconds": 0.1,
        "num_configs_per_model": 1,
        "perf_analyzer_flags": {"shape": "INPUT0:4"},
        "export_path": "reports",
        **more,
    }
    path = folder / "profile.yaml"
    path.write_text(json.dumps(document))
    return path
