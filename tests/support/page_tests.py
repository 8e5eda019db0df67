"""Tests of the dashboard's page that are written for Node.js, in `dashboard/tests`."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.browser import PROGRAM

DASHBOARD = Path(__file__).resolve().parents[2] / "dashboard"
LIMIT_S = 900
_NODE = shutil.which("node")
needs_node = pytest.mark.skipif(_NODE is None, reason="Node.js is not installed")
needs_modules = pytest.mark.skipif(
    not (DASHBOARD / "node_modules").is_dir(), reason="run `npm ci` in dashboard/ first"
)


def run_page_tests(name: str, **variables: str) -> None:
    """Run a test file of `dashboard/tests` with environment variables; its report is the message of a failure."""
    assert _NODE is not None
    command = [_NODE, "--test", "--test-reporter=spec", f"--test-timeout={LIMIT_S * 1000}", f"tests/{name}"]
    environment = {**os.environ, "PYTHON": sys.executable, **variables, **({"CHROMIUM": PROGRAM} if PROGRAM else {})}
    found = subprocess.run(
        command, cwd=DASHBOARD, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert found.returncode == 0, found.stdout[-8000:] + found.stderr[-2000:]
