"""The example DAG, run by Airflow against a real server."""

import importlib.util
import json
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples/airflow/fit_and_publish.py"
HOUSES = [(50, 2, 180), (80, 3, 275), (120, 4, 398), (65, 2, 222), (150, 5, 495)]


@pytest.fixture(scope="module")
def dag():
    spec = importlib.util.spec_from_file_location("fit_and_publish", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.dag


@pytest.fixture
def folder(tmp_path):
    rows = "\n".join(",".join(map(str, row)) for row in HOUSES)
    (tmp_path / "known.csv").write_text(f"area,rooms,price\n{rows}\n")
    (tmp_path / "new.csv").write_text("area,rooms\n100,3\n60,2\n")
    return tmp_path


def test_pipeline_publishes_and_predicts(dag, folder, repository, server):
    conf = {"folder": str(folder), "repository": str(repository)}
    run = dag.test(run_conf=conf)
    states = {each.task_id: each.state for each in run.get_task_instances()}
    assert set(states.values()) == {"success"}, states
    assert (repository / "prices/1/model.onnx").exists()
    body = {"inputs": [{"name": "features", "datatype": "FP32", "shape": [2, 2], "data": [100, 3, 60, 2]}]}
    prices = server.post("/v2/models/prices/infer", body).json["outputs"][0]["data"]
    rows = [json.loads(line) for line in (folder / "prices.jsonl").read_text().splitlines()]
    assert [row["price"] for row in rows] == pytest.approx(prices)
    assert prices == pytest.approx([331, 207], abs=20)
