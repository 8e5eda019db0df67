"""Packages of the vision model, and the command line that works on them."""

import contextlib
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import onnxruntime

from naiad.cli.main import main
from naiad.tools.optimize import package
from naiad.tools.optimize.correctness.runners.model_runner import CallableRunner
from naiad.tools.optimize.optimize_result import OptimizationResult
from support import optimizer_results as results
from support import sabotaged_conversions as models

VISION = models.vision()
CONFIG = 'name: "colors" backend: "onnxruntime" max_batch_size: 8 dynamic_batching { }\n'


def source() -> CallableRunner:
    """Return the vision model in this process."""
    session = onnxruntime.InferenceSession(VISION.proto.SerializeToString())
    names = [each.name for each in session.get_outputs()]
    return CallableRunner(lambda inputs: dict(zip(names, session.run(None, dict(inputs)), strict=True)))


def result(folder: Path, proto: onnx.ModelProto = VISION.proto, **changes: Any) -> OptimizationResult:
    """Return an optimization of the vision model whose winner has the graph `proto`."""
    folder.mkdir(parents=True)
    onnx.save(proto, folder / "model.onnx")
    winner = results.outcome("onnx-all", folder=folder, latency_us=900, throughput=2000, is_served=True)
    made = results.result(replace(winner, **changes), winner="onnx-all")
    return replace(made, source=replace(made.source, inputs=(), outputs=(), name="colors"))


def write(home: Path, name: str = "colors.zip", made: OptimizationResult | None = None, **changes: Any) -> Path:
    """Write a package of the vision model in `home`."""
    made = made or result(home / f"files-{name}")
    arguments = {"config": CONFIG, "source": source(), "profile_s": 0.1, **changes}
    return package.write(made, VISION.samples, target=home / name, **arguments)


def naiad(*arguments: object, status: int = 0) -> str:
    """Run a verb in this process; return what it printed."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        try:
            found = main([str(each) for each in arguments])
        except SystemExit as ended:
            found = int(ended.code or 0)
    assert found == status, text.getvalue()
    return text.getvalue()
