"""The evidence of a package, environments, and the cache of packages that are served."""

import os

import numpy as np
import pytest

from naiad.tools.optimize.candidate import Candidate, Precision
from naiad.tools.optimize.correctness.judgement_settings import Settings
from naiad.tools.optimize.correctness.runners.model_runner import CallableRunner
from naiad.tools.optimize.correctness.scores.tolerances import Kind
from naiad.tools.optimize.optimize_source import Format
from naiad.tools.optimize.package import package_serving
from naiad.tools.optimize.package.evidence import collect, read_evidence
from naiad.tools.optimize.package.manifest import MANIFEST, DamagedPackageError, manifest_of
from naiad.tools.optimize.package.verification import compare_environments
from naiad.tools.optimize.results.verdict import Tolerance

NAMES = {"X": "X"}, {"Y": "Y"}


def double(inputs):
    return {"Y": inputs["X"] * 2}


def evidence(samples, model=double, settings=Settings(), precision=Precision.FP32):  # noqa: B008 - frozen
    candidate = Candidate("c", Format.ONNX, precision, "onnxruntime")
    return collect(samples, CallableRunner(double), CallableRunner(model), settings, candidate, NAMES)


def rows(count, length=4):
    return [{"X": row} for row in np.random.default_rng(0).normal(size=(count, length)).astype(np.float32)]


def test_first_samples_are_kept():
    found = evidence(rows(100))
    assert len(found.samples) == len(found.answers) == 32
    assert np.array_equal(found.answers[31]["Y"], found.samples[31]["X"][None] * 2)


def test_evidence_has_limited_size():
    found = evidence(rows(10, 500_000))
    size = sum(array.nbytes for each in (*found.samples, *found.answers) for array in each.values())
    assert len(found.samples) == 4
    assert size == 16_000_000


def test_one_large_sample_is_kept():
    assert len(evidence(rows(2, 3_000_000)).samples) == 1


def test_no_samples_are_an_error():
    with pytest.raises(ValueError, match="pass samples"):
        evidence([])


def test_evidence_is_read_back(tmp_path):
    strings = [{"X": np.array([b"ab", b"c"], object)}, {"X": np.array([b"d", b"efg"], object)}]
    source = CallableRunner(lambda inputs: {"Y": inputs["X"]})
    candidate = Candidate("c", Format.ONNX, Precision.INT8, "onnxruntime")
    made = collect(strings, source, source, Settings(), candidate, NAMES)
    made.write(tmp_path)
    found = read_evidence(tmp_path)
    assert found.expectation == made.expectation
    assert found.samples[1]["X"].tolist() == [b"d", b"efg"]
    assert found.judge(source, "same").is_accepted


def test_tolerances_of_the_user_are_stored(tmp_path):
    loose = Settings(tolerances={"Y": Tolerance(0.5, 0.0)})
    evidence(rows(4), settings=loose).write(tmp_path)
    found = read_evidence(tmp_path)
    assert found.judge(CallableRunner(lambda inputs: {"Y": inputs["X"] * 2 + 0.4}), "shifted").is_accepted
    (failure,) = found.judge(CallableRunner(lambda inputs: {"Y": inputs["X"] * 2 + 0.6}), "more").failures
    assert (failure.output, failure.check) == ("Y", "values")


def test_rows_with_other_first_class_may_repeat():
    samples = rows(20)

    def other_in_two(inputs):
        return {"Y": inputs["X"] * (-2 if inputs["X"][0, 0] in [each["X"][0] for each in samples[:2]] else 2)}

    logits = Settings(kinds={"Y": Kind.LOGITS})
    found = evidence(samples, other_in_two, logits, Precision.INT8)
    assert found.expectation.tolerances["Y"].top1_agreement == pytest.approx(17 / 20)
    assert evidence(samples, settings=logits).expectation.tolerances["Y"].top1_agreement == 1.0


def test_differences_of_environments_are_named():
    packaged = {"processor": "A", "cores": "2", "memory_mib": "100", "system": "Linux 1", "onnxruntime": "1.24"}
    assert compare_environments(packaged, {**packaged, "memory_mib": "200", "system": "Linux 2"}) == []
    assert compare_environments(packaged, {"processor": "B", "cores": "2"}) == [
        "processor is B here, A when packaged",
        "onnxruntime is not installed here, 1.24 when packaged",
    ]


# --- cache ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def package(tmp_path):
    return make(tmp_path / "package", b"model")


def make(folder, content):
    (folder / "evidence").mkdir(parents=True)
    (folder / "1").mkdir()
    (folder / "1/model.onnx").write_bytes(content)
    (folder / MANIFEST).write_text(manifest_of(folder, "m", "onnx", "").to_json())
    return folder


@pytest.fixture
def environ(tmp_path):
    return {"NAIAD_CACHE": str(tmp_path / "cache")}


def test_package_is_unpacked_once(package, environ):
    home = package_serving.unpack(package, environ)
    (home / "m/1/__pycache__").mkdir()
    assert package_serving.unpack(package, environ) == home
    assert (home / "m/1/__pycache__").exists()
    assert (home / "m/1/model.onnx").read_bytes() == b"model"


def test_changed_copy_is_replaced(package, environ):
    home = package_serving.unpack(package, environ)
    (home / "m/1/model.onnx").write_bytes(b"modeL")
    assert (package_serving.unpack(package, environ) / "m/1/model.onnx").read_bytes() == b"model"


def test_changed_package_is_refused_despite_copy(package, environ):
    package_serving.unpack(package, environ)
    (package / "1/model.onnx").write_bytes(b"modeL")
    with pytest.raises(DamagedPackageError, match=r"1/model\.onnx has changed"):
        package_serving.unpack(package, environ)


def test_oldest_copies_leave_the_cache(package, tmp_path, environ, monkeypatch):
    monkeypatch.setattr(package_serving, "CACHE_BYTES", 20_000)
    homes = []
    for number in range(3):
        homes.append(package_serving.unpack(make(tmp_path / str(number), bytes([number]) * 12_000), environ))
        os.utime(homes[-1], (number, number))
    assert [home.exists() for home in homes] == [False, False, True]
