"""Soak tests of live updates: what operators do all day, for minutes, with every answer looked at.

    python -m bench.soak.updates reloads [COUNT]   200 requests/s on a; a and b are reloaded, b takes 3 s and 500 MB
    python -m bench.soak.updates random [COUNT]    random loads, unloads and requests, all at the same time
    python -m bench.soak.updates cycles [COUNT]    one model loaded and unloaded again and again, one of 200 MB

Each prints what it has found and exits with 1 when a figure of it is not met.
"""

import contextlib
import functools
import http.client
import json
import math
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from bench import models
from bench.peers import Naiad, Running
from bench.process_tree import MIB, memory, processes

RATE = 200
"""Requests per second on model `a`."""
_CONNECTIONS = 8
_TIMEOUT_S = 60.0
REQUEST = {
    "inputs": [
        {"name": name, "datatype": "FP32", "shape": [1, 16], "data": [1.0] * 16} for name in ("INPUT0", "INPUT1")
    ]
}
_SUM = [2.0] * 16
_SLOW = """
import time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.weights = np.ones({megabytes} * 131072)
        end = time.monotonic() + {seconds}
        while time.monotonic() < end:
            sum(range(1000))

    def execute(self, requests):
        answers = []
        for request in requests:
            a = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            b = pb_utils.get_input_tensor_by_name(request, "INPUT1").as_numpy()
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", a + b)]))
        return answers
"""
_SLOW_CONFIG = """
backend: "python"
max_batch_size: 8
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ 16 ] }, { name: "INPUT1" data_type: TYPE_FP32 dims: [ 16 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 16 ] } ]
"""


@functools.cache
def _onnx_bytes(mebibytes: int) -> bytes:
    return (models.heavy_add_sub(mebibytes) if mebibytes else models.add_sub()).SerializeToString()


def write_onnx(root: Path, name: str, version: int = 1, *, mebibytes: int = 0) -> None:
    """Write a version of an ONNX model that adds and subtracts, with weights if need be, without a configuration."""
    directory = root / name / str(version)
    directory.mkdir(parents=True)
    (directory / "model.onnx").write_bytes(_onnx_bytes(mebibytes))


def write_python(root: Path, name: str, *, version: int = 1, seconds: float = 0.0, megabytes: int = 0) -> None:
    """Write a version of a Python model that adds; its `initialize` takes so long and so much."""
    directory = root / name / str(version)
    directory.mkdir(parents=True)
    (root / name / "config.pbtxt").write_text(_SLOW_CONFIG)
    (directory / "model.py").write_text(_SLOW.format(seconds=seconds, megabytes=megabytes))


class Client:
    """One connection that is kept; it counts what was not answered rightly."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_S)
        self.said: Any = None
        """What the last command was answered with."""

    def post(self, path: str, content: object = None) -> tuple[int, Any]:
        """Return the status and the JSON that a POST is answered with."""
        body = b"" if content is None else json.dumps(content).encode()
        self._connection.request("POST", path, body)
        answer = self._connection.getresponse()
        text = answer.read()
        return answer.status, json.loads(text) if text else None

    def infer(self, model: str) -> tuple[int, bool]:
        """Return the status, and whether the answer is right."""
        status, answer = self.post(f"/v2/models/{model}/infer", REQUEST)
        if status != 200:
            return status, False
        outputs = {output["name"]: output["data"] for output in answer["outputs"]}
        return status, outputs["OUTPUT0"] == _SUM

    def control(self, model: str, what: str, **parameters: object) -> int:
        """Load or unload; return the status."""
        status, self.said = self.post(f"/v2/repository/models/{model}/{what}", {"parameters": parameters})
        return status

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


@dataclass
class Latencies:
    """What came of a stream of requests, in seconds from the time at which each was due."""

    seconds: list[float] = field(default_factory=list)
    failed: int = 0

    def p99_ms(self) -> float:
        """Return the 99th percentile."""
        return sorted(self.seconds)[int(len(self.seconds) * 0.99)] * 1e3


class Stream:
    """Asks `a` at a steady rate, however long the answers take, until it is stopped."""

    def __init__(self, port: int, rate: float = RATE) -> None:
        self.found = Latencies()
        self._port, self._rate = port, rate
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(_CONNECTIONS)]

    def __enter__(self) -> "Stream":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self, number: int) -> None:
        # It stands for a client on a machine of its own: when it is woken late, that is not the server's doing.
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), -10)
        client = Client(self._port)
        due = time.perf_counter() + number / self._rate
        while not self._stop.wait(max(0.0, due - time.perf_counter())):
            try:
                _, right = client.infer("a")
            except (OSError, http.client.HTTPException):
                right = False
                client = Client(self._port)
            with self._lock:
                self.found.seconds.append(time.perf_counter() - due)
                self.found.failed += not right
            due += _CONNECTIONS / self._rate
        client.close()


@dataclass
class Reloads:
    """What reloads cost the clients that ask meanwhile."""

    rest: Latencies
    during: Latencies
    refused: int
    """Reloads that failed."""


def write_reloads(root: Path, seconds: float = 3.0, megabytes: int = 500) -> None:
    """Write `a` and the heavy `b`."""
    write_onnx(root, "a")
    write_python(root, "b", seconds=seconds, megabytes=megabytes)


def reloads(port: int, root: Path, count: int, rest_s: float = 10.0, rate: float = RATE) -> Reloads:
    """Load `a` (a new version each time) and `b` (the same again) `count` times while `a` is asked."""
    with Stream(port, rate) as stream:
        time.sleep(rest_s)
    rest = stream.found
    refused = 0
    control = Client(port)
    with Stream(port, rate) as stream:
        for number in range(2, count + 2):
            write_onnx(root, "a", number)
            refused += control.control("a", "load") != 200
            refused += control.control("b", "load", force=True) != 200
    control.close()
    return Reloads(rest, stream.found, refused)


@dataclass
class Chaos:
    """What random calls have led to."""

    calls: int
    unexpected: list[str]
    """Statuses that no order of the calls explains, and wrong answers."""
    wrong_states: list[str]
    """Models that are not what the last accepted command made them."""


def write_random(root: Path) -> Sequence[str]:
    """Write the models of `random_calls`; return their names."""
    for number in range(3):
        write_onnx(root, f"onnx_{number}")
        write_python(root, f"python_{number}")
    return [f"{kind}_{number}" for kind in ("onnx", "python") for number in range(3)]


class _Caller:
    """Commands one model, so that the order of its commands is known, and asks all of them."""

    def __init__(self, port: int, own: str, names: Sequence[str], seed: int) -> None:
        self.own = own
        self.is_loaded = False
        self.calls = 0
        self.unexpected: list[str] = []
        self._client = Client(port)
        self._names, self._random = names, random.Random(seed)

    def run(self, count: int) -> None:
        """Make `count` calls."""
        for _ in range(count):
            self.calls += 1
            self._random.choices([self._ask, self._load, self._unload], [6, 2, 1])[0]()
        self._client.close()

    def _ask(self) -> None:
        status, right = self._client.infer(self._random.choice(self._names))
        if not (right or status in (404, 503)):  # it may not be loaded, or be on its way out
            self.unexpected.append(f"infer {status}")

    def _load(self) -> None:
        status = self._client.control(self.own, "load", force=self._random.random() < 0.5)
        self.is_loaded = True
        if status != 200:
            self.unexpected.append(f"load {status}: {self._client.said}")

    def _unload(self) -> None:
        status = self._client.control(self.own, "unload")
        self.is_loaded = False
        if status != 200:
            self.unexpected.append(f"unload {status}: {self._client.said}")


def random_calls(port: int, names: Sequence[str], count: int, seed: int = 1) -> Chaos:
    """Make `count` random calls from a thread per model; nothing is loaded before."""
    callers = [_Caller(port, name, names, seed + number) for number, name in enumerate(names)]
    threads = [threading.Thread(target=caller.run, args=(count // len(names),)) for caller in callers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    client = Client(port)
    rows = client.post("/v2/repository/index")[1]
    ready = {row["name"] for row in rows if row.get("state") == "READY"}
    wrong = [caller.own for caller in callers if caller.is_loaded != (caller.own in ready)]
    wrong += [caller.own for caller in callers if caller.is_loaded and not client.infer(caller.own)[1]]
    client.close()
    return Chaos(
        sum(caller.calls for caller in callers), [text for caller in callers for text in caller.unexpected], wrong
    )


def shared_memory_files() -> set[str]:
    """Return what this server's workers may leave behind in shared memory."""
    return {path.name for path in Path("/dev/shm").iterdir() if "naiad" in path.name}


@dataclass
class Cycles:
    """Resident memory of the process tree, in MiB, and its processes."""

    before_mib: float
    after_mib: float
    children_before: int
    children_after: int

    def is_met(self) -> bool:
        """Return whether memory is within 5 % and 20 MB of the start, and no process is left."""
        grown = self.after_mib - self.before_mib
        return grown <= 0.05 * self.before_mib + 20 and self.children_after == self.children_before


_LOOKS = 20
_LOOK_PAUSE_S = 0.1


def cycles(running_pid: int, port: int, name: str, count: int, warm_up: int = 10) -> Cycles:
    """Load, ask and unload a model `count` times; what the first few times leave is the start."""
    client = Client(port)

    def turn() -> None:
        if client.control(name, "load") != 200 or not client.infer(name)[1] or client.control(name, "unload") != 200:
            raise RuntimeError(f"a cycle of '{name}' failed")

    def look() -> tuple[float, int]:
        # On a busy machine the memory of a stopped version goes back to the system some time after the response.
        least = math.inf
        for _ in range(_LOOKS):
            least = min(least, memory(running_pid).rss / MIB)
            time.sleep(_LOOK_PAUSE_S)
        return least, len(processes(running_pid))

    for _ in range(warm_up):
        turn()
    before, children = look()
    for _ in range(count):
        turn()
    after, children_after = look()
    client.close()
    return Cycles(before, after, children, children_after)


def _main_reloads(server: Running, root: Path, count: int) -> bool:
    client = Client(server.http_port)
    for name in ("a", "b"):
        client.control(name, "load")
    found = reloads(server.http_port, root, count)
    failed, ratio = found.rest.failed + found.during.failed, found.during.p99_ms() / found.rest.p99_ms()
    print(f"{len(found.during.seconds)} requests, {failed} failed, {found.refused} reloads failed, p99 x {ratio:.3g}")
    return not failed and not found.refused and ratio <= 1.5


def _main_random(server: Running, root: Path, count: int) -> bool:
    names = write_random(root)
    before = shared_memory_files()
    found = random_calls(server.http_port, names, count)
    print(found)
    children = psutil.Process(server.process.pid).children(recursive=True)
    server.process.terminate()
    status = server.process.wait(60)
    orphans = [child.pid for child in psutil.wait_procs(children, 10)[1]]
    leaked = shared_memory_files() - before
    print(f"exit status {status}, orphans {orphans}, left in shared memory {leaked or 'nothing'}")
    return not (found.unexpected or found.wrong_states or status or orphans or leaked)


def _main_cycles(server: Running, root: Path, count: int) -> bool:
    write_onnx(root, "onnx")
    write_onnx(root, "heavy", mebibytes=200)
    write_python(root, "python")
    met = True
    for name in ("onnx", "heavy", "python"):
        found = cycles(server.process.pid, server.http_port, name, count)
        print(name, found, "met" if found.is_met() else "NOT met")
        met = met and found.is_met()
    return met


_SCENES: dict[str, tuple[Callable[[Running, Path, int], bool], int]] = {
    "reloads": (_main_reloads, 100),
    "random": (_main_random, 2000),
    "cycles": (_main_cycles, 500),
}


def main(scene: str, count: int = 0) -> int:
    """Run one scene against a server of its own; return the exit status."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # by way of every `finally`
    run, usual = _SCENES[scene]
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "models"
        root.mkdir()
        if scene == "reloads":
            write_reloads(root)
        server = Naiad("--model-control-mode=explicit").start(root, Path(folder) / "naiad")
        try:
            met = run(server, root, count or usual)
        finally:
            server.stop()
    print("met" if met else "NOT met")
    return 0 if met else 1


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in _SCENES:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1], *map(int, sys.argv[2:3])))
