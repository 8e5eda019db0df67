"""Models that their first request loads, in a real server with a budget for some of them."""

import json
import os
import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from onnx import TensorProto, helper, numpy_helper
from tritonclient.utils import InferenceServerException

from support.bls_models import run_code, write_script
from support.ensemble_models import tensor, write_ensemble
from support.model_repository import write_model
from support.server_process import ServerProcess, serving
from support.waiting import wait_until

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

MODEL_MB = 12
BUDGET_MB = 72
"""Room for five models, with what the server takes for a session."""
COUNT = 50
CLIENTS = 20
REQUESTS = 5
COLD = "on demand: not loaded now, the next request loads it"


def weights() -> bytes:
    """Return a model with 12 MB of weights that adds one to its input."""
    unused = np.zeros(MODEL_MB * 1_000_000 // 4, np.float32)
    nodes = [
        helper.make_node("ReduceMax", ["unused"], ["zero"], keepdims=0),
        helper.make_node("Add", ["X", "one"], ["sum"]),
        helper.make_node("Add", ["sum", "zero"], ["Y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "weights",
        [helper.make_tensor_value_info("X", TensorProto.FLOAT, ["N", "M"])],
        [helper.make_tensor_value_info("Y", TensorProto.FLOAT, ["N", "M"])],
        [numpy_helper.from_array(unused, "unused"), numpy_helper.from_array(np.ones(1, np.float32), "one")],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
    proto.ir_version = 8
    return bytes(onnx.ModelProto.SerializeToString(proto))


def write_models(root: Path) -> None:
    content = weights()
    first = write_model(root, "m0", "", {"1/model.onnx": content}) / "1" / "model.onnx"
    for number in range(1, COUNT):
        os.link(first, write_model(root, f"m{number}", "") / "1" / "model.onnx")
    write_model(root, "broken", 'backend: "onnxruntime"', {"1/model.onnx": b"no model"})
    large = write_model(root, "large", 'backend: "onnxruntime"', {"1/model.onnx": b"no model"})
    os.truncate(large / "1" / "model.onnx", 10 * BUDGET_MB * 1_000_000)
    write_ensemble(
        root,
        "twice",
        [tensor("IN", dims="-1")],
        [tensor("OUT", dims="-1")],
        [("m0", {"X": "IN"}, {"Y": "MIDDLE"}), ("m1", {"X": "MIDDLE"}, {"Y": "OUT"})],
        max_batch_size=4,
    )
    write_script(root, "caller")
    write_script(root, "called")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    root = tmp_path_factory.mktemp("on_demand")
    write_models(root)
    flags = ("--model-load-policy=on-demand", f"--model-memory-budget={BUDGET_MB}MB", "--model-min-residence-secs=0")
    with serving(root / "log", f"--model-repository={root}", *flags) as running:
        yield running


def ask_http(server: ServerProcess, model: str, value: float = 1.0, columns: int = 4) -> np.ndarray[Any, Any]:
    with httpclient.InferenceServerClient(
        server.http_url.removeprefix("http://"), connection_timeout=300, network_timeout=300
    ) as client:
        given = httpclient.InferInput("X", [1, columns], "FP32")
        given.set_data_from_numpy(np.full((1, columns), value, np.float32))
        answer = client.infer(model, [given]).as_numpy("Y")
    assert answer is not None
    return answer


def grpc_input(value: float, name: str = "X") -> grpcclient.InferInput:
    given = grpcclient.InferInput(name, [1, 4], "FP32")
    given.set_data_from_numpy(np.full((1, 4), value, np.float32))
    return given


def states(server: ServerProcess) -> dict[str, tuple[str, str]]:
    rows = server.post("/v2/repository/index").json
    return {row["name"]: (row.get("state", ""), row.get("reason", "")) for row in rows}


def metric(server: ServerProcess, name: str) -> float:
    text = server.get("/metrics", url=server.metrics_url).body.decode()
    return float(next(line for line in text.splitlines() if line.startswith(name + " ")).split()[-1])


def test_first_request_loads_a_cold_model(server: ServerProcess) -> None:
    assert states(server)["m2"] == ("UNAVAILABLE", COLD)
    assert server.get("/v2/health/ready").status == 200
    assert server.get("/v2/models/m2/ready").status == 200
    assert server.get("/v2/models/unknown/ready").status == 400
    assert server.get("/v2/models/m2/stats").json["model_stats"][0]["inference_count"] == 0
    assert states(server)["m2"] == ("UNAVAILABLE", COLD), "a question about it does not load a model"
    assert ask_http(server, "m2").tolist() == [[2.0] * 4]
    assert states(server)["m2"] == ("READY", "")
    assert server.get("/v2/models/m2/stats").json["model_stats"][0]["inference_count"] == 1


def test_large_body_and_metadata_wait_for_their_models(server: ServerProcess) -> None:
    assert ask_http(server, "m3", columns=300_000).shape == (1, 300_000)
    metadata = server.get("/v2/models/m4").json
    assert [each["name"] for each in metadata["inputs"]] == ["X"]


def test_grpc_calls_and_streams_wait_in_order(server: ServerProcess) -> None:
    answers: queue.Queue[Any] = queue.Queue()
    with grpcclient.InferenceServerClient(server.grpc_url.removeprefix("http://")) as client:
        answer = client.infer("m5", [grpc_input(4.0)]).as_numpy("Y")
        assert answer is not None
        assert answer[0, 0] == 5.0
        assert client.get_model_config("m6").config.backend == "onnxruntime"
        client.start_stream(lambda result, error: answers.put((result, error)))
        for number, model in enumerate(["m7", "m5", "m8", "m7"]):
            client.async_stream_infer(model, [grpc_input(float(number))], request_id=str(number))
        for number in range(4):
            result, error = answers.get(timeout=300)
            assert error is None
            assert result.get_response().id == str(number)
            assert result.as_numpy("Y")[0, 0] == number + 1.0
        client.stop_stream()


def test_ensemble_brings_its_members(server: ServerProcess) -> None:
    with grpcclient.InferenceServerClient(server.grpc_url.removeprefix("http://")) as client:
        answer = client.infer("twice", [grpc_input(1.0, "IN")]).as_numpy("OUT")
    assert answer is not None
    assert answer.tolist() == [[3.0] * 4]
    assert {states(server)[name][0] for name in ("twice", "m0", "m1")} == {"READY"}


def test_failure_reaches_the_client_and_pauses(server: ServerProcess) -> None:
    with pytest.raises(InferenceServerException, match="could not be loaded"):
        ask_http(server, "broken")
    assert server.get("/v2/models/broken/ready").status == 400
    with grpcclient.InferenceServerClient(server.grpc_url.removeprefix("http://")) as client:
        with pytest.raises(InferenceServerException, match="could not be loaded") as raised:
            client.infer("broken", [grpc_input(1.0)])
        assert raised.value.status() == "StatusCode.UNAVAILABLE"
    assert server.get("/v2/health/ready").status == 200


def test_model_above_the_budget_is_refused(server: ServerProcess) -> None:
    body = {"inputs": [{"name": "X", "shape": [1, 1], "datatype": "FP32", "data": [1.0]}]}
    answer = server.post("/v2/models/large/infer", body)
    assert answer.status == 503
    text = json.loads(answer.body)["error"]
    assert f"{10 * BUDGET_MB * 1_000_000} bytes" in text
    assert f"{BUDGET_MB * 1_000_000} bytes" in text


def test_request_waits_for_its_timeout_at_most(server: ServerProcess) -> None:
    tensors = [{"name": "X", "shape": [1, 1], "datatype": "FP32", "data": [1.0]}]
    cold = next(name for name, (state, _) in states(server).items() if name[0] == "m" and state == "UNAVAILABLE")
    answer = server.post(f"/v2/models/{cold}/infer", {"inputs": tensors, "parameters": {"timeout": 1}})
    assert answer.status == 503
    assert "within the timeout of the request" in json.loads(answer.body)["error"]
    with grpcclient.InferenceServerClient(server.grpc_url.removeprefix("http://")) as client:
        cold = next(name for name, (state, _) in states(server).items() if name[0] == "m" and state == "UNAVAILABLE")
        with pytest.raises(InferenceServerException, match="within the timeout"):
            client.infer(cold, [grpc_input(1.0)], timeout=1)


def test_call_loads_a_model_beyond_the_budget(server: ServerProcess) -> None:
    code = "response = call('called', CODE=np.array(['result = 5'], object))\nresult = described(response)"
    assert "5" in str(run_code(server, code, model="caller"))
    assert metric(server, "naiad_held_requests") == 0


def test_clients_race_for_more_models_than_fit(server: ServerProcess) -> None:
    failures: list[Exception] = []
    loads: list[float] = []

    def count_loads() -> None:
        loads.append(metric(server, "naiad_on_demand_loads_total"))

    same_begins, others_begin = threading.Barrier(CLIENTS, count_loads), threading.Barrier(CLIENTS, count_loads)

    def run(number: int) -> None:
        try:
            ask_http(server, f"m{number % 8}")
            same_begins.wait(300)
            assert ask_http(server, f"m{COUNT - 1}", 6.0)[0, 0] == 7
            others_begin.wait(300)
            for step in range(REQUESTS):
                assert ask_http(server, f"m{(number * 7 + step * 10) % COUNT}", float(step))[0, 0] == step + 1
        except Exception as error:
            failures.append(error)
            same_begins.abort()
            others_begin.abort()

    clients = [threading.Thread(target=run, args=(number,)) for number in range(CLIENTS)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    assert failures == []
    before, after_same = loads
    assert after_same - before == 1, "twenty requests for one cold model load it once"
    assert metric(server, "naiad_on_demand_loads_total") - after_same <= CLIENTS * REQUESTS
    # A model that took more than expected exceeds the budget until the sweep, which comes once a second.
    wait_until(
        lambda: metric(server, "naiad_on_demand_used_bytes") <= BUDGET_MB * 1_000_000,
        lambda: server.get("/metrics", url=server.metrics_url).body.decode()[-6000:],
    )
    assert metric(server, "naiad_on_demand_evictions_total") > 0
    assert metric(server, "naiad_held_rejections_total") == 0
