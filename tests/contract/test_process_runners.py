"""Child processes have two runners: that of workers and that of tools; the server starts its members itself."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "src" / "naiad"
OWNERS = (
    "backend/workers/",  # worker processes: pipes, shared memory, restarts
    "cluster/supervisor/",  # members of a server of several processes: forked, with sockets
    "tools/process/",  # all that the tools, the verbs and the integrations start
    "worker/",  # what is imported in a worker process
)
_MODULES = ("subprocess", "pty", "multiprocessing")
_NO_RUNNERS = {
    "tools/analyze/simulations.py": "multiprocessing",  # a pool of the standard library: no command, no output
}
_CALLS = ("create_subprocess_exec", "create_subprocess_shell", "posix_spawn", "system", "popen")


def starts(text: str) -> Iterator[str]:
    """Return what a module uses to start processes; a `Connection` of multiprocessing starts none."""
    if not any(word in text for word in (*_MODULES, *_CALLS)):
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names if each.name.split(".")[0] in _MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in _MODULES:
            yield from ([] if node.module == "multiprocessing.connection" else [node.module])
        elif isinstance(node, ast.Attribute) and node.attr in _CALLS and isinstance(node.value, ast.Name):
            yield from ([f"{node.value.id}.{node.attr}"] if node.value.id in ("os", "asyncio") else [])


def test_processes_are_started_by_their_runners_only() -> None:
    found = {
        str(path.relative_to(ROOT)): sorted(starts(path.read_text(encoding="utf-8"))) for path in ROOT.rglob("*.py")
    }
    others = {
        name: names
        for name, names in found.items()
        if names and not name.startswith(OWNERS) and names != [_NO_RUNNERS.get(name, "")]
    }
    assert others == {}, "use naiad.tools.process, or backend/workers for workers"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("import subprocess", ["subprocess"]),
        ("from subprocess import run", ["subprocess"]),
        ("def f():\n    import multiprocessing.pool", ["multiprocessing.pool"]),
        ("from multiprocessing.connection import Connection", []),
        ("import asyncio\nasyncio.create_subprocess_exec('ls')", ["asyncio.create_subprocess_exec"]),
        ("import os\nos.system('ls')", ["os.system"]),
        ("class A:\n    def system(self):\n        return self.system", []),
    ],
)
def test_every_way_to_start_is_seen(text: str, names: list[str]) -> None:
    assert list(starts(text)) == names
