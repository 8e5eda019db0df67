"""`naiad predict --ray local` beside `naiad predict`: rows/s, what the start of Ray takes, and kills.

    python -m bench.predict_ray                    1,000,000 rows of a forest, two workers and two instances
    python -m bench.predict_ray --kills 20         a worker or the command is killed at 20 random moments
    python -m bench.predict_ray --rows 100000 --kills 4

Needs `.ci/ray --make .venv-ray`. Rates are of the time from the first rows that are written to the last ones, as the
progress of the job reports them: the start of Ray and of the workers is a figure of its own. With `--kills` each kill
is SIGKILL: of a worker of Ray, found by its name among the processes of the command, or of the command, which is
then started again, as a user would. The output is compared with that of an undisturbed local run, byte for byte.
"""

import argparse
import contextlib
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import psutil

from bench.predict_trees import train, write_rows
from naiad.tools.predict import JobProgress, PredictJob, predict

_STEP_S = 0.05


def measure(job: PredictJob) -> dict[str, float]:
    """Run a job in this process; return its rates."""
    begin_s = time.monotonic()
    marks: list[tuple[float, int]] = []

    def note(progress: JobProgress) -> None:
        if progress.phase == "predict":
            marks.append((time.monotonic(), progress.rows))

    summary = predict(job, note)
    (first_s, first_rows), (last_s, last_rows) = marks[0], marks[-1]
    return {
        "seconds": round(summary.seconds, 2),
        "start_s": round(first_s - begin_s, 2),
        "rows_per_s": round((last_rows - first_rows) / max(1e-9, last_s - first_s)),
    }


def compare(models: Path, rows: Path, folder: Path, rounds: int) -> None:
    """Print the rates of both, in turn, each in a process of its own."""
    for number in range(rounds):
        for side in ("local", "ray") if number % 2 == 0 else ("ray", "local"):
            command = [sys.executable, "-m", "bench.predict_ray", "--one", side, str(models), str(rows), str(folder)]
            subprocess.run(command, check=True)


def job_of(side: str, models: str, rows: str, folder: str) -> PredictJob:
    """Return the job of a side; the local one has two instances."""
    job = PredictJob(models, "two", [rows], f"{folder}/{side}.csv")
    return job if side == "local" else replace(job, model="xgboost", ray="local", workers=2)


def two_instances(models: Path) -> None:
    """Copy the model as one of two instances."""
    target = models / "two"
    (target / "1").mkdir(parents=True)
    (target / "1" / "xgboost.ubj").write_bytes((models / "xgboost" / "1" / "xgboost.ubj").read_bytes())
    (target / "config.pbtxt").write_text("instance_group [ { count: 2 kind: KIND_CPU } ]\n")


def kill(models: Path, rows: Path, folder: Path, kills: int, seed: int) -> bool:
    """Run the command with kills; print what was killed, and return whether the output is equal."""
    choice = random.Random(seed)
    expected, output = folder / "expected.csv", folder / "killed.csv"
    command = [sys.executable, "-m", "naiad", "predict", str(models), "xgboost", "-i", str(rows), "-q", "-o"]
    subprocess.run([*command, str(expected)], check=True)
    killed = {"workers": 0, "commands": 0, "runs": 0}
    done = 0
    while done < kills or not output.exists():
        if output.exists():
            output.unlink()
        killed["runs"] += 1
        process = psutil.Popen([*command, str(output), "--ray", "local", "--workers", "2"])
        while process.poll() is None and done < kills:
            with contextlib.suppress(psutil.TimeoutExpired):
                process.wait(choice.uniform(0.5, 6))
            if process.poll() is None:
                done += _kill_one(process, choice, killed)
        if process.wait() not in (0, -9):
            raise RuntimeError(f"the command ended with status {process.returncode}")
        _wait_for_end()
    is_equal = output.read_bytes() == expected.read_bytes()
    print(json.dumps({**killed, "equal": is_equal}), flush=True)
    return is_equal


def _kill_one(process: psutil.Popen, choice: random.Random, killed: dict[str, int]) -> int:
    """Kill a worker, or the command; return how many were."""
    workers = [each for each in process.children(recursive=True) if _is_worker(each)]
    with contextlib.suppress(psutil.NoSuchProcess):
        if workers and choice.random() < 0.6:
            choice.choice(workers).kill()
            killed["workers"] += 1
            return 1
        if _has_begun(process):
            process.kill()
            killed["commands"] += 1
            return 1
    return 0


def _is_worker(process: psutil.Process) -> bool:
    try:
        return "PartWorker" in " ".join(process.cmdline())
    except psutil.Error:
        return False


def _has_begun(process: psutil.Popen) -> bool:
    return any("raylet" in each.name() for each in process.children(recursive=True))


def _wait_for_end() -> None:
    """Wait until the processes of a Ray whose command was killed have ended."""
    for _ in range(600):
        names = [each.info["name"] for each in psutil.process_iter(["name"])]
        if not any(name in ("raylet", "gcs_server") for name in names):
            return
        time.sleep(_STEP_S)


def main(argv: Sequence[str] | None = None) -> int:
    """Print a line for each run; the status is 1 if an output differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    flags = parser.parse_args(argv)
    if flags.one:
        print(flags.one[0], json.dumps(measure(job_of(*flags.one))), flush=True)
        return 0
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        train(folder, "xgboost")
        models = folder / "models"
        two_instances(models)
        rows = write_rows(folder, flags.rows, ["npy"])["npy"]
        if flags.kills:
            return 0 if kill(models, rows, folder, flags.kills, flags.seed) else 1
        compare(models, rows, folder, flags.rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
