"""Does the gain that `naiad analyze` prints come true? Winner and present configuration are measured again by hand.

    python -m bench.analyze_headline [--times 4] [--only busy,deep] [--seconds 1] [--record FILE]

| model | what it is |
|---|---|
| busy | ONNX, about a millisecond, one instance |
| deep | ONNX, 288 small layers, one instance, no batching |
| waiting | the same; batches wait 3 ms |
| sleeping | a `model.py` that sleeps 4 ms, one instance |
| computing | a `model.py` that computes 2 ms in Python, one instance |

All begin with a configuration that is clearly not the best, so a headline without a gain is wrong. The analysis
writes its winner with `--output`. Two servers have the winner and what was there before, and `naiad perf` measures
both in turns under the load of the headline; the median ratio of a turn, with its 95 % interval, is the gain by hand.
Both gains are estimates: a headline is right if it differs from the gain by hand by at most the root of the sum of
the squares of the half intervals that face each other, and half a percent for digits that are not printed. With
`--record` finished runs are kept, and the same command continues. Exit status 1 if over one of twenty runs is wrong.
"""

import argparse
import json
import math
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.models import write_repository
from bench.peers import Naiad, Running
from naiad.tools.optimize.rounds import ratios

_NAIAD = (sys.executable, "-m", "naiad")
_HEADLINE = re.compile(r"That is ([+-]\d+) % \(([+-]\d+) to ([+-]\d+) %\) against the configuration")
_LOAD = re.compile(r"compared in \d+ turns under concurrency (\d+)")
_CONFIG = """backend: "python" instance_group [ { count: 1 kind: KIND_CPU } ]
input [ { name: "x" data_type: TYPE_FP32 dims: [ 16 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 16 ] } ]
"""
_PYTHON = """import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            {work}
            values = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", values)]))
        return responses
"""


@dataclass(frozen=True)
class Gain:
    """A gain in percent with its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        """Return what the analysis prints."""
        return f"{self.value:+.0f} % ({self.low:+.0f} to {self.high:+.0f} %)"


def onnx_model(name: str, group: str, batching: str = r"\g<0>") -> Callable[[Path], str]:
    """Return what writes a model of the benchmarks, with other batching."""

    def write(repository: Path) -> str:
        write_repository(repository, [group])
        config = repository / name / "config.pbtxt"
        config.write_text(re.sub(r"dynamic_batching \{.*\}", batching, config.read_text()))
        return name

    return write


def python_model(name: str, work: str) -> Callable[[Path], str]:
    """Return what writes a `model.py` that works, then answers its input."""

    def write(repository: Path) -> str:
        folder = repository / name / "1"
        folder.mkdir(parents=True)
        (folder / "model.py").write_text(_PYTHON.format(work=work))
        (folder.parent / "config.pbtxt").write_text(_CONFIG)
        return name

    return write


CASES: dict[str, Callable[[Path], str]] = {
    "busy": onnx_model("busy", "busy"),
    "deep": onnx_model("deep_1_0", "deep", ""),
    "waiting": onnx_model("deep_1_3000", "deep"),
    "sleeping": python_model("sleeping", "time.sleep(0.004)"),
    "computing": python_model("computing", "sum(range(100_000))"),
}


def analyze(repository: Path, model: str, flags: argparse.Namespace, work: Path) -> tuple[Gain | None, int]:
    """Analyze a model, with its winner in `best`; return the gain of the headline, if there is one, and the load."""
    command = [*_NAIAD, "analyze", str(repository), "--models", model, "--concurrency", "4"]
    command += [
        "--seconds",
        str(flags.seconds),
        "--time-limit",
        flags.time_limit,
        "--quiet",
        "-o",
        str(work / "best"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=work)
    load, gain = _LOAD.search(done.stdout), _HEADLINE.search(done.stdout)
    if load is None:
        raise RuntimeError(done.stdout + done.stderr)
    return Gain(*map(float, gain.groups())) if gain else None, int(load[1])


def throughput(server: Running, model: str, concurrency: int, seconds: float, file: Path) -> float:
    """Return the requests/s that `naiad perf` measures."""
    command = [*_NAIAD, "perf", "-m", model, "-i", "grpc", "--duration", str(seconds), "--quiet"]
    command += ["-u", f"127.0.0.1:{server.grpc_port}", "--concurrency-range", str(concurrency), "--json", str(file)]
    subprocess.run(command, capture_output=True, check=True)
    (row,) = json.loads(file.read_text())["rows"]
    return float(row["throughput"]["value"])


def by_hand(repository: Path, model: str, concurrency: int, flags: argparse.Namespace, work: Path) -> Gain:
    """Serve the winner and the present configuration, and measure them in turns."""
    found: dict[str, list[float]] = {"best": [], "now": []}
    with ExitStack() as stack:
        servers: dict[str, Running] = {}
        for name, folder in (("best", work / "best"), ("now", repository)):
            naiad = Naiad("--model-control-mode", "explicit", "--load-model", model)
            servers[name] = naiad.start(folder, work / f"server-{name}")
            stack.callback(servers[name].stop)
        for turn in range(flags.rounds + 1):
            for name in sorted(servers, reverse=turn % 2 == 1):
                value = throughput(servers[name], model, concurrency, flags.seconds, work / "perf.json")
                found[name] += [value] if turn else []  # the first turn warms up
    ratio = ratios(found["best"], found["now"])
    return Gain(*((each - 1) * 100 for each in (ratio.value, ratio.low, ratio.high)))


def agree(headline: Gain, found: Gain) -> bool:
    """Return whether a headline came true."""
    lower, upper = sorted((headline, found), key=lambda each: each.value)
    return upper.value - lower.value <= math.hypot(upper.value - upper.low, lower.high - lower.value) + 0.5


def one_run(name: str, flags: argparse.Namespace) -> dict[str, Any]:
    """Analyze a model and measure again."""
    with tempfile.TemporaryDirectory() as folder:
        work, repository = Path(folder), Path(folder, "models")
        model = CASES[name](repository)
        headline, concurrency = analyze(repository, model, flags, work)
        found = by_hand(repository, model, concurrency, flags, work) if headline else None
    is_right = headline is not None and found is not None and agree(headline, found)
    return {"headline": str(headline), "by_hand": str(found), "is_right": is_right}


def main() -> int:
    """Run what the record lacks, and print a row for each run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=4)
    parser.add_argument("--only", default=",".join(CASES))
    parser.add_argument("--seconds", type=float, default=1.0, help="of a measurement")
    parser.add_argument("--rounds", type=int, default=9, help="by hand")
    parser.add_argument("--time-limit", default="50s", help="of an analysis")
    parser.add_argument("--record", type=Path)
    flags = parser.parse_args()
    lines = flags.record.read_text().splitlines() if flags.record and flags.record.exists() else []
    done: dict[tuple[str, int], dict[str, Any]] = {(row["model"], row["run"]): row for row in map(json.loads, lines)}
    print("| model | run | headline | measured by hand | verdict |\n|---|---|---|---|---|")
    right = total = 0
    for name in flags.only.split(","):
        for run in range(1, flags.times + 1):
            row = done.get((name, run))
            if row is None:
                row = {"model": name, "run": run, **one_run(name, flags)}
                if flags.record:
                    with flags.record.open("a") as record:
                        record.write(json.dumps(row) + "\n")
            right, total = right + row["is_right"], total + 1
            cells = name, str(run), row["headline"], row["by_hand"], "ok" if row["is_right"] else "WRONG"
            print(f"| {' | '.join(cells)} |", flush=True)
    print(f"\n{right} of {total}")
    return int(total - right > total / 20)


if __name__ == "__main__":
    sys.exit(main())
