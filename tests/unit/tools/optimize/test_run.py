"""The coordinator of an optimization, with scripted converters, verdicts and figures."""

import json
from dataclasses import replace

import numpy as np
import pytest

from naiad.core.datatype import DataType
from naiad.core.tensor import TensorSpec
from naiad.tools.measure.result import Interval
from naiad.tools.optimize import optimization, profile
from naiad.tools.optimize.candidate import Candidate, Conversion, Precision, Status
from naiad.tools.optimize.choices import Options
from naiad.tools.optimize.correctness.runners.model_runner import CallableRunner
from naiad.tools.optimize.optimize_source import Format, Source
from naiad.tools.optimize.profile.load_check import LoadCheck
from naiad.tools.optimize.results.candidate_measurement import Profile, Round, Runtime, ServedMeasurement
from naiad.tools.optimize.results.verdict import Difference, Verdict
from naiad.tools.optimize.samples.sample_reader import ArraySamples

INPUTS = (TensorSpec("x", DataType.FP32, (-1, 2)),)
GOOD = Verdict(True, [], summary="within the tolerances of fp32 (worst: y)", samples=4)
BAD = Verdict(False, [Difference("y", "values", 0, (0,), 1.0, 2.0, 0.1, "output 'y' differs")])
RUNTIME = Runtime("threads-1", {"intra_op_thread_count": "1"})
TUNED = Runtime("tuned", {"enable_mem_arena": "0"})


def exactly(value):
    return Interval(value, value * 0.99, value * 1.01)


def profiled(rate, runtime=RUNTIME):
    return Profile(runtime, exactly(1e6 / rate), exactly(rate), 4, 0.1, 10.0)


class Scene:
    """What converters make of the candidates, what the judge says of them, and how fast they are."""

    def __init__(self, folder):
        self.folder = folder
        self.candidates = [Candidate("source", Format.ONNX, Precision.FP32, "onnxruntime")]
        self.statuses, self.verdicts, self.rates = {}, {}, {}
        self.tuned, self.differences, self.other_cores = None, {}, 0.0
        self.converted, self.judged, self.served, self.steps = [], [], [], []

    def add(self, name, *, precision=Precision.FP32, after="", status=Status.CONVERTED, rate=100.0, **settings):
        self.candidates.append(Candidate(name, Format.ONNX, precision, "onnxruntime", settings, after))
        self.statuses[name], self.rates[name] = status, rate

    # --- in place of the converter

    def convert(self, candidate, after=None):
        self.converted.append(candidate.name)
        status, reason = self.statuses.get(candidate.name, Status.CONVERTED), ""
        if after is not None and after.status is Status.FAILED:
            status, reason = Status.FAILED, f"made from '{after.candidate.name}', which has failed"
        files = self.folder / "conversions" / candidate.name / "files"
        files.mkdir(parents=True, exist_ok=True)
        return Conversion(candidate, status, files, reason=reason or ("broken" if status is Status.FAILED else ""))

    # --- in place of the judge

    def verdict(self, conversion, runtime=None):
        name = conversion.candidate.name
        key = (name, runtime.name) if runtime else name
        self.judged.append(key)
        return self.verdicts.get(key, GOOD), False

    # --- progress

    def step(self, stage, name, index, count):
        self.steps.append((stage, name))

    def done(self, stage, name, message, *, was_cached=False):
        self.steps.append((stage, name, message))

    # --- figures

    def measure(self, wanted, samples, source, **_):
        for conversion, runtimes in wanted:
            for runtime in runtimes[:1]:
                yield conversion.candidate.name, profiled(self.rates.get(conversion.candidate.name, 100.0), runtime)

    def serve(self, finalists, samples, source, *, check, **_):
        assert isinstance(check, LoadCheck)
        for conversion, runtime, batch in finalists:
            name = conversion.candidate.name
            self.served.append((name, runtime.name))
            rate = self.rates.get(name, 100.0)
            rounds = [Round(1e6 / rate, rate, 1e6 / rate, self.other_cores)] * 9
            found = ServedMeasurement(
                runtime, exactly(1e6 / rate), 9.0, exactly(rate), 8, batch, 10.0, "", rounds=rounds, cpu=exactly(1.0)
            )
            yield name, replace(found, error=self.differences.get(name, ""))

    def run(self, **options):
        source = Source("m", Format.ONNX, self.folder / "m.onnx", INPUTS)
        (self.folder / "m.onnx").write_bytes(b"graph")
        samples = ArraySamples({"x": np.ones((4, 2), np.float32)}, INPUTS)
        return optimization.optimize(source, samples, self.folder, Options(**options), self)


@pytest.fixture
def scene(tmp_path, monkeypatch):
    made = Scene(tmp_path)
    monkeypatch.setattr(optimization, "candidates", lambda *_: made.candidates)
    monkeypatch.setattr(optimization.Converter, "open", lambda *_: made)
    monkeypatch.setattr(optimization, "Judge", lambda *_: made)
    monkeypatch.setattr(
        optimization, "reference_runner", lambda *_: CallableRunner(lambda inputs: {"y": inputs["x"]})
    )
    monkeypatch.setattr(profile, "measure", made.measure)
    monkeypatch.setattr(profile, "serve", made.serve)
    monkeypatch.setattr(profile, "tune", lambda *_, **__: made.tuned)
    return made


def test_fastest_candidate_that_passed_wins(scene):
    scene.add("quick", rate=300.0)
    scene.add("wrong", rate=900.0)
    scene.verdicts["wrong"] = BAD
    result = scene.run()
    assert result.winner == "quick"
    assert result.outcome("wrong").status is Status.REJECTED
    assert "wrong" not in [name for name, _ in scene.served]
    assert json.loads((scene.folder / "result.json").read_text())["winner"] == "quick"


def test_line_of_an_accepted_candidate_says_within_what(scene):
    scene.verdicts["source"] = replace(GOOD, not_shown=["other lengths"])
    scene.run()
    (line,) = [each[2] for each in scene.steps if each[:2] == ("judge", "source") and len(each) == 3]
    assert line == "within the tolerances of fp32 (worst: y), 4 samples; not shown by these samples: other lengths"


def test_tuned_options_are_used_if_the_answers_stay(scene):
    scene.add("quick", rate=300.0)
    scene.tuned = profiled(600.0, TUNED)
    result = scene.run()
    assert ("quick", "tuned") in scene.judged
    assert ("quick", "tuned") in scene.served
    assert [each.runtime.name for each in result.outcome("quick").profiles][-1] == "tuned"


def test_tuned_options_with_other_answers_are_not_used(scene):
    scene.add("quick", rate=300.0)
    scene.tuned = profiled(600.0, TUNED)
    scene.verdicts["quick", "tuned"] = BAD
    result = scene.run()
    assert ("quick", "tuned") not in scene.served
    assert all(each.runtime.name != "tuned" for each in result.outcome("quick").profiles)
    assert any(len(each) == 3 and "not used, other answers" in each[2] for each in scene.steps)


def test_other_answers_under_load_do_not_win(scene):
    scene.add("quick", rate=300.0)
    scene.differences["quick"] = "output 'y' of sample 0: ... under load"
    assert scene.run().winner == "source"


def test_base_that_failed_is_one_error(scene):
    scene.add("onnx-fp32", status=Status.FAILED)
    for name in ("a", "b", "c"):
        scene.add(name, after="onnx-fp32")
    result = scene.run()
    assert [each[1] for each in scene.steps if each[0] == "convert" and len(each) == 3] == ["source", "onnx-fp32"]
    assert {result.outcome(name).reason for name in ("a", "b", "c")} == {"made from 'onnx-fp32', which has failed"}


def test_cheap_candidates_come_first_after_their_base(scene):
    scene.add("int8-entropy", precision=Precision.INT8, after="base", calibration="entropy")
    scene.add("mixed", precision=Precision.MIXED, after="base")
    scene.add("base")
    scene.add("fp16", precision=Precision.FP16, after="base")
    scene.run()
    assert scene.converted == ["source", "base", "fp16", "mixed", "int8-entropy"]


def test_accepted_candidate_wins_by_hand(scene):
    scene.add("slow", rate=10.0)
    result = scene.run(accepted="slow")
    assert result.winner == "slow"
    assert "accepted by hand" in result.why


@pytest.mark.parametrize(("name", "reason"), [("wrong", "it is rejected"), ("typo", "there is no such candidate")])
def test_candidate_that_has_not_passed_is_not_accepted(scene, name, reason):
    scene.add("wrong")
    scene.verdicts["wrong"] = BAD
    with pytest.raises(ValueError, match=f"'{name}' cannot be accepted: {reason}"):
        scene.run(accepted=name)


def test_second_run_measures_nothing_again(scene):
    scene.add("quick", rate=300.0)
    scene.run()
    scene.served.clear()
    assert scene.run().winner == "quick"
    assert scene.served == []


def test_figures_of_a_busy_machine_are_not_kept(scene):
    scene.add("quick", rate=300.0)
    scene.other_cores = 1.0
    scene.run()
    scene.served.clear()
    scene.run()
    assert "quick" in [name for name, _ in scene.served]


def test_own_candidate_with_a_taken_name_is_refused(scene):
    scene.add("quick")
    (scene.folder / "own.onnx").write_bytes(b"x")
    with pytest.raises(ValueError, match="--candidate quick"):
        scene.run(own={"quick": scene.folder / "own.onnx"})
