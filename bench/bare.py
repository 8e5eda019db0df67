"""The least that any server can cost: a loop around `session.run` in a process of its own.

    python -m bench.bare MODEL.onnx THREADS

Answers each line `SECONDS` on its standard input with a line of JSON.
"""

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class BareSession:
    """Runs the loop in a child process, which keeps the session warm between measurements."""

    def __init__(self, model: Path, threads: int) -> None:
        command = [sys.executable, "-m", "bench.bare", str(model), str(threads)]
        root = Path(__file__).resolve().parent.parent
        self._process = subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def measure(self, seconds: float) -> Mapping[str, float]:
        """Run for so long; return `throughput` in images a second and `cpu_us` for each."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the bare session ended with status {self._process.wait()}")
        found: dict[str, float] = json.loads(answer)
        return found

    def close(self) -> None:
        """End the process."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait(30)


def _serve(model: str, threads: int) -> None:
    import numpy as np
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    (tensor,) = session.get_inputs()
    feed: dict[str, Any] = {tensor.name: np.random.default_rng(1).random((1, 3, 224, 224), dtype=np.float32)}
    for _ in range(3):
        session.run(None, feed)
    for line in sys.stdin:
        limit = float(line)
        times = []
        began, cpu = time.perf_counter(), time.process_time()
        while (now := time.perf_counter()) - began < limit:
            session.run(None, feed)
            times.append(time.perf_counter() - now)
        wall_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu
        times.sort()
        result = {
            "requests": len(times),
            "wall_s": wall_s,
            "throughput": len(times) / wall_s,
            "p50_us": times[len(times) // 2] * 1e6,
            "p99_us": times[len(times) * 99 // 100] * 1e6,
            "cpu_us": cpu_s / len(times) * 1e6,
        }
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    _serve(sys.argv[1], int(sys.argv[2]))
