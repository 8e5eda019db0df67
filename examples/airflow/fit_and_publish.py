"""An Airflow pipeline: fit a model, publish it to a running server, and predict a file of new rows.

naiad serve models --model-control-mode=explicit
export AIRFLOW_CONN_NAIAD_DEFAULT='{"conn_type": "naiad", "host": "localhost", "port": 8000}'
airflow dags test fit_and_publish --conf '{"folder": "/data/houses", "repository": "/srv/models"}'

The folder has `known.csv` (area, rooms, price) and `new.csv` (area, rooms); the predictions are in `prices.jsonl`.
"""

import csv
from pathlib import Path

import numpy as np
from airflow.sdk import DAG, Param, task

from naiad.integrations.airflow.operators import NaiadPredictOperator, NaiadPublishModelOperator
from naiad.integrations.airflow.sensors import NaiadModelReadySensor

FEATURES = ["area", "rooms"]


def write_linear_model(path: Path, weights: np.ndarray, offset: float) -> None:
    """Write `price = features * weights + offset` as ONNX; a framework's exporter does this for a real model."""
    from onnx import TensorProto, helper, numpy_helper

    tensors = {"weights": weights.reshape(-1, 1), "offset": np.array([offset])}
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["features", "weights", "offset"], ["price"])],
        "prices",
        [helper.make_tensor_value_info("features", TensorProto.FLOAT, ["rows", len(weights)])],
        [helper.make_tensor_value_info("price", TensorProto.FLOAT, ["rows", 1])],
        [numpy_helper.from_array(values.astype(np.float32), name) for name, values in tensors.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path.write_bytes(model.SerializeToString())


with DAG(
    "fit_and_publish",
    schedule=None,
    params={"folder": Param(type="string"), "repository": Param(type="string")},
    doc_md=__doc__,
) as dag:

    @task
    def fit(params: dict) -> dict:
        """Fit a line; return the first known row and its price, which the published model must reproduce."""
        folder = Path(params["folder"])
        with (folder / "known.csv").open() as file:
            rows = [[float(row[name]) for name in [*FEATURES, "price"]] for row in csv.DictReader(file)]
        table = np.array(rows)
        features = np.column_stack([table[:, :-1], np.ones(len(table))])
        *weights, offset = np.linalg.lstsq(features, table[:, -1], rcond=None)[0]
        write_linear_model(folder / "prices.onnx", np.array(weights), offset)
        sample = table[0, :-1]
        return {"features": [sample.tolist()], "price": [[float(sample @ weights + offset)]]}

    fitted = fit()
    publish = NaiadPublishModelOperator(
        task_id="publish",
        source="{{ params.folder }}/prices.onnx",
        repository="{{ params.repository }}",
        sample={"features": fitted["features"]},
        expected={"price": fitted["price"]},
        keep_versions=3,
    )
    ready = NaiadModelReadySensor(
        task_id="ready",
        model="prices",
        version="{{ ti.xcom_pull('publish')['version'] }}",
        poke_interval=1,
        timeout=60,
        deferrable=True,
    )

    predict = NaiadPredictOperator(
        task_id="predict",
        model="prices",
        inputs="{{ params.folder }}/new.csv",
        columns=dict.fromkeys(FEATURES, "features"),
        output_path="{{ params.folder }}/prices.jsonl",
        max_failed_rows=0,
    )

    fitted >> publish >> ready >> predict
