"""Canary, promotion and rollback as tasks."""

import asyncio

import numpy as np
import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from naiad.client import InferError
from naiad.integrations.airflow.hooks import NaiadHook
from naiad.integrations.airflow.operators import NaiadPublishModelOperator, NaiadRolloutOperator
from support import onnx_models
from support.airflow_connections import connection


@pytest.fixture
def model(repository, tmp_path):
    """A model whose version 1 adds 1 and is pinned, and whose version 2 adds 2."""
    name = f"plus-{tmp_path.name}"
    for number in (1, 2):
        source = tmp_path / f"{number}.onnx"
        source.write_bytes(onnx_models.add_default(float(number)))
        publish = NaiadPublishModelOperator(
            task_id="publish", source=str(source), repository=str(repository), model=name
        )
        assert publish.execute({})["version"] == number
        if number == 1:
            change(name, "pin", version=1)
    return name


def change(model, action, **settings):
    return NaiadRolloutOperator(task_id="rollout", model=model, action=action, **settings).execute({})


def answer(model, requests=1):
    """Return what the model adds, of some requests; None for one that fails."""

    async def ask(client):
        found = []
        for _ in range(requests):
            try:
                result = await client.infer(model, {"INPUT0": np.zeros((1, 4), np.float32)})
                found.append(int(result["OUTPUT0"][0, 0]))
            except InferError:
                found.append(None)
        return found

    return NaiadHook().run(ask)


def test_pinned_version_keeps_the_requests(model):
    assert set(answer(model, 20)) == {1}
    change(model, "canary", version="2", weight="50")
    assert set(answer(model, 100)) == {1, 2}
    assert change(model, "promote")["rollout"]["stable"] == 2
    assert set(answer(model, 20)) == {2}
    change(model, "rollback")
    assert set(answer(model, 20)) == {1}
    assert change(model, "end") is None
    assert set(answer(model, 20)) == {1}  # version 2 was rolled back
    assert change(model, "allow", version="2")["refused"] == {}
    assert set(answer(model, 20)) == {2}


def test_served_version_is_not_removed(model, repository, tmp_path):
    publish = NaiadPublishModelOperator(
        task_id="publish", source=str(tmp_path / "2.onnx"), repository=str(repository), model=model, keep_versions=1
    )
    assert publish.execute({})["version"] == 3
    assert sorted(each.name for each in (repository / model).iterdir() if each.is_dir()) == ["1", "3"]
    assert set(answer(model, 10)) == {1}


def test_task_waits_for_the_last_step(model):
    status = change(model, "canary", version=2, steps=[50, 100], every_s=0.2, poll_interval_s=0.05, timeout_s=60)
    assert status["rollout"]["stable"] == 2
    assert set(answer(model, 10)) == {2}


@pytest.mark.parametrize("end", ["rolled back", "ended"])
def test_rollout_that_stops_fails_the_task(model, end):
    async def wait_for_the_end():
        waiting = asyncio.create_task(
            asyncio.to_thread(
                change, model, "canary", version=2, steps=[50, 100], every_s=60, poll_interval_s=0.05, timeout_s=60
            )
        )
        while True:
            async with NaiadHook().get_conn() as client:
                status = await client.rollout(model)
                if status.get("canary", {}).get("percent") == 50:
                    if end == "ended":
                        await client.end_rollout(model)
                    else:
                        await client.change_rollout(model, {"action": "rollback"})
                    return await waiting
            await asyncio.sleep(0.02)

    with pytest.raises(AirflowException, match=rf"version 2 of model '{model}' was not promoted.*{end}"):
        asyncio.run(wait_for_the_end())
    if end == "rolled back":
        assert set(answer(model, 10)) == {1}


@pytest.mark.parametrize(
    ("action", "settings", "text"),
    [
        ("canary", {"version": 2, "steps": [5, 50]}, "the last of steps is 50, with which the canary is never"),
        ("canari", {}, "action is 'canari'; expected canary, pin"),
        ("canary", {"weight": 5}, "version is None; expected a number"),
        ("canary", {"version": 2}, "weight is None; expected a number"),
        ("pin", {"version": "new"}, "version is 'new'; expected a number"),
        ("pin", {"version": 9}, "version 9, .* has no directory"),
        ("canary", {"version": 2, "weight": 300}, "weight is 300"),
        ("canary", {"version": 2, "weight": 1, "guard": {"max_errors": 1}}, "unknown field 'max_errors'"),
    ],
)
def test_wrong_change_is_named(model, action, settings, text):
    with pytest.raises(AirflowException, match=text):
        change(model, action, **settings)
    assert set(answer(model, 10)) == {1}


def test_rollouts_need_http(server, model, monkeypatch):
    monkeypatch.setenv("AIRFLOW_CONN_NAIAD_DEFAULT", connection(server, "grpc"))
    with pytest.raises(AirflowException, match="rollouts are available over HTTP only"):
        change(model, "promote")
    with pytest.raises(AirflowFailException, match="action is"):
        change(model, "")
