"""Forests: every engine computes what the library that trained the model predicts."""

import lightgbm
import numpy as np
import pytest
import treelite
import xgboost
from sklearn.ensemble import (
    GradientBoostingClassifier,
    IsolationForest,
    RandomForestClassifier,
    RandomForestRegressor,
)

from support.forests import CANCER, DIABETES, DIGITS, load_forest, parameters, predict, rows, train_xgboost

ENGINES = ("auto", "treelite")


def lightgbm_model(data, **settings):
    options = {"num_threads": 1, "verbosity": -1, "max_depth": 4, **settings}
    return lightgbm.train(options, lightgbm.Dataset(data.data, data.target), 5)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("filename", ["xgboost.json", "xgboost.ubj"])
@pytest.mark.parametrize(
    ("data", "settings"),
    [
        (CANCER, {"objective": "binary:logistic"}),
        (CANCER, {"objective": "binary:logitraw"}),
        (CANCER, {"objective": "binary:hinge"}),
        (DIGITS, {"objective": "multi:softprob", "num_class": 10}),
        (DIABETES, {"objective": "reg:squarederror", "base_score": 7.5}),
        (DIABETES, {"objective": "count:poisson"}),
        (DIABETES, {"objective": "reg:squarederror", "booster": "dart", "rate_drop": 0.5}),
    ],
)
def test_xgboost_scores_equal_its_own(tmp_path, engine, filename, data, settings):
    booster = train_xgboost(data, **settings)
    booster.save_model(tmp_path / filename)
    table = rows(data)
    found = predict(load_forest(tmp_path, parameters(engine=engine)), table)
    wanted = booster.inplace_predict(table).reshape(len(table), -1)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("engine", ENGINES)
def test_softmax_has_probabilities_and_class(tmp_path, engine):
    booster = train_xgboost(DIGITS, objective="multi:softmax", num_class=10)
    booster.save_model(tmp_path / "xgboost.json")
    table = rows(DIGITS)
    probabilities = predict(load_forest(tmp_path, parameters(engine=engine)), table)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-5)
    labels = predict(load_forest(tmp_path, parameters(engine=engine, output_class="true")), table)
    np.testing.assert_array_equal(labels[:, 0], booster.inplace_predict(table))


@pytest.mark.parametrize("engine", ENGINES)
def test_ranking_scores_equal_its_own(tmp_path, engine):
    matrix = xgboost.DMatrix(DIABETES.data, DIABETES.target > 140, qid=np.repeat(np.arange(34), 13))
    booster = xgboost.train({"objective": "rank:pairwise", "nthread": 1}, matrix, 5)
    booster.save_model(tmp_path / "xgboost.json")
    found = predict(load_forest(tmp_path, parameters(engine=engine)), rows(DIABETES))
    np.testing.assert_allclose(found[:, 0], booster.inplace_predict(rows(DIABETES)), rtol=1e-5, atol=1e-6)


def test_scores_of_several_labels_equal_its_own(tmp_path):
    labels = np.stack([CANCER.target, 1 - CANCER.target], 1)
    booster = xgboost.train({"objective": "binary:logistic", "nthread": 1}, xgboost.DMatrix(CANCER.data, labels), 5)
    booster.save_model(tmp_path / "xgboost.json")
    found = predict(load_forest(tmp_path), rows(CANCER))
    np.testing.assert_allclose(found, booster.inplace_predict(rows(CANCER)), rtol=1e-5)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("data", "settings"),
    [
        (CANCER, {"objective": "binary"}),
        (DIGITS, {"objective": "multiclass", "num_class": 10}),
        (DIABETES, {"objective": "regression"}),
        (CANCER, {"objective": "binary", "boosting": "rf", "bagging_freq": 1, "bagging_fraction": 0.5}),
    ],
)
def test_lightgbm_scores_equal_its_own(tmp_path, engine, data, settings):
    booster = lightgbm_model(data, **settings)
    booster.save_model(tmp_path / "model.txt")
    table = rows(data)
    found = predict(load_forest(tmp_path, parameters(engine=engine)), table)
    np.testing.assert_allclose(found, booster.predict(table).reshape(len(table), -1), rtol=1e-5)


@pytest.mark.parametrize("engine", ENGINES)
def test_lightgbm_ranking_equals_its_own(tmp_path, engine):
    labels = (DIABETES.target > 140).astype(int)
    data = lightgbm.Dataset(DIABETES.data, labels, group=[13] * 34)
    booster = lightgbm.train({"objective": "lambdarank", "num_threads": 1, "verbosity": -1}, data, 5)
    booster.save_model(tmp_path / "model.txt")
    found = predict(load_forest(tmp_path, parameters(engine=engine)), rows(DIABETES))
    np.testing.assert_allclose(found[:, 0], booster.predict(rows(DIABETES)), rtol=1e-5)


@pytest.mark.parametrize("engine", ENGINES)
def test_categorical_splits_equal_their_own(tmp_path, engine):
    generator = np.random.default_rng(0)
    table = np.stack([generator.integers(0, 6, 300), generator.normal(size=300)], 1).astype(np.float32)
    target = np.isin(table[:, 0], (1, 4)) ^ (table[:, 1] > 0)
    booster = lightgbm.train(
        {"objective": "binary", "num_threads": 1, "verbosity": -1},
        lightgbm.Dataset(table, target, categorical_feature=[0]),
        5,
    )
    booster.save_model(tmp_path / "model.txt")
    found = predict(load_forest(tmp_path, parameters(engine=engine)), table)
    np.testing.assert_allclose(found[:, 0], booster.predict(table), rtol=1e-5)
    matrix = xgboost.DMatrix(table, target, feature_types=["c", "q"], enable_categorical=True)
    other = xgboost.train({"objective": "binary:logistic", "nthread": 1, "max_cat_to_onehot": 1}, matrix, 5)
    (tmp_path / "model.txt").unlink()
    other.save_model(tmp_path / "xgboost.json")
    found = predict(load_forest(tmp_path, parameters(engine=engine)), table)
    np.testing.assert_allclose(found[:, 0], other.predict(matrix), rtol=1e-5)


@pytest.mark.parametrize(
    ("estimator", "data", "method"),
    [
        (RandomForestClassifier(5, random_state=0), DIGITS, "predict_proba"),
        (RandomForestClassifier(5, random_state=0), CANCER, "predict_proba"),
        (RandomForestRegressor(5, random_state=0), DIABETES, "predict"),
        (GradientBoostingClassifier(n_estimators=5), CANCER, "predict_proba"),
    ],
)
def test_forests_of_scikit_learn_equal_its_own(tmp_path, estimator, data, method):
    table = data.data.astype(np.float32)
    estimator.fit(table, data.target)
    treelite.sklearn.import_model(estimator).serialize(str(tmp_path / "checkpoint.tl"))
    flags = parameters(predict_proba="true") if method == "predict_proba" else ""
    found = predict(load_forest(tmp_path, flags), table[:30])
    wanted = getattr(estimator, method)(table[:30]).reshape(30, -1)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_binary_forest_has_one_score(tmp_path):
    forest = RandomForestClassifier(5, random_state=0).fit(CANCER.data, CANCER.target)
    treelite.sklearn.import_model(forest).serialize(str(tmp_path / "checkpoint.tl"))
    found = predict(load_forest(tmp_path), CANCER.data[:9].astype(np.float32))
    np.testing.assert_allclose(found[:, 0], forest.predict_proba(CANCER.data[:9].astype(np.float32))[:, 1], rtol=1e-6)


def test_isolation_forest_is_no_classifier(tmp_path):
    forest = IsolationForest(n_estimators=5, random_state=0).fit(CANCER.data)
    treelite.sklearn.import_model(forest).serialize(str(tmp_path / "checkpoint.tl"))
    found = predict(load_forest(tmp_path), CANCER.data[:9].astype(np.float32))
    np.testing.assert_allclose(found[:, 0], -forest.score_samples(CANCER.data[:9]), rtol=1e-5)


@pytest.mark.parametrize("threshold", [0.2, 0.5, 0.9])
def test_threshold_decides_the_class(tmp_path, threshold):
    booster = train_xgboost(CANCER, objective="binary:logistic")
    booster.save_model(tmp_path / "xgboost.json")
    model = load_forest(tmp_path, parameters(output_class="true", threshold=str(threshold)))
    wanted = booster.inplace_predict(rows(CANCER)) > threshold
    np.testing.assert_array_equal(predict(model, rows(CANCER))[:, 0], wanted)


def test_probabilities_of_two_classes_sum_to_one(tmp_path):
    booster = train_xgboost(CANCER, objective="binary:logistic")
    booster.save_model(tmp_path / "xgboost.json")
    found = predict(load_forest(tmp_path, parameters(predict_proba="true", output_class="true")), rows(CANCER))
    score = booster.inplace_predict(rows(CANCER))
    np.testing.assert_allclose(found, np.stack([1 - score, score], 1), rtol=1e-6)


SHAP = 'output { name: "treeshap_output" }'


@pytest.mark.parametrize("library", ["xgboost", "lightgbm"])
@pytest.mark.parametrize("class_count", [1, 10])
def test_shap_values_sum_to_the_margin(tmp_path, library, class_count):
    data = DIGITS if class_count > 1 else DIABETES
    table = rows(data)
    if library == "xgboost":
        settings = {"objective": "multi:softprob", "num_class": 10} if class_count > 1 else {}
        booster = train_xgboost(data, **settings)
        booster.save_model(tmp_path / "xgboost.json")
        margin = booster.inplace_predict(table, predict_type="margin")
    else:
        settings = {"objective": "multiclass", "num_class": 10} if class_count > 1 else {"objective": "regression"}
        booster = lightgbm_model(data, **settings)
        booster.save_model(tmp_path / "model.txt")
        margin = booster.predict(table, raw_score=True)
    found = predict(load_forest(tmp_path, SHAP), table, "treeshap_output")
    features = data.data.shape[1] + 1
    assert found.shape == ((20, features) if class_count == 1 else (20, 10, features))
    np.testing.assert_allclose(found.sum(axis=-1), margin, rtol=1e-4, atol=1e-4)
