"""Packages of real models: written, judged as naiad serves them, refused when a byte differs."""

import json
import shutil
from dataclasses import replace

import pytest

from naiad.core.datatype import DataType
from naiad.core.tensor import TensorSpec
from naiad.tools.optimize import package
from naiad.tools.optimize.candidate import Precision, Status
from naiad.tools.optimize.correctness.judgement_settings import Budget, Settings
from naiad.tools.optimize.correctness.runners.model_runner import RenamedRunner
from naiad.tools.optimize.optimize_source import Labels
from naiad.tools.optimize.package.evidence import read_evidence
from naiad.tools.optimize.package.manifest import MANIFEST, manifest_of
from naiad.tools.optimize.package.package_files import opened
from support import sabotaged_conversions as models
from support.packaged_models import CONFIG, VISION, naiad, result, source, write


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    return write(tmp_path_factory.mktemp("archive"))


@pytest.fixture(scope="module")
def folder(archive, tmp_path_factory):
    target = tmp_path_factory.mktemp("folder") / "colors"
    with opened(archive) as contents:
        contents.copy(target)
    return target


# --- writing --------------------------------------------------------------------------------------------------------


def test_package_has_model_and_evidence(folder):
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    evidence = {name.removeprefix("evidence/") for name in files if name.startswith("evidence/")}
    assert {"config.pbtxt", "1/model.onnx", "manifest.json"} == {each for each in files if "evidence" not in each}
    assert {"result.json", "verdict.json", "tolerances.json", "environment.json", "commands.txt"} < evidence
    assert json.loads((folder / "evidence/result.json").read_text())["winner"] == "onnx-all"
    assert "naiad optimize digits.onnx" in (folder / "evidence/commands.txt").read_text()
    assert len(read_evidence(folder / "evidence").samples) == len(VISION.samples)


def test_rejected_candidate_is_not_packaged(tmp_path):
    made = result(tmp_path / "files", status=Status.REJECTED, reason="output 'Y' differs")
    with pytest.raises(ValueError, match="onnx-all has not passed and cannot be packaged: output 'Y' differs"):
        write(tmp_path, made=made)
    assert not (tmp_path / "colors.zip").exists()


def test_result_without_winner_is_not_packaged(tmp_path):
    with pytest.raises(ValueError, match="nothing to package: all differ"):
        write(tmp_path, made=replace(result(tmp_path / "files"), winner="", why="all differ"))


def test_files_with_other_answers_are_not_packaged(tmp_path):
    made = result(tmp_path / "files", VISION.edited(models.swapped_outputs))
    with pytest.raises(ValueError, match="output 'FEATURES' of sample"):
        write(tmp_path, made=made)
    assert [path.name for path in tmp_path.iterdir()] == ["files"]


def test_other_folder_is_not_replaced(tmp_path):
    (tmp_path / "models").mkdir()
    with pytest.raises(FileExistsError, match="models exists and is no package"):
        write(tmp_path, "models")


def test_wrong_configuration_is_named(tmp_path):
    made = result(tmp_path / "files")
    with pytest.raises(ValueError, match="max_batch_sise"):
        package.write(made, VISION.samples, "max_batch_sise: 3", tmp_path / "p", source=source())


def test_share_of_first_classes_fits_few_samples(tmp_path):
    made = result(tmp_path / "files")
    winner = made.outcomes[0]
    half = replace(winner, candidate=replace(winner.candidate, precision=Precision.FP16))
    target = write(tmp_path, "half", made=replace(made, outcomes=[half]))
    tolerance = read_evidence(target / "evidence").expectation.tolerances["PROBABILITIES"]
    assert tolerance.top1_agreement == pytest.approx(23 / 24)


def test_renamed_tensors_are_proved(tmp_path):
    made = result(tmp_path / "files")
    inputs = (TensorSpec("picture", DataType.FP32, (-1, 3, 8, 8)),)
    outputs = tuple(TensorSpec(name, DataType.FP32, (-1, 10)) for name in ("p", "f"))
    made = replace(made, source=replace(made.source, inputs=inputs, outputs=outputs))
    names = {"p": "PROBABILITIES", "f": "FEATURES"}
    renamed = RenamedRunner(source(), {"picture": "IMAGE"}, names)
    samples = [{"picture": sample["IMAGE"]} for sample in VISION.samples]
    target = package.write(made, samples, CONFIG, tmp_path / "renamed", source=renamed, profile_s=0.1)
    found = package.verify(target, is_quick=True)
    assert found.holds
    assert set(found.verdict.worst_absolute) == {"p", "f"}


# --- verification ---------------------------------------------------------------------------------------------------


def forged(folder, target, **changes):
    """Copy a package with other contents, under a manifest that fits them."""
    shutil.copytree(folder, target)
    for name, content in changes.items():
        (target / name).write_bytes(content)
    (target / MANIFEST).unlink()
    (target / MANIFEST).write_text(manifest_of(target, "colors", "onnx-all", "2026-05-04").to_json())
    return target


def test_package_is_proved_again(archive):
    text = naiad("verify", archive)
    assert "holds: answers to 24 samples within the tolerances (largest differences: FEATURES " in text
    assert "figures are not comparable with the figures of the package:\n  processor is " in text
    assert "served at the optimization: 1,800/s at concurrency 16" in text
    assert "ms when packaged" in text


def test_quick_verification_measures_nothing(folder):
    found = json.loads(naiad("verify", folder, "--json", "--quick"))
    assert (found["holds"], found["verification"]["measured"]) == (True, None)
    assert found["verification"]["verdict"]["samples"] == 24


def test_changed_byte_ends_with_its_name(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "changed")
    file = tmp_path / "changed/1/model.onnx"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    assert "refused, its content is not what was packaged\n  1/model.onnx has changed" in naiad(
        "verify", tmp_path / "changed", status=1
    )


def test_other_answers_are_named(folder, tmp_path):
    other = VISION.edited(models.wrong_epsilon).SerializeToString()
    found = package.verify(forged(folder, tmp_path / "forged", **{"1/model.onnx": other}), is_quick=True)
    assert not found.holds
    assert "PROBABILITIES" in {failure.output for failure in found.verdict.failures}


def test_model_that_does_not_load_is_named(folder, tmp_path):
    found = package.verify(forged(folder, tmp_path / "forged", **{"1/model.onnx": b"none"}), is_quick=True)
    assert (found.holds, found.verdict) == (False, None)
    assert "colors" in found.error


def test_damaged_evidence_is_refused(folder, tmp_path):
    path = forged(folder, tmp_path / "forged", **{"evidence/tolerances.json": b"{}"})
    assert package.verify(path).problems == [
        "its evidence is not complete: RecordFieldError: field 'precision' is missing"
    ]


def test_path_without_package_is_bad_usage(tmp_path):
    assert "is no package of naiad optimize" in naiad("verify", tmp_path, status=2)


def test_answers_of_a_metric_are_proved(tmp_path):
    made = result(tmp_path / "files", VISION.edited(models.dropped_softmax))
    budget = Budget("accuracy", 0.01, Labels("PROBABILITIES", [0] * len(VISION.samples)))
    target = write(tmp_path, "metric", made=made, settings=Settings(budget=budget))
    assert read_evidence(target / "evidence").expectation.own == ["PROBABILITIES"]
    assert package.verify(target, is_quick=True).holds
