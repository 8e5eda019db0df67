"""Estimators of scikit-learn: inputs, outputs and results equal the estimator's own."""

import numpy as np
import pandas
import pytest
from sklearn import datasets
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.ensemble import RandomForestClassifier
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline, make_union
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, PowerTransformer, StandardScaler
from sklearn.svm import SVC

from support.estimators import (
    BUYS,
    TABLE,
    TEXTS,
    load_estimator,
    run,
    table_pipeline,
    text_pipeline,
    texts,
    unnamed_table_pipeline,
)
from support.forests import parameters

WINE = datasets.load_wine()
CANCER = datasets.load_breast_cancer()
DIABETES = datasets.load_diabetes()


def signature(model):
    tensors = {**model.signature.inputs, **model.signature.outputs}
    return {name: (tensor.datatype.config_name, tensor.shape[1:]) for name, tensor in tensors.items()}


@pytest.mark.parametrize(
    ("estimator", "method", "datatype", "width"),
    [
        (make_pipeline(StandardScaler(), LogisticRegression()), "predict", "TYPE_INT64", 1),
        (make_pipeline(StandardScaler(), LogisticRegression()), "predict_proba", "TYPE_FP64", 3),
        (make_pipeline(StandardScaler(), SVC()), "decision_function", "TYPE_FP64", 3),
        (make_pipeline(StandardScaler(), PCA(4)), "transform", "TYPE_FP64", 4),
        (RandomForestClassifier(5, n_jobs=-1, random_state=0), "predict_proba", "TYPE_FP64", 3),
        (KNeighborsClassifier(), "predict", "TYPE_INT64", 1),
        (KMeans(4, n_init=1, random_state=0), "predict", "TYPE_INT32", 1),
        (GridSearchCV(LinearRegression(), {"fit_intercept": [True, False]}), "predict", "TYPE_FP64", 1),
        (make_union(StandardScaler(), PCA(2)), "transform", "TYPE_FP64", 15),
    ],
)
def test_matrix_models_equal_the_estimator(tmp_path, estimator, method, datatype, width):
    estimator.fit(WINE.data, WINE.target)
    model = load_estimator(tmp_path, parameters(method=method), estimator)
    assert signature(model) == {"input__0": ("TYPE_FP64", (13,)), method: (datatype, (width,))}
    found = run(model, {"input__0": WINE.data}, method)
    wanted = getattr(estimator, method)(WINE.data)
    np.testing.assert_allclose(found, wanted.reshape(len(wanted), -1))


def test_sparse_result_becomes_dense(tmp_path):
    table = WINE.target[:, None]
    estimator = OneHotEncoder().fit(table)
    found = run(load_estimator(tmp_path, "", estimator), {"input__0": table.astype(float)}, "transform")
    np.testing.assert_array_equal(found, estimator.transform(table).toarray())


def test_several_targets_are_columns(tmp_path):
    targets = np.stack([CANCER.target, 1 - CANCER.target], 1)
    estimator = RandomForestClassifier(3, random_state=0).fit(CANCER.data, targets)
    model = load_estimator(tmp_path, parameters(method="predict,predict_proba"), estimator)
    labels, probabilities = run(model, {"input__0": CANCER.data[:9]}, "predict", "predict_proba")
    np.testing.assert_array_equal(labels, targets[:9])
    np.testing.assert_allclose(probabilities, np.stack(estimator.predict_proba(CANCER.data[:9]), 1))


def test_label_and_probabilities_in_one_response(tmp_path):
    estimator = make_pipeline(StandardScaler(), LogisticRegression()).fit(CANCER.data, CANCER.target)
    config = 'output { name: "label" } output { name: "probabilities" }' + parameters(method="predict, predict_proba")
    config += 'input { name: "X" data_type: TYPE_FP32 dims: 30 } max_batch_size: 8'
    model = load_estimator(
        tmp_path,
        config.replace('name: "label"', 'name: "label" data_type: TYPE_INT64 dims: 1').replace(
            'name: "probabilities"', 'name: "probabilities" data_type: TYPE_FP32 dims: 2'
        ),
        estimator,
    )
    table = CANCER.data.astype(np.float32)
    label, probabilities = run(model, {"X": table}, "label", "probabilities")
    np.testing.assert_array_equal(label[:, 0], estimator.predict(table))
    np.testing.assert_allclose(probabilities, estimator.predict_proba(table), rtol=1e-6)
    assert probabilities.dtype == np.float32


def test_columns_of_a_table_are_tensors(tmp_path):
    estimator = table_pipeline()
    model = load_estimator(tmp_path, parameters(method="predict,predict_proba"), estimator)
    assert signature(model) == {
        "city": ("TYPE_STRING", (1,)),
        "age": ("TYPE_FP64", (1,)),
        "income": ("TYPE_FP64", (1,)),
        "predict": ("TYPE_STRING", (1,)),
        "predict_proba": ("TYPE_FP64", (2,)),
    }
    inputs = {"city": texts(TABLE["city"])} | {name: np.array(TABLE[name])[:, None] for name in ("age", "income")}
    label, probabilities = run(model, inputs, "predict", "predict_proba")
    assert label[:, 0].tolist() == estimator.predict(pandas.DataFrame(TABLE)).tolist()
    np.testing.assert_allclose(probabilities, estimator.predict_proba(pandas.DataFrame(TABLE)))


def test_unnamed_columns_of_both_kinds_are_tensors(tmp_path):
    model = load_estimator(tmp_path, "", unnamed_table_pipeline())
    assert signature(model)["x0"] == ("TYPE_STRING", (1,))
    assert signature(model)["x1"] == signature(model)["x2"] == ("TYPE_FP64", (1,))
    inputs = {f"x{i}": np.array(TABLE[name])[:, None] for i, name in enumerate(TABLE) if i}
    assert run(model, {"x0": texts(TABLE["city"]), **inputs}, "predict")[:, 0].tolist() == BUYS


def test_imputer_before_an_encoder_takes_text(tmp_path):
    table = pandas.DataFrame({"city": TABLE["city"]}, dtype=object)
    estimator = make_pipeline(SimpleImputer(strategy="most_frequent"), OrdinalEncoder()).fit(table)
    model = load_estimator(tmp_path, "", estimator)
    assert signature(model)["city"] == ("TYPE_STRING", (1,))
    found = run(model, {"city": texts(["Rome", "Oslo"])}, "transform")
    assert found[:, 0].tolist() == [2.0, 0.0]


def test_texts_go_to_a_vectorizer(tmp_path):
    estimator = text_pipeline()
    model = load_estimator(tmp_path, parameters(method="predict_proba"), estimator)
    assert signature(model) == {"input__0": ("TYPE_STRING", (1,)), "predict_proba": ("TYPE_FP64", (2,))}
    found = run(model, {"input__0": texts(TEXTS)}, "predict_proba")
    np.testing.assert_allclose(found, estimator.predict_proba(TEXTS))


def test_text_columns_of_a_table_go_to_vectorizers(tmp_path):
    from sklearn.compose import make_column_transformer

    table = pandas.DataFrame({"title": TEXTS, "age": [1.0, 2.0, 3.0, 4.0]})
    estimator = make_column_transformer((CountVectorizer(), "title"), ("passthrough", ["age"])).fit(table)
    model = load_estimator(tmp_path, "", estimator)
    found = run(model, {"title": texts(TEXTS), "age": np.array([[1.0], [2.0], [3.0], [4.0]])}, "transform")
    wanted = estimator.transform(table)
    np.testing.assert_allclose(found, wanted.toarray() if hasattr(wanted, "toarray") else wanted)


def test_all_threads_are_bounded(tmp_path):
    estimator = make_pipeline(StandardScaler(), RandomForestClassifier(3, n_jobs=-1)).fit(WINE.data, WINE.target)
    assert load_estimator(tmp_path, "", estimator).estimator[-1].n_jobs == 1
    assert load_estimator(tmp_path, parameters(n_jobs="0")).estimator[-1].n_jobs == 2
    assert load_estimator(tmp_path, parameters(n_jobs="64")).estimator[-1].n_jobs == 2


def test_complete_configuration_needs_no_trial(tmp_path):
    estimator = PowerTransformer("box-cox").fit(CANCER.data + 1)
    config = (
        'max_batch_size: 4 input { name: "X" data_type: TYPE_FP64 dims: 30 } '
        'output { name: "transform" data_type: TYPE_FP64 dims: 30 }'
    )
    model = load_estimator(tmp_path, config, estimator)
    np.testing.assert_allclose(run(model, {"X": CANCER.data + 1}, "transform"), estimator.transform(CANCER.data + 1))
