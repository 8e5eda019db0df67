"""The search for options of a backend, over figures that a function of the options gives."""

import pytest

from naiad.tools.measure.result import Interval
from naiad.tools.optimize.candidate import Candidate, Conversion, Precision, Status
from naiad.tools.optimize.optimize_source import Format, Source
from naiad.tools.optimize.profile import configuration, tuning
from naiad.tools.optimize.results.candidate_measurement import Profile, Runtime

SAMPLES = [{"x": 1}]
SPIN = "session.intra_op.allow_spinning"


@pytest.fixture
def conversion(tmp_path):
    return Conversion(Candidate("model", Format.ONNX, Precision.FP32, "onnxruntime"), Status.PASSED, tmp_path)


@pytest.fixture
def source(tmp_path):
    return Source("model", Format.ONNX, tmp_path)


@pytest.fixture
def measured(monkeypatch):
    """Let a function from parameters to a latency in us measure; return the groups of parameters."""

    def use(latency_us):
        groups = []

        def measure_group(jobs, samples, source, seconds, limits):
            groups.append([dict(runtime.parameters) for _, runtime in jobs])
            return [_profile(runtime, latency_us(runtime.parameters)) for _, runtime in jobs]

        monkeypatch.setattr(tuning, "measure_group", measure_group)
        return groups

    return use


@pytest.fixture(autouse=True)
def _any_samples(monkeypatch):
    monkeypatch.setattr(tuning, "profile_samples", list)


def _profile(runtime, latency_us):
    if latency_us is None:
        return Profile(runtime, Interval(0, 0, 0), Interval(0, 0, 0), 1, 0.0, 0.0, "it has crashed")
    rate = 1e6 / latency_us
    return Profile(
        runtime,
        Interval(latency_us, latency_us * 0.98, latency_us * 1.02),
        Interval(rate, rate * 0.98, rate * 1.02),
        1,
        1.0,
        10.0,
    )


def test_better_values_are_combined(conversion, source, measured):
    def latency_us(parameters):
        return 100 - 20 * (parameters.get(SPIN) == "0") - 20 * (parameters.get("enable_mem_arena") == "0")

    groups = measured(latency_us)
    runtime = Runtime("threads-1", {"intra_op_thread_count": "1"})
    found = tuning.tune(conversion, runtime, SAMPLES, source)
    wanted = {"intra_op_thread_count": "1", SPIN: "0", "enable_mem_arena": "0"}
    assert (found.runtime.name, found.runtime.parameters) == ("tuned", wanted)
    assert groups[-1] == [runtime.parameters, wanted]


def test_nothing_better_is_none(conversion, source, measured):
    groups = measured(lambda parameters: 100 - len(parameters))
    assert tuning.tune(conversion, Runtime(), SAMPLES, source) is None
    assert len(groups) == len(tuning.options(conversion.candidate))


def test_luck_is_not_confirmed(conversion, source, measured):
    lucky = iter([100, 50])
    groups = measured(lambda parameters: next(lucky, 100))
    assert tuning.tune(conversion, Runtime(), SAMPLES, source) is None
    assert len(groups[-1]) == 2


def test_failing_values_are_not_kept(conversion, source, measured):
    measured(lambda parameters: None if parameters else 100)
    assert tuning.tune(conversion, Runtime(), SAMPLES, source) is None


def test_no_time_means_no_measurement(conversion, source, measured):
    groups = measured(lambda parameters: 100)
    assert tuning.tune(conversion, Runtime(), SAMPLES, source, limit_s=0.0) is None
    assert not groups


def test_graph_level_is_a_field(conversion, source):
    runtime = Runtime("tuned", {"optimization.graph.level": "-1", SPIN: "0"})
    text = configuration(conversion.candidate, conversion, source, runtime, 4)
    assert "level: -1" in text
    assert text.count("parameters") == 1
