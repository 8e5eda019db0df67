"""A command without standard streams."""

import subprocess
import sys

import pytest

from naiad.cli.start.standard_streams import open_standard_streams


@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-", "0<&- 2>&-"])
def test_command_runs_without_a_standard_stream(closed: str) -> None:
    # What the command opens must not get the number of a console.
    code = (
        "import os, sys, naiad.cli.start.standard_streams as streams;"
        "streams.open_standard_streams();"
        "print(1); print(2, file=sys.stderr); sys.stdout.flush(); sys.stderr.flush();"
        "sys.exit(0 if os.open(os.devnull, os.O_RDONLY) > 2 else 3)"
    )
    script = f'exec "$0" -c "$1" {closed}'
    run = subprocess.run(["bash", "-c", script, sys.executable, code], capture_output=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout == (b"" if "1>&-" in closed else b"1\n")
    assert run.stderr == (b"" if "2>&-" in closed else b"2\n")


def test_version_is_asked_without_an_output() -> None:
    script = 'exec "$0" -m naiad --version 1>&-'
    run = subprocess.run(["bash", "-c", script, sys.executable], capture_output=True, check=False)
    assert (run.returncode, run.stderr) == (0, b"")


def test_open_streams_stay() -> None:
    before = (sys.stdin, sys.stdout, sys.stderr)
    open_standard_streams()
    assert (sys.stdin, sys.stdout, sys.stderr) == before
