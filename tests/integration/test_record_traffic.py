"""--record-traffic under requests of stock clients: the recording has what was sent, and never fails a request."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from queue import Queue
from typing import Any

import numpy as np
import psutil
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

from naiad.core.datatype import DataType
from naiad.core.tensor import TensorSpec
from naiad.tools.perf.inputs.recording import RecordedRequest, read_recording
from support.model_repository import write_identity, write_model
from support.sequence_models import write_running_sum
from support.server_process import ServerProcess
from support.waiting import wait_until

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

StartServer = Callable[..., ServerProcess]
ROW = np.arange(4, dtype=np.float32).reshape(1, 4)
ENSEMBLE = """
platform: "ensemble" max_batch_size: 8
input [ { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] } ]
ensemble_scheduling { step [ {
  model_name: "identity" model_version: -1
  input_map { key: "INPUT0" value: "IN" } output_map { key: "OUTPUT0" value: "OUT" }
} ] }
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    write_identity(root)
    write_running_sum(root, "sum", "direct { }")
    write_model(root, "whole", ENSEMBLE)
    return root


def tensors(module, array=ROW, name="INPUT0"):
    given = module.InferInput(name, list(array.shape), "FP32")
    given.set_data_from_numpy(array)
    return [given]


def stop(running: ServerProcess, path: Path) -> list[RecordedRequest]:
    """Stop a server at once and return its recording."""
    running.signal()
    assert running.wait_exit() == 0
    return read_recording([path])


def lines(path: Path) -> list[dict[str, Any]]:
    """Return the requests of one file of a recording as it has them."""
    return [request for line in path.read_text().splitlines() if "model" in (request := json.loads(line))]


def metrics(running: ServerProcess) -> Mapping[str, float]:
    lines = running.get("/metrics", url=running.metrics_url).body.decode().splitlines()
    return {line.split()[0]: float(line.split()[1]) for line in lines if line.startswith("naiad_traffic")}


def send_sequence(url: str, sequence_id: int) -> None:
    responses: Queue = Queue()
    with grpcclient.InferenceServerClient(url) as client:
        client.start_stream(lambda result, error: responses.put(error))
        for number in range(3):
            client.async_stream_infer(
                "sum",
                tensors(grpcclient, np.full((1, 1), number, np.float32), "INPUT"),
                request_id=f"step-{number}",
                sequence_id=sequence_id,
                sequence_start=number == 0,
                sequence_end=number == 2,
            )
        assert [responses.get(timeout=60) for _ in range(3)] == [None] * 3
        client.stop_stream()


def test_recording_has_what_was_sent(models, start_server, tmp_path) -> None:
    path = tmp_path / "traffic"
    running = start_server(
        models,
        f"--record-traffic={path}",
        "--record-payloads",
        "--http-header-forward-pattern=x-secret",
        "--grpc-header-forward-pattern=x-secret",
    )
    running.wait_ready()
    secret = {"x-secret": "open sesame", "authorization": "Bearer open sesame"}
    with httpclient.InferenceServerClient(running.http_url) as client:
        client.infer(
            "identity",
            tensors(httpclient),
            model_version="1",
            request_id="a",
            outputs=[httpclient.InferRequestedOutput("OUTPUT0")],
            priority=3,
            timeout=10_000_000,
            parameters={"kind": "test"},
            headers=dict(secret),
        )
        client.infer("whole", tensors(httpclient, name="IN"))
    running.post("/v2/models/identity/generate", {"INPUT0": [1.0, 2.0]})
    body = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 300_000], "data": [0.0] * 300_000}]}
    assert running.post("/v2/models/identity/infer", body).status == 200
    with grpcclient.InferenceServerClient(running.grpc_url) as client:
        client.infer("identity", tensors(grpcclient), headers=dict(secret))
        with pytest.raises(InferenceServerException):
            client.infer("identity", tensors(grpcclient, np.zeros((9, 1), np.float32)))
    send_sequence(running.grpc_url, 2**40)

    first, whole, generated, large, unary, rejected, *steps = stop(running, path)
    assert first.arrival_ns == 0
    assert (first.model, first.version) == ("identity", "1")
    assert (first.inputs, first.outputs) == ((TensorSpec("INPUT0", DataType.FP32, (1, 4)),), ("OUTPUT0",))
    assert (first.parameters, first.priority, first.timeout_us) == ({"kind": "test"}, 3, 10_000_000)
    assert (first.payloads, first.outcome) == ((ROW.tobytes(),), "OK")
    # The steps of an ensemble are not requests of clients.
    assert (whole.model, whole.payloads) == ("whole", (ROW.tobytes(),))
    assert generated.payloads == (np.float32([1, 2]).tobytes(),)
    assert large.payloads == (bytes(1_200_000),)
    assert (unary.parameters, unary.payloads) == ({}, (ROW.tobytes(),))
    assert (rejected.outcome, rejected.inputs[0].shape) == ("INVALID_ARG", (9, 1))
    assert [(step.model, step.sequence_id) for step in steps] == [("sum", 2**40)] * 3
    assert [(step.sequence_start, step.sequence_end) for step in steps] == [
        (True, False),
        (False, False),
        (False, True),
    ]
    assert [step.payloads for step in steps] == [(np.float32(number).tobytes(),) for number in range(3)]
    assert [(line["transport"], line.get("id", "")) for line in lines(path)] == [
        ("http", "a"),
        ("http", ""),
        ("generate", ""),
        ("http", ""),
        ("grpc", ""),
        ("grpc", ""),
        *(("grpc_stream", f"step-{number}") for number in range(3)),
    ]
    assert all(line["duration_ns"] > 0 for line in lines(path))
    assert "sesame" not in path.read_text()


def test_without_payloads_no_data_is_recorded(models, start_server, tmp_path) -> None:
    path = tmp_path / "traffic"
    running = start_server(models, f"--record-traffic={path}")
    running.wait_ready()
    with httpclient.InferenceServerClient(running.http_url) as client:
        client.infer("identity", tensors(httpclient))
    (request,) = stop(running, path)
    assert request.payloads is None
    assert "b64" not in path.read_text()


def test_a_second_start_continues_the_recording(models, start_server, tmp_path) -> None:
    path = tmp_path / "traffic"
    for number in range(2):
        running = start_server(models, f"--record-traffic={path}")
        running.wait_ready()
        with grpcclient.InferenceServerClient(running.grpc_url) as client:
            client.infer("identity", tensors(grpcclient), request_id=str(number))
        found = stop(running, path)
    assert [line["id"] for line in lines(path)] == ["0", "1"]
    assert found[1].arrival_ns > 0


def test_all_processes_record(models, start_server, tmp_path) -> None:
    path = tmp_path / "traffic"
    running = start_server(models, f"--record-traffic={path}", "--processes=2")
    running.wait_ready()
    for number in range(8):
        body = {"id": str(number), "inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [0]}]}
        assert running.post("/v2/models/identity/infer", body).status == 200
    for number in range(4):
        send_sequence(running.grpc_url, number + 1)
    wait_until(lambda: metrics(running).get("naiad_traffic_records_total") == 20, "the metric never was 20")
    found = stop(running, path)
    assert [request.model for request in found[:8]] == ["identity"] * 8
    identities = [line["id"] for file in tmp_path.glob("traffic*") for line in lines(file) if line["model"] != "sum"]
    assert sorted(identities) == [str(number) for number in range(8)]
    # A sequence that another process executes is recorded once.
    assert [request.sequence_id for request in found[8:]] == [1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4]
    assert not path.exists()
    assert sorted(file.name for file in tmp_path.glob("traffic*")) == ["traffic.process1", "traffic.process2"]


def remove_directory(running: ServerProcess, path: Path) -> None:
    shutil.rmtree(path.parent)


def fill_disk(running: ServerProcess, path: Path) -> None:
    """Let writes fail as on a full disk, in the middle of a line."""
    psutil.Process(running.process.pid).rlimit(psutil.RLIMIT_FSIZE, (250_000, 250_000))


@pytest.mark.parametrize(
    ("break_disk", "reason"), [(remove_directory, "No such file or directory"), (fill_disk, "File too large")]
)
def test_a_failing_disk_stops_the_recording_only(models, start_server, tmp_path, break_disk, reason) -> None:
    path = tmp_path / "directory" / "traffic"
    path.parent.mkdir()
    running = start_server(
        models, f"--record-traffic={path}", "--record-payloads", f"--record-traffic-size={1 << 20}"
    )
    running.wait_ready()
    row = np.zeros((1, 30_000), np.float32)
    with grpcclient.InferenceServerClient(running.grpc_url) as client:
        client.infer("identity", tensors(grpcclient, row))
        wait_until(lambda: metrics(running)["naiad_traffic_records_total"] == 1, "it was never recorded")
        break_disk(running, path)
        for _ in range(8):
            client.infer("identity", tensors(grpcclient, row))
        running.wait_log("the recording of traffic has stopped, requests continue: .*" + reason)
        for _ in range(8):
            client.infer("identity", tensors(grpcclient, row))
    running.signal()
    assert running.wait_exit() == 0
    assert running.log_text().count("the recording of traffic") == 1
    if path.exists():
        assert [request.payloads for request in read_recording([path])] == [(row.tobytes(),)]


@pytest.mark.parametrize("processes", [1, 2])
def test_file_that_cannot_be_written_ends_start(models, start_server, tmp_path, processes) -> None:
    path = tmp_path / "missing" / "traffic"
    running = start_server(models, f"--record-traffic={path}", f"--processes={processes}")
    assert running.wait_exit() == 1
    words = " ".join(running.log_text().split())
    assert f"--record-traffic={path}" in words
    assert "No such file or directory; choose a new file in a directory that can be written" in words


def test_other_files_are_not_overwritten(models, start_server, tmp_path) -> None:
    path = tmp_path / "results.json"
    path.write_text(json.dumps({"precious": True}))
    running = start_server(models, f"--record-traffic={path}")
    assert running.wait_exit() == 1
    assert "exists and is not a recording of this version" in " ".join(running.log_text().split())
    assert json.loads(path.read_text()) == {"precious": True}


def test_payloads_need_a_file(models, start_server) -> None:
    running = start_server(models, "--record-payloads")
    assert running.wait_exit() == 1
    assert "--record-payloads needs --record-traffic as well" in " ".join(running.log_text().split())
