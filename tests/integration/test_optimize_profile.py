"""Profiles of ONNX models in processes of their own, and figures of served ones."""

import os

import numpy as np
import pytest

from naiad.core.datatype import DataType
from naiad.core.tensor import TensorSpec
from naiad.tools.optimize import choice, profile
from naiad.tools.optimize.candidate import Candidate, Conversion, Precision, Status
from naiad.tools.optimize.correctness.runners.isolated import CandidateLimits
from naiad.tools.optimize.optimize_result import Objective, Outcome
from naiad.tools.optimize.optimize_source import Format, Source
from naiad.tools.optimize.profile import finalist_serving
from naiad.tools.optimize.results.candidate_measurement import Runtime
from support import onnx_models

SAMPLES = [{name: np.full(16, row, np.float32) for name in ("INPUT0", "INPUT1")} for row in range(4)]


@pytest.fixture
def source(tmp_path):
    inputs = tuple(TensorSpec(name, DataType.FP32, (-1, 16)) for name in ("INPUT0", "INPUT1"))
    return Source("model", Format.ONNX, tmp_path, inputs)


@pytest.fixture
def convert(tmp_path):
    def conversion(name, content):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "model.onnx").write_bytes(content)
        return Conversion(Candidate(name, Format.ONNX, Precision.FP32, "onnxruntime"), Status.PASSED, folder)

    return conversion


def test_profiles_of_two_models_and_a_broken_one(source, convert):
    made = [convert("source", onnx_models.add_sub()), convert("fixed", onnx_models.add_sub((1, 16)))]
    wanted = [(each, profile.runtimes(each.candidate, 2)) for each in made]
    wanted.append((convert("broken", b"nothing"), [Runtime()]))
    found = list(profile.measure(wanted, SAMPLES, source, seconds_per_profile=0.2))
    assert [(name, each.runtime.name) for name, each in found] == [
        ("source", "default"),
        ("source", "threads-1"),
        ("fixed", "default"),
        ("fixed", "threads-1"),
        ("broken", "default"),
    ]
    for _, each in found[:4]:
        assert not each.error
        assert 0 < each.latency.low <= each.latency.value <= each.latency.high
        assert 0 < each.throughput.low <= each.throughput.value <= each.throughput.high
    assert found[0][1].batch > 1
    assert found[2][1].batch == 1
    assert "cannot be loaded" in found[4][1].error
    outcomes = [Outcome(made[0].candidate, Status.PASSED, profiles=[each for _, each in found[:2]])]
    assert choice.choose(outcomes, Objective())[0] == "source"


def test_too_much_memory_is_an_error(source, convert):
    made = [(convert("source", onnx_models.add_sub()), [Runtime()])]
    ((_, found),) = profile.measure(made, SAMPLES, source, limits=CandidateLimits(memory_mib=5))
    assert "MiB of memory" in found.error
    assert found.throughput.value == 0


def test_processes_end_with_the_iterator(source, convert):
    measured = profile.measure([(convert("source", onnx_models.add_sub()), [Runtime()])], SAMPLES, source)
    next(measured)
    measured.close()
    children = os.popen(f"ps --ppid {os.getpid()} -o args").read()
    assert "naiad.tools.optimize.profile.profile_child" not in children


def test_served_finalists(source, convert, monkeypatch):
    monkeypatch.setattr(finalist_serving, "_ROUNDS", 3)
    free, fixed = convert("source", onnx_models.add_sub()), convert("fixed", onnx_models.add_sub((2, 16)))
    threads = Runtime("threads-1", {"intra_op_thread_count": "1"})
    finalists = [(free, Runtime(), 4), (fixed, threads, 2), (convert("broken", b"nothing"), Runtime(), 4)]
    found = dict(profile.serve(finalists, SAMPLES, source, seconds=0.2))
    assert list(found) == ["source", "fixed", "broken"]
    assert (found["source"].max_batch_size, found["source"].concurrency) == (4, 8)
    assert (found["fixed"].max_batch_size, found["fixed"].runtime) == (0, threads)
    for name in ("source", "fixed"):
        each = found[name]
        assert not each.error
        assert 0 < each.latency.low <= each.latency.value <= each.latency.high
        assert 0 < each.throughput.low <= each.throughput.value <= each.throughput.high
        assert each.latency_p99_us > 0
        assert each.memory_mib > 0
    assert "naiad perf -m source -i grpc" in found["source"].command
    assert "cannot be loaded" in found["broken"].error
