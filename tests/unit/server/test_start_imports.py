"""What a server imports before a model or a flag needs it."""

import subprocess
import sys

import pytest

_LATE = {
    "difflib",
    "email.message",
    "grpc",
    "importlib.metadata",
    "naiad.backend.isolation.backend",
    "naiad.backend.python.backend",
    "naiad.backend.workers.worker_instance",
    "naiad.client",
    "naiad.cluster",
    "naiad.engine.cache.redis_store",
    "naiad.repository.cloud.objects.objects",
    "obstore",
    "onnxruntime",
    "opentelemetry",
    "redis",
}
"""Modules that take milliseconds to import, and that most servers do not need."""


@pytest.mark.parametrize("module", ["naiad.cli.serve", "naiad.server.app"])
def test_start_imports_nothing_that_few_need(module: str) -> None:
    program = f"import sys, {module}; print(*sys.modules, sep='\\n')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not _LATE & set(done.stdout.split())
    assert module in done.stdout.split()
