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
