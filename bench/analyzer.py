"""NVIDIA's perf_analyzer, the load generator that Triton's users know, where it can be had.

The last wheel with the program in it is tritonclient 2.50.0; it links against libcudart, which PyPI has, and against
libb64, which Debian has (`libb64-0d`).
"""

import csv
import functools
import os
import platform
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import tritonclient.http as triton_http

from bench.payloads import GRPC
from bench.peers import PEERS_DIR, Running
from bench.process_tree import CpuMeter

HOME = PEERS_DIR / "perf_analyzer"
_WHEELS = ("tritonclient==2.50.0", "nvidia-cuda-runtime-cu12")
_TRIALS = 3


@functools.cache
def unavailable() -> str | None:
    """Fetch the program once; return why it cannot be used here, None when it can."""
    if platform.machine() != "x86_64" or sys.platform != "linux":
        return "perf_analyzer is published for Linux on x86-64 only"
    try:
        if not _programs():
            _fetch()
        command = [str(_programs()[0]), "--version"]
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False, timeout=60)
    except (subprocess.SubprocessError, OSError, IndexError) as error:
        return f"perf_analyzer cannot be fetched: {error}"
    if done.returncode != 0:
        return f"perf_analyzer does not start (Debian's package libb64-0d may be missing): {done.stderr.strip()}"
    return None


def _programs() -> list[Path]:
    return [path for path in HOME.glob("**/perf_analyzer") if path.is_file()]


def _fetch() -> None:
    HOME.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "-d", str(HOME)]
    subprocess.run([*command, *_WHEELS], check=True)
    for wheel in HOME.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(HOME)
        wheel.unlink()
    for program in _programs():
        program.chmod(0o755)


def program() -> str:
    """Return the path of perf_analyzer, which `unavailable` has fetched."""
    return str(_programs()[0])


def environment() -> dict[str, str]:
    """Return the environment in which perf_analyzer finds its libraries."""
    libraries = HOME / "nvidia" / "cuda_runtime" / "lib"
    return {**os.environ, "LD_LIBRARY_PATH": f"{libraries}:{os.environ.get('LD_LIBRARY_PATH', '')}"}


def measure(
    server: Running, model: str, transport: str, concurrency: int, seconds: float, work: Path
) -> Mapping[str, float]:
    """Run perf_analyzer; return `throughput`, `p50_us`, `p99_us` and `cpu_us`, the server's CPU time a request.

    Raises RuntimeError when the run does not complete.
    """
    report = work / "perf_analyzer.csv"
    report.unlink(missing_ok=True)
    is_grpc = transport == GRPC
    command = [str(_programs()[0]), "-m", model, "-i", "grpc" if is_grpc else "http"]
    command += ["-u", f"127.0.0.1:{server.grpc_port if is_grpc else server.http_port}"]
    command += ["--concurrency-range", str(concurrency), "-p", str(round(seconds * 1000)), "-f", str(report)]
    # Three windows, all kept: medians over rounds are taken here, so nothing is repeated until it looks stable.
    command += ["-r", str(_TRIALS), "-s", "999"]
    meter, before = CpuMeter(server.process.pid), _answered(server, model)
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False, timeout=600)
    cpu_s, answered = meter.seconds(), _answered(server, model) - before
    if done.returncode != 0 or not report.exists():
        raise RuntimeError(f"perf_analyzer failed ({done.returncode}): {done.stdout[-1000:]}{done.stderr[-1000:]}")
    with report.open() as file:
        row = next(csv.DictReader(file))
    return {
        "requests": answered,
        "throughput": float(row["Inferences/Second"]),
        "p50_us": float(row["p50 latency"]),
        "p99_us": float(row["p99 latency"]),
        "cpu_us": cpu_s / answered * 1e6,
    }


def _answered(server: Running, model: str) -> int:
    with triton_http.InferenceServerClient(f"127.0.0.1:{server.http_port}") as client:
        (statistics,) = client.get_inference_statistics(model)["model_stats"]
    return int(statistics["inference_stats"]["success"]["count"])
