"""`mlflow deployments` with the target naiad: the registry of MLflow, a real server, and the command line."""

import contextlib
import json
import os
import shutil
import subprocess
import sys

import mlflow
import numpy as np
import pandas
import pytest
from mlflow.deployments import get_deploy_client
from mlflow.exceptions import MlflowException
from mlflow.models import infer_signature
from sklearn.dummy import DummyClassifier

from support.mlflow_models import CLASSES, ESTIMATOR, TABLE, save_onnx, save_python, save_sklearn, save_xgboost
from support.server_process import SOURCE, serving

WIDE = TABLE.assign(extra=1.0)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    root = tmp_path_factory.mktemp("saved")
    save_sklearn(root / "iris", "skops")
    save_sklearn(root / "pickle", "cloudpickle")
    save_onnx(root / "tensors")
    save_python(root / "greeting")
    return root


@pytest.fixture(scope="module")
def booster(saved):
    return save_xgboost(saved / "forest")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A registry in files, with two versions of a model, which take MLflow seconds; return its address."""
    address = (tmp_path_factory.mktemp("registry") / "mlruns").as_uri()
    labels = ESTIMATOR.predict(TABLE)
    constant = DummyClassifier(strategy="constant", constant=2).fit(TABLE, CLASSES)
    with opened_registry(address):
        for estimator in (ESTIMATOR, constant):
            with mlflow.start_run():
                mlflow.sklearn.log_model(
                    estimator,
                    name="model",
                    registered_model_name="iris",
                    signature=infer_signature(TABLE, labels),
                    serialization_format="skops",
                    pip_requirements=["scikit-learn"],
                )
    return address


@contextlib.contextmanager
def opened_registry(address):
    """Use a registry in this process and in its children."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", address)
        patch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
        mlflow.set_tracking_uri(address)
        yield
    mlflow.set_tracking_uri(None)


@pytest.fixture
def registry(runs):
    """A registry with two versions of the model `iris`."""
    with opened_registry(runs):
        yield


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def server(repository, tmp_path_factory):
    flags = (f"--model-repository={repository}", "--model-control-mode=explicit", "--allow-client-model-files=true")
    with serving(tmp_path_factory.mktemp("log") / "log", *flags) as running:
        yield running


@pytest.fixture
def target(server):
    return f"naiad:http://{server.http_url}"


@pytest.fixture
def client(target, repository, monkeypatch):
    monkeypatch.setenv("NAIAD_REPOSITORY", str(repository))
    deployed = get_deploy_client(target)
    yield deployed
    for each in deployed.list_deployments():
        deployed.delete_deployment(each["name"])


def test_registered_version_is_deployed_and_replaced(client, registry, repository):
    created = client.create_deployment("iris", "models:/iris/1")
    assert created == {"name": "iris", "flavor": "python_function", "version": "1"}
    assert client.predict("iris", TABLE)["predictions"].tolist() == ESTIMATOR.predict(TABLE).tolist()
    assert client.update_deployment("iris", "models:/iris/2")["version"] == "2"
    assert set(client.predict("iris", WIDE)["predictions"].tolist()) == {2}
    described = client.get_deployment("iris")
    assert (described["versions"], described["flavor"]) == (["2"], "python_function")
    assert {"name": "iris", "versions": ["2"], "state": "READY"} in client.list_deployments()
    client.delete_deployment("iris")
    assert not (repository / "iris").exists()
    client.delete_deployment("iris")


def test_command_line_deploys_and_predicts(registry, server, target, repository, tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "NAIAD_REPOSITORY": str(repository)}

    def run(verb, *arguments):
        command = [sys.executable, "-m", "mlflow", "deployments", verb, "-t", target, *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "python_function deployment shell is created" in run("create", "-m", "models:/iris/1", "--name", "shell")
    TABLE[:3].to_json(tmp_path / "rows.json")
    run("predict", "--name", "shell", "-I", str(tmp_path / "rows.json"), "-O", str(tmp_path / "answers.json"))
    assert json.loads((tmp_path / "answers.json").read_text()) == {
        "predictions": ESTIMATOR.predict(TABLE[:3]).tolist()
    }
    assert "shell" in run("list")
    assert "repository=DIR" in run("help")
    assert "is deleted" in run("delete", "--name", "shell")


def test_onnx_with_named_tensors_is_native(client, saved):
    assert client.create_deployment("tensors", str(saved / "tensors"))["flavor"] == "onnx"
    rows = np.arange(8, dtype=np.float32).reshape(2, 4)
    native = client.predict("tensors", {"image": rows})["predictions"]
    client.update_deployment("tensors", str(saved / "tensors"), flavor="python_function")
    assert client.get_deployment("tensors")["flavor"] == "python_function"
    np.testing.assert_array_equal(client.predict("tensors", rows)["predictions"], native)


def test_native_forest_answers_as_function(client, saved, booster):
    assert client.create_deployment("forest", str(saved / "forest"), flavor="xgboost")["flavor"] == "xgboost"
    client.create_deployment("function", str(saved / "forest"))
    native, function = (client.predict(name, TABLE)["predictions"] for name in ("forest", "function"))
    np.testing.assert_allclose(native, function, atol=1e-6)


def test_trusted_pickle_is_deployed_natively(client, saved):
    with pytest.raises(MlflowException, match="--allow-pickle"):
        client.create_deployment("pickle", str(saved / "pickle"), flavor="sklearn")
    assert "pickle" not in [each["name"] for each in client.list_deployments()]
    client.create_deployment("pickle", str(saved / "pickle"), flavor="sklearn", config={"trust": "true"})
    assert client.predict("pickle", TABLE)["predictions"].tolist() == ESTIMATOR.predict(TABLE).tolist()


def test_files_go_with_the_request(target, saved, monkeypatch, repository):
    monkeypatch.delenv("NAIAD_REPOSITORY", raising=False)
    client = get_deploy_client(target)
    client.create_deployment("pushed", str(saved / "greeting"), config={"trust": True, "max_batch_size": 2})
    assert not (repository / "pushed").exists()
    people = pandas.DataFrame({"name": ["Ada", "Zoë", "Bo"], "when": pandas.to_datetime(["2030-12-31"] * 3)})
    answer = client.predict("pushed", people)
    assert answer.get_predictions()["greeting"].tolist() == ["Hello Ada", "Hello Zoë", "Hello Bo"]
    assert client.update_deployment("pushed", str(saved / "greeting"), config={"trust": True})["version"] == "2"
    client.delete_deployment("pushed")
    assert client.list_deployments() == []


def test_input_example_is_asked(client, server, tmp_path):
    save_sklearn(tmp_path / "iris", "skops", input_example=TABLE[:4])
    client.create_deployment("iris", str(tmp_path / "iris"))
    (statistics,) = server.get("/v2/models/iris/stats").json["model_stats"]
    assert statistics["inference_count"] == 4
    shutil.rmtree(tmp_path / "iris")
    save_sklearn(tmp_path / "iris", "skops", input_example=pandas.DataFrame({"colour": [1.0]}))
    with pytest.raises(MlflowException, match="the model's input example does not fit: the inputs have 'colour'"):
        client.update_deployment("iris", str(tmp_path / "iris"))
    assert client.get_deployment("iris")["versions"] == ["1"]


def test_failed_update_leaves_the_old_model(client, saved, tmp_path):
    client.create_deployment("iris", str(saved / "iris"))
    with pytest.raises(MlflowException, match="Clients of the model would fail") as raised:
        client.update_deployment("iris", str(saved / "greeting"), config={"trust": "true"})
    assert "input 'name' is missing now and BYTES [-1, 1] in the new version" in raised.value.message
    with pytest.raises(MlflowException, match=r"--allow-pickle"):
        client.update_deployment("iris", str(saved / "pickle"))
    assert client.get_deployment("iris")["versions"] == ["1"]
    assert len(client.predict("iris", TABLE)["predictions"]) == 150


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"size": "2"}, "config has 'size', which is no setting of naiad"),
        ({"trust": "perhaps"}, "trust is 'perhaps'; expected true or false"),
        ({"max_batch_size": "-1"}, "max_batch_size is '-1'; expected a whole number"),
        ({"timeout_s": "soon"}, "timeout_s is 'soon'; expected a number of seconds"),
        ({"repository": "/no/such"}, "repository /no/such is not a directory"),
    ],
)
def test_wrong_settings_are_named(client, saved, settings, text):
    with pytest.raises(MlflowException, match=text.replace("(", r"\(")):
        client.create_deployment("wrong", str(saved / "iris"), config=settings)
    assert client.list_deployments() == []


@pytest.mark.parametrize("is_absolute", [False, True])
def test_deployment_name_must_not_be_a_path(client, saved, repository, is_absolute):
    kept = repository.parent / "kept"
    kept.mkdir(exist_ok=True)
    name = str(kept) if is_absolute else "../kept"
    for call in (lambda: client.create_deployment(name, str(saved / "iris")), lambda: client.delete_deployment(name)):
        with pytest.raises(MlflowException, match="must not be a path"):
            call()
    assert list(kept.iterdir()) == []


def test_mistakes_name_the_fix(client, target, saved, tmp_path):
    client.create_deployment("iris", str(saved / "iris"))
    with pytest.raises(MlflowException, match="has deployment 'iris' already; use update_deployment"):
        client.create_deployment("iris", str(saved / "iris"))
    with pytest.raises(MlflowException, match="has no deployment 'other'; create it"):
        client.update_deployment("other", str(saved / "iris"))
    with pytest.raises(MlflowException, match="the model has no flavour 'onnx', only python_function, sklearn"):
        client.create_deployment("other", str(saved / "iris"), flavor="onnx")
    with pytest.raises(MlflowException, match="the inputs have 'colour', and model 'iris' expects 'sepal length"):
        client.predict("iris", {"colour": [1]})
    with pytest.raises(MlflowException, match="has no endpoints, but endpoint is 'x'"):
        client.list_deployments(endpoint="x")
    (tmp_path / "empty").mkdir()
    with pytest.raises(MlflowException, match="is no model of MLflow"):
        client.create_deployment("other", str(tmp_path / "empty"))
    with pytest.raises(MlflowException, match="start the server, or correct the target"):
        get_deploy_client("naiad:http://127.0.0.1:1").list_deployments()
