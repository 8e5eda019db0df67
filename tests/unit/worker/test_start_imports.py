"""What a worker does not import when it starts: each import is paid by every instance of every Python model."""

import subprocess
import sys

PROGRAM = "import sys, naiad.worker.loop; print(sorted({'asyncio', 'ssl', 'tempfile'} & set(sys.modules)))"


def test_worker_starts_without_asyncio() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
