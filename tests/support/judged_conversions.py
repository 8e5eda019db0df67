"""Verdicts on conversions in a folder, as naiad serves them."""

from naiad.optimizer.candidate import Candidate, Conversion, Precision, Status
from naiad.optimizer.correctness.gate import judge
from naiad.optimizer.correctness.repository import write_repository
from naiad.optimizer.correctness.runner import CallableRunner, RenamedRunner
from naiad.optimizer.correctness.served import ServedRunner
from naiad.optimizer.correctness.settings import Settings
from naiad.optimizer.source import Format
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
