"""Does `naiad optimize` find the winner of a quiet machine while another program keeps one core busy?

    python -m bench.optimize_busy [--times 4] [--only lean,copy] [--seconds 0.4] [--record FILE]

| model | what is compared | winner |
|---|---|---|
| wasteful | a network whose hidden units are all there four times, and one with each of them once | the candidate |
| lean | the same two the other way round | the source |
| copy | a network and a copy of its file | the source: a tie |
| boosting | gradient boosting of scikit-learn, and its conversion to ONNX | that of the quiet run |
| quantised | a network in FP32, and in dynamic int8 | that of the quiet run |

Each model is optimized once while nothing else runs, and `--times` times beside a process that spins. A run is wrong
if it names another winner than the quiet one; that no winner is proven is right. With `--record` finished runs are
kept, and the same command continues. Exit status 1 if a run was wrong.
"""

import argparse
import contextlib
import itertools
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from sklearn.ensemble import GradientBoostingRegressor

SOURCE, NOT_PROVEN = "source", "not proven"
_COPIES = 4
_SAMPLES = 16
_UNPROVEN = "no winner proven: other programs used"
_FLAGS = ("--tuning-seconds", "0", "--sensitivity-steps", "0", "--quiet")


@dataclass(frozen=True)
class Case:
    """The command of a model, and its winner where that is known by construction."""

    write: Callable[[Path], Sequence[str]]
    """Writes the files of the model to a folder, and returns the arguments of `naiad optimize`."""
    winner: str = ""


def network(path: Path, hidden: int, copies: int = 1) -> None:
    """Write a network of three layers; with copies of its hidden units it answers the same and computes more."""
    random = np.random.default_rng(1)
    sizes = (64, hidden, hidden, 8)
    nodes, weights, name = [], [], "X"
    for number, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
        values = (random.normal(size=(inputs, outputs)) / np.sqrt(inputs)).astype(np.float32)
        tiles = (1 if number == 0 else copies, 1 if number == 2 else copies)
        values = np.tile(values, tiles) / np.float32(tiles[0])
        weights.append(numpy_helper.from_array(values, f"weights_{number}"))
        nodes.append(helper.make_node("MatMul", [name, f"weights_{number}"], [f"product_{number}"]))
        name = "Y" if number == 2 else f"hidden_{number}"
        nodes.append(helper.make_node("Tanh" if number == 2 else "Relu", [f"product_{number}"], [name]))
    ends = [helper.make_tensor_value_info(*each) for each in _tensors(("X", 64), ("Y", 8))]
    graph = helper.make_graph(nodes, "network", ends[:1], ends[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def _tensors(*named: tuple[str, int]) -> list[tuple[str, int, list[Any]]]:
    return [(name, TensorProto.FLOAT, ["rows", size]) for name, size in named]


def _rows(folder: Path, columns: int) -> Path:
    rows = np.random.default_rng(2).normal(size=(_SAMPLES, columns)).astype(np.float32)
    np.savez(folder / "samples.npz", X=rows)
    return folder / "samples.npz"


def networks(hidden: int, copies: int, candidate: int) -> Callable[[Path], Sequence[str]]:
    """Return what writes a source with copies of its hidden units, and a candidate with others."""

    def write(folder: Path) -> Sequence[str]:
        network(folder / "network.onnx", hidden, copies)
        network(folder / "other.onnx", hidden, candidate)
        data = _rows(folder, 64)
        own = f"other={folder / 'other.onnx'}"
        return [str(folder / "network.onnx"), "--data", str(data), "--candidate", own, "--candidates", SOURCE]

    return write


def boosting(folder: Path) -> Sequence[str]:
    """Train gradient boosting, which scikit-learn computes row by row in float64."""
    rows = np.random.default_rng(3).normal(size=(400, 10)).astype(np.float32)
    joblib.dump(GradientBoostingRegressor().fit(rows, 2 * rows[:, 0] + rows[:, 1] ** 2), folder / "boosting.joblib")
    command = [str(folder / "boosting.joblib"), "--allow-pickle", "--data", str(_rows(folder, 10))]
    return [*command, "--candidates", "source,onnx-fp32"]


def quantised(folder: Path) -> Sequence[str]:
    """Write a network whose products are large enough for int8 to matter."""
    network(folder / "network.onnx", 1024)
    command = [str(folder / "network.onnx"), "--data", str(_rows(folder, 64))]
    return [*command, "--candidates", "source,onnx-int8-dynamic"]


CASES = {
    "wasteful": Case(networks(192, _COPIES, 1), "other"),
    "lean": Case(networks(192, 1, _COPIES), SOURCE),
    "copy": Case(networks(768, 1, 1), SOURCE),
    "boosting": Case(boosting),
    "quantised": Case(quantised),
}


@contextlib.contextmanager
def busy_core() -> Iterator[None]:
    """Keep a process that spins."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def optimize(case: Case, seconds: float) -> dict[str, Any]:
    """Optimize a model; return the winner, NOT_PROVEN if there is none, the reason and the duration."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = [sys.executable, "-m", "naiad", "optimize", *case.write(folder), *_FLAGS]
        command += ["--seconds", str(seconds), "--workspace", str(folder / "work"), "--output", str(folder / "best")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        file = folder / "work/result.json"
        if not file.exists():
            raise RuntimeError(done.stdout + done.stderr)
        found = json.loads(file.read_text(encoding="utf-8"))
    if not found["winner"] and not found["why"].startswith(_UNPROVEN):
        raise RuntimeError(found["why"])
    return {key: found[key] for key in ("why", "duration_s")} | {"winner": found["winner"] or NOT_PROVEN}


def quiet_winner(name: str, seconds: float) -> dict[str, Any]:
    """Return the run on the quiet machine. Raises RuntimeError if the machine is not, or the winner is not right."""
    found = optimize(CASES[name], seconds)
    if found["winner"] != (CASES[name].winner or found["winner"]) or found["winner"] == NOT_PROVEN:
        raise RuntimeError(f"{name}, quiet run: {found['winner']}: {found['why']}")
    return found


def main() -> int:
    """Run what the record lacks, and print a row for each run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=4)
    parser.add_argument("--only", default=",".join(CASES))
    parser.add_argument("--seconds", type=float, default=0.4, help="of a measurement")
    parser.add_argument("--record", type=Path)
    flags = parser.parse_args()
    lines = flags.record.read_text().splitlines() if flags.record and flags.record.exists() else []
    done: dict[tuple[str, int], dict[str, Any]] = {(row["model"], row["run"]): row for row in map(json.loads, lines)}
    print("| model | run | quiet winner | busy winner | verdict | s | why |\n|---|---|---|---|---|---|---|")
    right = total = 0
    for name in flags.only.split(","):
        for run in range(flags.times + 1):
            row = done.get((name, run))
            if row is None:
                with busy_core() if run else contextlib.nullcontext():
                    found = optimize(CASES[name], flags.seconds) if run else quiet_winner(name, flags.seconds)
                row = done[name, run] = {"model": name, "run": run, **found}
                if flags.record:
                    with flags.record.open("a") as record:
                        record.write(json.dumps(row) + "\n")
            if not run:
                continue
            quiet = done[name, 0]["winner"]
            is_right = row["winner"] in (quiet, NOT_PROVEN)
            right, total = right + is_right, total + 1
            verdict = "ok" if is_right else "WRONG"
            print(
                f"| {name} | {run} | {quiet} | {row['winner']} | {verdict} | {row['duration_s']:.0f} | {row['why']} |"
            )
            sys.stdout.flush()
    print(f"\n{right} of {total}")
    return int(right != total)


if __name__ == "__main__":
    sys.exit(main())
