"""Packages of real models: written, judged as naiad serves them, refused when a byte differs."""

import json
from dataclasses import replace
from pathlib import Path

import onnx
import onnxruntime
import pytest

from naiad.optimizer import package
from naiad.optimizer.candidate import Precision, Status
from naiad.optimizer.correctness.runner import CallableRunner
from naiad.optimizer.correctness.settings import Budget, Settings
from naiad.optimizer.package.contents import opened
from naiad.optimizer.package.evidence import read_evidence
from naiad.optimizer.source import Labels
from support import optimizer_results as results
from support import sabotaged_conversions as models

VISION = models.vision()
CONFIG = 'name: "colors" backend: "onnxruntime" max_batch_size: 8 dynamic_batching { }\n'


def source():
    session = onnxruntime.InferenceSession(VISION.proto.SerializeToString())
    names = [each.name for each in session.get_outputs()]
    return CallableRunner(lambda inputs: dict(zip(names, session.run(None, dict(inputs)), strict=True)))


def result(folder: Path, proto=VISION.proto, **changes):
    """Return an optimization of the vision model whose winner has the graph `proto`."""
    folder.mkdir(parents=True)
    onnx.save(proto, folder / "model.onnx")
    winner = results.outcome("onnx-all", folder=folder, latency_us=900, throughput=2000, is_served=True)
    made = results.result(replace(winner, **changes), winner="onnx-all")
    return replace(made, source=replace(made.source, inputs=(), outputs=(), name="colors"))


def write(tmp_path, name="colors.zip", made=None, **changes):
    made = made or result(tmp_path / f"files-{name}")
    return package.write(
        made, VISION.samples, CONFIG, tmp_path / name, source=source(), **{"profile_s": 0.1, **changes}
    )


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


def test_metric_is_judged_by_own_answers(tmp_path):
    made = result(tmp_path / "files", VISION.edited(models.dropped_softmax))
    budget = Budget("accuracy", 0.01, Labels("PROBABILITIES", [0] * len(VISION.samples)))
    target = write(tmp_path, "metric", made=made, settings=Settings(budget=budget))
    assert read_evidence(target / "evidence").expectation.own == ["PROBABILITIES"]


def test_share_of_first_classes_fits_few_samples(tmp_path):
    made = result(tmp_path / "files")
    winner = made.outcomes[0]
    int8 = replace(winner, candidate=replace(winner.candidate, precision=Precision.INT8))
    target = write(tmp_path, "int8", made=replace(made, outcomes=[int8]))
    tolerance = read_evidence(target / "evidence").expectation.tolerances["PROBABILITIES"]
    assert tolerance.top1_agreement == pytest.approx(23 / 24)
