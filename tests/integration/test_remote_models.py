"""Models of another server, through a real second one: clients, ensembles, calls of models, traces, restarts."""

import asyncio
import http.client
import json
import queue
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

from naiad.cli.key import new_key
from naiad.client import Client
from support import onnx_models
from support.certificates import Certificates
from support.ensemble_models import tensor, write_ensemble
from support.model_repository import add_sub_config, write_identity, write_model
from support.otlp_collector import Collector
from support.ports import free_port
from support.sequence_models import write_running_sum
from support.server_process import ServerProcess, serving
from support.waiting import wait_until

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

A = np.arange(32, dtype=np.float32).reshape(2, 16)
B = np.full((2, 16), 3, np.float32)
CALLER = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            inputs = [pb_utils.get_input_tensor_by_name(request, name) for name in ("INPUT0", "INPUT1")]
            called = pb_utils.InferenceRequest(
                model_name="add_sub", inputs=inputs, requested_output_names=["OUTPUT0", "OUTPUT1"]
            ).exec()
            if called.has_error():
                raise pb_utils.TritonModelException(called.error().message())
            responses.append(pb_utils.InferenceResponse(called.output_tensors()))
        return responses
"""

FLOOD = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for number in range({count}):
                data = np.full(1 << 18, number, np.float32)
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", data)]))
                with open({notes!r}, "w") as file:
                    file.write(str(number + 1))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
""".replace("{count}", "96")
FLOOD_CONFIG = """
backend: "python" model_transaction_policy { decoupled: true }
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    opened = Collector()
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("remote")


def tracing(collector: Collector, name: str) -> list[str]:
    return [
        "--trace-config=mode=opentelemetry",
        "--trace-config=level=TIMESTAMPS",
        "--trace-config=rate=0",
        f"--trace-config=opentelemetry,url={collector.address}",
        "--trace-config=opentelemetry,bsp_schedule_delay=50",
        f"--trace-config=opentelemetry,resource=service.name={name}",
    ]


@pytest.fixture(scope="module")
def far(folder: Path, collector: Collector) -> Iterator[ServerProcess]:
    root = folder / "far"
    config = add_sub_config("onnxruntime", extra="dynamic_batching { }")
    write_model(root, "add_sub", config, {"1/model.onnx": onnx_models.add_sub()})
    write_identity(root, "slow", parameters={"execute_delay_ms": "2000"})
    write_identity(root, "changing", datatype="INT32")
    write_model(root, "repeat", 'backend: "repeat"\n')
    write_running_sum(root, "running_sum", "direct { }", max_batch_size=16, idle_us=60_000_000)
    write_model(root, "flood", FLOOD_CONFIG, {"1/model.py": FLOOD.format(notes=str(folder / "notes"))})
    flags = ["--model-control-mode=explicit", "--load-model=*", *tracing(collector, "far")]
    with serving(folder / "far.log", f"--model-repository={root}", *flags) as running:
        yield running


def parameters(**values: object) -> str:
    return "".join(
        f'parameters {{ key: "{name}" value {{ string_value: "{value}" }} }}\n' for name, value in values.items()
    )


def write_remote(root: Path, name: str, servers: str, extra: str = "") -> None:
    config = f'backend: "remote"\nparameters {{ key: "server" value {{ string_value: "{servers}" }} }}\n{extra}'
    write_model(root, name, config)


@pytest.fixture(scope="module")
def near_models(folder: Path, far: ServerProcess) -> Path:
    root, there = folder / "near", f"grpc://{far.grpc_url}"
    write_remote(root, "add_sub", there)
    write_remote(root, "slow", f"grpc://127.0.0.1:{free_port()}, {there}")
    write_remote(root, "changing", there)
    write_remote(root, "repeat", there)
    write_remote(root, "flood", there)
    write_ensemble(
        root,
        "repeating",
        [tensor("IN", "INT32", "-1"), tensor("DELAY", "UINT32", "-1"), tensor("WAIT", "UINT32", "1")],
        [tensor("OUT", "INT32", "1")],
        [("repeat", {"IN": "IN", "DELAY": "DELAY", "WAIT": "WAIT"}, {"OUT": "OUT"})],
        max_batch_size=0,
    )
    write_identity(root, "local")
    names = ("INPUT0", "INPUT1")
    steps = [
        ("local", {"INPUT0": "A"}, {"OUTPUT0": "a"}),
        ("add_sub", {names[0]: "a", names[1]: "B"}, {"OUTPUT0": "SUM", "OUTPUT1": "DIFF"}),
    ]
    outputs = [tensor("SUM"), tensor("DIFF")]
    write_ensemble(root, "pipeline", [tensor("A"), tensor("B")], outputs, steps)
    write_model(root, "caller", add_sub_config("python"), {"1/model.py": CALLER})
    return root


@pytest.fixture(scope="module")
def near(folder: Path, near_models: Path, collector: Collector) -> Iterator[ServerProcess]:
    flags = ["--model-control-mode=explicit", "--load-model=*", *tracing(collector, "near")]
    with serving(folder / "near.log", f"--model-repository={near_models}", *flags) as running:
        yield running


def infer(
    running: ServerProcess, model: str, names: tuple[str, str] = ("INPUT0", "INPUT1"), module=grpcclient, **more
):
    url = running.grpc_url if module is grpcclient else running.http_url
    made = []
    for name, array in zip(names, (A, B), strict=True):
        made.append(module.InferInput(name, list(array.shape), "FP32"))
        made[-1].set_data_from_numpy(array)
    with module.InferenceServerClient(url) as client:
        return client.infer(model, made, **more)


def vector(datatype: str = "FP32"):
    made = grpcclient.InferInput("INPUT0", [1, 4], datatype)
    made.set_data_from_numpy(np.ones((1, 4), np.float32 if datatype == "FP32" else np.int32))
    return made


def echo(running: ServerProcess, model: str, datatype: str = "FP32", **more):
    with grpcclient.InferenceServerClient(running.grpc_url) as client:
        return client.infer(model, [vector(datatype)], **more)


def is_ready(running: ServerProcess, model: str) -> bool:
    return running.get(f"/v2/models/{model}/ready").status == 200


@pytest.mark.parametrize("module", [grpcclient, httpclient])
def test_clients_use_it_as_a_local_model(near: ServerProcess, module) -> None:
    found = infer(near, "add_sub", module=module, request_id="seven")
    assert found.as_numpy("OUTPUT0").tolist() == (A + B).tolist()
    assert found.as_numpy("OUTPUT1").tolist() == (A - B).tolist()
    answer = found.get_response() if module is httpclient else None
    if answer is not None:
        assert (answer["model_name"], answer["model_version"], answer["id"]) == ("add_sub", "1", "seven")
    metadata = near.get("/v2/models/add_sub").json
    assert [each["shape"] for each in metadata["inputs"]] == [[-1, 16], [-1, 16]]
    config = near.get("/v2/models/add_sub/config").json
    assert (config["backend"], config["max_batch_size"]) == ("remote", 8)
    wrong = near.post("/v2/models/add_sub/infer", {"inputs": []})
    assert (wrong.status, "missing required input(s)" in wrong.json["error"]) == (400, True)


def test_ensembles_and_models_call_it(near: ServerProcess) -> None:
    found = infer(near, "pipeline", ("A", "B"))
    assert found.as_numpy("SUM").tolist() == (A + B).tolist()
    assert found.as_numpy("DIFF").tolist() == (A - B).tolist()
    assert infer(near, "caller").as_numpy("OUTPUT1").tolist() == (A - B).tolist()
    rows = near.get("/v2/models/add_sub/stats").json["model_stats"]
    assert rows[0]["inference_stats"]["success"]["count"] >= 2


def test_a_deadline_ends_the_request(near: ServerProcess) -> None:
    with pytest.raises(InferenceServerException, match=r"(?i)deadline"):
        echo(near, "slow", client_timeout=0.3)
    assert echo(near, "slow").as_numpy("OUTPUT0").tolist() == [[1.0] * 4]
    assert is_ready(near, "slow"), "one of its two addresses answers"


def test_a_cancellation_reaches_the_other_server(near: ServerProcess, far: ServerProcess) -> None:
    before = cancelled(far, "slow")
    ended: queue.Queue[object] = queue.Queue()
    with grpcclient.InferenceServerClient(near.grpc_url) as client:
        call = client.async_infer("slow", [vector()], lambda result, error: ended.put(error))
        far.wait_requests("slow", executing=1)
        call.cancel()
        assert ended.get(timeout=60) is not None
    wait_until(lambda: cancelled(far, "slow") > before)


def repeat_inputs(count: int, delay_ms: int) -> list[grpcclient.InferInput]:
    arrays = {
        "IN": np.arange(count, dtype=np.int32),
        "DELAY": np.full(count, delay_ms, np.uint32),
        "WAIT": np.zeros(1, np.uint32),
    }
    made = []
    for name, array in arrays.items():
        made.append(grpcclient.InferInput(name, list(array.shape), "INT32" if name == "IN" else "UINT32"))
        made[-1].set_data_from_numpy(array)
    return made


@pytest.mark.parametrize("model", ["repeat", "repeating"])
def test_streams_of_decoupled_models_pass(near: ServerProcess, model: str) -> None:
    arrived: queue.Queue[tuple[Any, Any]] = queue.Queue()
    with grpcclient.InferenceServerClient(near.grpc_url) as client:
        client.start_stream(lambda result, error: arrived.put((result, error)))
        client.async_stream_infer(model, repeat_inputs(5, 1), enable_empty_final_response=True)
        found = []
        while True:
            result, error = arrived.get(timeout=60)
            assert error is None, error
            response = result.get_response()
            found.append(result.as_numpy("OUT").item() if response.outputs else None)
            if response.parameters["triton_final_response"].bool_param:
                break
        assert found == [0, 1, 2, 3, 4, None]
        wrong = repeat_inputs(2, 1)[:2]
        client.async_stream_infer(model, wrong)
        assert "WAIT" in str(arrived.get(timeout=60)[1])
        client.stop_stream()


def test_a_stream_that_is_left_ends_there(near: ServerProcess, far: ServerProcess) -> None:
    before = cancelled(far, "repeat")
    arrived: queue.Queue[object] = queue.Queue()
    with grpcclient.InferenceServerClient(near.grpc_url) as client:
        client.start_stream(lambda result, error: arrived.put(result))
        client.async_stream_infer("repeat", repeat_inputs(1000, 50))
        assert arrived.get(timeout=60) is not None
        client.stop_stream(cancel_requests=True)
    wait_until(lambda: cancelled(far, "repeat") > before)


def test_a_client_that_stalls_holds_the_model(near: ServerProcess, folder: Path) -> None:
    notes = folder / "notes"

    async def count_at_rest() -> int:
        """Return how many responses of 1 MiB the model has sent when it sends no more."""
        seen = [0]
        while len(seen) < 40 or seen[-1] != seen[-40]:
            await asyncio.sleep(0.025)
            text = notes.read_text() if notes.exists() else ""
            seen.append(int(text or seen[-1]))
        return seen[-1]

    async def body() -> None:
        async with Client(f"grpc://{near.grpc_url}") as client:
            stream = client.infer_stream("flood", {"IN": np.zeros(1, np.float32)})
            numbers = [(await anext(stream))["OUT"][0]]
            assert await count_at_rest() < 64
            async for each in stream:
                numbers.append(each["OUT"][0])
            assert numbers == list(range(96))

    asyncio.run(body())


def test_sequences_stay_on_their_server(far: ServerProcess, tmp_path: Path) -> None:
    write_running_sum(tmp_path / "other", "running_sum", "direct { }", max_batch_size=16, idle_us=60_000_000)
    sums = dict.fromkeys(range(1, 9), 0.0)
    connections: list[http.client.HTTPConnection] = []

    def send(sequence: int, *, start: bool = False) -> tuple[int, Any]:
        row = {"name": "INPUT", "datatype": "FP32", "shape": [1, 1], "data": [sequence]}
        parameters = {"sequence_id": sequence, "sequence_start": start}
        connections.append(connections.pop(0))
        body = json.dumps({"inputs": [row], "parameters": parameters})
        connections[0].request("POST", "/v2/models/running_sum/infer", body)
        answer = connections[0].getresponse()
        return answer.status, json.loads(answer.read())

    def advance(*, start: bool = False) -> dict[int, str]:
        """Send the next request of each sequence, to the processes in turn; return the errors."""
        errors = {}
        for sequence in list(sums):
            status, answer = send(sequence, start=start)
            if status != 200:
                errors[sequence] = answer["error"]
                continue
            sums[sequence] += sequence
            (output,) = [each for each in answer["outputs"] if each["name"] == "OUTPUT"]
            assert output["data"] == [sums[sequence]]
        send(0)
        return errors

    with serving(tmp_path / "other.log", f"--model-repository={tmp_path / 'other'}") as other:
        write_remote(tmp_path / "here", "running_sum", f"grpc://{far.grpc_url}, grpc://{other.grpc_url}")
        with serving(tmp_path / "log", f"--model-repository={tmp_path / 'here'}", "--processes=2") as running:
            connections += [http.client.HTTPConnection(running.http_url, timeout=60) for _ in range(2)]
            for each in connections:
                each.connect()  # the processes get them in turn
            assert advance(start=True) == {}
            assert advance() == {}
            other.process.kill()
            other.wait_exit()
            errors = advance()
            assert 0 < len(errors) < len(sums)
            for sequence, error in errors.items():
                assert other.grpc_url in error, error
                del sums[sequence]
            assert advance() == {}
            wait_until(lambda: send(9, start=True)[0] == 200)
            for each in connections:
                each.close()


def cancelled(running: ServerProcess, model: str) -> float:
    """Return how many requests of a model clients have cancelled."""
    text = running.get("/metrics", url=running.metrics_url).body.decode()
    rows = re.findall(rf'^naiad_inference_cancelled_total{{.*model="{model}".*}} (\S+)$', text, re.MULTILINE)
    return sum(map(float, rows))


def test_spans_of_both_servers_are_one_trace(near: ServerProcess, collector: Collector) -> None:
    trace, caller = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    infer(near, "pipeline", ("A", "B"), headers={"traceparent": f"00-{trace}-{caller}-01"})

    def of(spans, name: str):
        return [each for each in spans if each.trace_id == trace and each.resource.get("service.name") == name]

    def is_whole(spans) -> bool:
        return bool(of(spans, "far")) and any(each.parent == caller for each in of(spans, "near"))

    spans = collector.wait(is_whole)
    there = {each.parent for each in of(spans, "far")} - {each.id for each in of(spans, "far")}
    assert len(there) == 1
    assert there < {each.id for each in of(spans, "near")}, "the other server's spans are below the step"


def test_other_tensors_are_refused_at_load(near: ServerProcess, near_models: Path, far: ServerProcess) -> None:
    there = f"grpc://{far.grpc_url}"
    text = add_sub_config("onnxruntime", datatype="FP64").replace('backend: "onnxruntime"', "")
    write_remote(near_models, "wrong", there, 'parameters { key: "model" value { string_value: "add_sub" } }' + text)
    single = 'input [ { name: "IN" data_type: TYPE_INT32 dims: [ -1 ] } ]'
    single += 'output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] } ]'
    write_remote(near_models, "single", there, f"{parameters(model='repeat')}{single}")
    write_remote(near_models, "unknown", there)
    for name, reason in (
        ("wrong", "input 'INPUT0' is FP64 [16] here and FP32 [16] there"),
        ("single", "model_transaction_policy is decoupled there and not here"),
        ("unknown", "'unknown'"),
    ):
        answer = near.post(f"/v2/repository/models/{name}/load")
        assert answer.status == 400 or name == "unknown", answer.body
        assert reason in answer.json["error"], answer.body
        near.post(f"/v2/repository/models/{name}/unload")


def test_a_change_there_makes_it_unready_here(near: ServerProcess, far: ServerProcess, folder: Path) -> None:
    assert echo(near, "changing", "INT32").as_numpy("OUTPUT0").tolist() == [[1] * 4]
    write_identity(folder / "far", "changing", datatype="FP32")
    assert far.post("/v2/repository/models/changing/load").status == 200
    wait_until(lambda: not is_ready(near, "changing"))
    with pytest.raises(InferenceServerException, match=r"input 'INPUT0' is INT32 \[-1\] here and FP32 \[-1\] there"):
        echo(near, "changing", "INT32")
    for action in ("unload", "load"):
        assert near.post(f"/v2/repository/models/changing/{action}").status == 200
    assert echo(near, "changing").as_numpy("OUTPUT0").tolist() == [[1.0] * 4]


def test_an_away_server_is_its_steps_error(folder: Path, tmp_path: Path) -> None:
    port = free_port()
    write_identity(tmp_path / "there", "part")
    write_remote(
        tmp_path / "here",
        "part",
        f"grpc://127.0.0.1:{port}",
        f"max_batch_size: 8 input [ {tensor('INPUT0', dims='-1')} ] output [ {tensor('OUTPUT0', dims='-1')} ]",
    )
    steps = [("part", {"INPUT0": "IN"}, {"OUTPUT0": "OUT"})]
    write_ensemble(tmp_path / "here", "whole", [tensor("IN", dims="-1")], [tensor("OUT", dims="-1")], steps)
    body = {"inputs": [{"name": "IN", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]}
    there = [f"--model-repository={tmp_path / 'there'}", f"--grpc-port={port}"]
    with serving(tmp_path / "log", f"--model-repository={tmp_path / 'here'}", "--strict-readiness=false") as running:
        assert not is_ready(running, "whole")
        answer = running.post("/v2/models/whole/infer", body)
        assert answer.status == 503
        assert (
            f"in ensemble 'whole', remote model 'part': grpc://127.0.0.1:{port}: no connection"
            in answer.json["error"]
        )
        for _ in range(2):
            with serving(tmp_path / "there.log", *there) as other:
                wait_until(lambda: is_ready(running, "whole"))
                assert running.post("/v2/models/whole/infer", body).json["outputs"][0]["data"] == [1, 2]
                other.signal()
                other.wait_exit()
            wait_until(lambda: not is_ready(running, "whole"))


def test_a_server_with_tls_and_keys_is_reached(tmp_path: Path) -> None:
    made = Certificates(tmp_path)
    line, key = new_key("near", "inference,metadata,health,model-config")
    (tmp_path / "keys").write_text(line)
    (tmp_path / "token").write_text(key + "\n")
    write_identity(tmp_path / "there", "part")
    flags = [*made.flags("grpc", mutual=True), f"--api-key-file={tmp_path / 'keys'}"]
    there = ServerProcess(tmp_path / "there.log", f"--model-repository={tmp_path / 'there'}", *flags)
    files = {"ca_file": made.root, "certificate_file": made.client_cert, "key_file": made.client_key}
    try:
        url = f"grpcs://{there.grpc_url}"
        given = parameters(model="part", token_file=tmp_path / "token", **files)
        write_remote(tmp_path / "here", "part", url, given)
        write_remote(tmp_path / "here", "keyless", url, parameters(model="part", **files))
        write_remote(tmp_path / "here", "strange", url, parameters(model="part", token_file=tmp_path / "token"))
        explicit = ["--model-control-mode=explicit"]
        with serving(tmp_path / "log", f"--model-repository={tmp_path / 'here'}", *explicit) as running:
            wait_until(lambda: running.post("/v2/repository/models/part/load").status == 200)
            assert echo(running, "part").as_numpy("OUTPUT0").tolist() == [[1.0] * 4]
            for name, reason in (("keyless", "key"), ("strange", "certificate")):
                answer = running.post(f"/v2/repository/models/{name}/load")
                assert answer.status != 200
                assert reason in answer.json["error"], answer.json
    finally:
        there.stop()
