"""`naiad predict` as a process of its own."""

import subprocess
import sys

from support.commands import ENVIRONMENT, run_command

__all__ = ["ENVIRONMENT", "command", "predict"]


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "naiad", "predict", *map(str, arguments)]


def predict(*arguments: object, status: int = 0) -> "subprocess.CompletedProcess[str]":
    """Run it to its end; fails unless it exits with `status`."""
    return run_command("predict", *arguments, status=status, timeout_s=90)
