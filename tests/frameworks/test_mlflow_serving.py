"""MLflow directories in a server, asked by tritonclient."""

import subprocess

import numpy as np
import pytest
import tritonclient.http as triton
import xgboost
from tritonclient.utils import InferenceServerException

from support.forests import parameters
from support.mlflow_models import CLASSES, ESTIMATOR, TABLE, save_onnx, save_python, save_sklearn, save_xgboost
from support.server_process import ServerProcess, serving

DIGEST = "find . -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum"
DATES = ["2030-12-31T23:59:59", "1999-01-02"]


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def booster(repository):
    def version(name, config=""):
        (repository / name).mkdir()
        (repository / name / "config.pbtxt").write_text(config)
        return repository / name / "1"

    save_sklearn(version("iris", 'backend: "mlflow"'), "skops")
    save_sklearn(version("isolated", parameters(isolation="process")), "skops")
    save_onnx(version("tensors"))
    save_sklearn(version("refused"), "cloudpickle")
    save_python(version("greeting"))
    printed = subprocess.run(DIGEST, shell=True, cwd=repository / "greeting" / "1", capture_output=True, check=True)
    (repository / "greeting" / "config.pbtxt").write_text(parameters(sha256=printed.stdout.split()[0].decode()))
    return save_xgboost(version("forest"))


@pytest.fixture(scope="module")
def server(repository, booster, tmp_path_factory):
    flags = (f"--model-repository={repository}", "--exit-on-error=false", "--strict-readiness=false")
    with serving(tmp_path_factory.mktemp("log") / "log", *flags) as running:
        yield running


@pytest.fixture(scope="module")
def client(server):
    with triton.InferenceServerClient(server.http_url.removeprefix("http://")) as connected:
        yield connected


def ask(client, model, **arrays):
    tensors = []
    for name, (datatype, array) in arrays.items():
        tensors.append(triton.InferInput(name, list(array.shape), datatype))
        tensors[-1].set_data_from_numpy(array)
    return client.infer(model, tensors)


def columns(rows=150):
    return {name: ("FP64", TABLE[name].to_numpy()[:rows, None].copy()) for name in TABLE}


def texts(values):
    return "BYTES", np.array([[value.encode()] for value in values], object)


@pytest.mark.parametrize("model", ["iris", "isolated"])
def test_columns_are_inputs(client, model):
    found = ask(client, model, **columns()).as_numpy("predictions")
    assert found.reshape(-1).tolist() == ESTIMATOR.predict(TABLE).tolist()


def test_trees_are_served(client, booster):
    found = ask(client, "forest", **columns()).as_numpy("predictions")
    np.testing.assert_allclose(found, booster.predict(xgboost.DMatrix(TABLE)), atol=1e-6)
    assert (found.argmax(1) == CLASSES).mean() > 0.9


def test_tensors_pass_as_they_are(client):
    rows = np.arange(8, dtype=np.float32).reshape(2, 4)
    np.testing.assert_array_equal(ask(client, "tensors", image=("FP32", rows)).as_numpy("scores"), rows * 2)


def test_text_dates_and_optional_columns_are_served(client):
    required = {"name": texts(["Ada", "Zoë"]), "when": texts(DATES)}
    answer = ask(client, "greeting", **required, excited=("BOOL", np.array([[True], [False]])))
    assert [text.decode() for text in answer.as_numpy("greeting").reshape(-1)] == ["Hello Ada!", "Hello Zoë"]
    assert answer.as_numpy("year").reshape(-1).tolist() == [2030, 1999]
    plain = ask(client, "greeting", **required).as_numpy("greeting").reshape(-1)
    assert [text.decode() for text in plain] == ["Hello Ada", "Hello Zoë"]


def test_configuration_comes_from_the_signature(client):
    config = client.get_model_config("iris")
    assert (config["backend"], config["max_batch_size"]) == ("mlflow", 1024)
    assert [(t["name"], t["data_type"], t["dims"]) for t in config["input"]] == [
        (name, "TYPE_FP64", [1]) for name in TABLE
    ]


def test_wrong_values_name_the_input(client):
    with pytest.raises(InferenceServerException, match="input 'when' expects a date such as"):
        ask(client, "greeting", name=texts(["Ada"]), when=texts(["yesterday-ish"]))
    broken = columns(2)
    next(iter(broken.values()))[1][0] = np.nan
    with pytest.raises(InferenceServerException, match="predict failed: ValueError: Input X contains NaN"):
        ask(client, "iris", **broken)


def test_pickle_without_permission_is_refused(server):
    assert server.get("/v2/models/refused/ready").status == 400
    server.wait_log(r"is loaded by 'mlflow\.sklearn' from a pickle.*--allow-pickle")


def test_bare_directory_needs_permission(tmp_path):
    save_sklearn(tmp_path / "iris", "cloudpickle")
    refusing = ServerProcess(tmp_path / "refused", str(tmp_path / "iris"))
    assert refusing.wait_exit() == 1
    assert "--allow-pickle" in refusing.log_text()
    with (
        serving(tmp_path / "log", str(tmp_path / "iris"), "--allow-pickle") as running,
        triton.InferenceServerClient(running.http_url.removeprefix("http://")) as client,
    ):
        found = ask(client, "iris", **columns(3)).as_numpy("predictions")
        assert found.reshape(-1).tolist() == ESTIMATOR.predict(TABLE[:3]).tolist()
