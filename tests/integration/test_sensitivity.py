"""The search with the real converter and the real gate: int8 with one node that hurts."""

import pytest

from naiad.tools.optimize import sensitivity
from naiad.tools.optimize.candidate import Candidate, Precision, Status
from naiad.tools.optimize.converters.conversions import Converter
from naiad.tools.optimize.optimize_source import Format
from support.conversions_here import conversions_here
from support.sensitive_networks import SAMPLES, judge_onnx, outlier_network

SETTINGS = {Precision.INT8: {"calibration": "minmax"}, Precision.INT8_DYNAMIC: {}}


@pytest.fixture(scope="module", autouse=True)
def in_this_process():
    with conversions_here():
        yield


class Steps:
    def __init__(self):
        self.messages = []

    def step(self, stage, name, index, count):
        assert (stage, index < count) == ("search", True)

    def done(self, stage, name, message, *, was_cached):
        self.messages.append(f"{name}: {message}")


def searched(tmp_path, precision, max_steps, **network):
    source = outlier_network(tmp_path / "network.onnx", **network)
    converter = Converter.open(source, SAMPLES, tmp_path / "work")
    after = converter.convert(Candidate("source", Format.ONNX, Precision.FP32, "onnxruntime"))
    candidate = Candidate("onnx-low", Format.ONNX, precision, "onnxruntime", SETTINGS[precision], "source")
    steps = Steps()
    found = sensitivity.search(
        converter,
        candidate,
        after,
        lambda made: judge_onnx(source, made),
        max_steps=max_steps,
        measure=lambda made: 100.0 + len(made.candidate.settings.get("keep_nodes", ())),
        progress=steps,
    )
    return found, steps


def test_outlier_stays_in_higher_precision(tmp_path):
    (made, verdict, curve), steps = searched(tmp_path, Precision.INT8, 8)
    assert made.candidate.name == "onnx-low-mixed"
    assert made.candidate.settings == {"calibration": "minmax", "keep_nodes": ["layer3"]}
    assert (made.candidate.precision, made.status, verdict.is_accepted) == (Precision.INT8, Status.CONVERTED, True)
    assert [(list(point.kept), point.is_accepted) for point in curve] == [([], False), (["layer3"], True)]
    assert curve[0].error > curve[1].error > 0
    assert [point.latency_us for point in curve] == [100.0, 101.0]
    assert steps.messages == [
        "onnx-low-nodes: 6 nodes",
        "onnx-low: 0 of 6 nodes in higher precision: rejected",
        "onnx-low-mixed: 1 of 6 nodes in higher precision: accepted",
    ]


def test_spent_steps_leave_the_best(tmp_path):
    # 32 layers are groups of two: the first accepted step keeps a node too many.
    (made, _, curve), _ = searched(tmp_path, Precision.INT8_DYNAMIC, 2, layers=32, culprit=13)
    assert made.candidate.settings["keep_nodes"] == ["layer12", "layer13"]
    assert len(curve) == 2
    (made, _, curve), _ = searched(tmp_path, Precision.INT8_DYNAMIC, 9, layers=32, culprit=13)
    assert made.candidate.settings["keep_nodes"] == ["layer13"]
    (made, verdict, curve), _ = searched(tmp_path, Precision.INT8_DYNAMIC, 1, layers=32, culprit=13)
    assert (made, verdict, len(curve)) == (None, None, 1)


def test_damaged_origin_ends_the_search(tmp_path):
    source = outlier_network(tmp_path / "network.onnx")
    converter = Converter.open(source, SAMPLES, tmp_path / "work")
    after = converter.convert(Candidate("source", Format.ONNX, Precision.FP32, "onnxruntime"))
    (after.folder / "model.onnx").write_bytes(b"no graph")
    candidate = Candidate("onnx-int8", Format.ONNX, Precision.INT8_DYNAMIC, "onnxruntime", {}, "source")
    found = sensitivity.search(converter, candidate, after, lambda made: judge_onnx(source, made), max_steps=3)
    assert found == (None, None, ())


def test_other_candidates_are_not_searchable(tmp_path):
    source = outlier_network(tmp_path / "network.onnx")
    converter = Converter.open(source, SAMPLES, tmp_path / "work")
    after = converter.convert(Candidate("source", Format.ONNX, Precision.FP32, "onnxruntime"))
    litert = Candidate("litert-int8", Format.LITERT, Precision.INT8, "litert", {}, "source")
    assert sensitivity.search(converter, litert, after, lambda made: None, max_steps=3) == (None, None, ())
