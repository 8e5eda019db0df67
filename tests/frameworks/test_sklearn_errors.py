"""Files of scikit-learn that are refused: pickles without permission, untrusted types, damaged files."""

import hashlib
import io
import pickle
import shlex
import sys
from dataclasses import replace

import joblib
import numpy as np
import pytest
import sklearn
import skops.io
from sklearn import datasets
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PowerTransformer, StandardScaler

from naiad.backend.sklearn.outputs import to_datatype
from naiad.core.errors import ErrorCode, InferError
from naiad.tools.predict import PredictJob, predict
from support.estimators import load_estimator, run, table_pipeline, text_pipeline
from support.forests import parameters

WINE = datasets.load_wine()


@pytest.fixture
def estimator():
    return make_pipeline(StandardScaler(), LogisticRegression()).fit(WINE.data, WINE.target)


def failure(directory, config="", **settings):
    with pytest.raises(InferError) as raised:
        load_estimator(directory, config, **settings)
    assert raised.value.code is ErrorCode.INVALID_ARG
    return raised.value.message


class Trap:
    """Leaves a mark when it is unpickled."""

    def __reduce__(self):
        return (sys.path.append, ("trap",))


@pytest.mark.parametrize("name", ["model.joblib", "model.pkl"])
@pytest.mark.parametrize("settings", [{"allow-pickle": "false"}, {"allow-pickle": ""}])
def test_pickle_without_permission_is_not_loaded(tmp_path, name, settings):
    (tmp_path / name).write_bytes(pickle.dumps(Trap()))
    message = failure(tmp_path, parameters(**{"allow-pickle": "true", "allow_pickle": "true"}), **settings)
    assert "trap" not in sys.path
    assert f"{name} is a pickle, and loading a pickle executes its code" in message
    assert "--allow-pickle" in message
    assert f"(sha256sum {name})" in message


def test_digest_allows_exactly_this_file(tmp_path, estimator):
    joblib.dump(estimator, tmp_path / "model.joblib")
    digest = hashlib.sha256((tmp_path / "model.joblib").read_bytes()).hexdigest()
    model = load_estimator(tmp_path, parameters(sha256=digest.upper()), **{"allow-pickle": "false"})
    assert run(model, {"input__0": WINE.data}, "predict")[:, 0].tolist() == estimator.predict(WINE.data).tolist()
    (tmp_path / "model.joblib").write_bytes(pickle.dumps(Trap()))
    message = failure(tmp_path, parameters(sha256=digest))
    assert "trap" not in sys.path
    assert "its SHA-256 digest is not" in message
    assert digest in message
    assert hashlib.sha256((tmp_path / "model.joblib").read_bytes()).hexdigest() not in message


def test_plain_pickle_is_loaded(tmp_path, estimator):
    (tmp_path / "model.pkl").write_bytes(pickle.dumps(estimator))
    found = run(load_estimator(tmp_path), {"input__0": WINE.data}, "predict")
    assert found[:, 0].tolist() == estimator.predict(WINE.data).tolist()


def test_batch_prediction_loads_pickles_when_allowed(tmp_path, estimator):
    folder = tmp_path / "models/wine/1"
    folder.mkdir(parents=True)
    joblib.dump(estimator, folder / "model.joblib")
    np.save(tmp_path / "rows.npy", WINE.data)
    job = PredictJob(str(tmp_path / "models"), "wine", [str(tmp_path / "rows.npy")], str(tmp_path / "out.npz"))
    with pytest.raises(InferError, match="--allow-pickle"):
        predict(job)
    assert predict(replace(job, allow_pickle=True)).failed_rows == 0
    assert np.load(tmp_path / "out.npz")["predict"].ravel().tolist() == estimator.predict(WINE.data).tolist()


def test_skops_file_needs_no_permission(tmp_path, estimator):
    skops.io.dump(estimator, tmp_path / "model.skops")
    model = load_estimator(tmp_path, parameters(method="predict_proba"), **{"allow-pickle": "false"})
    np.testing.assert_allclose(
        run(model, {"input__0": WINE.data}, "predict_proba"), estimator.predict_proba(WINE.data)
    )


def test_untrusted_types_are_named(tmp_path):
    forest = RandomForestClassifier(3, random_state=0).fit(WINE.data, WINE.target)
    skops.io.dump(forest, tmp_path / "model.skops")
    assert "types that are not trusted: sklearn.tree._tree.Tree. If you trust" in failure(tmp_path)
    model = load_estimator(tmp_path, parameters(trusted_types="some.Other, sklearn.tree._tree.Tree"))
    assert run(model, {"input__0": WINE.data}, "predict")[:, 0].tolist() == forest.predict(WINE.data).tolist()


def test_untrusted_types_can_be_copied(tmp_path, monkeypatch):
    module = sys.modules[__name__]
    kinds = [type(f"ScalerOfTheLaboratory{number}", (StandardScaler,), {}) for number in range(20)]
    for kind in kinds:
        kind.__module__ = __name__
        monkeypatch.setattr(module, kind.__name__, kind, raising=False)
    pipeline = make_pipeline(*(kind() for kind in kinds), RandomForestClassifier(3)).fit(WINE.data, WINE.target)
    skops.io.dump(pipeline, tmp_path / "model.skops")
    message = failure(tmp_path, parameters(trusted_types="sklearn.tree._tree.Tree"))
    flag, names = shlex.split(message[message.index("--trusted-types") : message.index("; in a repository")])
    assert flag == "--trusted-types"
    model = load_estimator(tmp_path, parameters(trusted_types=names))
    assert run(model, {"input__0": WINE.data}, "predict")[:, 0].tolist() == pipeline.predict(WINE.data).tolist()


@pytest.mark.parametrize("size", [10, 500, -30])
def test_truncated_pickle_is_refused(tmp_path, estimator, size):
    stream = io.BytesIO()
    joblib.dump(estimator, stream)
    (tmp_path / "model.joblib").write_bytes(stream.getvalue()[:size])
    assert "model.joblib cannot be loaded: " in failure(tmp_path)


def test_truncated_skops_file_is_refused(tmp_path, estimator):
    skops.io.dump(estimator, tmp_path / "model.skops")
    (tmp_path / "model.skops").write_bytes((tmp_path / "model.skops").read_bytes()[:400])
    assert "model.skops cannot be loaded: BadZipFile" in failure(tmp_path)


def test_missing_code_is_named(tmp_path):
    (tmp_path / "model.pkl").write_bytes(b"cno_such_package.models\nSpecial\n.")
    assert "needs code that is not there: ModuleNotFoundError: No module named 'no_such_package'" in failure(tmp_path)


def test_other_version_is_logged_once(tmp_path, estimator, caplog):
    joblib.dump(estimator, tmp_path / "model.joblib")
    data = (tmp_path / "model.joblib").read_bytes()
    version = sklearn.__version__.encode()
    assert version in data
    (tmp_path / "model.joblib").write_bytes(data.replace(version, b"0" * len(version)))
    load_estimator(tmp_path, 'input { name: "X" data_type: TYPE_FP64 dims: 13 }')
    lines = [record.message for record in caplog.records if "was saved with scikit-learn" in record.message]
    assert f"scikit-learn {'0' * len(version)}, installed is {sklearn.__version__}" in lines[0]


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("transform", "the Pipeline has no method 'transform'; it has predict, predict_proba, decision_function"),
        ("fit", "parameter 'method' is 'fit', expected one or more of predict, predict_proba, transform"),
    ],
)
def test_unknown_method_lists_the_known(tmp_path, estimator, method, message):
    joblib.dump(estimator, tmp_path / "model.joblib")
    assert message in failure(tmp_path, parameters(method=method))


def test_object_that_is_no_estimator(tmp_path):
    joblib.dump({"weights": 1}, tmp_path / "model.joblib")
    assert "the dict has none of the methods predict, " in failure(tmp_path)
    joblib.dump({"weights": 1, "model": LogisticRegression()}, tmp_path / "model.joblib")
    assert "save its entry 'model' by itself, or all steps as one Pipeline" in failure(tmp_path)
    joblib.dump(LogisticRegression, tmp_path / "model.joblib")
    assert "the file holds the class LogisticRegression; save a fitted estimator" in failure(tmp_path)


def test_estimator_without_fit_is_refused(tmp_path):
    joblib.dump(LogisticRegression(), tmp_path / "model.joblib")
    assert "how many features it has (n_features_in_); if it is not fitted, save it after fit()" in failure(tmp_path)


def test_wrong_feature_count_names_the_right_one(tmp_path, estimator):
    joblib.dump(estimator, tmp_path / "model.joblib")
    config = (
        'max_batch_size: 8 input { name: "input__0" data_type: TYPE_FP64 dims: 12 } '
        'output { name: "predict" data_type: TYPE_INT64 dims: 1 }'
    )
    assert "write dims: [13]" in failure(tmp_path, config)


def test_outputs_without_method_are_refused(tmp_path, estimator):
    joblib.dump(estimator, tmp_path / "model.joblib")
    config = 'output { name: "label" } output { name: "score" } output { name: "margin" }'
    message = failure(tmp_path, config)
    assert "3 outputs (label, score, margin) and 2 results of methods (predict, predict_proba)" in message


def test_failed_trial_names_the_way_out(tmp_path):
    joblib.dump(PowerTransformer("box-cox").fit(WINE.data), tmp_path / "model.joblib")
    message = failure(tmp_path)
    assert "transform failed: ValueError: The Box-Cox transformation can only be applied to strictly" in message
    assert "write 'input' and 'output' in config.pbtxt" in message


def test_table_without_pandas_names_the_package(tmp_path, monkeypatch):
    joblib.dump(table_pipeline(), tmp_path / "model.joblib")
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert "pip install pandas" in failure(tmp_path)


def test_text_that_is_no_utf8_fails_the_request(tmp_path):
    model = load_estimator(tmp_path, "", text_pipeline())
    with pytest.raises(InferError, match="input 'input__0' has text that is no UTF-8"):
        run(model, {"input__0": np.array([[b"\xff"]], object)}, "predict")


def test_values_that_are_not_accepted_fail_the_request(tmp_path, estimator):
    model = load_estimator(tmp_path, "", estimator)
    with pytest.raises(InferError, match="predict failed: ValueError: Input X contains NaN") as raised:
        run(model, {"input__0": np.full((1, 13), np.nan)}, "predict")
    assert raised.value.code is ErrorCode.INVALID_ARG


@pytest.mark.parametrize("value", [2**40, -(2**31) - 1, 0.5])
def test_numbers_that_an_output_lacks_are_refused(value):
    with pytest.raises(InferError, match=r"model 'm': output 'y' has values of .* that int32 lacks"):
        to_datatype("m", "y", np.array([[1], [value]]), np.dtype(np.int32))
    assert to_datatype("m", "y", np.array([[3.0]]), np.dtype(np.int32)).tolist() == [[3]]
