"""Other clients of the server under attack: python -m attack.probe HTTP_PORT SERVER_PID INTERVAL_MS [API_KEY].

A process of its own, so that it does not wait for the attacker. Two kept-alive connections, each in its thread, ask
again an interval after each answer: one for health, the other for a tiny inference. For each request it keeps the
response time, and the CPU time that the server's event loop spent meanwhile: a loop that is blocked spends it, a
machine that others keep busy does not. A line on standard input ends a round; its result is one line of JSON.
"""

import http.client
import json
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from attack.readings import loop_ns

_TIMEOUT_S = 60.0
BODY = json.dumps(
    {"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1, 4], "data": [1.0, 2.0, 3.0, 4.0]}]}
).encode()


@dataclass
class Round:
    """What was found since the last line on standard input."""

    times_ms: list[float] = field(default_factory=list)
    block_ms: float = 0.0
    failures: list[str] = field(default_factory=list)

    def line(self) -> str:
        """Return the result as JSON."""
        ordered = sorted(self.times_ms) or [0.0]
        return json.dumps(
            {
                "count": len(self.times_ms),
                "p99_ms": ordered[int(0.99 * (len(ordered) - 1))],
                "longest_ms": ordered[-1],
                "block_ms": self.block_ms,
                "failures": self.failures[:3],
                "failure_count": len(self.failures),
            }
        )


class Prober:
    """Asks on one connection until the process ends."""

    def __init__(
        self, state: "Probe", connection: http.client.HTTPConnection, ask: Callable[..., None], interval_s: float
    ) -> None:
        self._state = state
        self._connection = connection
        self._ask = ask
        self._interval_s = interval_s

    def run(self) -> None:
        """Ask for good."""
        while True:
            began_ns, loop_began_ns = time.monotonic_ns(), self._state.loop_ns()
            failure = ""
            try:
                self._ask(self._connection)
            except (OSError, http.client.HTTPException, AssertionError) as error:
                failure = repr(error)[:200]
                self._connection.close()
            self._state.add(time.monotonic_ns() - began_ns, self._state.loop_ns() - loop_began_ns, failure)
            time.sleep(self._interval_s)


class Probe:
    """The threads and what they have found."""

    def __init__(self, server_pid: int) -> None:
        self._pid = server_pid
        self._lock = threading.Lock()
        self._round = Round()

    def loop_ns(self) -> int:
        """Return the CPU time of the server's loop; 0 when the server is gone."""
        try:
            return loop_ns(self._pid)
        except OSError:
            return 0

    def add(self, time_ns: int, busy_ns: int, failure: str) -> None:
        """Take one answer."""
        with self._lock:
            self._round.times_ms.append(time_ns / 1e6)
            self._round.block_ms = max(self._round.block_ms, busy_ns / 1e6)
            if failure:
                self._round.failures.append(failure)

    def next_round(self) -> Round:
        """Return what was found and begin again."""
        with self._lock:
            ended, self._round = self._round, Round()
        return ended


def _health(headers: dict[str, str]) -> Callable[[http.client.HTTPConnection], None]:
    def ask(connection: http.client.HTTPConnection) -> None:
        connection.request("GET", "/v2/health/live", headers=headers)
        response = connection.getresponse()
        response.read()
        assert response.status == 200, f"health answered {response.status}"

    return ask


def _infer(headers: dict[str, str]) -> Callable[[http.client.HTTPConnection], None]:
    def ask(connection: http.client.HTTPConnection) -> None:
        connection.request("POST", "/v2/models/echo/infer", BODY, headers)
        response = connection.getresponse()
        body = response.read()
        assert response.status == 200, f"inference answered {response.status}: {body[:100]!r}"
        assert json.loads(body)["outputs"][0]["data"] == [1.0, 2.0, 3.0, 4.0], f"wrong answer {body[:200]!r}"

    return ask


def main() -> None:
    """Probe the server that the command line names."""
    port, pid, interval_s = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]) / 1000
    key = sys.argv[4] if len(sys.argv) > 4 else ""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    probe = Probe(pid)
    for ask in (_health(headers), _infer(headers)):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_S)
        threading.Thread(target=Prober(probe, connection, ask, interval_s).run, daemon=True).start()
    for _ in sys.stdin:
        print(probe.next_round().line(), flush=True)


if __name__ == "__main__":
    main()
