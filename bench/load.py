"""Runs the load generators and charges what the server used to its requests.

h2load is for gRPC, wrk for HTTP; h2load is for HTTP too where there is no wrk.
"""

import json
import math
import re
import resource
import shutil
import subprocess
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.payloads import GRPC, Payload
from bench.peers import Running
from bench.process_tree import MIB, CpuMeter, memory

_TIMEOUT_S = 600

_WRK_SCRIPT = """
local file = assert(io.open("{body}", "rb"))
wrk.method = "POST"
wrk.path = "{path}"
wrk.body = file:read("*a")
file:close()
{headers}

function done(summary, latency, requests)
  local e = summary.errors
  io.write(string.format(
    'RESULT {{"requests": %d, "duration_us": %d, "p50_us": %.1f, "p99_us": %.1f, "errors": %d}}\\n',
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
    e.connect + e.read + e.write + e.status + e.timeout))
end
"""


@dataclass(frozen=True)
class Shape:
    """How a load is spread: connections and, for HTTP/2, streams in flight on each."""

    connections: int
    streams: int = 1

    @property
    def concurrency(self) -> int:
        """Requests in flight."""
        return self.connections * self.streams

    def __str__(self) -> str:
        return f"{self.connections} x {self.streams}"


@dataclass(frozen=True)
class Measurement:
    """One run of a load generator."""

    requests: int
    wall_s: float
    throughput: float
    """Answers a second."""
    p50_us: float
    p99_us: float
    cpu_us: float
    """CPU time of the whole server process tree for each request, user and system, in microseconds."""
    rss_mib: float
    """Resident memory of the tree right after the run; shared pages count for each process."""
    pss_mib: float
    """The same with shared pages counted once."""
    client_cores: float
    """CPU seconds a second that the load generator used: near 1 the generator, not the server, is the limit."""

    def as_dict(self) -> dict[str, float]:
        """Return the fields, for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class _Outcome:
    requests: int
    wall_s: float
    p50_us: float
    p99_us: float


def missing_tools() -> list[str]:
    """Return the load generators that are not installed."""
    return [tool for tool in ("wrk", "h2load") if shutil.which(tool) is None]


def measure(server: Running, payload: Payload, shape: Shape, seconds: float, warm_up_s: float) -> Measurement:
    """Load `server` for about `seconds` after a warm-up that is not counted.

    Raises RuntimeError when a request failed or an answer was not as long as the one that was checked.
    """
    with tempfile.TemporaryDirectory(dir=_scratch()) as scratch:
        has_wrk = payload.transport != GRPC and shutil.which("wrk") is not None
        tool = (_Wrk if has_wrk else _H2load)(server, payload, shape, Path(scratch))
        tool.warm_up(warm_up_s)
        meter, client = CpuMeter(server.process.pid), _children_cpu()
        outcome = tool.run(seconds)
        cpu_s, client_s = meter.seconds(), _children_cpu() - client
    resident = memory(server.process.pid)
    return Measurement(
        requests=outcome.requests,
        wall_s=outcome.wall_s,
        throughput=outcome.requests / outcome.wall_s,
        p50_us=outcome.p50_us,
        p99_us=outcome.p99_us,
        cpu_us=cpu_s / outcome.requests * 1e6,
        rss_mib=resident.rss / MIB,
        pss_mib=resident.pss / MIB,
        client_cores=client_s / outcome.wall_s,
    )


def _scratch() -> Path | None:
    # In memory, so that h2load's log does not wait for a disk.
    shm = Path("/dev/shm")
    return shm if shm.is_dir() else None


def _children_cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} failed ({done.returncode}): {done.stderr[-1000:]}{done.stdout[-1000:]}")
    return done.stdout


class _Wrk:
    """wrk: every connection sends its next request when the answer is there."""

    def __init__(self, server: Running, payload: Payload, shape: Shape, scratch: Path) -> None:
        script = scratch / "request.lua"
        headers = "\n".join(f'wrk.headers["{name}"] = "{value}"' for name, value in payload.headers)
        script.write_text(_WRK_SCRIPT.format(body=payload.body, path=payload.path, headers=headers))
        self._command = ["wrk", "-t1", f"-c{shape.connections}", "--latency", "--timeout", "60s", "-s", str(script)]
        self._url = f"http://127.0.0.1:{server.http_port}/"

    def warm_up(self, seconds: float) -> None:
        """Load for so long for nothing."""
        self.run(seconds)

    def run(self, seconds: float) -> _Outcome:
        """Load for so long; wrk takes whole seconds."""
        output = _run([*self._command, f"-d{max(1, math.ceil(seconds))}s", self._url])
        found = re.search(r"^RESULT (.*)$", output, re.MULTILINE)
        if found is None:
            raise RuntimeError(f"wrk printed no result:\n{output}")
        result = json.loads(found[1])
        if result["errors"] or not result["requests"]:
            raise RuntimeError(f"wrk: {result['errors']} errors in {result['requests']} requests:\n{output}")
        return _Outcome(result["requests"], result["duration_us"] / 1e6, result["p50_us"], result["p99_us"])


class _H2load:
    """h2load: every connection keeps `streams` requests in flight; over HTTP/1.1 one."""

    def __init__(self, server: Running, payload: Payload, shape: Shape, scratch: Path) -> None:
        self._payload = payload
        self._shape = shape
        self._log = scratch / "requests.tsv"
        self._command = ["h2load", "-t1", f"-c{shape.connections}", f"-m{shape.streams}", "-d", str(payload.body)]
        for name, value in payload.headers:
            self._command += ["-H", f"{name}: {value}"]
        self._command.append(f"--log-file={self._log}")
        port = server.grpc_port
        if payload.transport != GRPC:
            self._command.append("--h1")
            port = server.http_port
        self._url = f"http://127.0.0.1:{port}{payload.path}"
        self._rate = 0.0

    def warm_up(self, seconds: float) -> None:
        """Send more and more requests until enough time has passed; the duration of the last ones gives the rate."""
        count, began = self._shape.concurrency, time.monotonic()
        while True:
            outcome = self._send(count)
            self._rate = outcome.requests / outcome.wall_s
            if time.monotonic() - began >= seconds and outcome.wall_s >= seconds / 2:
                return
            count = self._count(max(seconds / 2, min(seconds, outcome.wall_s * 4)))

    def run(self, seconds: float) -> _Outcome:
        """Send as many requests as take about so long."""
        return self._send(self._count(seconds))

    def _count(self, seconds: float) -> int:
        # A multiple of what is in flight, so that all connections end together.
        return max(1, round(self._rate * seconds / self._shape.concurrency)) * self._shape.concurrency

    def _send(self, count: int) -> _Outcome:
        self._log.unlink(missing_ok=True)
        output = _run([*self._command, f"-n{count}", self._url])
        wall_s = _duration_s(_find(r"finished in ([\d.]+\w+),", output))
        succeeded = int(_find(r"(\d+) succeeded", output))
        data = int(_find(r"\((\d+)\) data", output))
        # A gRPC error is a 200 with an empty body, so lengths show what h2load's count of successes does not.
        if succeeded != count or data != count * self._payload.answer_bytes:
            raise RuntimeError(
                f"h2load: {succeeded} of {count} requests succeeded, with {data} bytes of answers instead of "
                f"{count} x {self._payload.answer_bytes}:\n{output}"
            )
        times = sorted(int(line.rsplit("\t", 1)[1]) for line in self._log.read_text().splitlines())
        return _Outcome(count, wall_s, _percentile(times, 0.50), _percentile(times, 0.99))


def _find(pattern: str, output: str) -> str:
    found = re.search(pattern, output)
    if found is None:
        raise RuntimeError(f"h2load printed no {pattern!r}:\n{output}")
    return found[1]


def _duration_s(text: str) -> float:
    """Read h2load's durations: `3.05s`, `812.50ms`, `93us`."""
    for unit, factor in (("us", 1e-6), ("ms", 1e-3), ("s", 1.0)):
        if text.endswith(unit):
            return float(text.removesuffix(unit)) * factor
    raise RuntimeError(f"h2load printed a duration in an unknown unit: {text!r}")


def _percentile(ordered: list[int], fraction: float) -> float:
    """Return the value that `fraction` of the ordered values do not exceed."""
    return float(ordered[max(0, math.ceil(fraction * len(ordered)) - 1)])
