"""Goodput under overload: requests that come at 2 and 4 times the capacity, from clients that wait or give up.

    python -m bench.overload                              every case, about five minutes
    python -m bench.overload --models onnx --transports grpc --seconds 5
    python -m bench.overload --flags=--queue-overload-policy=none

`naiad perf` sends an open loop: requests leave when they are due, also if earlier ones are open. Goodput is the
number of responses within a second of that moment. Capacity is what comes back when 32 requests are always
outstanding. After the overload half of the capacity is offered; recovery is the time until the p99 of 250 ms of
requests stays below 250 ms. Clients that give up cancel a request after a second. A row whose generator was late is
not valid: the clients could not send as fast as the case asks.
"""

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import models
from bench.peers import HERE, Naiad, Running
from bench.process_tree import CpuMeter

PATIENCE_S = 1.0
_CALM_S = 4.0
_WINDOW_S = _RECOVERED_S = 0.25
_LATE_MS = 50.0
"""A generator that sends one request in a hundred later than this does not offer the load that it reports."""
_SLEEP_PY = """
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            time.sleep(0.004)
            x = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", x)]))
        return responses
"""
_CONFIG = """
backend: "{backend}"
max_batch_size: 0
input [ {{ name: "INPUT0" data_type: TYPE_FP32 dims: [ 256 ] }} ]
output [ {{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 256 ] }} ]
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
parameters {{ key: "intra_op_thread_count" value {{ string_value: "1" }} }}
"""


def write_models(repository: Path) -> None:
    """Write an ONNX model of about 4 ms, a Python model that sleeps for 4 ms, and an ONNX model of a few us."""
    files = {
        "onnx": ("onnxruntime", "model.onnx", models.busy(33 * models.BUSY_LAYERS).SerializeToString()),
        "tiny": ("onnxruntime", "model.onnx", models.busy(1).SerializeToString()),
        "python": ("python", "model.py", _SLEEP_PY.encode()),
    }
    for name, (backend, filename, content) in files.items():
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "1" / filename).write_bytes(content)
        (repository / name / "config.pbtxt").write_text(_CONFIG.format(backend=backend))


def perf(server: Running, model: str, transport: str, work: Path, *flags: str) -> dict[str, Any]:
    """Load a model with `naiad perf`; return its row. Raises RuntimeError when it has measured nothing."""
    port = server.grpc_port if transport == "grpc" else server.http_port
    file = work / "perf.json"
    file.unlink(missing_ok=True)
    command = [sys.executable, "-m", "naiad", "perf", "-q", "-m", model, "-i", transport, "-u", f"127.0.0.1:{port}"]
    command += ["--max-errors=100%", f"--json={file}", *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not file.exists():
        raise RuntimeError(done.stdout + done.stderr)
    row: dict[str, Any] = json.loads(file.read_text())["rows"][0]
    return row


def measure(server: Running, case: tuple[str, str, str, float], capacity: float, seconds: float, work: Path) -> Any:
    """Offer an overload, then half of the capacity; return the figures by name."""
    model, transport, clients, factor = case
    export = work / "requests.json"
    flags = [f"--ramp={seconds:g}s:{factor * capacity:.1f},{_CALM_S:g}s:{capacity / 2:.1f}"]
    flags += [f"--request-timeout={PATIENCE_S:g}"] if clients == "impatient" else []
    meter = CpuMeter(server.process.pid)
    row = perf(server, model, transport, work, f"--profile-export-file={export}", *flags)
    cores = meter.seconds() / (seconds + _CALM_S)
    (experiment,) = json.loads(export.read_text())["experiments"]
    answers = [(each["timestamp"], each["response_timestamps"][-1]) for each in experiment["requests"]]
    began = min(start for start, _ in answers)
    times = [((start - began) / 1e9, (end - start) / 1e9) for start, end in answers]
    in_time = sorted(latency for start, latency in times if start < seconds and latency <= PATIENCE_S)
    calm = [(start - seconds, latency) for start, latency in times if start >= seconds]
    late_ms = row["generator"]["late_p99_us"] / 1e3
    return {
        **dict(zip(("model", "transport", "clients", "factor"), case, strict=True)),
        "capacity_per_s": round(capacity, 1),
        "goodput_per_s": round(len(in_time) / seconds, 1),
        "share": round(len(in_time) / seconds / capacity, 3),
        "answered_late": sum(start < seconds and latency > PATIENCE_S for start, latency in times),
        "rejected_or_given_up": sum(each["count"] for each in row["errors"]),
        "p50_ms": round(1e3 * in_time[len(in_time) // 2], 1) if in_time else 0.0,
        "recovery_s": _recovery_s(calm, capacity / 2),
        "server_cores": round(cores, 2),
        "late_p99_ms": round(late_ms, 1),
        "generator_lags": late_ms > _LATE_MS,
    }


def _recovery_s(calm: Sequence[tuple[float, float]], rate: float) -> float:
    """Return the end of the last window whose p99 was too long; a request that failed counts as too long."""
    recovered_s = 0.0
    for number in range(int(_CALM_S / _WINDOW_S) - 1):  # requests of the last one may still be open
        begin_s, end_s = number * _WINDOW_S, (number + 1) * _WINDOW_S
        quick = sum(begin_s <= start < end_s and latency <= _RECOVERED_S for start, latency in calm)
        if quick < 0.99 * rate * _WINDOW_S - 1:
            recovered_s = end_s
    return recovered_s


def main(argv: Sequence[str] | None = None) -> None:
    """Run the cases and print a line of JSON for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="onnx,python", help="onnx, python, tiny")
    parser.add_argument("--transports", default="http,grpc")
    parser.add_argument("--clients", default="waiting,impatient")
    parser.add_argument("--factors", default="2,4")
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--flags", action="append", default=[], help="of the server; repeatable")
    parser.add_argument("--checkout", type=Path, default=HERE.parent, help="of the server")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        write_models(work / "models")
        server = Naiad(*options.flags, checkout=options.checkout.resolve()).start(work / "models", work)
        try:
            for model, transport in itertools.product(options.models.split(","), options.transports.split(",")):
                closed = perf(server, model, transport, work, "--concurrency-range=32", "-p1000", "--duration=3")
                capacity = closed["throughput"]["value"]
                for clients, factor in itertools.product(options.clients.split(","), options.factors.split(",")):
                    case = (model, transport, clients, float(factor))
                    print(json.dumps(measure(server, case, capacity, options.seconds, work)), flush=True)
        finally:
            server.stop()


if __name__ == "__main__":
    main()
