"""A server with one small ONNX model imports nothing that it does not need: a module costs start time and memory."""

import subprocess
import sys
from pathlib import Path

from support.onnx_models import add_sub

UNUSED = (
    # features that wait for their first request or model
    "naiad.engine.cache.redis_store",
    "naiad.engine.ensemble.ensemble_model",
    "naiad.engine.remote.remote_loading",
    "naiad.engine.serving.dispatch.sequence_dispatcher",
    "naiad.frontend.clouds",
    "naiad.frontend.dashboard.dashboard_page",
    "naiad.frontend.rest.generate",
    "naiad.frontend.rest.mcp",
    "naiad.frontend.rest.openai",
    "naiad.protocol.mcp",
    "naiad.protocol.openai.completion_request",
    "naiad.protocol.reflection",
    "naiad.repository.cloud.cloud_store",
    "naiad.scheduler.sequence",
    "naiad.telemetry.trace.span_export",
    # other programs of the package
    "naiad.client",
    "naiad.cluster",
    "naiad.tools",
    "naiad.worker.loop",
    # backends of other models
    "naiad.backend.onnx_decoder",
    "naiad.backend.onnx_text",
    "naiad.backend.python",
    "naiad.backend.pytorch",
    "naiad.backend.sklearn",
    "naiad.backend.tensorflow",
    # libraries
    "boto3",
    "email.utils",
    "encodings.idna",
    "grpc",
    "html",
    "numpy.random",
    "numpy.testing",
    "obstore",
    "onnx",
    "opentelemetry",
    "PIL",
    "pynvml",
    "redis",
    "sklearn",
    "tomllib",
    "torch",
    "unittest",
    "zipfile",
)
PROGRAM = """
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


def test_plain_start_imports_no_unused_modules(tmp_path: Path) -> None:
    version = tmp_path / "add_sub" / "1"
    version.mkdir(parents=True)
    (version / "model.onnx").write_bytes(add_sub())
    ports = [f"--{name}-port=0" for name in ("http", "grpc", "metrics")]
    command = [sys.executable, "-c", PROGRAM, f"--model-repository={tmp_path}", *ports]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    imported = set(run.stdout.split())
    assert "naiad.backend.onnx.instance" in imported
    assert not imported.intersection(UNUSED), "import it in the function that needs it"
