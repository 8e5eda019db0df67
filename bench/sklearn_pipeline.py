"""A scikit-learn pipeline with one row a request: naiad with dynamic batching beside a FastAPI application.

    python -m bench.sklearn_pipeline [--seconds 5] [--rounds 3] [--concurrency 16]

Needs an environment with scikit-learn, FastAPI and uvicorn (that of `.ci/frameworks`, and `pip install fastapi
uvicorn`). Both servers load the same file and get the same JSON from wrk, in turns; the table has the medians. The
application calls `predict` in an `async def` handler, which is faster than one in a thread of the pool.
"""

import argparse
import importlib.metadata
import json
import statistics
import sys
import tempfile
import textwrap
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.load import Measurement, Shape, measure
from bench.payloads import HTTP_JSON, Payload, Workload
from bench.peers import Naiad, Peer, Running

_APPLICATION = """
import os
from pathlib import Path

import joblib
import numpy as np
from fastapi import FastAPI, Request

app = FastAPI()
models = {path.parent.parent.name: joblib.load(path) for path in Path(os.environ["REPOSITORY"]).glob("*/1/*.joblib")}

@app.get("/v2/health/ready")
def ready() -> dict:
    return {}

@app.post("/v2/models/{model}/infer")
async def infer(model: str, request: Request) -> dict:
    (tensor,) = (await request.json())["inputs"]
    labels = models[model].predict(np.array(tensor["data"]).reshape(tensor["shape"]))
    output = {"name": "predict", "datatype": "INT64", "shape": [len(labels), 1], "data": labels.tolist()}
    return {"model_name": model, "outputs": [output]}
"""


class FastApiPipeline(Peer):
    """FastAPI and uvicorn in the running environment, `predict` called for each request."""

    name = "fastapi"

    def install(self) -> None:
        """Use the running environment."""

    def command(self, repository: Path, work: Path, ports: Sequence[int]) -> tuple[list[str], dict[str, str]]:
        """Write the application and start uvicorn."""
        (work / "pipeline_app.py").write_text(textwrap.dedent(_APPLICATION))
        command = [sys.executable, "-m", "uvicorn", "pipeline_app:app", "--host", "127.0.0.1"]
        command += ["--port", str(ports[0]), "--log-level", "warning", "--app-dir", str(work)]
        return command, {"REPOSITORY": str(repository)}


def write_models(repository: Path) -> list[float]:
    """Train two pipelines on the breast cancer data and return a row of it."""
    import joblib
    from sklearn.datasets import load_breast_cancer
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    data = load_breast_cancer()
    last_steps = {"linear": LogisticRegression(), "forest": RandomForestClassifier(50, n_jobs=1, random_state=0)}
    for name, last_step in last_steps.items():
        directory = repository / name / "1"
        directory.mkdir(parents=True)
        joblib.dump(
            make_pipeline(StandardScaler(), last_step).fit(data.data, data.target), directory / "model.joblib"
        )
    row: list[float] = data.data[0].tolist()
    return row


def payload_of(model: str, row: list[float], directory: Path) -> Payload:
    """Write the request of one row."""
    tensor = {"name": "input__0", "datatype": "FP64", "shape": [1, len(row)], "data": row}
    body = directory / f"{model}.json"
    body.write_text(json.dumps({"inputs": [tensor]}))
    workload = Workload(model, {}, {})
    return Payload(workload, HTTP_JSON, f"/v2/models/{model}/infer", body, [("Content-Type", "application/json")])


def answer_of(server: Running, payload: Payload) -> Any:
    """Send the request once and return the label."""
    url = f"http://127.0.0.1:{server.http_port}{payload.path}"
    request = urllib.request.Request(url, payload.body.read_bytes(), dict(payload.headers))
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)["outputs"][0]["data"]


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--concurrency", type=int, default=16)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch)
        row = write_models(work / "models")
        payloads = [payload_of(model, row, work) for model in ("linear", "forest")]
        peers: list[Peer] = [Naiad("--allow-pickle"), FastApiPipeline()]
        servers = []
        try:
            for peer in peers:
                servers.append(peer.start(work / "models", work))
            for payload in payloads:
                labels = [answer_of(server, payload) for server in servers]
                assert labels[0] == labels[1], labels
            shape = Shape(options.concurrency)
            print(_versions())
            print("| pipeline | server | requests/s | p50 ms | p99 ms | CPU us/request | times FastAPI |")
            print("|---|---|---|---|---|---|---|")
            for payload in payloads:
                runs: dict[str, list[Measurement]] = {server.name: [] for server in servers}
                for _ in range(options.rounds):
                    for server in servers:
                        runs[server.name].append(measure(server, payload, shape, options.seconds, 1))
                _print_rows(payload.workload.model, runs)
        finally:
            for server in servers:
                server.stop()


def _versions() -> str:
    names = ("scikit-learn", "fastapi", "uvicorn")
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)


def _print_rows(model: str, runs: dict[str, list[Measurement]]) -> None:
    base = statistics.median(run.throughput for run in runs["fastapi"])
    for name, measurements in runs.items():
        rate, p50, p99, cpu = (
            statistics.median(getattr(run, field) for run in measurements)
            for field in ("throughput", "p50_us", "p99_us", "cpu_us")
        )
        print(
            f"| {model} | {name} | {rate:.0f} | {p50 / 1e3:.2f} | {p99 / 1e3:.2f} | {cpu:.0f} | {rate / base:.1f} |"
        )


if __name__ == "__main__":
    main()
