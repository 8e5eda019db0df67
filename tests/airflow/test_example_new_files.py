"""The example DAG of incremental predictions, run by Airflow against a real server."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples/airflow"


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def conf(tmp_path, repository, server):
    """A served model, and a folder for inputs and outputs."""
    (repository / "prices/1").mkdir(parents=True)
    load("fit_and_publish").write_linear_model(repository / "prices/1/model.onnx", np.array([2.0, 10.0]), 5.0)
    assert server.post("/v2/repository/models/prices/load").status == 200
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    return {"inputs": str(tmp_path / "in/*.csv"), "folder": str(tmp_path / "out")}


def predicted(conf):
    """Return the prices of all outputs, the first output first."""
    outputs = sorted(Path(conf["folder"]).glob("*.jsonl"), key=lambda path: path.stat().st_mtime_ns)
    return [[json.loads(line)["price"] for line in path.read_text().splitlines()] for path in outputs]


def test_each_run_predicts_new_files(conf):
    dag = load("predict_new_files").dag
    folder = Path(conf["inputs"]).parent
    for name, area, wanted in [("a", 100, [[235]]), ("b", 50, [[235], [135]]), ("", 0, [[235], [135]])]:
        if name:
            (folder / f"{name}.csv").write_text(f"area,rooms\n{area},3\n")
        run = dag.test(run_conf=conf)
        assert {each.state for each in run.get_task_instances()} == {"success"}
        assert predicted(conf) == wanted
