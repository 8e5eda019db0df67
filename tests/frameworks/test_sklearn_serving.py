"""Models of scikit-learn behind a real server, asked over HTTP."""

import hashlib

import joblib
import numpy as np
import pandas
import pytest
import skops.io
import tritonclient.http as triton_http
from sklearn import datasets
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from tritonclient.utils import InferenceServerException

from naiad.cli.check import check
from support.estimators import TABLE, TEXTS, table_pipeline, text_pipeline, texts
from support.forests import parameters
from support.server_process import SOURCE, ServerProcess, serving

CANCER = datasets.load_breast_cancer()
NUMBERS = make_pipeline(StandardScaler(), LogisticRegression()).fit(CANCER.data, CANCER.target)


def write(root, name, filename, estimator, config=""):
    directory = root / name / "1"
    directory.mkdir(parents=True)
    dump = skops.io.dump if filename.endswith("skops") else joblib.dump
    dump(estimator, directory / filename)
    if config:
        (root / name / "config.pbtxt").write_text(config)
    return directory / filename


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    both = parameters(method="predict,predict_proba")
    path = write(root, "numbers", "model.joblib", NUMBERS)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    (root / "numbers" / "config.pbtxt").write_text(both + parameters(sha256=digest))
    write(root, "isolated", "model.skops", NUMBERS, both + parameters(isolation="process"))
    write(root, "table", "model.skops", table_pipeline(), both)
    write(root, "text", "model.skops", text_pipeline())
    write(root, "refused", "model.joblib", NUMBERS)
    flags = (f"--model-repository={root}", "--exit-on-error=false", "--strict-readiness=false")
    with serving(root.parent / "log", *flags) as running:
        yield running


@pytest.fixture(scope="module")
def client(server):
    with triton_http.InferenceServerClient(server.http_url.removeprefix("http://")) as client:
        yield client


def infer(client, model, inputs):
    tensors = []
    for name, array in inputs.items():
        datatype = "BYTES" if array.dtype == object else "FP64"
        tensor = triton_http.InferInput(name, array.shape, datatype)
        tensor.set_data_from_numpy(array)
        tensors.append(tensor)
    return client.infer(model, tensors)


@pytest.mark.parametrize("model", ["numbers", "isolated"])
def test_label_and_probabilities_are_served(client, model):
    result = infer(client, model, {"input__0": CANCER.data})
    assert result.as_numpy("predict")[:, 0].tolist() == NUMBERS.predict(CANCER.data).tolist()
    np.testing.assert_allclose(result.as_numpy("predict_proba"), NUMBERS.predict_proba(CANCER.data))


def test_configuration_is_completed_from_the_estimator(client):
    config = client.get_model_config("numbers")
    assert config["max_batch_size"] == 1024
    assert "dynamic_batching" in config
    tensors = [(t["name"], t["data_type"], t["dims"]) for t in (*config["input"], *config["output"])]
    assert tensors == [
        ("input__0", "TYPE_FP64", [30]),
        ("predict", "TYPE_INT64", [1]),
        ("predict_proba", "TYPE_FP64", [2]),
    ]


def test_columns_with_text_are_served(client):
    inputs = {"city": texts(TABLE["city"])} | {name: np.array(TABLE[name])[:, None] for name in ("age", "income")}
    result = infer(client, "table", inputs)
    wanted = table_pipeline().predict(pandas.DataFrame(TABLE))
    assert [label.decode() for label in result.as_numpy("predict")[:, 0]] == wanted.tolist()


def test_text_is_served(client):
    found = infer(client, "text", {"input__0": texts(TEXTS)}).as_numpy("predict")
    assert [label.decode() for label in found[:, 0]] == text_pipeline().predict(TEXTS).tolist()


def test_only_the_faulty_request_of_a_batch_fails(server):
    table = CANCER.data[:8].copy()
    table[3] = np.nan
    address = server.http_url.removeprefix("http://")
    with triton_http.InferenceServerClient(address, concurrency=len(table)) as client:
        pending = []
        for row in table:
            tensor = triton_http.InferInput("input__0", (1, 30), "FP64")
            tensor.set_data_from_numpy(row[None])
            pending.append(client.async_infer("numbers", [tensor]))
        with pytest.raises(InferenceServerException, match="contains NaN"):
            pending[3].get_result()
        found = [request.get_result().as_numpy("predict")[0, 0] for i, request in enumerate(pending) if i != 3]
    assert found == NUMBERS.predict(np.delete(table, 3, axis=0)).tolist()


def test_pickle_without_permission_is_refused(server):
    assert server.get("/v2/models/refused/ready").status == 400
    server.wait_log(r"model\.joblib is a pickle, and loading a pickle executes its code")


@pytest.fixture
def bare_file(tmp_path):
    joblib.dump(NUMBERS, tmp_path / "cancer.joblib")
    return tmp_path / "cancer.joblib"


def test_bare_file_needs_permission(bare_file, tmp_path):
    server = ServerProcess(tmp_path / "log", str(bare_file))
    assert server.wait_exit() == 1
    assert "start the server with --allow-pickle" in server.log_text()


@pytest.mark.parametrize(("flags", "status"), [([], 1), (["--allow-pickle"], 0)])
def test_check_loads_pickles_with_permission_only(bare_file, capsys, monkeypatch, flags, status):
    monkeypatch.setenv("PYTHONPATH", str(SOURCE))
    assert check.run([str(bare_file), "--load", *flags]) == status
    assert ("loading a pickle executes its code" in capsys.readouterr().out) is (status == 1)


def test_bare_file_is_served(bare_file, tmp_path):
    with serving(tmp_path / "log", str(bare_file), "--allow-pickle") as running:
        with triton_http.InferenceServerClient(running.http_url.removeprefix("http://")) as client:
            found = infer(client, "cancer", {"input__0": CANCER.data[:32]}).as_numpy("predict")
        assert found[:, 0].tolist() == NUMBERS.predict(CANCER.data[:32]).tolist()
