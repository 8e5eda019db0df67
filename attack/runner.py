"""Runs attacks against a server while a probe plays its other clients, and compares what they cost with the limits.

One server serves all attacks with the same keys, so that what an attack leaves behind shows in those after it. A
server that an attack has harmed is replaced, so that one failure does not hide another.
"""

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attack import readings
from attack.registry import Attack, Limits
from attack.server import KEY, Server
from attack.target import Target

_PROBE_S = 0.5
_PROBE_INTERVAL_MS, _SHORT_PROBE_INTERVAL_MS = 10, 50
"""The short form has no limit of response times, and finds blocks of a second, which no pause of 50 ms hides."""
_QUIET_S = 0.3
_QUIET_CPU_S = 0.08
"""Beside the probe: the server is done with what was sent."""
_MOST_WORK_S = 60.0
_MEMORY_BACK_S = 5.0
_KEPT_SHARE = 0.05
UNAUTHENTICATED_CONNECTION_US = 500
UNAUTHENTICATED_BYTE_NS = 1000
"""The budgets of docs/security.md: what a client without a key may cost."""
_SHORT_BUDGET_FACTOR = 6
"""The machine of CI may be slow, and its other programs make each instruction cost up to twice the time."""
_CLOCK_S = 0.1
"""The kernel counts CPU time in steps, and the share of the probe is an estimate."""


@dataclass(frozen=True)
class Outcome:
    """What one attack cost."""

    attack: Attack
    protocol: str
    has_keys: bool
    seconds: float
    sent_bytes: int
    cpu_s: float
    peak_mib: float
    kept_mib: float
    open_files: int
    """More than before, once the attack is over."""
    p99_ms: float
    longest_ms: float
    block_ms: float
    problems: tuple[str, ...]
    """The limits that were exceeded."""

    @property
    def ns_per_byte(self) -> float:
        """CPU time of the server per byte that it was sent."""
        return self.cpu_s * 1e9 / max(1, self.sent_bytes)


class Probe:
    """The process of `attack.probe`."""

    def __init__(self, server: Server, interval_ms: int) -> None:
        command = [sys.executable, "-m", "attack.probe", *map(str, (server.http_port, server.pid, interval_ms))]
        if server.has_keys:
            command.append(KEY)
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent.parent
        )

    def result(self) -> dict[str, Any]:
        """Return what was found since the last call."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        found: dict[str, Any] = json.loads(self._process.stdout.readline())
        return found

    def stop(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()


class Bench:
    """A server and its probe."""

    def __init__(self, server: Server, *, is_short: bool) -> None:
        self.server = server
        self._is_short = is_short
        self._probe = Probe(server, _SHORT_PROBE_INTERVAL_MS if is_short else _PROBE_INTERVAL_MS)
        time.sleep(2 * _PROBE_S)
        self._probe.result()
        self._known_share: float | None = None

    def close(self) -> None:
        """End both processes."""
        self._probe.stop()
        self.server.stop()

    def run(self, attack: Attack, protocol: str) -> Outcome:
        """Run one attack."""
        server, pid, is_short = self.server, self.server.pid, self._is_short
        # The short form measures it once: measuring takes longer than most of its attacks.
        if self._known_share is None or not is_short:
            self._known_share = self._probe_share()
        probe_share = self._known_share
        readings.reset_peak(pid)
        before = readings.read(pid)
        self._probe.result()
        began_s = time.monotonic()
        target = Target(protocol, server.http_port, server.grpc_port, is_short)
        attack.run(target)
        self._wait_quiet(probe_share)
        seconds = time.monotonic() - began_s
        probed = self._probe.result()
        cpu_s = readings.read(pid).cpu_s - before.cpu_s - seconds * probe_share
        peak_mib = readings.read(pid).peak_mib - before.rss_mib
        kept_most_mib = max(attack.limits.kept_mib, _KEPT_SHARE * before.rss_mib)
        after = self._wait_memory(before, kept_most_mib)
        costs = {
            "cpu_s": max(0.0, cpu_s),
            "peak_mib": max(0.0, peak_mib),
            "kept_mib": after.rss_mib - before.rss_mib,
            "p99_ms": probed["p99_ms"],
            "block_ms": probed["block_ms"],
        }
        limits = attack.limits.in_short_form() if is_short else attack.limits
        problems = [
            *exceeded(costs, limits, before.rss_mib),
            *([f"{probed['failure_count']} probes failed: {probed['failures'][0]}"] if probed["failures"] else []),
        ]
        if server.has_keys:
            most_s = unauthenticated_budget_s(target.connection_count, target.sent_bytes)
            most_s = most_s * (_SHORT_BUDGET_FACTOR if is_short else 1) + _CLOCK_S
            if costs["cpu_s"] > most_s:
                problems.append(f"cpu_s {costs['cpu_s']:.2f} without a key, more than {most_s:.2f}")
        return Outcome(
            attack=attack,
            protocol=protocol,
            has_keys=server.has_keys,
            seconds=seconds,
            sent_bytes=target.sent_bytes,
            open_files=after.open_files - before.open_files,
            longest_ms=probed["longest_ms"],
            problems=tuple(problems),
            **costs,
        )

    def _probe_share(self) -> float:
        """Return the CPU seconds that the probe costs the server in a second."""
        began_s, used_s = time.monotonic(), readings.read(self.server.pid).cpu_s
        time.sleep(_PROBE_S)
        return (readings.read(self.server.pid).cpu_s - used_s) / (time.monotonic() - began_s)

    def _wait_quiet(self, probe_share: float) -> None:
        """Wait until the server has done what the attack has left it to do."""
        end_s = time.monotonic() + _MOST_WORK_S
        used_s = readings.read(self.server.pid).cpu_s
        while time.monotonic() < end_s:
            time.sleep(_QUIET_S)
            now_s = readings.read(self.server.pid).cpu_s
            if now_s - used_s < _QUIET_CPU_S + 1.5 * probe_share * _QUIET_S:
                return
            used_s = now_s

    def _wait_memory(self, before: readings.Readings, most_mib: float) -> readings.Readings:
        """Return the readings once memory is back and connections are closed, or after a while."""
        end_s = time.monotonic() + _MEMORY_BACK_S
        while True:
            now = readings.read(self.server.pid)
            is_back = now.rss_mib - before.rss_mib < most_mib and now.open_files <= before.open_files
            if is_back or time.monotonic() > end_s:
                return now
            time.sleep(0.1)


def unauthenticated_budget_s(connection_count: int, sent_bytes: int) -> float:
    """Return the CPU seconds that a number of connections and bytes may cost without an API key."""
    return connection_count * UNAUTHENTICATED_CONNECTION_US / 1e6 + sent_bytes * UNAUTHENTICATED_BYTE_NS / 1e9


def exceeded(costs: dict[str, float], limits: Limits, rss_mib: float) -> list[str]:
    """Return a text for each limit that a cost exceeds; memory may also stay up by a share of what it was."""
    most = {
        "cpu_s": limits.cpu_s,
        "peak_mib": limits.peak_mib,
        "kept_mib": max(limits.kept_mib, _KEPT_SHARE * rss_mib),
        "p99_ms": limits.p99_ms,
        "block_ms": limits.block_ms,
    }
    return [f"{name} {costs[name]:.1f}, more than {limit:.1f}" for name, limit in most.items() if costs[name] > limit]


class Campaign:
    """A server for as long as it is unharmed, and a new one after it."""

    def __init__(self, repository: Path, work: Path, *, has_keys: bool, is_short: bool) -> None:
        self._repository = repository
        self._work = work
        self._has_keys = has_keys
        self._is_short = is_short
        self._bench: Bench | None = None

    def close(self) -> None:
        """End the server."""
        if self._bench is not None:
            self._bench.close()
            self._bench = None

    def run(self, attack: Attack, protocol: str) -> Outcome:
        """Run one attack. Raises RuntimeError when the server does not survive it."""
        if self._bench is None:
            server = Server(self._repository, self._work, has_keys=self._has_keys)
            self._bench = Bench(server, is_short=self._is_short)
        bench = self._bench
        try:
            outcome = bench.run(attack, protocol)
        except Exception as error:
            log = bench.server.log.read_text(errors="replace")[-2000:]
            state = "runs" if bench.server.is_running else f"exited with {bench.server.exit_status}"
            self.close()
            raise RuntimeError(f"{attack.name} over {protocol}: {error!r}; the server {state}:\n{log}") from error
        if outcome.problems:
            self.close()
        return outcome


@contextlib.contextmanager
def campaign(repository: Path, work: Path, *, has_keys: bool, is_short: bool) -> Iterator[Campaign]:
    """Run attacks on servers that end with the block."""
    running = Campaign(repository, work, has_keys=has_keys, is_short=is_short)
    try:
        yield running
    finally:
        running.close()
