"""Verdicts on conversions in a folder, as naiad serves them, and packages of them."""

from dataclasses import replace

from naiad.cli.main import main
from naiad.core.datatype import DataType
from naiad.core.tensor import TensorSpec
from naiad.tools.optimize import package
from naiad.tools.optimize.candidate import Candidate, Conversion, Precision, Status
from naiad.tools.optimize.correctness.candidate_repository import write_repository
from naiad.tools.optimize.correctness.gate import judge
from naiad.tools.optimize.correctness.judgement_settings import Settings
from naiad.tools.optimize.correctness.runners.model_runner import CallableRunner, RenamedRunner
from naiad.tools.optimize.correctness.runners.served_runner import ServedRunner
from naiad.tools.optimize.optimize_source import Format
from support import optimizer_results as results
from support.digits_classifier import digits_classifier

ROWS = [{"IMAGE": image} for image in digits_classifier().images[:40]]


def dense_source():
    return CallableRunner(lambda inputs: {"PROBABILITIES": digits_classifier().probabilities(inputs["IMAGE"])})


def verdict(tmp_path, source, samples, backend, precision=Precision.FP32, *, config="", names=({}, {})):
    candidate = Candidate("candidate", Format.ONNX, precision, backend)
    conversion = Conversion(candidate, Status.PASSED, tmp_path / "files")
    served = ServedRunner(write_repository(conversion, tmp_path / "repository", config), "candidate")
    try:
        return judge(source, RenamedRunner(served, *names), samples, candidate, Settings())
    finally:
        served.close()


def files(tmp_path):
    (tmp_path / "files").mkdir()
    return tmp_path / "files"


def reasons(found):
    return [failure.message for failure in found.failures]


def verify_package(tmp_path, backend, precision):
    """Package the conversion of the digits in `tmp_path`; return the exit status of `naiad verify`."""
    won = results.outcome("won", precision, backend=backend, folder=tmp_path / "files", latency_us=9, throughput=9)
    made = results.result(won, winner="won")
    tensors = TensorSpec("IMAGE", DataType.FP32, (-1, 64)), TensorSpec("PROBABILITIES", DataType.FP32, (-1, 10))
    made = replace(made, source=replace(made.source, inputs=tensors[:1], outputs=tensors[1:]))
    config = f'name: "digits" backend: "{backend}" max_batch_size: 8 dynamic_batching {{ }}'
    target = package.write(made, ROWS, config, tmp_path / "digits.zip", source=dense_source(), profile_s=0.05)
    return main(["verify", str(target), "--quick"])
