"""What all cases share: the options of a run, the servers' lives, the repositories, and where results go."""

import contextlib
import json
import platform
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from bench import models
from bench.peers import ALL, HERE, Naiad, Peer, Running
from naiad.backend.cores import usable_cores

BUSY_PERCENT = 5.0
"""More than this used by others before a case begins is worth a note."""
STOLEN_PERCENT = 2.0
"""More than this taken by the host during a case is worth a note."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Options:
    """What the command line says."""

    servers: Sequence[str]
    rounds: int
    seconds: float
    warm_up_s: float
    idle_s: float
    concurrencies: Sequence[int]


@dataclass
class Session:
    """A run of the benchmark: rows of results, one a server, load and case, each with a list of rounds."""

    options: Options
    work: Path
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    sum_ms: dict[str, float] = field(default_factory=dict)
    """By case how fast a core was before it, in terms of `sum_ms`."""
    _usable: dict[str, bool] = field(default_factory=dict)

    def repository(self, *names: str) -> Path:
        """Return a repository with just these models, written when it is new."""
        path = self.work / "repositories" / "-".join(names)
        if not path.exists():
            models.write_repository(path, names)
        return path

    def resnet_repository(self, threads: int) -> Path:
        """Return a repository with the ResNet-50 alone, to be run with a number of threads."""
        path = self.work / "repositories" / f"resnet50-{threads}"
        if not path.exists():
            models.write_resnet50(path, threads)
        return path

    def installed(self, *names: str) -> list[str]:
        """Return the requested servers that can be installed here."""
        return [name for name in names if name in self.options.servers and self._install(name)]

    def _install(self, name: str) -> bool:
        if name not in self._usable:
            try:
                ALL[name]().install()
                self._usable[name] = True
            except (subprocess.SubprocessError, OSError, ValueError) as error:
                self._usable[name] = False
                self.note(f"{name} could not be installed: {error}")
        return self._usable[name]

    @contextlib.contextmanager
    def serve(self, peer: Peer, repository: Path, label: str = "") -> Iterator[Running]:
        """Start a server and stop it at the end."""
        running = peer.start(repository, self.work / (label or peer.name))
        try:
            yield running
        finally:
            running.stop()

    def add(self, case: str, row: Mapping[str, Any], metrics: Mapping[str, float]) -> None:
        """Add a round to the row of `case` that `row` describes, and print it."""
        key = {"case": case, **row}
        found = next((each for each in self.rows if all(each.get(name) == key[name] for name in key)), None)
        if found is None:
            found = {**key, "rounds": []}
            self.rows.append(found)
        found["rounds"].append(dict(metrics))
        values = "  ".join(f"{name} {value:.5g}" for name, value in metrics.items())
        print(f"{case:14} {'  '.join(str(value) for value in row.values())}  #{len(found['rounds'])}  {values}")
        sys.stdout.flush()

    def note(self, text: str) -> None:
        """Keep a remark for the report."""
        if text not in self.notes:
            self.notes.append(text)
            print(f"note: {text}", file=sys.stderr, flush=True)

    def look_for_others(self, case: str) -> None:
        """Note when other programs use the machine, and how fast it is."""
        self.sum_ms[case] = round(sum_ms(), 1)
        busy = psutil.cpu_percent(interval=1.0)
        if busy > BUSY_PERCENT:
            self.note(f"before case {case} other processes used {busy:.0f} % of the machine")

    @contextlib.contextmanager
    def watch_host(self, case: str) -> Iterator[None]:
        """Note when the host of a virtual machine takes its cores away meanwhile: waking up costs more then."""
        before_s, began_s = _stolen_s(), time.monotonic()
        yield
        percent = 100 * (_stolen_s() - before_s) / ((time.monotonic() - began_s) * (psutil.cpu_count() or 1))
        if percent > STOLEN_PERCENT:
            self.note(f"during case {case} the host took {percent:.0f} % of the machine's cores away (steal time)")


def _stolen_s() -> float:
    return float(getattr(psutil.cpu_times(), "steal", 0.0))


def sum_ms() -> float:
    """Return how long one core takes to add up a million numbers in Python: times scale with it, on any machine."""
    best = float("inf")
    for _ in range(3):
        start = time.process_time()
        total = 0
        for number in range(1_000_000):
            total += number
        best = min(best, (time.process_time() - start) * 1e3)
    return best


def facts(servers: Sequence[str]) -> dict[str, Any]:
    """Return what the figures depend on: the machine and the versions of everything."""
    return {
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "cpu": _cpu_name(),
        "cores": usable_cores(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": _system_name(),
        "kernel": platform.release(),
        "python": platform.python_version() + _python_build(),
        "commit": _output("git", "-C", str(HERE), "describe", "--always", "--dirty"),
        "versions": _versions(servers),
    }


def _python_build() -> str:
    """Say what makes a Python a fifth slower: it was compiled without what its own executions teach a compiler."""
    options = sysconfig.get_config_var("CONFIG_ARGS")  # None where it was not built by `configure`
    # Debian's is optimized too, by another way that leaves no trace.
    if options is None or "--enable-optimizations" in options or sys.base_prefix == "/usr":
        return ""
    return " (built without --enable-optimizations)"


def _versions(servers: Sequence[str]) -> dict[str, str]:
    names = ("numpy", "onnxruntime", "uvloop", "httptools", "protobuf")
    found = {"naiad": Naiad().version(), **{name: version(name) for name in names}}
    for name in servers:
        peer = ALL[name]()
        if name != "naiad" and peer.venv.exists():
            found[peer.package] = peer.version()
    found["wrk"] = _output("wrk", "--version").removeprefix("wrk ").split(" ")[0]
    found["h2load"] = _output("h2load", "--version").removeprefix("h2load nghttp2/")
    return found


def _output(*command: str) -> str:
    if shutil.which(command[0]) is None:
        return ""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return (done.stdout or done.stderr).strip().split("\n")[0]


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def _system_name() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except OSError:
        return platform.system()


def save(session: Session, path: Path, machine: Mapping[str, Any]) -> None:
    """Write everything that was measured as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    options = vars(session.options)
    content = {
        "facts": {**machine, "sum_ms": session.sum_ms},
        "options": options,
        "notes": session.notes,
        "rows": session.rows,
    }
    path.write_text(json.dumps(content, indent=1) + "\n")
