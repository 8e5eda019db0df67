"""Batch prediction as a task."""

import json
import os

import pytest
import trustme
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from naiad.integrations.airflow.hooks import NaiadHook
from naiad.integrations.airflow.operators import NaiadPredictOperator
from naiad.tools.predict.job_checkpoint import JobCheckpoint
from support import onnx_models
from support.airflow_connections import connection


@pytest.fixture(autouse=True)
def model(repository):
    if not (repository / "plus").exists():
        (repository / "plus/1").mkdir(parents=True)
        (repository / "plus/1/model.onnx").write_bytes(onnx_models.add_default(1.0))
    NaiadHook().run(lambda client: client.load("plus"))


def operator(folder, **settings):
    (folder / "rows.csv").write_text("a,b,c,d\n0,1,2,3\n4,5,6,7\n8,x,10,11\n")
    given = {"inputs": str(folder / "*.csv"), "output_path": str(folder / "out.jsonl")} | settings
    return NaiadPredictOperator(task_id="predict", model="plus", columns=dict.fromkeys("abcd", "INPUT0"), **given)


def test_rows_are_predicted_and_rejected(tmp_path):
    summary = operator(tmp_path).execute({})
    assert (summary["rows"], summary["failed_rows"]) == (3, 1)
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert rows[0]["OUTPUT0"] == [1, 2, 3, 4]
    assert "rows.csv" in (tmp_path / summary["rejected"]).read_text()


def test_failed_rows_can_fail_the_task(tmp_path):
    with pytest.raises(AirflowException, match="connection 'naiad_default'"):
        operator(tmp_path, max_failed_rows=0).execute({})
    assert not (tmp_path / "out.jsonl").exists()


def test_result_names_an_output_that_was_completed(tmp_path, monkeypatch):
    def refuse(*arguments):
        raise OSError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(JobCheckpoint, "publish", refuse)
        with pytest.raises(AirflowException, match="the disk is full"):
            operator(tmp_path, since="last").execute({})
    before = (tmp_path / "rows.csv").stat()
    next_run = operator(tmp_path, since="last", output_path=str(tmp_path / "next.jsonl"))
    os.utime(tmp_path / "rows.csv", ns=(before.st_atime_ns, before.st_mtime_ns))
    (tmp_path / "more.csv").write_text("a,b,c,d\n0,1,2,3\n")
    result = next_run.execute({})
    assert (result["rows"], result["output"]) == (1, str(tmp_path / "next.jsonl"))
    assert result["earlier_output"] == str(tmp_path / "out.jsonl")


def test_certificates_of_the_connection_are_refused(tmp_path, server, monkeypatch):
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    secure = connection(server, "https", extra={"ca_file": str(tmp_path / "ca.pem")})
    monkeypatch.setenv("AIRFLOW_CONN_SECURE", secure)
    with pytest.raises(
        AirflowFailException, match=r"connection 'secure' has ca_file .* set the environment variable"
    ):
        operator(tmp_path, conn_id="secure").execute({})


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"inputs": "/no/such/*.csv"}, "/no/such"),
        ({"output_path": "/no/such/out.jsonl"}, "/no/such"),
        ({"output_path": "out.docx"}, "out.docx"),
        ({"outputs": ["label"]}, "no output 'label'"),
        ({"rows_per_request": -1}, "rows_per_request is -1"),
    ],
)
def test_wrong_job_is_named(tmp_path, settings, text):
    with pytest.raises((AirflowFailException, AirflowException), match=text):
        operator(tmp_path, **settings).execute({})
