"""naiad of this checkout with this process's packages, the models' configurations, and load by `naiad perf`."""

import http.client
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.peers import Naiad, Running

Tensors = Mapping[str, tuple[str, Sequence[int]]]
"""Datatype and dims by name."""


class FromHere(Naiad):
    """naiad with the packages of PYTHONPATH and with more variables of the environment."""

    def __init__(self, *flags: str, environment: Mapping[str, str]) -> None:
        super().__init__(*flags)
        self._environment = environment

    def command(self, repository: Path, work: Path, ports: Sequence[int]) -> tuple[list[str], dict[str, str]]:
        """Start `naiad serve`."""
        command, extra = super().command(repository, work, ports)
        return command, {**extra, "PYTHONPATH": python_path(), **self._environment}


def python_path() -> str:
    """Return naiad's source before what PYTHONPATH has."""
    return os.pathsep.join(filter(None, [str(Naiad().source), os.environ.get("PYTHONPATH", "")]))


def load_model(port: int, model: str, limit_s: float) -> None:
    """Load a model over HTTP. Raises RuntimeError with the server's reason."""
    post(port, f"/v2/repository/models/{model}/load", {}, limit_s)


def post(port: int, path: str, body: Mapping[str, Any], limit_s: float = 60.0) -> Any:
    """Return the answer to a JSON body. Raises RuntimeError for an error of the server."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=limit_s)
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        content = answer.read()
    finally:
        connection.close()
    if answer.status != http.HTTPStatus.OK:
        raise RuntimeError(f"HTTP {answer.status}: {content.decode(errors='replace')[:800]}")
    return json.loads(content) if content else {}


def config(
    backend: str, kind: str, inputs: Tensors, outputs: Tensors, *, rows: int = 0, count: int = 1, more: str = ""
) -> str:
    """Return a configuration; `rows` is max_batch_size."""
    gpus = " gpus: [ 0 ]" if kind == "KIND_GPU" else ""
    platform = f'platform: "{backend}"' if backend == "ensemble" else f'backend: "{backend}"'
    group = "" if backend == "ensemble" else f"instance_group [ {{ kind: {kind} count: {count}{gpus} }} ]"
    lines = [platform, f"max_batch_size: {rows}", _tensors("input", inputs), _tensors("output", outputs), group, more]
    return "\n".join(line for line in lines if line) + "\n"


def _tensors(name: str, tensors: Tensors) -> str:
    items = [
        f'{{ name: "{tensor}" data_type: TYPE_{datatype} dims: [ {", ".join(map(str, dims))} ] }}'
        for tensor, (datatype, dims) in tensors.items()
    ]
    return f"{name} [ {', '.join(items)} ]" if items else ""


def write_model(repository: Path, name: str, text: str, files: Mapping[str, bytes | str] | None = None) -> Path:
    """Write a model's configuration and files; return the directory of its version."""
    version = repository / name / "1"
    version.mkdir(parents=True, exist_ok=True)
    (repository / name / "config.pbtxt").write_text(text)
    for file, content in (files or {}).items():
        (version / file).write_bytes(content.encode() if isinstance(content, str) else content)
    return version


def perf(
    running: Running, model: str, *flags: str, rows: int = 1, concurrency: int = 1, limit_s: float = 40.0
) -> dict[str, Any]:
    """Measure with `naiad perf`; return its figures. Raises RuntimeError with its text."""
    target = running.log.parent / f"perf-{model}.json"
    target.unlink(missing_ok=True)
    protocol = "http" if "http" in flags else "grpc"
    port = running.http_port if protocol == "http" else running.grpc_port
    command = [
        sys.executable,
        "-m",
        "naiad",
        "perf",
        "-m",
        model,
        "-b",
        str(rows),
        "-i",
        protocol,
        "-u",
        f"127.0.0.1:{port}",
    ]
    command += [
        "--concurrency-range",
        str(concurrency),
        "--json",
        str(target),
        "-q",
        *(f for f in flags if f != "http"),
    ]
    command += ["--measurement-mode", "time_windows"] if "--measurement-mode" not in flags else []
    command += ["-p", "600", "-r", "3"] if "-p" not in flags else []
    environment = {**os.environ, "PYTHONPATH": python_path()}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=limit_s, env=environment)
    if not target.exists():
        raise RuntimeError(f"naiad perf ended with {done.returncode}: {(done.stderr or done.stdout)[-500:]}")
    (row,) = json.loads(target.read_text())["rows"]
    errors = sum(each["count"] for each in row["errors"])
    if errors:
        raise RuntimeError(f"{errors} requests failed: {row['errors'][0]['message'][:400]}")
    server = row["server"] or {}
    return {
        "inferences_per_s": round(row["throughput"]["value"] * rows, 1),
        "requests": row["request_count"],
        "p50_ms": round(row["latency"]["percentiles"]["50"]["value"] / 1e3, 3),
        "p99_ms": round(row["latency"]["percentiles"]["99"]["value"] / 1e3, 3),
        "rows_per_batch": round(server["inference_count"] / max(1, server["execution_count"]), 1) if server else 0,
        "compute_ms": round(server["compute_infer_us"] / 1e3, 3) if server else 0,
        "limited_by": row["generator"]["limited_by"],
        "generator_cpu_share": round(row["generator"]["cpu_share"], 2),
    }
