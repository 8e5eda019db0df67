"""A recommender of two stages on naiad and on Ray Serve: requests/s, latency, CPU of each request.

    .ci/ray --make .venv-ray
    .venv-ray/bin/python -m bench.recommender [--rounds 3] [--seconds 6] [--connections 16] [--only one ray-alone]

| case | what answers |
|---|---|
| one | one naiad server: an ensemble of both models |
| two | two naiad servers: the ensemble's second step is on the other one |
| ray-naiad | the repository of `one` behind Ray Serve's proxy: `naiad.integrations.ray` |
| ray-alone | two deployments of Ray Serve, `examples/recommender/ray_alone.py` |

All are loaded over HTTP/1.1 (wrk, or h2load) with the same user and candidates as JSON, on the same two cores, each
with a fresh start in each round, in turn. The answers must be equal. CPU is that of the whole process tree, with
Ray's proxy, raylet and other processes, and without the generator. Each figure is the median of the rounds.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.load import Measurement, Shape, measure
from bench.payloads import HTTP_JSON, Payload, Workload
from bench.peers import Running, free_ports
from bench.process_tree import processes

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = ROOT / "examples" / "recommender"
NAIAD, RAY = ("one", "two", "ray-naiad"), "ray-alone"
_USER, _ITEMS = 7, list(range(100, 132))
_START_S, _STEADY_S = 180.0, 3.0


def load_example(name: str) -> Any:
    """Return a module of the example."""
    found = importlib.util.spec_from_file_location(name, EXAMPLE / f"{name}.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module  # Ray's workers import it by its name
    found.loader.exec_module(module)
    return module


# --- what answers: processes of their own, `--serve CASE FOLDER PORT` ----------------------------------------------


def serve(case: str, folder: Path, port: int) -> None:
    """Serve a case until SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    if case in ("one", "two"):
        _serve_naiad(case, folder, port)
    else:
        _serve_ray(case, folder, port)


def _serve_naiad(case: str, folder: Path, port: int) -> None:
    command = [sys.executable, "-m", "naiad", "serve", "--metrics-port=0", "--http-address=127.0.0.1"]
    started = []
    if case == "two":
        (back,) = free_ports(1)
        load_example("make_models").write_repositories(folder, f"grpc://127.0.0.1:{back}")
        far = ["--http-port=0", "--grpc-address=127.0.0.1", f"--grpc-port={back}"]
        started.append(subprocess.Popen([*command, str(folder / "back"), *far]))
    repository = folder / ("front" if case == "two" else "one")
    started.append(subprocess.Popen([*command, str(repository), f"--http-port={port}", "--grpc-port=0"]))
    try:
        for each in started:
            each.wait()
    finally:
        for each in started:
            each.terminate()
        for each in started:
            each.wait()


def _serve_ray(case: str, folder: Path, port: int) -> None:
    import ray
    from naiad.integrations.ray import deployment
    from ray import serve as ray_serve

    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    ray_serve.start(http_options={"host": "127.0.0.1", "port": port})
    if case == "ray-naiad":
        app = deployment(str(folder / "one"))
    else:
        app = load_example("ray_alone").app({"directory": str(folder)})
    ray_serve.run(app, route_prefix="/")
    signal.pause()


# --- measuring -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Request:
    """What is sent to a case."""

    path: str
    body: bytes


def request_of(case: str) -> Request:
    """Return the request of a case: the same user and candidates in the JSON of each."""
    if case == RAY:
        return Request("/", json.dumps({"user": _USER, "items": _ITEMS}).encode())
    inputs = [
        {"name": "USER", "datatype": "INT64", "shape": [1, 1], "data": [_USER]},
        {"name": "ITEMS", "datatype": "INT64", "shape": [1, len(_ITEMS)], "data": _ITEMS},
    ]
    return Request("/v2/models/recommend/infer", json.dumps({"inputs": inputs}).encode())


def ask(case: str, port: int) -> bytes:
    """Return the answer of a case. Raises OSError."""
    request = request_of(case)
    url = f"http://127.0.0.1:{port}{request.path}"
    with urllib.request.urlopen(urllib.request.Request(url, request.body), timeout=10) as response:
        answer: bytes = response.read()
    return answer


def scores(answer: bytes) -> "np.ndarray[Any, Any]":
    """Return the scores of an answer."""
    found = json.loads(answer)
    return np.array(found["scores"] if "scores" in found else found["outputs"][0]["data"], np.float32)


@contextlib.contextmanager
def running(case: str, folder: Path) -> Iterator[Running]:
    """Start a case; it has answered, and has the processes that it keeps."""
    server = _start(case, folder)
    try:
        _wait_steady(server)
        yield server
    finally:
        server.stop()


def _start(case: str, folder: Path, tries: int = 3) -> Running:
    """Return a case that has answered; again if its port was taken meanwhile, or Ray gave up on a busy machine."""
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "bench.recommender", "--serve", case, str(folder), str(port)]
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}:{EXAMPLE}",
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    began = time.monotonic()
    log = folder / f"{case}.log"
    with log.open("wb") as sink:
        process = subprocess.Popen(command, env=environment, stdout=sink, stderr=sink)
    server = Running(case, process, port, 0, 0.0, log)
    try:
        _wait(server, began + _START_S)
    except BaseException as error:
        server.stop()
        if tries > 1 and isinstance(error, RuntimeError):
            return _start(case, folder, tries - 1)
        raise
    server.startup_s = time.monotonic() - began
    return server


def _wait(server: Running, end_s: float) -> None:
    """Wait for the first answer."""
    while True:
        with contextlib.suppress(OSError):
            ask(server.name, server.http_port)
            return
        if server.process.poll() is not None or time.monotonic() > end_s:
            raise RuntimeError(f"{server.name} does not answer:\n{server.log.read_text()[-4000:]}")
        time.sleep(0.1)


def _wait_steady(server: Running) -> None:
    """Wait until no process begins or ends: Ray ends workers that have nothing to do."""
    known: set[int] = set()
    since_s = time.monotonic()
    while time.monotonic() < since_s + _STEADY_S:
        found = {each.pid for each in processes(server.process.pid)}
        if found != known:
            known, since_s = found, time.monotonic()
        time.sleep(0.2)


def measure_once(case: str, folder: Path, expected: "np.ndarray[Any, Any]", flags: argparse.Namespace) -> Measurement:
    """Start a case, compare its answer, and load it."""
    request = request_of(case)
    body = folder / f"{case}.json"
    body.write_bytes(request.body)
    with running(case, folder) as server:
        answer = ask(case, server.http_port)
        np.testing.assert_allclose(scores(answer), expected, rtol=1e-4)
        headers = [("content-type", "application/json")]
        payload = Payload(Workload("recommend", {}, {}), HTTP_JSON, request.path, body, headers, len(answer))
        return measure(server, payload, Shape(flags.connections), flags.seconds, 3.0)


def expected_scores(folder: Path) -> "np.ndarray[Any, Any]":
    """Return the scores of the request, by ONNX Runtime alone."""
    import onnxruntime

    sessions = [
        onnxruntime.InferenceSession(folder / "one" / name / "1" / "model.onnx") for name in ("features", "ranker")
    ]
    rows = sessions[0].run(None, {"USER": np.array([[_USER]]), "ITEMS": np.array([_ITEMS])})[0]
    found: np.ndarray[Any, Any] = sessions[1].run(None, {"ROWS": rows})[0][0]
    return found


def show(found: dict[str, list[Measurement]]) -> None:
    """Print a row for each case."""
    columns = f"{'requests/s':>10} {'p50 ms':>7} {'p99 ms':>7} {'CPU us':>7} {'requests/CPU s':>14} {'MiB':>6}"
    print(f"\n{'case':12} {columns}")
    rates = {}
    for case, all_rounds in found.items():
        throughput, p50_us, p99_us, cpu_us, pss_mib = (
            statistics.median(getattr(each, name) for each in all_rounds)
            for name in ("throughput", "p50_us", "p99_us", "cpu_us", "pss_mib")
        )
        rates[case] = 1e6 / cpu_us
        print(
            f"{case:12} {throughput:10.0f} {p50_us / 1000:7.2f} {p99_us / 1000:7.2f} {cpu_us:7.0f} "
            f"{rates[case]:14.0f} {pss_mib:6.0f}"
        )
    for case in NAIAD:
        if RAY in rates and case in rates:
            print(f"{case} / {RAY}: {rates[case] / rates[RAY]:.1f} x the requests per CPU second")


def main(argv: Sequence[str] | None = None) -> int:
    """Print the figures of all rounds as JSON, and a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--only", nargs="+", choices=[*NAIAD, RAY])
    parser.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    flags = parser.parse_args(argv)
    if flags.serve:
        serve(flags.serve[0], Path(flags.serve[1]), int(flags.serve[2]))
        return 0
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    found: dict[str, list[Measurement]] = {}
    with tempfile.TemporaryDirectory(prefix="recommender-") as text:
        folder = Path(text)
        load_example("make_models").write_repositories(folder)
        expected = expected_scores(folder)
        for number in range(flags.rounds):
            for case in flags.only or (*NAIAD, RAY):
                measurement = measure_once(case, folder, expected, flags)
                found.setdefault(case, []).append(measurement)
                print(json.dumps({"round": number, "case": case, **measurement.as_dict()}), flush=True)
    show(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
