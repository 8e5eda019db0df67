"""Forests at their own thresholds: conversions that compare as the source does are accepted, others are not."""

import numpy as np
import pytest

from naiad.tools.optimize.candidate import Conversion
from naiad.tools.optimize.converters.conversion_plan import candidates, installed_packages
from naiad.tools.optimize.converters.conversions import Converter
from naiad.tools.optimize.correctness.judgement_settings import Settings
from naiad.tools.optimize.correctness.runners.isolated import CandidateLimits
from naiad.tools.optimize.samples.sample_reader import ArraySamples, digest, shape_ranges
from naiad.tools.optimize.sources import open_source, reference_runner
from naiad.tools.optimize.steps.judging import Judge
from naiad.tools.optimize.steps.step_journal import StepJournal
from support.conversions_here import forked_conversions
from support.long_run import mostly_long

RANDOM = np.random.default_rng(6)
LABELS = RANDOM.normal(size=300)
ROWS = (RANDOM.normal(size=(300, 3)) * 100).astype(np.float32)
KINDS = {"real": ROWS, "whole": np.round(ROWS * 50)}


@pytest.fixture
def forest(request, tmp_path):
    """Return what trains on rows and writes a model file."""

    def write(rows):
        targets = rows[:, 0] / 100 + (rows[:, 1] > 20) + LABELS
        if request.param == "xgboost":
            import xgboost

            path = tmp_path / "forest.ubj"
            xgboost.train({"max_depth": 3}, xgboost.DMatrix(rows, targets), 8).save_model(path)
        elif request.param == "lightgbm":
            import lightgbm

            path = tmp_path / "forest.txt"
            data = lightgbm.Dataset(rows, targets)
            lightgbm.train({"verbose": -1, "num_threads": 1, "min_data_in_leaf": 4}, data, 8).save_model(path)
        else:
            import joblib
            from sklearn.ensemble import GradientBoostingRegressor
            from sklearn.pipeline import make_pipeline
            from sklearn.preprocessing import StandardScaler

            path = tmp_path / "forest.joblib"
            model = make_pipeline(StandardScaler(), GradientBoostingRegressor(n_estimators=8, random_state=0))
            joblib.dump(model.fit(rows.astype(np.float64), targets), path)
        return path

    write.library = request.param
    return write


def judged(path, rows, folder, change=None):
    """Return the verdicts on all conversions of a file, by name; `change` changes the files of each."""
    source = open_source(path, samples=ArraySamples({"#0": rows}, ()), allow_pickle=True)
    name = source.inputs[0].name
    samples = ArraySamples({name: rows}, source.inputs, source.has_batch)
    answers = reference_runner(source, folder)
    judge = Judge(
        source, answers, samples, digest(samples), Settings(), CandidateLimits(), StepJournal(folder / "steps")
    )
    planned = candidates(source, shape_ranges(samples, has_batch=source.has_batch), installed_packages())
    wanted = [each for each in planned if each.name in ("onnx-fp32", "treelite") and not each.not_run]
    found = {}
    try:
        with forked_conversions("onnxruntime"):
            for conversion in Converter.open(source, samples, folder / "work").convert_all(wanted):
                if conversion.status.value == "converted" and (change is None or change(conversion)):
                    found[conversion.candidate.name] = judge.verdict(conversion)[0]
    finally:
        answers.close()
    return found


@pytest.mark.parametrize(
    ("forest", "kind"),
    [
        pytest.param("xgboost", "real", marks=pytest.mark.long),
        ("xgboost", "whole"),
        ("lightgbm", "whole"),
        ("scaled", "real"),
    ],
    indirect=["forest"],
)
def test_faithful_forest_is_accepted_at_its_thresholds(forest, kind, tmp_path):
    rows = KINDS[kind] if forest.library != "scaled" else KINDS[kind].astype(np.float64)
    found = judged(forest(KINDS[kind]), rows[:60], tmp_path / "work")
    assert found
    assert {name: [each.message for each in verdict.failures] for name, verdict in found.items()} == {
        name: [] for name in found
    }


def or_equal(conversion: Conversion) -> bool:
    """Write `<=` for `<` in a graph of ONNX."""
    import onnx

    file = conversion.folder / "model.onnx"
    if not file.exists():
        return False
    graph = onnx.load(file)
    for node in graph.graph.node:
        for attribute in node.attribute:
            if attribute.name == "nodes_modes":
                strings = [b"BRANCH_LEQ" if each == b"BRANCH_LT" else each for each in attribute.strings]
                assert strings != list(attribute.strings)
                attribute.strings[:] = strings
    onnx.save(graph, file)
    return True


@pytest.mark.parametrize("forest", ["xgboost"], indirect=True)
@pytest.mark.parametrize("kind", mostly_long(KINDS, "real".__eq__))
def test_other_side_at_a_threshold_is_rejected(forest, kind, tmp_path):
    """Thresholds of XGBoost are numbers that it was trained with; these samples are other ones."""
    rows = (np.random.default_rng(7).normal(size=(60, 3)) * 100).astype(np.float32)
    rows = np.round(rows * 50) if kind == "whole" else rows
    (found,) = judged(forest(KINDS[kind]), rows, tmp_path / "work", or_equal).values()
    assert "values exactly at thresholds" in found.failures[0].message
