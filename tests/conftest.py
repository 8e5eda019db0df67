"""Settings of all tests."""

import compileall
import os
import signal
import sys
from pathlib import Path

import hypothesis

# No test asserts a time: how long an example takes depends on what else the machine does.
slowness = [hypothesis.HealthCheck.too_slow]
hypothesis.settings.register_profile("naiad", deadline=None, suppress_health_check=slowness)
hypothesis.settings.load_profile("naiad")

# A shell that runs the tests in the background has them ignore it, and with them all that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Containers often set PYTHONDONTWRITEBYTECODE. Then each server that a test starts would compile naiad again, which
# takes as long as all the rest of its start. Workers of pytest-xdist find what their parent has compiled.
if sys.dont_write_bytecode and "PYTEST_XDIST_WORKER" not in os.environ:
    compileall.compile_dir(Path(__file__).parents[1] / "src", quiet=1)
