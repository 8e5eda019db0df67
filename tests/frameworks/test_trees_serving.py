"""Forests behind a real server, asked by tritonclient."""

import lightgbm
import numpy as np
import pytest
import treelite
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from sklearn.ensemble import RandomForestClassifier
from tritonclient.utils import InferenceServerException

from support.forests import CANCER, DIGITS, parameters, rows, train_xgboost
from support.server_process import serving
from support.waiting import wait_until

BOOSTER = train_xgboost(CANCER, objective="binary:logistic")
FOREST = RandomForestClassifier(5, random_state=0).fit(DIGITS.data.astype(np.float32), DIGITS.target)
FIL = (
    'backend: "fil" max_batch_size: 32768 dynamic_batching { } '
    'input { name: "input__0" data_type: TYPE_FP32 dims: 30 } '
    'output { name: "output__0" data_type: TYPE_FP32 dims: 2 } '
    'output { name: "treeshap_output" data_type: TYPE_FP32 dims: 31 } '
) + parameters(
    model_type="xgboost_json", output_class="true", predict_proba="true", threshold="0.5", storage_type="AUTO",
    algo="ALGO_AUTO", blocks_per_sm="0", transfer_threshold="0", use_experimental_optimizations="true",
)  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    for name in ("fil", "plain", "isolated", "labels", "digits"):
        (root / name / "1").mkdir(parents=True)
    BOOSTER.save_model(root / "fil" / "1" / "xgboost.json")
    (root / "fil" / "config.pbtxt").write_text(FIL)
    BOOSTER.save_model(root / "plain" / "1" / "xgboost.ubj")
    BOOSTER.save_model(root / "isolated" / "1" / "xgboost.ubj")
    (root / "isolated" / "config.pbtxt").write_text(parameters(isolation="process"))
    data = lightgbm.Dataset(CANCER.data, CANCER.target)
    booster = lightgbm.train({"objective": "binary", "verbosity": -1, "num_threads": 1}, data, 5)
    booster.save_model(root / "labels" / "1" / "model.txt")
    (root / "labels" / "config.pbtxt").write_text(parameters(output_class="true"))
    treelite.sklearn.import_model(FOREST).serialize(str(root / "digits" / "1" / "checkpoint.tl"))
    with serving(root.parent / "log", f"--model-repository={root}") as running:
        yield running


@pytest.fixture(scope="module")
def client(server):
    with triton_http.InferenceServerClient(server.http_url.removeprefix("http://")) as client:
        yield client


def infer(client, model, table, outputs=None):
    source = triton_http.InferInput("input__0", table.shape, "FP32")
    source.set_data_from_numpy(table)
    wanted = [triton_http.InferRequestedOutput(name) for name in outputs] if outputs else None
    return client.infer(model, [source], outputs=wanted)


def test_fil_configuration_of_triton_is_served(client):
    table = rows(CANCER)
    score = BOOSTER.inplace_predict(table)
    found = infer(client, "fil", table, ["output__0"]).as_numpy("output__0")
    np.testing.assert_allclose(found, np.stack([1 - score, score], 1), rtol=1e-5)


def test_shap_values_come_when_asked_for(client):
    table = rows(CANCER)
    result = infer(client, "fil", table, ["treeshap_output"])
    margin = BOOSTER.inplace_predict(table, predict_type="margin")
    np.testing.assert_allclose(result.as_numpy("treeshap_output").sum(axis=1), margin, atol=1e-4)
    assert result.as_numpy("output__0") is None


def test_parameters_without_effect_are_logged(server):
    server.wait_log("model 'fil': parameters without effect on a CPU: algo, storage_type, blocks_per_sm")


@pytest.mark.parametrize("model", ["plain", "isolated"])
def test_configuration_is_completed_from_the_file(client, model):
    config = client.get_model_config(model)
    assert config["max_batch_size"] == 8192
    assert "dynamic_batching" in config
    assert [(t["name"], t["data_type"], t["dims"]) for t in config["input"]] == [("input__0", "TYPE_FP32", [30])]
    assert [(t["name"], t["data_type"], t["dims"]) for t in config["output"]] == [("output__0", "TYPE_FP32", [1])]
    table = rows(CANCER, 300)
    found = infer(client, model, table).as_numpy("output__0")
    np.testing.assert_allclose(found[:, 0], BOOSTER.inplace_predict(table), rtol=1e-5)


def test_classes_of_lightgbm_and_treelite(client):
    labels = infer(client, "labels", CANCER.data.astype(np.float32)).as_numpy("output__0")
    assert np.mean(labels[:, 0] == CANCER.target) > 0.9
    table = DIGITS.data[:50].astype(np.float32)
    found = infer(client, "digits", table).as_numpy("output__0")
    np.testing.assert_allclose(found, FOREST.predict_proba(table), rtol=1e-5, atol=1e-6)


def test_concurrent_rows_get_their_own_scores(server):
    table = rows(CANCER, 200)
    with triton_grpc.InferenceServerClient(server.grpc_url) as client:
        answers = {}
        for index, row in enumerate(table):
            source = triton_grpc.InferInput("input__0", (1, 30), "FP32")
            source.set_data_from_numpy(row[None])
            client.async_infer("plain", [source], lambda result, error, i=index: answers.update({i: result}))
        wait_until(lambda: len(answers) == len(table), "not all rows were answered")
    found = [answers[index].as_numpy("output__0")[0, 0] for index in range(len(table))]
    np.testing.assert_allclose(found, BOOSTER.inplace_predict(table), rtol=1e-5)


def test_wrong_feature_count_is_refused(client):
    with pytest.raises(InferenceServerException, match=r"unexpected shape for input 'input__0'.*\[-1,30\]"):
        infer(client, "plain", np.zeros((1, 29), np.float32))


def test_bare_file_is_served(tmp_path):
    path = tmp_path / "cancer.json"
    BOOSTER.save_model(path)
    with serving(tmp_path / "log", str(path)) as running:
        assert running.get("/v2/models/cancer/ready").status == 200
