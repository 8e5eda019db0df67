"""Acceptance of rollouts: each line is a figure with its limit, measured on a server of its own.

    python -m bench.rollout split        10,000 requests at 90/10: the share, and whether sticky keys flip
    python -m bench.rollout rollback     200 requests/s: time until a rollback takes effect, failed requests
    python -m bench.rollout shadow [S]   p99 of a 5 ms model without and with copies of all requests, in turn
    python -m bench.rollout restart      servers are killed, stopped, added: split, requests to refused versions

The exit status is 1 if a limit is exceeded. Without an argument, all of them.
"""

import itertools
import json
import random
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from bench.peers import Naiad, Running

_CONFIG = """
backend: "python"
max_batch_size: 8
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 4 ] } ]
version_policy { all { } }
"""
_MODEL = """
import time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        time.sleep({seconds})
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor("OUT", pb_utils.get_input_tensor_by_name(request, "IN").as_numpy())]
            )
            for request in requests
        ]
"""
_INPUT = {"name": "IN", "datatype": "FP32", "shape": [1, 4], "data": [1.0, 2.0, 3.0, 4.0]}

SPLIT_REQUESTS = 10_000
SPLIT_LIMIT_PERCENT = 1.0
STICKY_KEYS = 500
RESTART_REQUESTS = 400
RATE = 200
ROLLBACK_LIMIT_MS = 100.0
SHADOW_LIMIT_PERCENT = 3.0
SHADOW_RATE = 80
TURN_S = 1.0
SETTLE_S = 0.05
"""Requests this close to a change count for neither turn."""


def write_model(root: Path, seconds: float) -> None:
    """Write two equal versions of a Python model that takes so long, with a rollout that clients may change."""
    for version in (1, 2):
        directory = root / "m" / str(version)
        directory.mkdir(parents=True)
        (directory / "model.py").write_text(_MODEL.replace("{seconds}", str(seconds)))
    (root / "m" / "config.pbtxt").write_text(_CONFIG)
    (root / "m" / "rollout.toml").write_text("stable = 1\n")


class Client:
    """One connection that is kept."""

    def __init__(self, port: int) -> None:
        self._connection = HTTPConnection("127.0.0.1", port, timeout=60)

    def call(self, method: str, path: str, content: object = None) -> tuple[int, Any]:
        """Return the status and the document of a call."""
        body = None if content is None else json.dumps(content).encode()
        self._connection.request(method, path, body)
        answer = self._connection.getresponse()
        text = answer.read()
        return answer.status, json.loads(text) if text else None

    def infer(self, **parameters: object) -> tuple[int, str]:
        """Return the status of a request, and the version that answered."""
        status, document = self.call("POST", "/v2/models/m/infer", {"inputs": [_INPUT], "parameters": parameters})
        return status, document.get("model_version", "") if document else ""

    def change(self, **fields: object) -> Mapping[str, Any]:
        """Change the rollout and return it. Raises RuntimeError if the server refuses."""
        status, document = self.call("POST", "/v2/models/m/rollout", fields)
        if status != 200:
            raise RuntimeError(f"{fields}: {document}")
        return document  # type: ignore[no-any-return]  # an object

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def report(name: str, found: float, limit: float, unit: str) -> bool:
    """Print a figure and return whether it is within its limit."""
    verdict = "ok" if found <= limit else "EXCEEDED"
    print(f"{name:<58}{found:>9.3f} {unit:<9} limit {limit:g}  {verdict}", flush=True)
    return found <= limit


# --- split ----------------------------------------------------------------------------------------------------------


def split(server: Running) -> bool:
    """Measure the share of the canary, and count sticky keys that flip while the weight grows."""
    client = Client(server.http_port)
    client.change(stable=1, canary=2, weight=10)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(_versions, [(server.http_port, SPLIT_REQUESTS // 4)] * 4))
    canary = sum(versions.count("2") for versions in found)
    deviation = abs(100 * canary / SPLIT_REQUESTS - 10)
    is_ok = report(
        f"90/10: share of the canary in {SPLIT_REQUESTS:,} requests, deviation",
        deviation,
        SPLIT_LIMIT_PERCENT,
        "points",
    )
    chosen: dict[str, str] = {}
    flips = 0
    for weight in (1, 5, 25, 50, 75, 100):
        client.change(stable=1, canary=2, weight=weight, sticky="user")
        for number in range(STICKY_KEYS):
            key = f"user-{number}"
            _, version = client.infer(user=key)
            flips += chosen.get(key) == "2" and version == "1"
            chosen[key] = version
    client.close()
    return report(f"sticky keys that left the canary, {STICKY_KEYS} keys, 6 weights", flips, 0, "keys") and is_ok


def _versions(work: tuple[int, int]) -> list[str]:
    port, count = work
    client = Client(port)
    versions = [client.infer()[1] for _ in range(count)]
    client.close()
    return versions


# --- rollback -------------------------------------------------------------------------------------------------------


class Load:
    """An open loop of requests: the time of each is fixed before, independent of the server."""

    def __init__(self, port: int, rate: float, connections: int = 8) -> None:
        self._port = port
        self._interval_s = connections / rate
        self._stop = threading.Event()
        self.answers: list[tuple[float, int, str, float]] = []
        """Time of sending, status, version, and latency in seconds."""
        self._threads = [
            threading.Thread(target=self._run, args=(number / rate,), daemon=True) for number in range(connections)
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, offset_s: float) -> None:
        client = Client(self._port)
        due_s = time.monotonic() + offset_s
        while not self._stop.is_set():
            time.sleep(max(0.0, due_s - time.monotonic()))
            sent_s = time.monotonic()
            status, version = client.infer()
            self.answers.append((sent_s, status, version, time.monotonic() - due_s))
            due_s += self._interval_s
        client.close()

    def end(self) -> None:
        """Stop sending and wait for the last answers."""
        self._stop.set()
        for thread in self._threads:
            thread.join(60)


def rollback(server: Running) -> bool:
    """Measure the time from the call of a rollback to the last request that reached the canary."""
    client = Client(server.http_port)
    load = Load(server.http_port, RATE)
    effects_ms: list[float] = []
    for _ in range(20):
        client.change(allow=2, stable=1, canary=2, weight=100)
        time.sleep(0.3)
        called_s = time.monotonic()
        client.change(action="rollback")
        time.sleep(0.3)
        late = [sent_s for sent_s, _, version, _ in load.answers if sent_s > called_s and version == "2"]
        effects_ms.append(1000 * (max(late, default=called_s) - called_s))
    load.end()
    client.close()
    failed = sum(status != 200 for _, status, _, _ in load.answers)
    print(f"{len(load.answers)} requests, {RATE}/s; 20 rollbacks, median {statistics.median(effects_ms):.1f} ms")
    is_ok = report("last request of the canary after the call, worst of 20", max(effects_ms), ROLLBACK_LIMIT_MS, "ms")
    return report("failed requests", failed, 0, "requests") and is_ok


# --- shadow ---------------------------------------------------------------------------------------------------------


def shadow(server: Running, seconds: float = 120.0) -> bool:
    """Compare p99 without and with copies of all requests, which take turns of a second for `seconds`.

    Short turns: what else the machine does meets both. The interval is a bootstrap over pairs of turns.
    """
    client = Client(server.http_port)
    load = Load(server.http_port, SHADOW_RATE, connections=2)
    turns: list[tuple[float, int]] = []
    results: Counter[str] = Counter()
    for number in range(int(seconds / TURN_S)):
        percent = 100 if (number + number // 2) % 2 else 0  # 0, 100, 100, 0: no order is preferred
        client.change(stable=1, canary=2, weight=0, shadow=percent)
        turns.append((time.monotonic() + SETTLE_S, percent))
        time.sleep(TURN_S)
        _, document = client.call("GET", "/v2/models/m/rollout")
        results.update(document.get("shadow", {}))
    turns.append((time.monotonic(), 0))
    load.end()
    client.close()
    found = _by_turn(load, turns)
    pairs = list(zip(found[0], found[100], strict=False))
    before, after = (_p99([turn[side] for turn in pairs]) for side in (0, 1))
    generator = random.Random(1)
    samples = []
    for _ in range(500):
        chosen = generator.choices(pairs, k=len(pairs))
        samples.append(100 * (_p99([turn[1] for turn in chosen]) / _p99([turn[0] for turn in chosen]) - 1))
    samples.sort()
    print(f"{len(load.answers)} requests, {SHADOW_RATE}/s; copies: {dict(results)}")
    medians = [statistics.median([each for turn in pairs for each in turn[side]]) for side in (0, 1)]
    print(f"p50 {medians[0]:.3f} ms without, {medians[1]:.3f} ms with copies; p99 {before:.3f} and {after:.3f} ms")
    print(f"90 % interval of the increase of p99: {samples[25]:.1f} to {samples[475]:.1f} %")
    return report("increase of p99 by copies of all requests", 100 * (after / before - 1), SHADOW_LIMIT_PERCENT, "%")


def _by_turn(load: Load, turns: Sequence[tuple[float, int]]) -> Mapping[int, list[list[float]]]:
    """Return the latencies in ms of each turn, by the percentage of copies."""
    found: dict[int, list[list[float]]] = {0: [], 100: []}
    for (begin_s, percent), (end_s, _) in itertools.pairwise(turns):
        inside = [1000 * latency for sent_s, *_, latency in load.answers if begin_s <= sent_s < end_s - SETTLE_S]
        found[percent].append(inside)
    return found


def _p99(turns: Sequence[Sequence[float]]) -> float:
    latencies = sorted(itertools.chain.from_iterable(turns))
    return latencies[int(len(latencies) * 0.99)]


# --- restart --------------------------------------------------------------------------------------------------------

_STATES: Mapping[str, tuple[Mapping[str, object], float]] = {
    "canary of 10 %": ({"stable": 1, "canary": 2, "weight": 10}, 10.0),
    "switch to version 2": ({"to": 2}, 100.0),
    "rollback": ({"action": "rollback"}, 0.0),
    "a change after it": ({"sticky": "user"}, 0.0),
}
"""Changes, one after the other, and the percentage of version 2 after each."""


def restart(first: Running, root: Path, directory: Path) -> bool:
    """Kill, stop and add servers after each change; compare the split of each new server with the one before."""
    servers = [first]
    deviation = 0.0
    refused = 0
    for number, (name, (fields, percent)) in enumerate(_STATES.items()):
        Client(servers[-1].http_port).change(**fields)
        for how in ("second replica", "killed", "stopped"):
            if how == "killed":
                servers[-1].process.kill()
                servers[-1].process.wait()
            if how == "stopped":
                servers.pop().stop()
            servers.append(Naiad().start(root, directory / f"server-{number}-{how.partition(' ')[0]}"))
            found = _versions((servers[-1].http_port, RESTART_REQUESTS))
            share = 100 * found.count("2") / RESTART_REQUESTS
            print(f"{name}, {how}: {share:.1f} % of {RESTART_REQUESTS} requests to version 2, expected {percent:g} %")
            deviation = max(deviation, abs(share - percent))
            refused += found.count("2") if not percent else 0
    for server in servers:
        server.stop()
    is_ok = report("share of version 2 in new servers, worst deviation", deviation, SPLIT_LIMIT_PERCENT, "points")
    return report("requests to a refused version", refused, 0, "requests") and is_ok


_PARTS: Mapping[str, tuple[Callable[..., bool], float]] = {
    "split": (split, 0.0),
    "rollback": (rollback, 0.002),
    "shadow": (shadow, 0.005),
    "restart": (restart, 0.0),
}
"""Each part, and the seconds that its model takes."""


def main(argv: Sequence[str]) -> int:
    """Run the named parts, or all; return 1 if a limit is exceeded."""
    names = [argv[0]] if argv else list(_PARTS)
    is_ok = True
    for name in names:
        part, model_s = _PARTS[name]
        with tempfile.TemporaryDirectory() as directory:
            root = Path(directory) / "models"
            write_model(root, model_s)
            server = Naiad().start(root, Path(directory) / "server")
            try:
                more = (root, Path(directory)) if part is restart else tuple(map(float, argv[1:]))
                is_ok = part(server, *more) and is_ok
            finally:
                server.stop()
    return 0 if is_ok else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
