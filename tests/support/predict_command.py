"""`naiad predict` as a process of its own."""

import os
import subprocess
import sys

from support.server_process import SOURCE

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SOURCE), os.environ.get("PYTHONPATH", "")])}


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "naiad", "predict", *map(str, arguments)]


def predict(*arguments: object, status: int = 0) -> "subprocess.CompletedProcess[str]":
    """Run it to its end; fails unless it exits with `status`."""
    done = subprocess.run(
        command(*arguments), capture_output=True, text=True, env=ENVIRONMENT, timeout=90, check=False
    )
    assert done.returncode == status, f"exited with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done
