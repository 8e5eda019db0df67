"""The same two stages as an application of Ray Serve alone: two deployments, each with ONNX Runtime.

    serve run ray_alone:app directory=/tmp/recommender
    curl -s localhost:8000 -d '{"user": 7, "items": [1, 2, ...]}'

`directory` is that of `make_models.py`. This is what the benchmark compares naiad with.
"""

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from ray.serve.handle import DeploymentHandle
from starlette.requests import Request

from ray import serve

_OPTIONS: dict[str, Any] = {"max_ongoing_requests": 64, "ray_actor_options": {"num_cpus": 0.5}}


def open_session(path: Path) -> onnxruntime.InferenceSession:
    """Open a model with one thread: the two deployments share two cores."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


@serve.deployment(**_OPTIONS)
class Ranker:
    """The second stage."""

    def __init__(self, repository: str) -> None:
        self._session = open_session(Path(repository, "ranker", "1", "model.onnx"))

    async def rank(self, rows: np.ndarray) -> np.ndarray:
        """Return the scores of one request."""
        return self._session.run(["SCORES"], {"ROWS": rows})[0]


@serve.deployment(**_OPTIONS)
class Recommender:
    """The first stage, which answers requests."""

    def __init__(self, repository: str, ranker: DeploymentHandle) -> None:
        self._session = open_session(Path(repository, "features", "1", "model.onnx"))
        self._ranker = ranker

    async def __call__(self, request: Request) -> dict[str, list[float]]:
        """Answer `{"user": USER, "items": [...]}` with `{"scores": [...]}`."""
        body = await request.json()
        inputs = {"USER": np.array([[body["user"]]], np.int64), "ITEMS": np.array([body["items"]], np.int64)}
        rows = self._session.run(["ROWS"], inputs)[0]
        scores = await self._ranker.rank.remote(rows)
        return {"scores": scores[0].tolist()}


def app(arguments: dict[str, str]) -> serve.Application:
    """Return the application of the models in a directory."""
    repository = str(Path(arguments["directory"]).absolute() / "one")
    return Recommender.bind(repository, Ranker.bind(repository))
