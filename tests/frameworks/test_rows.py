"""From a trained model file to an answer in rows: `naiad serve FILE`, rows in JSON in, predictions out."""

from collections.abc import Iterator

import joblib
import numpy as np
import pandas
import pytest
import xgboost
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import RandomForestClassifier

from naiad.client import InferError, connect
from naiad.client.data_frames import to_frame, to_inputs
from naiad.config.tensors.features import Features
from naiad.core.datatype import DataType
from naiad.core.model import ModelMetadata
from naiad.core.tensor import TensorSpec
from support.server_process import ServerProcess

DATA = load_breast_cancer(as_frame=True)
FRAME, LABELS = DATA.data, DATA.target


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    arrays = RandomForestClassifier(10, random_state=0).fit(FRAME.to_numpy(), LABELS)
    named = RandomForestClassifier(10, random_state=0).fit(FRAME, LABELS)
    boosted = xgboost.XGBClassifier(n_estimators=5).fit(FRAME, LABELS)
    joblib.dump(arrays, folder / "cancer.joblib")
    joblib.dump(named, folder / "named.joblib")
    boosted.save_model(folder / "boosted.ubj")
    return folder, arrays, named, boosted


@pytest.fixture(scope="module")
def server(files, tmp_path_factory) -> Iterator[ServerProcess]:
    folder = files[0]
    names = [str(folder / name) for name in ("cancer.joblib", "named.joblib", "boosted.ubj")]
    running = ServerProcess(tmp_path_factory.mktemp("log") / "log", *names, "--allow-pickle")
    try:
        running.wait_ready()
        yield running
    finally:
        running.stop()


def predictions(server: ServerProcess, model: str, body: object) -> list:
    answer = server.post(f"/v2/models/{model}/generate", body)
    assert answer.status == 200, answer.body
    return answer.json["predictions"]


def column(found: list, name: str) -> np.ndarray:
    return np.array([row[name] if isinstance(row, dict) else row for row in found])


def test_whole_test_set_is_one_request(server, files):
    found = predictions(server, "cancer", FRAME.to_numpy().tolist())
    assert len(found) == 569
    np.testing.assert_array_equal(column(found, "predict"), files[1].predict(FRAME.to_numpy()))
    np.testing.assert_allclose(column(found, "predict_proba"), files[1].predict_proba(FRAME.to_numpy()))


@pytest.mark.parametrize("orient", ["records", "split"])
def test_frame_reaches_columns_by_name(server, files, orient):
    shuffled = FRAME[list(reversed(FRAME.columns))].head(40)
    value = shuffled.to_dict(orient=orient)
    body = {"dataframe_records": value} if orient == "records" else {"dataframe_split": value}
    expected = files[2].predict_proba(FRAME.head(40))
    np.testing.assert_allclose(column(predictions(server, "named", body), "predict_proba"), expected)
    found = np.array(predictions(server, "boosted", body))
    np.testing.assert_allclose(found.reshape(40, -1)[:, -1], files[3].predict_proba(FRAME.head(40))[:, 1], rtol=1e-5)


def test_record_without_a_column_is_refused(server):
    row = FRAME.iloc[0].drop("mean area").to_dict()
    for model in ("named", "boosted"):
        answer = server.post(f"/v2/models/{model}/generate", [row])
        assert answer.status == 400
        assert "'mean area'" in answer.json["error"]


def test_invocations_needs_one_model(server):
    answer = server.post("/invocations", {"dataframe_split": pandas.DataFrame({"a": [1]}).to_dict(orient="split")})
    assert answer.status == 400
    assert "3 models are ready" in answer.json["error"]


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_client_takes_frames_arrays_and_records(server, files, protocol):
    url = server.http_url if protocol == "http" else f"grpc://{server.grpc_url}"
    shuffled = FRAME[list(reversed(FRAME.columns))].iloc[100:140]
    expected = files[2].predict_proba(FRAME.iloc[100:140])
    with connect(url) as client:
        found = client.infer("named", shuffled)
        assert found.index.tolist() == shuffled.index.tolist()
        assert list(found.columns) == ["predict", "predict_proba_0", "predict_proba_1"]
        np.testing.assert_allclose(found[["predict_proba_0", "predict_proba_1"]], expected)
        records = client.infer("named", shuffled.to_dict(orient="records"), outputs=["predict_proba"])
        np.testing.assert_allclose(records["predict_proba"], expected)
        matrix = FRAME.to_numpy().astype(np.float32)
        np.testing.assert_array_equal(client.infer("cancer", matrix)["predict"].ravel().shape, (569,))
        assert client.infer("cancer", FRAME.to_numpy()[0])["predict_proba"].shape == (1, 2)
        with pytest.raises(InferError, match="'mean area'"):
            client.infer("named", shuffled.drop(columns="mean area"))


MATRIX = ModelMetadata("m", ("1",), "p", [TensorSpec("X", DataType.FP32, (-1, 2))], [])
NAMED = Features(("age", "city"), {"city": ["Oslo", "Rome"]}, null_is_nan=True)
SMALL = pandas.DataFrame({"city": ["Rome", "Oslo"], "age": [3, 4]})


class OwnFrame(pandas.DataFrame):
    """A frame of another package, as of geopandas."""


@pytest.mark.parametrize("rows", [SMALL.iloc[0], OwnFrame(SMALL[:1]), SMALL[:1]])
def test_rows_of_pandas_are_read_by_name(rows):
    assert to_inputs(rows, MATRIX, NAMED)["X"].tolist() == [[3, 1]]


def test_missing_values_of_pandas_are_nan():
    frame = pandas.DataFrame(
        {"age": pandas.array([1, None], "Int64"), "city": pandas.array([None, "Rome"], "string")}
    )
    np.testing.assert_array_equal(to_inputs(frame, MATRIX, NAMED)["X"], [[1, np.nan], [np.nan, 1]])


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        (pandas.DataFrame([[1, 2, 3]], columns=["age", "age", "city"]), "two columns with the name 'age'"),
        (SMALL["age"], "the Series has '0', '1', the model takes 'age', 'city'"),
        (SMALL.iloc[0].rename({"age": "years"}), "the Series has 'city', 'years', the model takes 'age', 'city'"),
        (
            pandas.DataFrame({"age": pandas.to_datetime(["2026-01-01"]), "city": ["Rome"]}),
            "column 'age' has values of",
        ),
    ],
)
def test_frames_that_do_not_fit_are_refused(rows, text):
    with pytest.raises(InferError, match=text):
        to_inputs(rows, MATRIX, NAMED)


def test_column_of_a_frame_is_the_only_feature():
    one = ModelMetadata("m", ("1",), "p", [TensorSpec("X", DataType.FP32, (-1, 1))], [])
    assert to_inputs(SMALL["age"], one, Features(("age",)))["X"].tolist() == [[3], [4]]


def test_outputs_keep_their_columns():
    found = to_frame({"Y": np.zeros((0, 2)), "T": np.zeros((0, 1))}, SMALL[:0])
    assert list(found.columns) == ["Y_0", "Y_1", "T"]
    assert to_frame({"T": np.array([[b"\xff"]], object)}, SMALL[:1])["T"].tolist() == [b"\xff"]
    with pytest.raises(InferError, match="two outputs make a column 'Y_0'"):
        to_frame({"Y": np.ones((1, 2)), "Y_0": np.ones((1, 1))}, SMALL[:1])
