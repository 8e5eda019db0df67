"""Forests: every attribute of a file counts as in the library that trained the model, or the file is refused."""

import json

import lightgbm
import numpy as np
import pandas
import pytest
import xgboost

from naiad.backend.trees.backend import TreesBackend
from naiad.config.tensors.features import read_features
from naiad.core.errors import ErrorCode, InferError
from support.forests import CANCER, DIABETES, DIGITS, context_of, load_forest, parameters, predict

ENGINES = ("auto", "treelite")
GENERATOR = np.random.default_rng(0)
HOLES = np.where(GENERATOR.random(CANCER.data.shape) < 0.2, np.nan, CANCER.data)
ZEROS = np.where(GENERATOR.random(CANCER.data.shape) < 0.3, 0, HOLES)
CODES = np.stack([GENERATOR.integers(0, 40, 569), CANCER.data[:, 0], GENERATOR.integers(0, 5, 569)], 1)
CODE_LABELS = (np.isin(CODES[:, 0], range(0, 40, 3)) ^ (CODES[:, 1] > 14)).astype(int)
ROWS = 150


def refusal(directory, config=""):
    with pytest.raises(InferError) as raised:
        load_forest(directory, config)
    assert raised.value.code is ErrorCode.INVALID_ARG
    return raised.value.message


# --- XGBoost --------------------------------------------------------------------------------------------------------


def stopped_early(kind=xgboost.XGBClassifier, data=CANCER, **settings):
    """A wrapper whose last rounds make it worse."""
    model = kind(
        n_estimators=40, early_stopping_rounds=3, learning_rate=0.9, max_depth=3, n_jobs=1, random_state=0, **settings
    )
    half = len(data.data) // 3
    model.fit(data.data[:half], data.target[:half], eval_set=[(data.data[half:], data.target[half:])], verbose=False)
    assert model.best_iteration + 1 < model.get_booster().num_boosted_rounds()
    return model


WRAPPERS = {
    "classifier": stopped_early,
    "classes": lambda: stopped_early(data=DIGITS),
    "softmax": lambda: stopped_early(data=DIGITS, objective="multi:softmax"),
    "regressor": lambda: stopped_early(xgboost.XGBRegressor, DIABETES),
    "dart": lambda: stopped_early(booster="dart", rate_drop=0.3),
    "several trees": lambda: stopped_early(num_parallel_tree=2, subsample=0.7),
    "quantiles": lambda: stopped_early(
        xgboost.XGBRegressor, DIABETES, objective="reg:quantileerror", quantile_alpha=[0.1, 0.9]
    ),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("filename", ["xgboost.json", "xgboost.ubj"])
@pytest.mark.parametrize("name", WRAPPERS)
def test_early_stopping_counts_as_in_the_wrapper(tmp_path, name, filename, engine):
    model = WRAPPERS[name]()
    model.save_model(tmp_path / filename)
    data = DIABETES if isinstance(model, xgboost.XGBRegressor) else DIGITS if model.n_features_in_ == 64 else CANCER
    table = data.data[:ROWS].astype(np.float32)
    method = "predict" if data is DIABETES else "predict_proba"
    flags = {} if data is DIABETES else {"predict_proba": "true"}
    found = predict(load_forest(tmp_path, parameters(engine=engine, **flags)), table)
    wanted = getattr(model, method)(table).reshape(ROWS, -1)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("engine", ENGINES)
def test_booster_file_predicts_with_all_rounds(tmp_path, engine):
    train, test = (xgboost.DMatrix(CANCER.data[part], CANCER.target[part]) for part in (slice(150), slice(150, 569)))
    options = {"objective": "binary:logistic", "eta": 0.9, "nthread": 1}
    booster = xgboost.train(options, train, 40, evals=[(test, "test")], early_stopping_rounds=3, verbose_eval=False)
    booster.save_model(tmp_path / "xgboost.json")
    table = CANCER.data[:ROWS].astype(np.float32)
    every = booster.predict(xgboost.DMatrix(table))
    best = booster.predict(xgboost.DMatrix(table), iteration_range=(0, booster.best_iteration + 1))
    assert np.abs(every - best).max() > 0.01
    for choice, wanted in (("auto", every), ("false", every), ("true", best)):
        found = predict(load_forest(tmp_path, parameters(engine=engine, best_iteration=choice)), table)
        np.testing.assert_allclose(found[:, 0], wanted, rtol=1e-5)


def test_best_iteration_can_be_switched_off(tmp_path):
    model = stopped_early()
    model.save_model(tmp_path / "xgboost.json")
    table = CANCER.data[:ROWS].astype(np.float32)
    found = predict(load_forest(tmp_path, parameters(best_iteration="false")), table)
    np.testing.assert_allclose(found[:, 0], model.get_booster().inplace_predict(table), rtol=1e-5)


@pytest.mark.parametrize("engine", ENGINES)
def test_slice_below_the_best_round_is_refused(tmp_path, engine):
    model = stopped_early()
    part = model.get_booster()[: model.best_iteration]
    part.set_attr(best_iteration=str(model.best_iteration), scikit_learn='{"_estimator_type": "classifier"}')
    part.save_model(tmp_path / "xgboost.ubj")
    said = refusal(tmp_path, parameters(engine=engine))
    assert f"has the attribute best_iteration {model.best_iteration}, but only {model.best_iteration} rounds" in said
    table = CANCER.data[:ROWS].astype(np.float32)
    found = predict(load_forest(tmp_path, parameters(engine=engine, best_iteration="false")), table)
    np.testing.assert_allclose(found[:, 0], part.inplace_predict(table), rtol=1e-5)


def test_shap_values_count_the_best_rounds(tmp_path):
    model = stopped_early()
    model.save_model(tmp_path / "xgboost.json")
    forest = load_forest(tmp_path, 'output { name: "output__0" } output { name: "treeshap_output" }')
    table = CANCER.data[:9].astype(np.float32)
    margins = model.predict(table, output_margin=True)
    np.testing.assert_allclose(predict(forest, table, "treeshap_output").sum(axis=1), margins, rtol=1e-4)


def test_file_without_best_round_is_refused_with_parameter(tmp_path):
    xgboost.XGBClassifier(n_estimators=2).fit(CANCER.data, CANCER.target).save_model(tmp_path / "xgboost.json")
    assert "has no attribute best_iteration" in refusal(tmp_path, parameters(best_iteration="true"))
    (tmp_path / "xgboost.json").unlink()
    data = lightgbm.Dataset(CANCER.data, CANCER.target)
    lightgbm.train({"verbosity": -1}, data, 2).save_model(tmp_path / "model.txt")
    assert "does not say the best round" in refusal(tmp_path, parameters(best_iteration="true"))


@pytest.mark.parametrize("engine", ENGINES)
def test_missing_value_is_a_parameter(tmp_path, engine):
    table = np.where(np.isnan(HOLES), -999, HOLES).astype(np.float32)
    model = xgboost.XGBClassifier(n_estimators=6, missing=-999, n_jobs=1).fit(table, CANCER.target)
    model.save_model(tmp_path / "xgboost.json")
    found = predict(load_forest(tmp_path, parameters(missing="-999", engine=engine)), table[:ROWS])
    np.testing.assert_allclose(found[:, 0], model.predict_proba(table[:ROWS])[:, 1], rtol=1e-5)


@pytest.mark.parametrize("engine", ENGINES)
def test_state_of_early_wrappers_is_applied(tmp_path, engine):
    """XGBoost before 1.7 stores the labels and `missing` of a wrapper in its file."""
    table = np.where(np.isnan(HOLES), -7, HOLES).astype(np.float32)
    model = xgboost.XGBClassifier(n_estimators=6, missing=-7, n_jobs=1).fit(table, CANCER.target)
    booster = model.get_booster()
    state = {"missing": -7, "classes_": [3, 8], "_le": {"classes_": [3, 8]}, "_estimator_type": "classifier"}
    booster.set_attr(scikit_learn=json.dumps(state))
    booster.save_model(tmp_path / "xgboost.json")
    found = predict(load_forest(tmp_path, parameters(engine=engine)), table[:ROWS])
    np.testing.assert_allclose(found[:, 0], model.predict_proba(table[:ROWS])[:, 1], rtol=1e-5)
    labels = predict(load_forest(tmp_path, parameters(engine=engine, output_class="true")), table[:ROWS])
    np.testing.assert_array_equal(labels[:, 0], np.array([3, 8])[model.predict(table[:ROWS])])
    booster.set_attr(scikit_learn=json.dumps({**state, "classes_": ["no", "yes"], "_le": None}))
    booster.save_model(tmp_path / "xgboost.json")
    assert "the classes of the model are texts (no, yes)" in refusal(tmp_path, parameters(output_class="true"))


def xgboost_model(data, target, matrix=None, **settings):
    return data, xgboost.train({"nthread": 1, **settings}, xgboost.DMatrix(data, target, **(matrix or {})), 6)


def survival_model():
    matrix = xgboost.DMatrix(DIABETES.data)
    matrix.set_float_info("label_lower_bound", DIABETES.target)
    matrix.set_float_info("label_upper_bound", DIABETES.target + 9)
    return DIABETES.data, xgboost.train({"nthread": 1, "objective": "survival:aft"}, matrix, 6)


TYPES = {"feature_types": ["c", "q", "c"], "enable_categorical": True}
PAIR = np.stack([DIABETES.target, -DIABETES.target], 1)
XGBOOST = {
    "base score": lambda: xgboost_model(CANCER.data, CANCER.target, objective="binary:logistic", base_score=0.3),
    "dart of classes": lambda: xgboost_model(
        DIGITS.data, DIGITS.target, booster="dart", rate_drop=0.5, objective="multi:softprob", num_class=10
    ),
    "random forest": lambda: xgboost_model(
        CANCER.data, CANCER.target, objective="binary:logistic", num_parallel_tree=3, subsample=0.5
    ),
    "several targets": lambda: xgboost_model(DIABETES.data, PAIR),
    "vector leaves": lambda: xgboost_model(
        DIABETES.data, PAIR, multi_strategy="multi_output_tree", tree_method="hist"
    ),
    "vector leaves of classes": lambda: xgboost_model(
        DIGITS.data, DIGITS.target, objective="multi:softprob", num_class=10, multi_strategy="multi_output_tree"
    ),
    "categories": lambda: xgboost_model(
        CODES, CODE_LABELS, TYPES, objective="binary:logistic", max_cat_to_onehot=1
    ),
    "categories one by one": lambda: xgboost_model(
        CODES, CODE_LABELS, TYPES, objective="binary:logistic", max_cat_to_onehot=99
    ),
    "aft": survival_model,
    "quantiles": lambda: xgboost_model(
        DIABETES.data, DIABETES.target, objective="reg:quantileerror", quantile_alpha=[0.1, 0.5, 0.9]
    ),
    **{
        objective: lambda objective=objective: xgboost_model(
            DIABETES.data, DIABETES.target / 400, objective=objective
        )
        for objective in (
            "reg:squaredlogerror", "reg:gamma", "reg:tweedie", "reg:pseudohubererror", "reg:absoluteerror",
            "reg:logistic", "survival:cox",
        )
    },
}  # fmt: skip


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", XGBOOST)
def test_xgboost_file_predicts_as_its_library(tmp_path, name, engine):
    data, booster = XGBOOST[name]()
    booster.save_model(tmp_path / "xgboost.ubj")
    types = TYPES if name.startswith("categories") else {}
    table = data[:ROWS].astype(np.float32)
    found = predict(load_forest(tmp_path, parameters(engine=engine)), table)
    wanted = booster.predict(xgboost.DMatrix(table, **types)).reshape(ROWS, -1)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_several_labels_are_refused_by_treelite(tmp_path):
    _, booster = xgboost_model(CANCER.data, np.stack([CANCER.target] * 2, 1), objective="binary:logistic")
    booster.save_model(tmp_path / "xgboost.json")
    assert "is a classifier with 2 targets" in refusal(tmp_path, parameters(engine="treelite"))


# --- LightGBM -------------------------------------------------------------------------------------------------------


def lightgbm_model(data, target, dataset=None, **settings):
    options = {"num_threads": 1, "verbosity": -1, **settings}
    return data, lightgbm.train(options, lightgbm.Dataset(data, target, **(dataset or {})), 6)


def regression_model(**settings):
    return lightgbm_model(DIABETES.data, DIABETES.target, **settings)


def binary_model(data=CANCER.data, **settings):
    return lightgbm_model(data, CANCER.target, objective="binary", **settings)


def classes_model(**settings):
    return lightgbm_model(DIGITS.data, DIGITS.target, num_class=10, **settings)


LIGHTGBM = {
    "sigmoid": lambda: binary_model(sigmoid=2.0),
    "no average": lambda: binary_model(boost_from_average=False),
    "one against all": lambda: classes_model(objective="multiclassova", sigmoid=1.5),
    "random forest": lambda: binary_model(boosting="rf", bagging_freq=1, bagging_fraction=0.5),
    "random forest of classes": lambda: classes_model(
        objective="multiclass", boosting="rf", bagging_freq=1, bagging_fraction=0.5
    ),
    "dart": lambda: binary_model(boosting="dart", drop_rate=0.5),
    "extra trees": lambda: binary_model(extra_trees=True),
    "linear trees": lambda: regression_model(linear_tree=True),
    "linear trees with holes": lambda: binary_model(HOLES, linear_tree=True),
    "zero as missing": lambda: binary_model(ZEROS, zero_as_missing=True),
    "nothing missing": lambda: binary_model(HOLES, use_missing=False),
    "holes": lambda: binary_model(HOLES),
    "square root": lambda: regression_model(reg_sqrt=True),
    "cross entropy": lambda: lightgbm_model(CANCER.data, CANCER.target * 0.5 + 0.2, objective="cross_entropy"),
    "lambda": lambda: lightgbm_model(CANCER.data, CANCER.target * 0.5 + 0.2, objective="cross_entropy_lambda"),
    "categories": lambda: lightgbm_model(
        CODES, CODE_LABELS, {"categorical_feature": [0, 2]}, objective="binary", min_data_per_group=1
    ),
    "own objective": lambda: regression_model(
        objective=lambda scores, data: (scores - data.get_label(), np.ones(len(scores)))
    ),
    **{
        objective: lambda objective=objective: regression_model(objective=objective)
        for objective in ("regression_l1", "huber", "fair", "poisson", "quantile", "mape", "gamma", "tweedie")
    },
}
BEYOND_TREELITE = {
    "linear trees": "linear trees",
    "linear trees with holes": "linear trees",
    "zero as missing": "was trained with zero_as_missing, which treelite does not apply",
}
DOUBLE = 'input { name: "input__0" data_type: TYPE_FP64 } '


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", LIGHTGBM)
def test_lightgbm_file_predicts_as_its_library(tmp_path, name, engine):
    data, booster = LIGHTGBM[name]()
    booster.save_model(tmp_path / "model.txt")
    config = parameters(engine=engine) + DOUBLE
    if engine == "treelite" and name in BEYOND_TREELITE:
        assert BEYOND_TREELITE[name] in refusal(tmp_path, config)
        return
    found = predict(load_forest(tmp_path, config), data[:ROWS].astype(np.float64))
    wanted = booster.predict(data[:ROWS]).reshape(ROWS, -1)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_lightgbm_file_has_only_its_best_rounds(tmp_path):
    train = lightgbm.Dataset(CANCER.data[:150], CANCER.target[:150])
    test = lightgbm.Dataset(CANCER.data[150:], CANCER.target[150:], reference=train)
    options = {"num_threads": 1, "verbosity": -1, "objective": "binary", "learning_rate": 0.9}
    stop = lightgbm.early_stopping(3, verbose=False)
    booster = lightgbm.train(options, train, 60, valid_sets=[test], callbacks=[stop], keep_training_booster=True)
    assert booster.best_iteration < booster.current_iteration()
    booster.save_model(tmp_path / "model.txt")
    table = CANCER.data[:ROWS]
    found = predict(load_forest(tmp_path, DOUBLE), table)
    np.testing.assert_allclose(found[:, 0], booster.predict(table), rtol=1e-5)


# --- names ----------------------------------------------------------------------------------------------------------


def frame():
    return pandas.DataFrame(
        {
            "mean radius": CANCER.data[:, 0],
            "city": pandas.Categorical(np.array(["Oslo", "Rom", "Turin", "Wien"])[CODES[:, 2].astype(int) % 4]),
            "floor": pandas.Categorical((CODES[:, 0] % 3 + 5).astype(int)),
        }
    )


def features_of(directory):
    model = load_forest(directory)
    assert read_features(TreesBackend().auto_complete(context_of(directory))) == model.features
    return model.features


def test_xgboost_file_has_names_and_categories(tmp_path):
    model = xgboost.XGBClassifier(n_estimators=6, enable_categorical=True, n_jobs=1).fit(frame(), CANCER.target)
    model.save_model(tmp_path / "xgboost.json")
    found = features_of(tmp_path)
    assert tuple(found.names) == ("mean radius", "city", "floor")
    assert dict(found.categories) == {"city": ["Oslo", "Rom", "Turin", "Wien"], "floor": [5, 6, 7]}
    records = frame()[:ROWS].to_dict("records")
    table = np.array([found.record(record, "row") for record in records], np.float32)
    np.testing.assert_allclose(
        predict(load_forest(tmp_path), table)[:, 0], model.predict_proba(frame()[:ROWS])[:, 1], rtol=1e-5
    )


def test_names_that_xgboost_has_cut_are_missing(tmp_path):
    table = frame().rename(columns={"mean radius": "radius"})
    table["city"] = table["city"].cat.rename_categories({"Oslo": "Århus", "Rom": "Zürich"})
    model = xgboost.XGBClassifier(n_estimators=6, enable_categorical=True, n_jobs=1).fit(table, CANCER.target)
    model.save_model(tmp_path / "xgboost.json")
    assert dict(features_of(tmp_path).categories) == {"floor": [5, 6, 7]}
    rows = np.stack([table["radius"], table["city"].cat.codes, table["floor"].cat.codes], 1)[:ROWS]
    found = predict(load_forest(tmp_path), rows.astype(np.float32))
    np.testing.assert_allclose(found[:, 0], model.predict_proba(table[:ROWS])[:, 1], rtol=1e-5)


def test_lightgbm_file_has_names_and_categories(tmp_path):
    model = lightgbm.LGBMClassifier(n_estimators=6, n_jobs=1, verbosity=-1).fit(frame(), CANCER.target)
    model.booster_.save_model(tmp_path / "model.txt")
    found = features_of(tmp_path)
    assert tuple(found.names) == ("mean_radius", "city", "floor")
    records = frame()[:ROWS].to_dict("records")
    table = np.array([found.record(record, "row") for record in records])
    np.testing.assert_allclose(
        predict(load_forest(tmp_path, DOUBLE), table)[:, 0],
        model.predict_proba(frame()[:ROWS])[:, 1],
        rtol=1e-5,
    )


def test_files_trained_on_arrays_have_no_names(tmp_path):
    lightgbm_model(CANCER.data, CANCER.target)[1].save_model(tmp_path / "model.txt")
    assert not features_of(tmp_path).names
    (tmp_path / "model.txt").unlink()
    xgboost_model(CANCER.data, CANCER.target)[1].save_model(tmp_path / "xgboost.json")
    assert not features_of(tmp_path).names
