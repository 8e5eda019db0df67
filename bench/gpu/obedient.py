"""A process that waits for orders: one line of JSON each, answered by one."""

import json
import os
import select
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench.gpu.serving import python_path


class Obedient:
    """A module that is run as a process; it costs nothing while it has no order."""

    def __init__(self, module: str, log: Path) -> None:
        self._module = module
        self._log = log.open("wb")
        environment = {**os.environ, "PYTHONPATH": python_path(), "PYTHONUNBUFFERED": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
        )

    def __call__(self, limit_s: float, **order: Any) -> dict[str, Any]:
        """Return the answer to an order. Raises RuntimeError with the reason of the process, TimeoutError."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(order).encode() + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            raise RuntimeError(f"{self._module} ended with {process.poll()}; see logs.txt") from None
        if not select.select([process.stdout], [], [], limit_s)[0]:
            raise TimeoutError(f"{self._module} has not answered within {limit_s:.0f} s")
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._module} ended with {process.wait()}; see logs.txt")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()
        self._log.close()
