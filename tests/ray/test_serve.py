"""naiad behind the proxy of Ray Serve: routes, errors, binary tensors, model ids, replicas that follow the queue."""

import concurrent.futures
import json
import time
import urllib.error
import urllib.request

import numpy as np
import pytest
from tritonclient import http as triton

from naiad.integrations.ray import deployment
from support.ports import free_port


@pytest.fixture(scope="module")
def port(cluster):
    from ray import serve

    port = free_port()
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    yield port
    serve.shutdown()


def run(app, name: str, prefix: str) -> None:
    from ray import serve

    serve.run(app, name=name, route_prefix=prefix)


def call(port: int, path: str, body: bytes | None = None, headers=None) -> tuple[int, bytes]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", body, headers or {})
    try:
        with urllib.request.urlopen(request, timeout=120) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def infer_body(*rows) -> bytes:
    data = {"name": "PAIR", "datatype": "FP32", "shape": [len(rows), 2], "data": rows}
    return json.dumps({"inputs": [data]}).encode()


def test_routes_of_kserve(port: int, repository) -> None:
    run(deployment(str(repository)), "plain", "/")
    assert call(port, "/v2/health/ready") == (200, b"")
    status, body = call(port, "/v2/models/ratio/infer", infer_body([1, 4]))
    assert (status, json.loads(body)["outputs"][0]["data"]) == (200, [0.25])
    status, body = call(port, "/v2/models/none/infer", infer_body([1, 4]))
    assert status == 404
    assert "none" in json.loads(body)["error"]
    status, body = call(port, "/v2/models/ratio/infer", b"no JSON")
    assert status == 400
    client = triton.InferenceServerClient(f"127.0.0.1:{port}")
    tensor = triton.InferInput("PAIR", [2, 2], "FP32")
    tensor.set_data_from_numpy(np.array([[1, 2], [3, 4]], np.float32))
    assert client.infer("ratio", [tensor]).as_numpy("RATIO").tolist() == [[0.5], [0.75]]


def test_model_ids_load_on_demand(port: int, repository) -> None:
    run(deployment(str(repository), name="many", models_per_replica=2), "many", "/many")
    _, index = call(port, "/many/v2/repository/index", b"")
    assert {row.get("state") for row in json.loads(index)} != {"READY"}
    headers = {"serve_multiplexed_model_id": "ratio"}
    status, body = call(port, "/many/v2/models/ratio/infer", infer_body([1, 4]), headers)
    assert (status, json.loads(body)["outputs"][0]["data"]) == (200, [0.25])
    status, _ = call(port, "/many/v2/models/none/infer", infer_body([1, 4]), {"serve_multiplexed_model_id": "none"})
    assert status == 404


def test_replicas_follow_the_queue(port: int, repository) -> None:
    from ray import serve

    settings = {"upscale_delay_s": 0.1, "look_back_period_s": 2}
    app = deployment(
        str(repository),
        name="scaled",
        replicas=(1, 2),
        target_queue=2,
        autoscaling_config=settings,
        ray_actor_options={"num_cpus": 0.5},
    )
    run(app, "scaled", "/scaled")
    end_s = time.monotonic() + 120
    body = infer_body(*[[1, 4]] * 64)

    def load() -> None:
        while time.monotonic() < end_s and replicas() < 2:
            assert call(port, "/scaled/v2/models/slow/infer", body)[0] == 200

    def replicas() -> int:
        found = serve.status().applications["scaled"].deployments["scaled"].replica_states
        return found.get("RUNNING", 0)

    with concurrent.futures.ThreadPoolExecutor(24) as threads:
        for each in [threads.submit(load) for _ in range(24)]:
            each.result()
    assert replicas() == 2
