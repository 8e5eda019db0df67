"""Sabotaged conversions are rejected with the output named, faithful ones are accepted; all as naiad serves them."""

import os

import numpy as np
import onnx
import onnxruntime
import pytest
from onnxruntime.quantization import QuantType, quantize_dynamic

from naiad.tools.optimize.candidate import Candidate, Conversion, Precision, Status
from naiad.tools.optimize.correctness.candidate_repository import write_repository
from naiad.tools.optimize.correctness.gate import judge
from naiad.tools.optimize.correctness.judgement_settings import Settings
from naiad.tools.optimize.correctness.runners.isolated import CandidateLimits, IsolatedRunner
from naiad.tools.optimize.correctness.runners.model_runner import CallableRunner, RunnerError
from naiad.tools.optimize.correctness.runners.served_runner import ServedRunner
from naiad.tools.optimize.optimize_source import Format
from naiad.tools.optimize.results.candidate_measurement import Runtime
from naiad.tools.optimize.sources import open_source
from naiad.tools.optimize.steps.judging import Judge
from naiad.tools.optimize.steps.step_journal import StepJournal
from support import sabotaged_conversions as models
from support.long_run import mostly_long

VISION, TEXT, HALVES = models.vision(), models.text(), models.halves()
SABOTAGES = [
    (VISION, models.shuffled_weights, "PROBABILITIES", "values"),
    (VISION, models.swapped_outputs, "FEATURES", "values"),
    (VISION, models.wrong_layout, "PROBABILITIES", "values"),
    (HALVES, models.split_off_by_one, "Y", "values"),
    (VISION, models.mixed_rows, "FEATURES", "batched"),
    (VISION, models.dropped_softmax, "PROBABILITIES", "values"),
    (VISION, models.wrong_epsilon, "PROBABILITIES", "values"),
    (HALVES, models.fp16_overflow, "Y", "inf/nan"),
    (HALVES, models.stale_constant, "Y", "values"),
    (VISION, models.transposed_input, "PROBABILITIES", "values"),
    (TEXT, models.truncated_vocabulary, "SUM", "values"),
]
KEEPING_STATE = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.sum = 0.0

    def execute(self, requests):
        responses = []
        for request in requests:
            array = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            self.sum = self.sum * 0.5 + float(array.sum()) * 0.01
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", array + np.float32(self.sum))]))
        return responses
"""
KEEPING_CONFIG = """
max_batch_size: 8
input [ { name: "X" data_type: TYPE_FP32 dims: [ 8 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ 8 ] } ]
"""


def candidate(name, precision=Precision.FP32, backend="onnxruntime"):
    return Candidate(name, Format.ONNX, precision, backend)


def repository(tmp_path, name, content, *, file="model.onnx", backend="onnxruntime", config=""):
    folder = tmp_path / "files" / name
    folder.mkdir(parents=True)
    (folder / file).write_bytes(content)
    conversion = Conversion(candidate(name, backend=backend), Status.PASSED, folder)
    return write_repository(conversion, tmp_path / "repository" / name, config)


def source(model):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.proto.SerializeToString(), options)
    names = [each.name for each in session.get_outputs()]
    return CallableRunner(lambda inputs: dict(zip(names, session.run(None, dict(inputs)), strict=True)))


def verdict(tmp_path, model, proto, precision=Precision.FP32):
    home = repository(tmp_path, "candidate", proto if isinstance(proto, bytes) else proto.SerializeToString())
    runner = ServedRunner(home, "candidate")
    try:
        return judge(source(model), runner, model.samples, candidate("candidate", precision), Settings())
    finally:
        runner.close()


@pytest.mark.parametrize("case", SABOTAGES, ids=lambda case: case[1].__name__)
def test_sabotaged_conversion_is_rejected(case, tmp_path):
    model, sabotage, output, check = case
    found = verdict(tmp_path, model, model.edited(sabotage))
    assert not found.is_accepted
    assert (output, check) in {(failure.output, failure.check) for failure in found.failures}
    assert all(f"'{failure.output}'" in failure.message for failure in found.failures)


SEEN_IN_FP16 = [case for case in SABOTAGES if case[1] is not models.wrong_epsilon]
"""FP16 rounds more than an epsilon of 1e-3 changes."""
SEEN_IN_INT8 = [case for case in SEEN_IN_FP16 if case[1] not in (models.split_off_by_one, models.stale_constant)]
"""In int8, these differ less than a third of the output's scale."""


def is_in_ci(case):
    """Whether CI serves it with these tolerances, too; tests/unit/tools/optimize has more."""
    return case[1] in (models.swapped_outputs, models.fp16_overflow, models.truncated_vocabulary)


@pytest.mark.parametrize("case", mostly_long(SEEN_IN_FP16, is_in_ci), ids=lambda case: case[1].__name__)
def test_sabotage_is_rejected_with_tolerance_of_fp16(case, tmp_path):
    assert not verdict(tmp_path, case[0], case[0].edited(case[1]), Precision.FP16).is_accepted


@pytest.mark.parametrize("case", mostly_long(SEEN_IN_INT8, is_in_ci), ids=lambda case: case[1].__name__)
def test_sabotage_is_rejected_with_tolerance_of_int8(case, tmp_path):
    assert not verdict(tmp_path, case[0], case[0].edited(case[1]), Precision.INT8).is_accepted


def test_state_kept_between_calls_is_rejected(tmp_path):
    files = {"file": "model.py", "backend": "python", "config": KEEPING_CONFIG}
    home = repository(tmp_path, "keeping", KEEPING_STATE.encode(), **files)
    runner = ServedRunner(home, "keeping")
    try:
        found = judge(
            CallableRunner(lambda inputs: {"Y": inputs["X"]}),
            runner,
            HALVES.samples,
            candidate("keeping"),
            Settings(),
        )
    finally:
        runner.close()
    assert ("Y", "repeated") in {(failure.output, failure.check) for failure in found.failures}


@pytest.mark.parametrize("model", [VISION, TEXT, HALVES], ids=["vision", "text", "halves"])
def test_same_file_is_accepted(model, tmp_path):
    found = verdict(tmp_path, model, model.proto)
    assert found.is_accepted, [failure.message for failure in found.failures]


def test_graph_optimised_offline_is_accepted(tmp_path):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    onnxruntime.InferenceSession(VISION.proto.SerializeToString(), options)
    found = verdict(tmp_path, VISION, (tmp_path / "optimised.onnx").read_bytes())
    assert found.is_accepted, [failure.message for failure in found.failures]


@pytest.mark.parametrize("kind", [QuantType.QUInt8, QuantType.QInt8], ids=["uint8", "int8"])
def test_dynamic_int8_is_accepted(kind, tmp_path):
    onnx.save(VISION.proto, tmp_path / "in.onnx")
    quantize_dynamic(tmp_path / "in.onnx", tmp_path / "out.onnx", weight_type=kind, op_types_to_quantize=["MatMul"])
    found = verdict(tmp_path, VISION, (tmp_path / "out.onnx").read_bytes(), Precision.INT8_DYNAMIC)
    assert found.is_accepted, [failure.message for failure in found.failures]


@pytest.mark.parametrize(
    ("options", "is_accepted"),
    [({"optimization.graph.level": "1"}, True), ({"intra_op_thread_count": "many"}, False)],
)
def test_tuned_options_are_judged(options, is_accepted, tmp_path):
    (tmp_path / "kept/files").mkdir(parents=True)
    onnx.save(HALVES.proto, tmp_path / "kept/files/model.onnx")
    conversion = Conversion(candidate("model"), Status.CONVERTED, tmp_path / "kept/files")
    asked = open_source(tmp_path / "kept/files/model.onnx")
    judge_of = Judge(
        asked, source(HALVES), HALVES.samples, "", Settings(), CandidateLimits(), StepJournal(tmp_path / "steps")
    )
    assert judge_of.verdict(conversion)[0].is_accepted
    assert judge_of.verdict(conversion, Runtime("tuned", options))[0].is_accepted == is_accepted


# --- processes ------------------------------------------------------------------------------------------------------


def python_model(tmp_path, body):
    text = KEEPING_STATE.replace("self.sum = self.sum * 0.5 + float(array.sum()) * 0.01", body)
    files = {"file": "model.py", "backend": "python", "config": KEEPING_CONFIG}
    return repository(tmp_path, "model", text.encode(), **files)


def test_isolated_model_answers_as_in_process(tmp_path):
    home = repository(tmp_path, "model", HALVES.proto.SerializeToString())
    runner = IsolatedRunner(home, "model")
    try:
        found = judge(source(HALVES), runner, HALVES.samples, candidate("model"), Settings())
    finally:
        runner.close()
    assert found.is_accepted, [failure.message for failure in found.failures]


def test_file_that_does_not_load_is_named(tmp_path):
    home = repository(tmp_path, "model", b"no model")
    with pytest.raises(RunnerError, match="model"):
        IsolatedRunner(home, "model")


def test_crash_is_a_reason(tmp_path):
    home = repository(tmp_path, "model", HALVES.proto.SerializeToString())
    runner = IsolatedRunner(home, "model")
    try:
        os.kill(runner.pid, 6)
        found = judge(source(HALVES), runner, HALVES.samples, candidate("model"), Settings())
    finally:
        runner.close()
    assert [failure.check for failure in found.failures] == ["run"]
    assert "its process ended with SIGABRT" in found.failures[0].message


def test_call_over_the_limit_ends_the_process(tmp_path):
    home = python_model(tmp_path, "import time; time.sleep(60)")
    runner = IsolatedRunner(home, "model", CandidateLimits(call_s=0.5))
    try:
        with pytest.raises(RunnerError, match=r"no answer after 0\.5 s"):
            runner.infer({"X": np.ones((1, 8), np.float32)})
    finally:
        runner.close()


def test_memory_over_the_limit_ends_the_process(tmp_path):
    home = repository(tmp_path, "model", HALVES.proto.SerializeToString())
    with pytest.raises(RunnerError, match="MiB of memory, allowed are 5 MiB"):
        IsolatedRunner(home, "model", CandidateLimits(memory_mib=5))
