"""naiad beside Triton, MLServer and FastAPI: throughput, latency and CPU per request of the same models.

    python -m bench.comparison                          everything, about 20 minutes
    python -m bench.comparison --quick                  everything once and briefly, to see that it works
    python -m bench.comparison --cases python,bls --docs
    python -m bench.comparison --triton-backends DIR    with ONNX models on Triton, too: case onnx
    python -m bench.comparison --triton-backends DIR --cases onnx --only 'gRPC 1 x 1'    one load, half a minute

wrk (HTTP) and h2load (gRPC) send the load. Servers that are compared take turns within every round, so that a slow
phase of the machine meets all. `--docs` writes the tables into docs/benchmarks.md; cases that are not measured keep
their last results. The other servers are installed into `bench/.peers`.
"""

import argparse
import contextlib
import functools
import json
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from bench import models, payloads, report
from bench.load import Shape, measure, missing_tools
from bench.payloads import GRPC, HTTP_BINARY, HTTP_JSON
from bench.peers import ALL, HERE, Naiad, Peer, Running, Triton, backends_directory

RESULTS = HERE / "results" / "results.json"
PAGE = HERE.parent / "docs" / "benchmarks.md"
_WARM_UP_S = 1.0
_HTTP_SHAPES = (Shape(1), Shape(8), Shape(32))
_GRPC_SHAPES = (Shape(1), Shape(2, 4), Shape(8, 4), Shape(32))


@dataclass(frozen=True)
class Case:
    """One model of the same task, on several servers."""

    model: str
    repository: Sequence[str]
    """The models that the server must have."""
    servers: Mapping[str, Sequence[str]]
    """By transport the servers that speak it."""


_BOTH = ("naiad", "triton")
CASES = {
    "python": Case("add_sub_py", ["add_sub_py"], {HTTP_BINARY: _BOTH, GRPC: (*_BOTH, "mlserver")}),
    "bls": Case("bls_py", ["add_sub_py", "bls_py"], {HTTP_BINARY: _BOTH, GRPC: _BOTH}),
    "json": Case("add_sub", ["add_sub"], {HTTP_JSON: ("naiad", "fastapi", "mlserver")}),
    "onnx": Case("add_sub", ["add_sub"], dict.fromkeys((HTTP_BINARY, GRPC, HTTP_JSON), _BOTH)),
}
Peers = Mapping[str, Callable[[], Peer]]
"""By name how to make each server."""


@dataclass
class Results:
    """Rows, one for a server, load and case, each with a list of rounds; and remarks for the report."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, case: str, row: Mapping[str, Any], metrics: Mapping[str, float]) -> None:
        """Add a round to the row of `case` that `row` describes, and print it."""
        key = {"case": case, **row}
        found = next((each for each in self.rows if all(each.get(name) == key[name] for name in key)), None)
        if found is None:
            found = {**key, "rounds": []}
            self.rows.append(found)
        found["rounds"].append(dict(metrics))
        values = "  ".join(f"{name} {value:.5g}" for name, value in metrics.items())
        print(f"{case}  {'  '.join(map(str, row.values()))}  #{len(found['rounds'])}  {values}", flush=True)

    def note(self, text: str) -> None:
        """Keep a remark for the report."""
        if text not in self.notes:
            self.notes.append(text)
            print(f"note: {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def serving(case: Case, peers: Peers, work: Path, results: Results) -> Iterator[dict[str, Running]]:
    """Install and start the servers that can be had; stop them at the end."""
    repository = work / "-".join(case.repository)
    models.write_repository(repository, case.repository)
    with contextlib.ExitStack() as stack:
        running = {}
        for name, make in peers.items():
            try:
                peer = make()
                peer.install()
                running[name] = peer.start(repository, work / name)
                stack.callback(running[name].stop)
            except (RuntimeError, subprocess.SubprocessError, OSError, ValueError) as error:
                results.note(f"{name} could not be installed or started: {error}")
        yield running


def run(name: str, case: Case, results: Results, work: Path, options: argparse.Namespace) -> None:
    """Measure every load on every server, `rounds` times, the servers in turn."""
    servers = {
        transport: [*speakers, *options.peers.keys() - ALL.keys()] for transport, speakers in case.servers.items()
    }
    wanted = {each: make for each, make in options.peers.items() if any(each in few for few in servers.values())}
    with serving(case, wanted, work, results) as running:
        for transport, speakers in servers.items():
            payload = payloads.make(payloads.add_sub(case.model), transport, work / "payloads")
            entries = [
                (running[each], payloads.check(payload, running[each].http_port, running[each].grpc_port))
                for each in speakers
                if each in running
            ]
            for shape in _GRPC_SHAPES if transport == GRPC else _HTTP_SHAPES:
                row = {"model": case.model, "transport": transport, "concurrency": shape.concurrency}
                row["load"] = str(shape) if transport == GRPC else str(shape.connections)
                if options.only not in f"{transport} {row['load']}":
                    continue
                for _ in range(options.rounds):
                    for server, checked in entries:
                        found = measure(server, checked, shape, options.seconds, _WARM_UP_S)
                        results.add(name, {"server": server.name, **row}, found.as_dict())


def facts(peers: Peers) -> dict[str, Any]:
    """Return what the figures depend on: the machine and the versions of everything."""
    found = {name: version(name) for name in ("numpy", "onnxruntime", "uvloop", "httptools", "protobuf")}
    installed = [peer for peer in (make() for make in peers.values()) if peer.venv.exists()]
    found = {"naiad": Naiad().version(), **found, **{peer.package: peer.version() for peer in installed}}
    for peer in installed:
        if isinstance(peer, Triton) and (number := peer.onnxruntime_version()):
            found["onnxruntime of Triton"] = number
    found["wrk"] = _output("wrk", "--version").removeprefix("wrk ").split(" ")[0]
    found["h2load"] = _output("h2load", "--version").removeprefix("h2load nghttp2/")
    names = [
        line.partition(": ")[2] for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    ]
    return {
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "cpu": names[0] if names else platform.machine(),
        "cores": len(psutil.Process().cpu_affinity()),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": platform.freedesktop_os_release()["PRETTY_NAME"],
        "kernel": platform.release(),
        "python": platform.python_version(),
        "commit": _output("git", "-C", str(HERE), "describe", "--always", "--dirty"),
        "versions": found,
    }


def _output(*command: str) -> str:
    if shutil.which(command[0]) is None:
        return ""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return (done.stdout or done.stderr).strip().split("\n")[0]


def _measure(options: argparse.Namespace, path: Path) -> int:
    """Measure, writing what there is after every case; return the exit status."""
    results, status = Results(), 0
    if path.exists():  # cases that are not measured now keep what the last run found
        results.rows = [row for row in json.loads(path.read_text())["rows"] if row["case"] not in options.cases]
    (HERE / ".work").mkdir(exist_ok=True)
    for name in options.cases:
        try:
            with tempfile.TemporaryDirectory(dir=HERE / ".work") as work:
                run(name, CASES[name], results, Path(work), options)
        except Exception as error:  # a client, a server or a tool may raise anything
            # One case that fails must not cost the results of the rest.
            results.note(f"case {name} failed: {type(error).__name__}: {error}")
            status = 1
        path.parent.mkdir(parents=True, exist_ok=True)
        settings = {"rounds": options.rounds, "seconds": options.seconds}
        content = {"facts": facts(options.peers), "options": settings, "notes": results.notes, "rows": results.rows}
        path.write_text(json.dumps(content, indent=1) + "\n")
    return status


def _peers(options: argparse.Namespace) -> Peers:
    found: dict[str, Callable[[], Peer]] = {**ALL, "triton": functools.partial(Triton, options.triton_backends)}
    if options.processes > 1:
        name = f"naiad, {options.processes} processes"
        found[name] = functools.partial(Naiad, "--processes", str(options.processes), name=name)
    return found


def _cases(options: argparse.Namespace, parser: argparse.ArgumentParser) -> list[str]:
    """Return the cases to measure: those that are named, or all that can be."""
    possible = [name for name in CASES if name != "onnx" or options.triton_backends]
    for name in options.cases or ():
        if name not in CASES:
            parser.error(f"--cases: {name!r} is not one of {', '.join(CASES)}")
        if name not in possible:
            parser.error("--cases: onnx needs --triton-backends, because PyPI's Triton cannot serve ONNX models")
    return options.cases or possible


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the flags; `cases` and `peers` are what shall be measured."""
    parser = argparse.ArgumentParser(prog="python -m bench.comparison", description="Measure naiad beside others.")
    parser.add_argument("--cases", type=lambda text: text.split(","), help=",".join(CASES))
    parser.add_argument("--only", default="", help="loads whose line contains this text, into another directory")
    parser.add_argument(
        "--triton-backends", type=backends_directory, metavar="DIR", help="with Triton's ONNX Runtime backend"
    )
    parser.add_argument("--processes", type=int, default=1, metavar="N", help="measure naiad with N processes, too")
    parser.add_argument("--rounds", type=int, default=3, help="default 3; the tables show medians")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of a measurement, default 5")
    parser.add_argument("--quick", action="store_true", help="one round of one second, into another directory")
    parser.add_argument("--docs", action="store_true", help="write the tables into docs/benchmarks.md, too")
    parser.add_argument("--render", action="store_true", help="measure nothing, write the tables of the last run")
    options = parser.parse_args(argv)
    if options.processes < 1:
        parser.error("--processes: at least 1")
    options.cases, options.peers = _cases(options, parser), _peers(options)
    if options.quick:
        options.rounds, options.seconds = 1, 1.0
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Run the comparison and write the tables; return the exit status."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that no server is left behind
    options, status = parse(argv), 0
    path = HERE / ".work" / "quick" / "results.json" if options.quick or options.only else RESULTS
    if not options.render:
        missing = missing_tools()
        if missing:
            print(f"{' and '.join(missing)} not found: apt-get install wrk nghttp2-client", file=sys.stderr)
            return 2
        status = _measure(options, path)
    results = json.loads(path.read_text())
    path.with_suffix(".md").write_text(f"# Benchmark results\n\n{report.markdown(results)}")
    print(f"\n{report.markdown(results)}\nwritten to {path} and {path.with_suffix('.md')}")
    if options.docs:
        report.refresh(PAGE, report.summary(results))
    return status


if __name__ == "__main__":
    sys.exit(main())
