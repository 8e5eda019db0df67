"""Estimators trained on DataFrames: every kind of column loads without a configuration and gives the same numbers."""

import lightgbm
import numpy as np
import pandas
import pytest
import xgboost
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor, VotingClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.multioutput import MultiOutputClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, OrdinalEncoder, StandardScaler, TargetEncoder
from sklearn.tree import DecisionTreeClassifier

from naiad.backend.sklearn.backend import SklearnBackend
from naiad.backend.sklearn.columns import text_of
from naiad.config.tensors.features import read_features
from naiad.core.datatype import DataType
from naiad.core.errors import InferError
from support.estimators import context_of, load_estimator, run
from support.forests import parameters

N = 120
GENERATOR = np.random.default_rng(0)
OBJECTS = pandas.DataFrame(
    {
        "age": GENERATOR.normal(40, 9, N),
        "kids": GENERATOR.integers(0, 5, N),
        "city": GENERATOR.choice(["Oslo", "Rome", "Wien"], N).astype(object),
        "is_member": GENERATOR.random(N) > 0.5,
    }
)
BUYS = ((OBJECTS.age > 40) ^ (OBJECTS.city == "Rome")).astype(int)
CATEGORIES = OBJECTS.assign(city=OBJECTS.city.astype("category"), kids=OBJECTS.kids.astype("Int64"))
NUMBERED = CATEGORIES.assign(kids=OBJECTS.kids.astype("category"))
STRINGS = OBJECTS.assign(city=OBJECTS.city.astype("string"))
HOLES = CATEGORIES.copy()
HOLES.loc[3, "age"] = np.nan
HOLES.loc[5, "city"] = np.nan
HOLES.loc[6, "kids"] = pandas.NA
OBJECT_HOLES = HOLES.assign(city=HOLES.city.astype(object))
RANKS = OBJECTS[["age"]].assign(
    rank=pandas.Categorical(
        GENERATOR.choice(["low", "mid", "top"], N), categories=["low", "mid", "top"], ordered=True
    )
)
FLAGS = OBJECTS[["age"]].assign(is_member=OBJECTS.is_member.astype("category"))
TOWNS = OBJECTS[["age"]].assign(town=pandas.Categorical(GENERATOR.choice(["Zürich", "東京", "Łódź"], N)))
DAYS = OBJECTS[["age"]].assign(
    day=pandas.Categorical(pandas.to_datetime(GENERATOR.choice(["2024-01-01", "2024-02-01"], N)))
)
SPANS = OBJECTS[["age"]].assign(span=pandas.cut(OBJECTS.age, 3))
DATES = pandas.DataFrame({"when": pandas.to_datetime("2024-01-01") + pandas.to_timedelta(np.arange(N) * 9, unit="D")})


def boosted(**settings):
    return HistGradientBoostingClassifier(max_iter=5, **settings)


def xgb(**settings):
    return xgboost.XGBClassifier(n_estimators=5, n_jobs=1, enable_categorical=True, **settings)


def lgb():
    return lightgbm.LGBMClassifier(n_estimators=5, n_jobs=1, verbosity=-1)


def encoded(encoder, columns=("city",)):
    return make_pipeline(
        make_column_transformer((encoder, list(columns)), remainder="passthrough"), LogisticRegression()
    )


def behind_a_table(estimator):
    """A step before it passes the columns on as a table."""
    first = make_column_transformer(("passthrough", ["age", "city"])).set_output(transform="pandas")
    return make_pipeline(first, estimator)


def month(frame):
    return frame.assign(when=frame["when"].dt.month)


def negated(frame):
    return frame.assign(is_member=~frame["is_member"])


ESTIMATORS = {
    "boosting from dtype": (lambda: boosted(categorical_features="from_dtype"), CATEGORIES),
    "boosting with holes": (lambda: boosted(categorical_features="from_dtype"), HOLES),
    "boosting of numbered categories": (lambda: boosted(categorical_features="from_dtype"), NUMBERED),
    "boosting by name": (lambda: boosted(categorical_features=["city"]), STRINGS),
    "boosting regression": (
        lambda: HistGradientBoostingRegressor(categorical_features="from_dtype", max_iter=5),
        CATEGORIES,
    ),
    "xgboost": (xgb, CATEGORIES),
    "xgboost with holes": (xgb, HOLES),
    "xgboost of numbered categories": (xgb, NUMBERED),
    "xgboost with missing": (lambda: xgb(missing=0), CATEGORIES.drop(columns="kids")),
    "lightgbm": (lgb, CATEGORIES),
    "lightgbm with holes": (lgb, HOLES),
    "lightgbm of numbered categories": (lgb, NUMBERED),
    "lightgbm of ordered categories": (lgb, RANKS),
    "lightgbm of flags": (lgb, FLAGS),
    "xgboost of ordered categories": (xgb, RANKS),
    "lightgbm of any text": (lgb, TOWNS),
    "boosting of any text": (lambda: boosted(categorical_features="from_dtype"), TOWNS),
    "xgboost behind a table": (lambda: behind_a_table(xgb()), CATEGORIES),
    "lightgbm behind a table": (lambda: behind_a_table(lgb()), CATEGORIES),
    "boosting of days": (lambda: boosted(categorical_features="from_dtype"), DAYS),
    "boosting of spans": (lambda: boosted(categorical_features="from_dtype"), SPANS),
    "ordinal encoder": (lambda: encoded(OrdinalEncoder()), STRINGS),
    "encoder of flags": (lambda: encoded(OneHotEncoder(drop="if_binary"), ["city", "is_member"]), STRINGS),
    "target encoder": (lambda: encoded(TargetEncoder()), STRINGS),
    "encoder of missing text": (
        lambda: make_pipeline(
            make_column_transformer((OneHotEncoder(), ["city"]), (SimpleImputer(), ["age"])), LogisticRegression()
        ),
        OBJECT_HOLES,
    ),
    "imputer of text": (
        lambda: make_pipeline(
            make_column_transformer(
                (make_pipeline(SimpleImputer(strategy="most_frequent"), OneHotEncoder()), ["city"]),
                (SimpleImputer(), ["age", "kids"]),
            ),
            LogisticRegression(),
        ),
        OBJECT_HOLES,
    ),
    "selector of categories": (
        lambda: make_pipeline(
            make_column_transformer(
                (OneHotEncoder(), make_column_selector(dtype_include="category")), remainder="passthrough"
            ),
            LogisticRegression(),
        ),
        CATEGORIES,
    ),
    "vote": (lambda: VotingClassifier([("a", encoded(OneHotEncoder()))], voting="soft"), STRINGS),
    "calibration": (lambda: CalibratedClassifierCV(encoded(OneHotEncoder()), cv=2), STRINGS),
    "numbers": (lambda: make_pipeline(StandardScaler(), LogisticRegression()), OBJECTS[["age", "kids"]]),
    "dates": (lambda: make_pipeline(FunctionTransformer(month), LogisticRegression()), DATES),
    "negated flags": (
        lambda: make_pipeline(FunctionTransformer(negated), LogisticRegression()),
        OBJECTS[["age", "is_member"]],
    ),
}


def tensors(model, frame):
    """The columns of a frame as a client sends them."""
    result = {}
    for name, signature in model.inputs.signatures.items():
        column = frame[name]
        if signature.datatype is DataType.BYTES:
            values = ["" if pandas.isna(value) else text_of(value) for value in column]
            result[name] = np.array([[value.encode()] for value in values], object)
        elif signature.datatype is DataType.BOOL:
            result[name] = column.to_numpy(bool).reshape(-1, 1)
        else:
            numbers = pandas.to_numeric(column.astype(object))
            result[name] = numbers.to_numpy(float, na_value=np.nan).reshape(-1, 1)
    return result


@pytest.mark.parametrize("name", ESTIMATORS)
def test_table_gives_the_numbers_of_its_library(tmp_path, name):
    make, frame = ESTIMATORS[name]
    estimator = make().fit(frame, BUYS)
    model = load_estimator(tmp_path, "", estimator)
    assert list(model.inputs.signatures) == list(frame.columns)
    for method in model.calls:
        wanted = np.asarray(getattr(estimator, method)(frame))
        found = run(model, tensors(model, frame), method)
        np.testing.assert_allclose(found, wanted.reshape(N, -1), rtol=1e-6)


def test_ambiguous_ordered_category_is_not_guessed(tmp_path):
    """The file has the number of categories, and two columns of numbers that may be the indexes."""
    frame = RANKS.assign(kids=OBJECTS.kids % 3)
    with pytest.raises(InferError, match="categorical_feature do not match"):
        load_estimator(tmp_path, "", lgb().fit(frame, BUYS))


def test_categories_that_xgboost_has_cut_are_refused(tmp_path):
    with pytest.raises(
        InferError, match="the categories of column 'town' are not known: XGBoost may have cut their names"
    ):
        load_estimator(tmp_path, "", xgb().fit(TOWNS, BUYS))


def test_kinds_of_columns_are_found(tmp_path):
    signatures = load_estimator(tmp_path, "", xgb().fit(HOLES, BUYS)).inputs.signatures
    kinds = {name: tensor.datatype.value for name, tensor in signatures.items()}
    assert kinds == {"age": "FP64", "kids": "FP64", "city": "BYTES", "is_member": "FP64"}


def test_unknown_category_is_the_affair_of_the_library(tmp_path):
    estimator = lgb().fit(HOLES, BUYS)
    model = load_estimator(tmp_path, "", estimator)
    row = {name: column[:1] for name, column in tensors(model, HOLES).items()}
    row["city"] = np.array([[b"Bonn"]], object)
    frame = CATEGORIES[:1].assign(city=pandas.Categorical(["Bonn"]))
    found = run(model, row, "predict_proba")
    np.testing.assert_allclose(found, estimator.predict_proba(frame))


def test_text_that_is_no_date_is_refused(tmp_path):
    estimator = make_pipeline(FunctionTransformer(month), LogisticRegression()).fit(DATES, BUYS)
    model = load_estimator(tmp_path, "", estimator)
    with pytest.raises(InferError, match="input 'when' has text that is no date in ISO 8601"):
        run(model, {"when": np.array([[b"yesterday"]], object)}, "predict")


def test_matrix_of_named_columns_has_their_names(tmp_path):
    frame = OBJECTS[["age", "kids"]]
    config = 'input { name: "input__0" data_type: TYPE_FP64 dims: 2 }'
    model = load_estimator(tmp_path, config, LogisticRegression().fit(frame, BUYS))
    assert model.features.names == ("age", "kids")
    assert model.features.null_is_nan


def test_classifiers_have_labels_and_probabilities(tmp_path):
    texts = np.where(BUYS, "yes", "no")
    model = load_estimator(tmp_path, "", LogisticRegression().fit(OBJECTS[["age"]], texts))
    assert list(model.calls) == ["predict", "predict_proba"]
    assert model.labels == {"predict_proba": ["no", "yes"]}
    config = 'output { name: "label" data_type: TYPE_STRING dims: 1 }'
    assert [each.method for each in load_estimator(tmp_path, config).calls.values()] == ["predict"]


def several(**settings):
    return MultiOutputClassifier(DecisionTreeClassifier(**settings))


@pytest.mark.parametrize("make", [DecisionTreeClassifier, several])
def test_targets_of_unequal_classes_have_an_output_each(tmp_path, make):
    table, targets = OBJECTS[["age"]].to_numpy(), np.stack([BUYS, OBJECTS.kids], 1)
    estimator = make(max_depth=3, random_state=0).fit(table, targets)
    model = load_estimator(tmp_path, "", estimator)
    names = ["predict", "predict_proba_0", "predict_proba_1"]
    assert list(model.signature.outputs) == names
    assert model.labels == {"predict_proba_0": ["0", "1"], "predict_proba_1": ["0", "1", "2", "3", "4"]}
    labels, first, second = run(model, {"input__0": table}, *names)
    np.testing.assert_array_equal(labels, estimator.predict(table))
    for found, wanted in zip((first, second), estimator.predict_proba(table), strict=True):
        np.testing.assert_array_equal(found, wanted)
    config = 'output { name: "predict_proba_1" data_type: TYPE_FP64 dims: 5 }'
    assert list(load_estimator(tmp_path, config).signature.outputs) == ["predict_proba_1"]
    outputs = "".join(
        f'output {{ name: "{name}" data_type: TYPE_FP64 dims: {dims} }} ' for name, dims in ("a2", "b5")
    )
    renamed = parameters(method="predict_proba") + outputs
    assert load_estimator(tmp_path, renamed).signature.outputs["b"].dims == (None, 5)


def test_targets_of_equal_classes_share_an_output(tmp_path):
    estimator = DecisionTreeClassifier(max_depth=3).fit(OBJECTS[["age"]].to_numpy(), np.stack([BUYS, 1 - BUYS], 1))
    assert load_estimator(tmp_path, "", estimator).signature.outputs["predict_proba"].dims == (None, 2, 2)


def test_null_is_nan_in_the_configuration(tmp_path):
    load_estimator(tmp_path, "", LogisticRegression().fit(OBJECTS[["age", "kids"]], BUYS))
    found = read_features(SklearnBackend().auto_complete(context_of(tmp_path)))
    assert found.null_is_nan
    assert not found.names


STRINGS_OF_NUMPY_2 = np.dtypes.StringDType()


def named(table):
    return np.where(np.asarray(table) > 40, "old", "young").astype(STRINGS_OF_NUMPY_2)


def dated(table):
    days = pandas.to_timedelta(np.asarray(table)[:, 0].astype(int), unit="D")
    return pandas.DataFrame({"when": pandas.to_datetime("2024-01-01") + days})


def nullable(table):
    column = pandas.Series(np.asarray(table)[:, 0])
    return pandas.DataFrame({"n": column.where(column < 40).round().astype("Int64"), "x": column})


@pytest.mark.parametrize(
    ("function", "wanted"),
    [
        (named, [["young"], ["old"]]),
        (dated, [["2024-01-31T00:00:00"], ["2024-02-20T00:00:00"]]),
        (nullable, [[30, 30], [np.nan, 50]]),
    ],
)
def test_results_of_pandas_have_a_datatype(tmp_path, function, wanted):
    estimator = FunctionTransformer(function, validate=False).fit(np.zeros((2, 1)))
    config = 'input { name: "input__0" data_type: TYPE_FP64 dims: 1 }'
    found = run(load_estimator(tmp_path, config, estimator), {"input__0": np.array([[30.0], [50.0]])}, "transform")
    if function is dated:
        found = np.array([[text.partition(".")[0] for text in row] for row in found])
    np.testing.assert_array_equal(found, np.array(wanted, found.dtype))


def only_nullable(table):
    return nullable(table)[["n"]]


def test_missing_values_are_no_integers(tmp_path):
    estimator = FunctionTransformer(only_nullable, validate=False).fit(np.zeros((2, 1)))
    model = load_estimator(tmp_path, 'input { name: "input__0" data_type: TYPE_FP64 dims: 1 }', estimator)
    assert run(model, {"input__0": np.array([[30.0]])}, "transform").tolist() == [[30]]
    with pytest.raises(InferError, match="'transform' has values that are missing or not finite, which int64 lacks"):
        run(model, {"input__0": np.array([[50.0]])}, "transform")
