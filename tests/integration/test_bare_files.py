"""Model files served without a repository: scikit-learn exports, several files, folders, batches."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from support.server_process import ServerProcess

StartServer = Callable[..., ServerProcess]


def infer_rows(running: ServerProcess, model: str, rows: list[list[float]], **more: object) -> dict[str, dict]:
    """Send rows as input X over REST; return the outputs by name."""
    tensor = {"name": "X", "datatype": "FP32", "shape": [len(rows), len(rows[0])], "data": rows}
    answer = running.post(f"/v2/models/{model}/infer", {"inputs": [tensor], **more})
    assert answer.status == 200, answer.body
    return {output["name"]: output for output in answer.json["outputs"]}


@pytest.mark.filterwarnings("ignore")
def test_scikit_learn_export_is_served(start_server: StartServer, tmp_path: Path) -> None:
    from skl2onnx import to_onnx
    from sklearn.datasets import load_iris
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    features, numbers = load_iris(return_X_y=True)
    names = np.array(["setosa", "versicolor", "virginica"])
    fitted = make_pipeline(StandardScaler(), LogisticRegression()).fit(features, names[numbers])
    features = features.astype(np.float32)
    (tmp_path / "iris.onnx").write_bytes(to_onnx(fitted, features[:1]).SerializeToString())
    running = start_server(None, str(tmp_path / "iris.onnx"))
    running.wait_ready()
    metadata = running.get("/v2/models/iris").json
    assert metadata["outputs"][1] == {"name": "output_probability", "datatype": "FP32", "shape": [-1, 3]}
    for rows in (features[:1], features[::50]):
        outputs = infer_rows(running, "iris", rows.tolist())
        assert outputs["output_label"]["data"] == fitted.predict(rows).tolist()
        probabilities = np.array(outputs["output_probability"]["data"]).reshape(-1, 3)
        assert np.allclose(probabilities, fitted.predict_proba(rows), atol=1e-5)
    wanted = [{"name": "output_probability", "parameters": {"classification": 1}}]
    outputs = infer_rows(running, "iris", features[:1].tolist(), outputs=wanted)
    assert outputs["output_probability"]["data"][0].endswith(":0:setosa")
