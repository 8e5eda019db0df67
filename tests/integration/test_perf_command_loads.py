"""`naiad perf` as a command: sequences, streams, shared memory, replay, models in the process, stalls."""

import json
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as httpclient

from support.model_repository import write_identity, write_model
from support.perf_command import address, perf, requests, rows
from support.sequence_models import write_running_sum
from support.server_process import ServerProcess

StartServer = Callable[..., ServerProcess]

STALL_S = 1.0
STALLING = f"""
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.count = 0

    def execute(self, requests):
        self.count += len(requests)
        if self.count == 50:
            time.sleep({STALL_S})
        inputs = [pb_utils.get_input_tensor_by_name(request, "IN").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", each)]) for each in inputs]
"""
STALLING_CONFIG = """
backend: "python"
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] } ]
"""


@pytest.mark.parametrize("transport", [("http",), ("grpc",), ("grpc", "--streaming")])
def test_requests_of_a_sequence_keep_their_order(
    tmp_path: Path, start_server: StartServer, transport: tuple[str, ...]
) -> None:
    write_running_sum(tmp_path, "sum", "direct { }")
    server = start_server(tmp_path)
    server.wait_ready()
    (tmp_path / "data.json").write_text(json.dumps({"data": [{"INPUT": [1]}]}))
    data = ("--input-data", str(tmp_path / "data.json"), "--sequence-length", "5", "--sequence-length-variation", "0")
    load = ("--concurrency-range", "3", "--request-count", "60")
    export = tmp_path / "export.json"
    model = ("-m", "sum", *address(server, transport[0]), *transport[1:])
    perf(*model, *data, *load, "--profile-export-file", str(export))
    sums = defaultdict(list)
    for request in requests(export):
        sums[request["sequence_id"]].append(request["response_outputs"][0]["OUTPUT"])
    assert sum(map(len, sums.values())) == 60
    assert len(sums) >= 12
    assert all(each == [1, 2, 3, 4, 5][: len(each)] for each in sums.values())


def test_responses_of_a_stream_are_counted(server: ServerProcess, tmp_path: Path) -> None:
    (tmp_path / "data.json").write_text(json.dumps({"data": [{"IN": [7, 8, 9], "DELAY": [0, 0, 0], "WAIT": [0]}]}))
    data = ("--input-data", str(tmp_path / "data.json"), "--shape", "IN:3", "--shape", "DELAY:3")
    files = ("--profile-export-file", str(tmp_path / "export.json"), "--json", str(tmp_path / "result.json"))
    perf("-m", "repeat", *address(server, "grpc"), "--streaming", *data, "--request-count", "20", *files)
    found = requests(tmp_path / "export.json")
    assert len(found) == 20
    for request in found:
        assert [each["OUT"] for each in request["response_outputs"]] == [7, 8, 9]
        times = [request["timestamp"], *request["response_timestamps"]]
        assert (len(times), times) == (4, sorted(times))
    (row,) = rows(tmp_path / "result.json")
    assert row["first_response"] is not None
    assert row["response_throughput"] == pytest.approx(3 * row["throughput"]["value"])


def test_groups_leave_after_responses(server: ServerProcess, tmp_path: Path) -> None:
    data = {"IN": [1, 2, 3, 4], "DELAY": [0, 20, 20, 20], "WAIT": [0]}
    (tmp_path / "data.json").write_text(json.dumps({"data": [data]}))
    inputs = ("--input-data", str(tmp_path / "data.json"), "--shape", "IN:4", "--shape", "DELAY:4")
    load = ("--periodic-concurrency-range", "1:7:3", "--request-period", "2")
    files = ("--profile-export-file", str(tmp_path / "export.json"), "--json", str(tmp_path / "result.json"))
    perf("-m", "repeat", *address(server, "grpc"), "--streaming", *inputs, *load, *files)
    found = requests(tmp_path / "export.json")
    assert len(found) == 7
    groups = [found[:1], found[1:4], found[4:]]
    for before, after in pairwise(groups):
        second_response_ns = max(each["response_timestamps"][1] for each in before)
        assert second_response_ns <= min(each["timestamp"] for each in after)
    (row,) = rows(tmp_path / "result.json")
    assert (row["mode"], row["value"], row["request_count"], row["is_stable"]) == ("periodic_concurrency", 7, 7, True)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_tensors_in_shared_memory(tmp_path: Path, start_server: StartServer, protocol: str) -> None:
    write_identity(tmp_path)
    server = start_server(tmp_path, "--allow-client-shm=true")
    server.wait_ready()
    data = {"data": [{"INPUT0": [1, 2]}], "validation_data": [{"OUTPUT0": [1, 2]}]}
    (tmp_path / "data.json").write_text(json.dumps(data))
    where = ("-m", "identity", *address(server, protocol), "--shape", "INPUT0:2", "--shared-memory", "system")
    load = ("--input-data", str(tmp_path / "data.json"), "--concurrency-range", "2", "--request-count", "30")
    perf(*where, *load, "--json", str(tmp_path / "result.json"))
    (row,) = rows(tmp_path / "result.json")
    assert (row["request_count"], row["errors"]) == (30, [])
    assert server.get("/v2/systemsharedmemory/status").json == []


def test_recorded_traffic_is_replayed_in_time(tmp_path: Path, start_server: StartServer) -> None:
    write_identity(tmp_path / "models")
    recording = tmp_path / "traffic.jsonl"
    server = start_server(tmp_path / "models", f"--record-traffic={recording}", "--record-payloads")
    server.wait_ready()
    with httpclient.InferenceServerClient(server.http_url) as client:
        for value in range(6):
            tensor = httpclient.InferInput("INPUT0", [1, 1], "FP32")
            tensor.set_data_from_numpy(np.full((1, 1), value, np.float32))
            client.infer("identity", [tensor])
    server.stop()
    arrivals = [each["arrival_ns"] for each in map(json.loads, recording.read_text().splitlines()) if "model" in each]
    assert len(arrivals) == 6

    other = start_server(tmp_path / "models")
    other.wait_ready()
    export = tmp_path / "export.json"
    perf(*address(other, "http"), "--replay", str(recording), "--profile-export-file", str(export))
    (experiment,) = json.loads(export.read_text())["experiments"]
    sent = experiment["requests"]
    assert [each["request_inputs"]["INPUT0"] for each in sent] == [0, 1, 2, 3, 4, 5]
    begin_ns = experiment["window_boundaries"][0]
    for request, arrival_ns in zip(sent, arrivals, strict=True):
        assert request["timestamp"] - begin_ns >= arrival_ns - arrivals[0]  # Never before it is due.


def test_models_of_this_process_are_measured(tmp_path: Path) -> None:
    write_identity(tmp_path)
    where = ("--service-kind", "in_process", "--model-repository", str(tmp_path))
    result = tmp_path / "result.json"
    perf("-m", "identity", "--shape", "INPUT0:4", *where, "--request-count", "50", "--json", str(result))
    (row,) = rows(result)
    assert (row["request_count"], row["server"]["success_count"]) == (50, 50)


def test_stall_is_in_the_tail(tmp_path: Path, start_server: StartServer) -> None:
    write_model(tmp_path, "stalling", STALLING_CONFIG, {"1/model.py": STALLING})
    server = start_server(tmp_path)
    server.wait_ready()
    result = tmp_path / "result.json"
    perf("-m", "stalling", *address(server, "grpc"), "--ramp", "2s:100", "--json", str(result))
    (row,) = rows(result)
    # Requests were due during the whole stall: 1 % of 200 have waited for nearly all of it.
    assert row["latency"]["percentiles"]["99"]["value"] > 0.9 * STALL_S * 1e6
