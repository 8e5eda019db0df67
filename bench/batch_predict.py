"""`naiad predict` beside a batch loop written by hand with onnxruntime, in turn on the same rows.

    python -m bench.batch_predict                      a tiny model (1,000,000 rows), MiniLM (20,000 rows), a kill
    python -m bench.batch_predict --rounds 3 --only minilm --minilm-rows 2000

Both read an .npz file, execute batches of the same size with the same threads, and write an .npz file. The loop holds
all rows in memory, as such loops do. Each run is a process of its own; its time begins before the model is loaded,
after the imports. `ratio` is the throughput of naiad / the throughput of the loop, the median of the rounds. The last
part kills a job when half of its rows are done, continues it, and compares the bytes with a run without a kill.
"""

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from bench import models
from naiad.tools.demo.packages import MINILM, fetch

_TOKENS = 16
_TINY = """name: "tiny" backend: "onnxruntime" max_batch_size: 1024
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ 16 ] }, { name: "INPUT1" data_type: TYPE_FP32 dims: [ 16 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 16 ] } ]
"""
_MINILM = 'name: "minilm" backend: "onnxruntime" max_batch_size: 32\n'
BATCH = {"tiny": 1024, "minilm": 32}


@dataclass(frozen=True, slots=True)
class Took:
    """One run."""

    seconds: float
    cpu_s: float
    peak_mib: float


def write_models(repository: Path) -> None:
    """Write the two models."""
    for name, config in (("tiny", _TINY), ("minilm", _MINILM)):
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(config)
    (repository / "tiny" / "1" / "model.onnx").write_bytes(models.add_sub().SerializeToString())
    (model,) = fetch(MINILM).values()
    (repository / "minilm" / "1" / "model.onnx").write_bytes(Path(model).read_bytes())


def write_rows(path: Path, name: str, rows: int) -> None:
    """Write random inputs of a model."""
    random = np.random.default_rng(0)
    if name == "tiny":
        pair = {each: random.random((rows, 16), np.float32) for each in ("INPUT0", "INPUT1")}
        np.savez(path, allow_pickle=False, **pair)
        return
    ids = random.integers(1000, 20000, (rows, _TOKENS))
    np.savez(path, input_ids=ids, attention_mask=np.ones_like(ids), token_type_ids=np.zeros_like(ids))


def loop(model: Path, rows: Path, output: Path, batch: int) -> None:
    """Predict all rows as a script would."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    (name, *_) = [each.name for each in session.get_outputs()]
    with np.load(rows) as archive:
        inputs = {each.name: archive[each.name] for each in session.get_inputs()}
    count = len(next(iter(inputs.values())))
    found = [
        session.run([name], {key: array[start : start + batch] for key, array in inputs.items()})[0]
        for start in range(0, count, batch)
    ]
    np.savez(output, allow_pickle=False, **{name: np.concatenate(found)})


def _child(kind: str, repository: Path, name: str, rows: Path, output: Path) -> None:
    """Run one side and print what it took."""
    import onnxruntime  # noqa: F401 - imports do not count on either side

    from naiad.tools.predict import PredictJob, predict

    start_s, start_cpu_s = time.monotonic(), time.process_time()
    if kind == "loop":
        loop(repository / name / "1" / "model.onnx", rows, output, BATCH[name])
    else:
        predict(PredictJob(str(repository), name, [str(rows)], str(output), outputs=_outputs(name)))
    took = Took(
        time.monotonic() - start_s,
        time.process_time() - start_cpu_s,
        _peak_mib(),
    )
    print(json.dumps(asdict(took)))


def _peak_mib() -> float:
    """Return the largest resident memory of this process; `ru_maxrss` would include that of the parent."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


def _outputs(name: str) -> Sequence[str]:
    return ("OUTPUT0",) if name == "tiny" else ()


def _run(kind: str, repository: Path, name: str, rows: Path, output: Path) -> Took:
    command = [sys.executable, "-m", "bench.batch_predict", "--child", kind, str(repository), name, str(rows)]
    done = subprocess.run([*command, str(output)], check=True, capture_output=True, text=True)
    return Took(**json.loads(done.stdout.splitlines()[-1]))


def compare(folder: Path, repository: Path, name: str, count: int, rounds: int) -> None:
    """Run both sides in turn and print the medians."""
    rows = folder / f"{name}.npz"
    write_rows(rows, name, count)
    sides: dict[str, list[Took]] = {"loop": [], "naiad": []}
    for number in range(rounds):
        for kind in ("loop", "naiad") if number % 2 == 0 else ("naiad", "loop"):
            sides[kind].append(_run(kind, repository, name, rows, folder / f"{kind}.npz"))
            print(f"  {kind}: {sides[kind][-1]}", file=sys.stderr, flush=True)
    _check_equal(folder / "loop.npz", folder / "naiad.npz")
    for kind, took in sides.items():
        seconds, cpu_s, peak = (
            statistics.median(values) for values in zip(*(asdict(each).values() for each in took), strict=True)
        )
        print(f"{name:7} {kind:6} {count:>9,} rows {seconds:8.2f} s {count / seconds:>10,.0f} rows/s "
              f"{cpu_s:8.2f} s CPU  peak {peak:,.0f} MiB")  # fmt: skip
    for what in ("seconds", "cpu_s"):
        ratios = [getattr(a, what) / getattr(b, what) for a, b in zip(sides["loop"], sides["naiad"], strict=True)]
        print(f"{name:7} ratio  {statistics.median(ratios):.3f} by {what} ({min(ratios):.3f} to {max(ratios):.3f})")


def _check_equal(one: Path, other: Path) -> None:
    with np.load(one) as left, np.load(other) as right:
        for name in left:
            np.testing.assert_allclose(left[name], right[name], rtol=1e-3, atol=1e-4)


def memory(folder: Path, repository: Path, counts: Sequence[int]) -> None:
    """Print the peak memory of jobs of different length."""
    for count in counts:
        write_rows(folder / "memory.npz", "tiny", count)
        took = _run("naiad", repository, "tiny", folder / "memory.npz", folder / "memory-out.npz")
        print(f"memory  naiad  {count:>9,} rows, peak {took.peak_mib:,.0f} MiB")


def kill(folder: Path, repository: Path, count: int) -> None:
    """Kill a job at half of its rows, continue it, and compare its bytes with a whole run."""
    rows = folder / "kill.npz"
    write_rows(rows, "tiny", count)

    def command(output: Path) -> list[str]:
        flags = ["--input", str(rows), "--output", str(output), "--outputs", "OUTPUT0"]
        return [sys.executable, "-m", "naiad", "predict", str(repository), "tiny", *flags]

    whole, parts = folder / "whole.jsonl", folder / "parts.jsonl"
    subprocess.run(command(whole), check=True, stdout=subprocess.DEVNULL)
    running = subprocess.Popen(command(parts), stdout=subprocess.DEVNULL)
    journal = folder / "parts.jsonl.partial" / "journal.jsonl"
    while running.poll() is None and _rows_done(journal) < count // 2:
        time.sleep(0.01)
    running.send_signal(signal.SIGKILL)
    running.wait()
    done = subprocess.run(command(parts), check=True, capture_output=True, text=True).stdout.splitlines()[0]
    equal = "equal bytes" if whole.read_bytes() == parts.read_bytes() else "DIFFERENT BYTES"
    print(f"kill -9 and again: {done}; {equal}, {os.path.getsize(parts):,} bytes")


def _rows_done(journal: Path) -> int:
    lines = journal.read_bytes().splitlines() if journal.exists() else []
    try:
        return int(json.loads(lines[-1])["rows"]) if len(lines) > 1 else 0
    except ValueError:
        return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the parts."""
    parser = argparse.ArgumentParser(prog="python -m bench.batch_predict", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tiny-rows", type=int, default=1_000_000)
    parser.add_argument("--minilm-rows", type=int, default=20_000)
    parser.add_argument("--only", default="tiny,minilm,memory,kill", help="parts to run")
    parser.add_argument("--child", nargs=5, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.child:
        kind, repository, name, rows, output = arguments.child
        _child(kind, Path(repository), name, Path(rows), Path(output))
        return 0
    parts = arguments.only.split(",")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        repository = folder / "models"
        write_models(repository)
        if "tiny" in parts:
            compare(folder, repository, "tiny", arguments.tiny_rows, arguments.rounds)
        if "minilm" in parts:
            compare(folder, repository, "minilm", arguments.minilm_rows, arguments.rounds)
        if "memory" in parts:
            memory(folder, repository, (arguments.tiny_rows // 10, arguments.tiny_rows))
        if "kill" in parts:
            kill(folder, repository, arguments.tiny_rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
