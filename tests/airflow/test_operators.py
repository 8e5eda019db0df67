"""Hook, operators and sensor of the provider against a real server."""

import asyncio
import json

import numpy as np
import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSensorTimeout, TaskDeferred

from naiad.cli.key import new_key
from naiad.integrations.airflow.hooks import NaiadHook
from naiad.integrations.airflow.operators import (
    NaiadLoadModelOperator,
    NaiadPerfOperator,
    NaiadPublishModelOperator,
    NaiadUnloadModelOperator,
)
from naiad.integrations.airflow.sensors import NaiadModelReadySensor
from support import onnx_models
from support.airflow_connections import connection
from support.server_process import ServerProcess

ROWS = [[0.0, 1.0, 2.0, 3.0]]


@pytest.fixture(scope="module")
def plus(repository, tmp_path_factory):
    """The file of a model that adds 1, which is in the repository, too."""
    (repository / "plus/1").mkdir(parents=True)
    (repository / "plus/1/model.onnx").write_bytes(onnx_models.add_default(1.0))
    return repository / "plus/1/model.onnx"


@pytest.fixture
def loaded(plus):
    NaiadLoadModelOperator(task_id="load", model="plus").execute({})
    yield "plus"
    NaiadUnloadModelOperator(task_id="unload", model="plus").execute({})


def infer(**settings):
    rows = np.array(ROWS, np.float32)
    return NaiadHook(**settings).run(lambda client: client.infer("plus", {"INPUT0": rows}))["OUTPUT0"].tolist()


def is_ready(model="plus"):
    return NaiadHook().run(lambda client: client.is_model_ready(model))


# --- hook -----------------------------------------------------------------------------------------------------------


def test_hook_speaks_both_protocols(server, loaded, monkeypatch):
    monkeypatch.setenv("AIRFLOW_CONN_OVER_GRPC", connection(server, "grpc"))
    assert infer() == infer(conn_id="over_grpc") == [[1.0, 2.0, 3.0, 4.0]]


def test_connection_can_be_tested(server, monkeypatch):
    assert NaiadHook().test_connection()[0] is True
    monkeypatch.setenv("AIRFLOW_CONN_AWAY", json.dumps({"conn_type": "naiad", "host": "127.0.0.1", "port": 1}))
    is_fine, reason = NaiadHook("away").test_connection()
    assert not is_fine
    assert reason.startswith("connection 'away' (http://127.0.0.1:1): no connection to")
    assert "start the server" in reason


def test_password_is_the_api_key(repository, tmp_path, monkeypatch):
    line, key = new_key("airflow", "all")
    (tmp_path / "keys").write_text(f"{line}\n")
    flags = (f"--model-repository={repository}", "--model-control-mode=explicit", f"--api-key-file={tmp_path}/keys")
    server = ServerProcess(tmp_path / "log", *flags)
    try:
        server.wait_started()
        monkeypatch.setenv("AIRFLOW_CONN_NAIAD_DEFAULT", connection(server, password=key))
        assert NaiadHook().test_connection()[0] is True
        monkeypatch.setenv("AIRFLOW_CONN_NAIAD_DEFAULT", connection(server, password="wrong"))
        with pytest.raises(AirflowFailException, match="the API key is the password of the connection"):
            NaiadLoadModelOperator(task_id="load", model="plus").execute({})
    finally:
        server.stop()


def test_wrong_connection_names_the_field(server, monkeypatch):
    monkeypatch.setenv("AIRFLOW_CONN_NAIAD_DEFAULT", connection(server, extra={"timeout_s": "soon"}))
    with pytest.raises(AirflowFailException, match="connection 'naiad_default': timeout_s in extra is 'soon'"):
        is_ready()
    monkeypatch.setenv("AIRFLOW_CONN_NAIAD_DEFAULT", connection(server, "https", extra={"ca_file": "/no/such"}))
    with pytest.raises(AirflowFailException, match=r"connection 'naiad_default': .*No such file"):
        is_ready()


def test_provider_is_known_to_airflow():
    from airflow.providers_manager import ProvidersManager

    manager = ProvidersManager()
    assert "naiad" in manager.providers
    found = manager.hooks["naiad"]
    assert found.hook_class_name == "naiad.integrations.airflow.hooks.NaiadHook"
    assert found.hook_name == "naiad"


# --- load and unload ------------------------------------------------------------------------------------------------


def test_model_is_loaded_and_unloaded(plus):
    NaiadLoadModelOperator(task_id="load", model="plus", config='{"max_batch_size": 3}').execute({})
    assert NaiadHook().run(lambda client: client.model_config("plus")).max_batch_size == 3
    NaiadUnloadModelOperator(task_id="unload", model="plus").execute({})
    assert not is_ready()
    NaiadUnloadModelOperator(task_id="unload", model="plus").execute({})


def test_unknown_model_is_named():
    with pytest.raises(AirflowException, match=r"connection 'naiad_default' \(http://.*'nothing'"):
        NaiadLoadModelOperator(task_id="load", model="nothing").execute({})


# --- publish --------------------------------------------------------------------------------------------------------


def test_published_model_is_returned(plus, repository, tmp_path):
    (tmp_path / "sample.json").write_text(json.dumps({"INPUT0": ROWS}))
    operator = NaiadPublishModelOperator(
        task_id="publish",
        source="{{ params.folder }}/model.onnx",
        repository=str(repository),
        model="sum",
        sample=str(tmp_path / "sample.json"),
        expected={"OUTPUT0": [[1.0, 2.0, 3.0, 4.0]]},
    )
    operator.render_template_fields({"params": {"folder": str(plus.parent)}})
    assert operator.execute({}) == {"model": "sum", "version": 1, "path": str(repository / "sum/1")}
    assert is_ready("sum")


def test_failed_publication_names_connection_and_model(plus, repository):
    settings = {"task_id": "publish", "source": str(plus), "repository": str(repository), "model": "minus"}
    with pytest.raises(AirflowException, match="connection 'naiad_default': model 'minus' was not published: output"):
        NaiadPublishModelOperator(sample={"INPUT0": ROWS}, expected={"OUTPUT0": ROWS}, **settings).execute({})
    with pytest.raises(AirflowFailException, match="`expected` has no `sample`"):
        NaiadPublishModelOperator(expected={"OUTPUT0": ROWS}, **settings).execute({})
    with pytest.raises(AirflowFailException, match=r"the sample /no/such.json cannot be read"):
        NaiadPublishModelOperator(sample="/no/such.json", **settings).execute({})
    with pytest.raises(AirflowFailException, match="/no/such does not exist; give a model file"):
        NaiadPublishModelOperator(**(settings | {"source": "/no/such"})).execute({})
    assert not (repository / "minus").exists()


# --- sensor ---------------------------------------------------------------------------------------------------------


def test_sensor_waits_for_a_version(loaded):
    NaiadModelReadySensor(task_id="ready", model="plus", version="1", timeout=5).execute({})
    sensor = NaiadModelReadySensor(task_id="ready", model="plus", version="7", timeout=0.1, poke_interval=0.05)
    with pytest.raises(AirflowSensorTimeout):
        sensor.execute({})


def test_server_that_is_away_is_not_ready(monkeypatch):
    monkeypatch.setenv(
        "AIRFLOW_CONN_NAIAD_DEFAULT", json.dumps({"conn_type": "naiad", "host": "127.0.0.1", "port": 1})
    )
    assert NaiadModelReadySensor(task_id="ready", model="plus").poke({}) is False


def test_deferred_sensor_fires_when_ready(plus):
    sensor = NaiadModelReadySensor(task_id="ready", model="plus", deferrable=True, poke_interval=0.05)
    with pytest.raises(TaskDeferred) as deferred:
        sensor.execute({})
    trigger = deferred.value.trigger
    path, arguments = trigger.serialize()
    assert path.endswith("NaiadModelReadyTrigger")
    assert type(trigger)(**arguments).serialize() == (path, arguments)

    async def fire():
        waiting = asyncio.ensure_future(anext(trigger.run()))
        async with await NaiadHook().aget_conn() as client:
            await client.load("plus")
        return await asyncio.wait_for(waiting, 30)

    event = asyncio.run(fire())
    sensor.execute_complete({}, event.payload)
    with pytest.raises(AirflowFailException, match="some reason"):
        sensor.execute_complete({}, {"error": "some reason"})
    NaiadUnloadModelOperator(task_id="unload", model="plus").execute({})


# --- perf -----------------------------------------------------------------------------------------------------------


def test_measurement_is_compared_with_a_baseline(loaded, tmp_path):
    baseline = tmp_path / "baseline.json"
    settings = {"task_id": "perf", "model": "plus", "repeat": 2, "seconds": 0.5, "baseline": str(baseline)}
    figures = NaiadPerfOperator(create_baseline=True, **settings).execute({})
    assert figures["requests_per_s"] > 0
    assert figures["latency_us"] > 0
    document = json.loads(baseline.read_text())
    for row in document["rows"]:  # a machine that was ten times as fast
        for bound in ("value", "low", "high"):
            row["throughput"][bound] *= 10
            row["latency"]["mean"][bound] /= 10
    baseline.write_text(json.dumps(document))
    with pytest.raises(AirflowException, match="model 'plus' is slower than the baseline"):
        NaiadPerfOperator(result=str(tmp_path / "result.json"), **settings).execute({})
    assert json.loads((tmp_path / "result.json").read_text())["rows"]


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"baseline": "/no/such.json"}, "baseline /no/such.json cannot be used"),
        ({"result": "/no/such/place.json"}, "whose directory does not exist"),
        ({"concurrency": 0}, "concurrency is 0"),
        ({"input_data": ["/no/such"]}, "/no/such"),
    ],
)
def test_wrong_measurement_is_named(loaded, settings, text):
    with pytest.raises(AirflowException, match=text):
        NaiadPerfOperator(task_id="perf", model="plus", **settings).execute({})


def test_measurement_of_unknown_model_is_named():
    with pytest.raises(AirflowException, match=r"connection 'naiad_default' .*'nothing'"):
        NaiadPerfOperator(task_id="perf", model="nothing").execute({})
