"""What a server does not import before a model or a flag needs it: each module costs start time and memory."""

import subprocess
import sys
from pathlib import Path

import pytest

from support.onnx_models import add_sub

_LATE = {
    "difflib",
    "email.message",
    "email.utils",
    "encodings.idna",
    "grpc",
    "html",
    "importlib.metadata",
    "ml_dtypes",
    "naiad.backend.cuda.cuda",
    "naiad.backend.isolation.backend",
    "naiad.backend.onnx_decoder",
    "naiad.backend.python.backend",
    "naiad.backend.workers.worker_instance",
    "naiad.client",
    "naiad.cluster",
    "naiad.config.openai_mapping",
    "naiad.config.tensors.pictures",
    "naiad.engine.cache.cached_model",
    "naiad.engine.cache.redis_store",
    "naiad.engine.ensemble.ensemble_model",
    "naiad.engine.loading.token_counting",
    "naiad.engine.loading.warmup",
    "naiad.engine.remote.remote_loading",
    "naiad.engine.serving.dispatch.sequence_dispatcher",
    "naiad.engine.transforms.padding",
    "naiad.engine.transforms.sequence_tensors",
    "naiad.frontend.clouds",
    "naiad.frontend.dashboard.dashboard_page",
    "naiad.frontend.grpc.stream",
    "naiad.frontend.rest.generate",
    "naiad.frontend.rest.mcp",
    "naiad.frontend.rest.openai",
    "naiad.protocol.mcp",
    "naiad.protocol.openai.completion_request",
    "naiad.protocol.reflection",
    "naiad.repository.cloud.objects.objects",
    "naiad.repository.control.poll",
    "naiad.scheduler.sequence",
    "naiad.telemetry.trace.span_export",
    "naiad.telemetry.traffic",
    "naiad.tools",
    "naiad.worker.api.metric_family",
    "numpy.random",
    "numpy.testing",
    "obstore",
    "opentelemetry",
    "pynvml",
    "redis",
    "tomllib",
    "unittest",
    "zipfile",
}
"""Modules that most servers do not need."""
_SERVE = """
import sys
import naiad.cli.serve
from naiad.options.sources.command_line import parse_options
from naiad.server.hosted import HostedServer
from naiad.telemetry.metrics import gpus

gpus._LIBRARY = "libnone.so"  # the machine has no GPU
server = HostedServer(parse_options(sys.argv[1:]))
server.start()
print(*sys.modules)
server.stop()
"""


def imported(*command: str) -> set[str]:
    done = subprocess.run([sys.executable, "-c", *command], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize("module", ["naiad.cli.serve", "naiad.server.app"])
def test_start_imports_nothing_that_few_need(module: str) -> None:
    found = imported(f"import sys, {module}; print(*sys.modules)")
    assert not (_LATE | {"onnxruntime"}) & found, "import it in the function that needs it"
    assert module in found


def test_model_imports_only_its_own_backend(tmp_path: Path) -> None:
    version = tmp_path / "add_sub" / "1"
    version.mkdir(parents=True)
    (version / "model.onnx").write_bytes(add_sub())
    ports = [f"--{name}-port=0" for name in ("http", "grpc", "metrics")]
    found = imported(_SERVE, f"--model-repository={tmp_path}", *ports)
    assert sorted(_LATE & found) == []
    assert "naiad.backend.onnx.instance" in found
