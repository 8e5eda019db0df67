"""Several server processes behind the same ports: shares, sums, deaths, ends."""

import contextlib
import http.client
import itertools
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
import tritonclient.utils.shared_memory as shared_memory
from prometheus_client.parser import text_string_to_metric_families

from support import onnx_models
from support.certificates import Certificates
from support.model_repository import add_sub_config, write_identity, write_model, write_python_add_sub
from support.server_process import SOURCE, ServerProcess, serving
from support.waiting import wait_until

StartServer = Callable[..., ServerProcess]

INPUT = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}
BODY = json.dumps({"inputs": [INPUT]}).encode()
INFER = "/v2/models/identity/infer"


def wait_for(condition: Callable[[], bool], running: ServerProcess) -> None:
    wait_until(condition, running.log_text)


def samples(running: ServerProcess) -> dict[tuple[str, str], float]:
    """Return the series of the metrics by name and model."""
    text = running.get("/metrics", url=running.metrics_url).body.decode()
    return {
        (sample.name, sample.labels.get("model", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not {"le", "reason", "instance"} & sample.labels.keys()
    }


def successes(running: ServerProcess, model: str = "identity") -> int:
    return int(samples(running)["nv_inference_request_success_total", model])


def inference_count(running: ServerProcess, model: str = "identity") -> int:
    (row,) = running.get(f"/v2/models/{model}/stats").json["model_stats"]
    return int(row["inference_count"])


@pytest.fixture(scope="module")
def shared_repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    write_identity(root)
    write_identity(root, "slow", parameters={"execute_delay_ms": "1000"})
    config = add_sub_config("onnxruntime", max_batch_size=32, extra="dynamic_batching { }")
    write_model(root, "add_sub", config, {"1/model.onnx": onnx_models.add_sub()})
    return root


@pytest.fixture(scope="module")
def pair(shared_repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server of two processes that tests leave as it is, but for what it has counted."""
    log = tmp_path_factory.mktemp("server") / "log"
    with serving(log, f"--model-repository={shared_repository}", "--processes=2") as running:
        yield running


# --- sharing --------------------------------------------------------------------------------------------------------


def test_ports_and_start_are_logged_once(pair: ServerProcess) -> None:
    text = pair.log_text()
    assert text.count("Started HTTPService") == 1
    assert text.count("successfully loaded 'identity'") == 1
    assert len(pair.members()) == 2


def test_connections_are_spread_evenly(pair: ServerProcess) -> None:
    port = int(pair.http_url.rpartition(":")[2])

    def held(status: str) -> list[int]:
        found = [psutil.Process(pid).net_connections("tcp") for pid in pair.members()]
        return [sum(each.laddr.port == port and each.status == status for each in of_one) for of_one in found]

    connections = [http.client.HTTPConnection(pair.http_url, timeout=60) for _ in range(8)]
    # Regions of earlier tests count until their processes have reported their ends, as they have when they answer.
    wait_until(lambda: held("CLOSE_WAIT") == [0, 0])
    connections[0].request("GET", "/v2/models/identity/stats")
    assert connections[0].getresponse().read()
    for connection in connections:
        connection.request("POST", INFER, BODY)
    for connection in connections:
        response = connection.getresponse()
        assert response.status == 200
        assert json.loads(response.read())["outputs"][0]["data"] == [1, 2, 3, 4]
    assert held("ESTABLISHED") == [4, 4]
    for connection in connections:
        connection.close()


def test_both_protocols_answer_through_stock_clients(pair: ServerProcess) -> None:
    values = np.arange(16, dtype=np.float32).reshape(1, 16)
    for module, url in ((http_client, pair.http_url), (grpc_client, pair.grpc_url)):
        for _ in range(4):
            with module.InferenceServerClient(url) as client:
                inputs = [module.InferInput(name, [1, 16], "FP32") for name in ("INPUT0", "INPUT1")]
                for each in inputs:
                    each.set_data_from_numpy(values)
                result = client.infer("add_sub", inputs)
                np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), 2 * values)
                assert client.is_server_ready()
                assert client.is_model_ready("add_sub")


def test_statistics_are_sums_in_every_process(pair: ServerProcess) -> None:
    before = inference_count(pair)
    for _ in range(10):
        assert pair.request("POST", INFER, BODY).status == 200
    # Every request is a connection of its own, so both processes are asked.
    assert [inference_count(pair) for _ in range(4)] == [before + 10] * 4
    with grpc_client.InferenceServerClient(pair.grpc_url) as client:
        statistics = client.get_inference_statistics("identity")
        assert statistics.model_stats[0].inference_count == before + 10
        assert statistics.model_stats[0].inference_stats.success.count == before + 10
    assert successes(pair) == before + 10
    assert sum(
        row["batch_size"] for row in pair.get("/v2/models/identity/stats").json["model_stats"][0]["batch_stats"]
    )


def test_index_is_that_of_all(pair: ServerProcess) -> None:
    rows = pair.post("/v2/repository/index").json
    assert [(row["name"], row["state"]) for row in rows] == [(n, "READY") for n in ("add_sub", "identity", "slow")]


def test_control_calls_are_answered_once(pair: ServerProcess) -> None:
    for verb in ("load", "unload"):
        answer = pair.post(f"/v2/repository/models/identity/{verb}")
        assert "not allowed" in answer.json["error"]
    with (
        grpc_client.InferenceServerClient(pair.grpc_url) as client,
        pytest.raises(Exception, match="not allowed"),
    ):
        client.load_model("identity")


def test_metrics_count_the_processes(pair: ServerProcess) -> None:
    found = samples(pair)
    assert found["naiad_processes", ""] == 2
    assert found["naiad_process_restarts_total", ""] == 0
    assert found["nv_cpu_memory_total_bytes", ""] == psutil.virtual_memory().total
    text = pair.get("/metrics", url=pair.metrics_url).body.decode()
    families = re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)
    assert len(families) == len(set(families))


def test_pipelined_requests_are_answered_in_their_order(pair: ServerProcess) -> None:
    connection = http.client.HTTPConnection(pair.http_url, timeout=60)
    connection.connect()
    request = "GET {} HTTP/1.1\r\nHost: localhost\r\n\r\n"
    paths = ("/v2/health/ready", "/v2", "/v2/models/stats", "/v2/health/live")
    connection.sock.sendall("".join(request.format(path) for path in paths).encode())
    received = b""
    while received.count(b"HTTP/1.1 200") < 4 or not received.endswith(b"\r\n\r\n"):
        data = connection.sock.recv(65536)
        assert data, received
        received += data
    metadata, statistics = received.index(b'"extensions"'), received.index(b'"model_stats"')
    assert metadata < statistics
    connection.close()


# --- deaths ---------------------------------------------------------------------------------------------------------


class Load:
    """Sends requests over connections that are opened again whenever they break."""

    def __init__(self, running: ServerProcess, connections: int) -> None:
        self._url = running.http_url
        self.answered = 0
        self.broken = 0
        self.wrong: list[bytes] = []
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(connections)]

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(60)

    def _run(self) -> None:
        connection = http.client.HTTPConnection(self._url, timeout=60)
        while not self._over.is_set():
            try:
                connection.request("POST", INFER, BODY)
                response = connection.getresponse()
                body = response.read()
            except (OSError, http.client.HTTPException):
                connection.close()
                with self._lock:
                    self.broken += 1
                continue
            with self._lock:
                self.answered += 1
                if response.status != 200 or json.loads(body)["outputs"][0]["data"] != [1, 2, 3, 4]:
                    self.wrong.append(body)
        connection.close()


def test_a_killed_process_costs_its_requests_alone(start_server: StartServer, shared_repository: Path) -> None:
    running = start_server(shared_repository, "--processes=2", "--metrics-interval-ms=50")
    running.wait_ready()
    victim, other = running.members()
    counts: list[tuple[int, int]] = []

    def note() -> None:
        counts.append((inference_count(running), successes(running)))

    with Load(running, connections=4) as load:
        wait_for(lambda: load.answered > 200, running)
        note()
        held = len([c for c in psutil.Process(victim).net_connections("tcp") if c.status == "ESTABLISHED"])
        os.kill(victim, signal.SIGKILL)
        # Asked over connections of their own, which the one that is left serves.
        for _ in range(10):
            note()
        wait_for(lambda: len(running.members()) == 2 and serving_count(running) == 2, running)
        at_restart = load.answered
        wait_for(lambda: load.answered > at_restart + 100, running)
        note()
    note()
    assert load.wrong == []
    # One request was in flight on each connection of the victim. Clients that came again were served by the
    # other process, also before the death was noticed.
    assert 0 < load.broken <= held
    assert other in running.members()
    assert victim not in running.members()
    for one, following in itertools.pairwise(counts):
        assert one[0] <= following[0]
        assert one[1] <= following[1]
    running.wait_log("killed by SIGKILL; it will be replaced")
    assert samples(running)["naiad_process_restarts_total", ""] == 1
    for _ in range(20):
        assert running.request("POST", INFER, BODY).status == 200
    assert (inference_count(running), successes(running)) == (counts[-1][0] + 20, counts[-1][1] + 20)
    running.signal()
    assert running.wait_exit() == 0


def serving_count(running: ServerProcess) -> int:
    return int(samples(running)["naiad_processes", ""])


def replace_process(running: ServerProcess) -> None:
    """Kill a process and wait until another one has taken its place."""
    count, restarts = serving_count(running), samples(running)["naiad_process_restarts_total", ""]
    os.kill(running.members()[0], signal.SIGKILL)
    wait_for(lambda: samples(running)["naiad_process_restarts_total", ""] > restarts, running)
    wait_for(lambda: serving_count(running) == count, running)


def test_ready_while_a_process_is_missing(start_server: StartServer, shared_repository: Path) -> None:
    """From its death until its replacement serves, the server and its model are ready at every look."""
    running = start_server(shared_repository, "--processes=2")
    running.wait_ready()
    stopped = threading.Event()
    found: list[int] = []

    def look() -> None:
        while not stopped.is_set():
            for path in ("/v2/health/ready", "/v2/models/identity/ready"):
                # The connections of the process that is killed end with it.
                with contextlib.suppress(OSError, http.client.HTTPException):
                    found.append(running.get(path).status)

    looking = threading.Thread(target=look)
    looking.start()
    replace_process(running)
    with grpc_client.InferenceServerClient(running.grpc_url) as client:
        assert client.is_server_ready()
    stopped.set()
    looking.join()
    assert set(found) == {200}
    running.wait_log("killed by SIGKILL; it will be replaced in 0.1 s; 1 of 2 processes serve")


def kill_others(running: ServerProcess, steady: int) -> None:
    for child in psutil.Process(running.process.pid).children():
        if child.pid != steady:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()


def test_process_that_keeps_dying_leaves_the_other_serving(
    start_server: StartServer, shared_repository: Path
) -> None:
    running = start_server(shared_repository, "--processes=2")
    running.wait_ready()
    steady = max(running.members())
    while "after 6 deaths in a row" not in running.log_text():
        assert running.process.poll() is None, running.log_text()
        kill_others(running, steady)
        assert running.get("/v2/health/ready").status == 200
        assert running.request("POST", INFER, BODY).status == 200
        time.sleep(0.1)
    assert samples(running)["naiad_processes_failing", ""] == 1
    assert serving_count(running) == 1
    running.signal()
    assert running.wait_exit() == 0


def test_processes_that_all_keep_dying_end_the_server(start_server: StartServer, shared_repository: Path) -> None:
    running = start_server(shared_repository, "--processes=2")
    running.wait_ready()
    while running.process.poll() is None and "times in a row" not in running.log_text():
        with contextlib.suppress(psutil.NoSuchProcess):
            kill_others(running, 0)
        time.sleep(0.1)
    assert running.wait_exit() == 1
    assert "each of the 2 processes has died 6 times in a row" in running.log_text()


def test_members_end_with_a_killed_supervisor(start_server: StartServer, tmp_path: Path) -> None:
    write_identity(tmp_path / "models")
    write_python_add_sub(tmp_path / "models")
    running = start_server(tmp_path / "models", "--processes=2")
    running.wait_ready()
    processes = psutil.Process(running.process.pid).children(recursive=True)
    assert len(processes) == 4  # two members, each with the worker of its Python model
    running.process.kill()
    gone, alive = psutil.wait_procs(processes, timeout=60)
    assert len(gone) == 4
    assert alive == []


# --- start ----------------------------------------------------------------------------------------------------------


def test_model_that_cannot_load_is_reported_once(start_server: StartServer, tmp_path: Path) -> None:
    write_identity(tmp_path / "models")
    write_model(tmp_path / "models", "broken", 'backend: "missing"', {"1/model.bin": b""})
    running = start_server(tmp_path / "models", "--processes=3")
    assert running.wait_exit() == 1
    text = running.log_text()
    assert text.count("failed to load model 'broken'") + text.count("failed to load 'broken'") == 1
    assert text.count("creating server") == 1
    assert "Traceback" not in text


def test_port_in_use_is_reported_before_start(start_server: StartServer, pair: ServerProcess) -> None:
    port = pair.http_url.rpartition(":")[2]
    running = start_server(None, "--model-repository=/", "--processes=2", f"--http-port={port}")
    assert running.wait_exit() == 1
    assert "has the port: choose another with --http-port" in running.log_text()
    assert "loading" not in running.log_text()


@pytest.mark.long
def test_cores_are_shared(start_server: StartServer, shared_repository: Path) -> None:
    running = start_server(shared_repository, "--processes=2")
    running.wait_ready()
    threads = max(1, len(os.sched_getaffinity(0)) // 2)
    assert f"a session of {threads} intra-op threads" in running.log_text()


# --- exit -----------------------------------------------------------------------------------------------------------


def test_requests_in_flight_everywhere_are_answered_before_exit(
    start_server: StartServer, shared_repository: Path
) -> None:
    running = start_server(shared_repository, "--processes=2")
    running.wait_ready()
    connections = [http.client.HTTPConnection(running.http_url, timeout=60) for _ in range(2)]
    for connection in connections:
        connection.request("POST", "/v2/models/slow/infer", BODY)
    wait_for(lambda: samples(running)["naiad_inference_executing_request_count", "slow"] == 2, running)
    running.signal()
    for connection in connections:
        response = connection.getresponse()
        assert response.status == 200
        assert json.loads(response.read())["outputs"][0]["data"] == [1, 2, 3, 4]
    assert running.wait_exit() == 0
    assert "Traceback" not in running.log_text()


def test_ctrl_c_reaches_all_processes(start_server: StartServer, shared_repository: Path) -> None:
    running = start_server(shared_repository, "--processes=2")
    running.wait_ready()
    pids = running.members()
    running.signal(signal.SIGINT)
    # As often as a user may press the keys; it must not matter at which moment of its end it meets a process.
    while running.process.poll() is None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGINT)
        time.sleep(0.001)
    assert running.wait_exit() == 0
    assert "Traceback" not in running.log_text()


def test_draining_server_is_not_ready_but_serves(start_server: StartServer, shared_repository: Path) -> None:
    running = start_server(shared_repository, "--processes=2", "--drain-seconds=30")
    running.wait_ready()
    running.signal()
    running.wait_log("Signal \\(15\\) received")
    wait_for(lambda: running.get("/v2/health/ready").status == 503, running)
    for _ in range(4):
        assert running.get("/v2/health/ready").status == 503
        assert running.request("POST", INFER, BODY).status == 200
    left = [psutil.Process(pid) for pid in running.members()]
    running.signal()
    assert running.wait_exit() == 1
    assert psutil.wait_procs(left, timeout=60)[1] == []


@pytest.mark.long
def test_expired_exit_timeout_ends_with_status_1(start_server: StartServer, tmp_path: Path) -> None:
    write_identity(tmp_path / "models", "slow", parameters={"execute_delay_ms": "100000"})
    running = start_server(tmp_path / "models", "--processes=2", "--exit-timeout-secs=1")
    running.wait_ready()
    connection = http.client.HTTPConnection(running.http_url, timeout=60)
    connection.request("POST", "/v2/models/slow/infer", BODY)
    wait_for(lambda: samples(running)["naiad_inference_executing_request_count", "slow"] == 1, running)
    running.signal()
    assert running.wait_exit() == 1
    connection.close()


# --- ports ----------------------------------------------------------------------------------------------------------


def test_tls_and_keys_hold_in_every_process(
    start_server: StartServer, shared_repository: Path, tmp_path: Path
) -> None:
    certificates = Certificates(tmp_path)
    running = start_server(shared_repository, "--processes=2", *certificates.flags("http"))
    running.tls = certificates.client_context()
    running.wait_ready()
    for _ in range(4):
        assert running.request("POST", INFER, BODY).status == 200
    assert "with TLS" in running.log_text()
    # A peer without TLS gets an error and is forgotten.
    plain = http.client.HTTPConnection(running.http_url, timeout=60)
    plain.request("GET", "/v2")
    assert plain.getresponse().status == 400
    plain.close()
    assert running.request("POST", INFER, BODY).status == 200


def test_restricted_calls_are_refused_by_first_process(start_server: StartServer, shared_repository: Path) -> None:
    flags = ("--http-restricted-api=health,model-repository,statistics:key=secret",)
    running = start_server(shared_repository, "--processes=2", *flags)
    running.wait_started()
    paths = (("GET", "/v2/health/ready"), ("POST", "/v2/repository/index"), ("GET", "/v2/models/stats"))
    for method, path in (*paths, ("POST", "/v2/repository/models/identity/load")):
        assert running.request(method, path).status == 403
    for method, path in paths:
        assert running.request(method, path, headers={"key": "secret"}).status == 200


def test_one_port_serves_both_protocols_from_every_process(
    start_server: StartServer, shared_repository: Path, tmp_path: Path
) -> None:
    path = tmp_path / "socket"
    flags = (f"--http-address=unix:{path}", f"--grpc-address=unix:{path}", "--metrics-address=127.0.0.1")
    running = start_server(shared_repository, "--processes=2", *flags)
    running.wait_started()
    assert running.log_text().count(f"at unix:{path} for 2 processes") == 2
    before = {pid: len(psutil.Process(pid).net_connections("unix")) for pid in running.members()}
    request = f"POST {INFER} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(BODY)}\r\n\r\n".encode() + BODY
    connections = [socket.socket(socket.AF_UNIX) for _ in range(4)]
    for connection in connections:
        connection.connect(str(path))
        connection.sendall(request)
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")
    after = {pid: len(psutil.Process(pid).net_connections("unix")) for pid in running.members()}
    assert [after[pid] - before[pid] for pid in after] == [2, 2]
    for connection in connections:
        connection.close()
    values = np.ones((1, 4), np.float32)
    each = grpc_client.InferInput("INPUT0", [1, 4], "FP32")
    each.set_data_from_numpy(values)
    with grpc_client.InferenceServerClient(f"unix:{path}") as client:
        np.testing.assert_array_equal(client.infer("identity", [each]).as_numpy("OUTPUT0"), values)
    assert successes(running) == 5
    running.signal()
    assert running.wait_exit() == 0
    assert not path.exists()


# --- control calls --------------------------------------------------------------------------------------------------


def region_names(running: ServerProcess) -> list[str]:
    return sorted(row["name"] for row in running.get("/v2/systemsharedmemory/status").json)


@pytest.mark.long
def test_regions_are_known_in_old_and_new_processes(start_server: StartServer, shared_repository: Path) -> None:
    running = start_server(shared_repository, "--processes=2", "--allow-client-shm=true")
    running.wait_ready()
    handles = {}
    try:
        for name in ("kept", "dropped"):
            key = f"/naiad-test-{os.getpid()}-{name}"
            handles[name] = shared_memory.create_shared_memory_region(name, key, 64)
            with http_client.InferenceServerClient(running.http_url) as client:
                client.register_system_shared_memory(name, key, 64)
        # Each question is a connection of its own, so both processes are asked.
        assert [region_names(running) for _ in range(4)] == [["dropped", "kept"]] * 4
        with grpc_client.InferenceServerClient(running.grpc_url) as client:
            client.unregister_system_shared_memory("dropped")
            with pytest.raises(Exception, match="already in manager"):
                client.register_system_shared_memory("kept", f"/naiad-test-{os.getpid()}-kept", 64)
        assert [region_names(running) for _ in range(4)] == [["kept"]] * 4
        for victim in running.members():
            os.kill(victim, signal.SIGKILL)
            wait_for(lambda victim=victim: victim not in running.members(), running)  # type: ignore[misc]
            wait_for(lambda: serving_count(running) == 2, running)
        # No process that was notified is left.
        assert [region_names(running) for _ in range(4)] == [["kept"]] * 4
        values = np.arange(4, dtype=np.float32).reshape(1, 4)
        shared_memory.set_shared_memory_region(handles["kept"], [values])
        for _ in range(4):
            with http_client.InferenceServerClient(running.http_url) as client:
                each = http_client.InferInput("INPUT0", [1, 4], "FP32")
                each.set_shared_memory("kept", 16)
                np.testing.assert_array_equal(client.infer("identity", [each]).as_numpy("OUTPUT0"), values)
    finally:
        for handle in handles.values():
            shared_memory.destroy_shared_memory_region(handle)


def test_model_changes_reach_old_and_new_processes(start_server: StartServer, tmp_path: Path) -> None:
    models = tmp_path / "models"
    for name in ("identity", "extra", "gone"):
        write_identity(models, name)
    flags = ("--processes=2", "--model-control-mode=explicit", "--load-model=identity", "--load-model=gone")
    running = start_server(models, *flags)
    running.wait_ready()

    def states() -> dict[str, str]:
        rows = running.post("/v2/repository/index").json
        return {row["name"]: row.get("state", "never loaded") for row in rows}

    def statuses(name: str) -> set[int]:
        return {running.request("POST", f"/v2/models/{name}/infer", BODY).status for _ in range(4)}

    assert states() == {"identity": "READY", "gone": "READY", "extra": "never loaded"}
    assert running.post("/v2/repository/models/extra/load").status == 200
    with grpc_client.InferenceServerClient(running.grpc_url) as client:
        client.unload_model("gone")
        rows = client.get_model_repository_index().models
        assert {row.name: row.state for row in rows} == {"identity": "READY", "gone": "UNAVAILABLE", "extra": "READY"}
    refusal = running.post("/v2/repository/models/nothing/load").json["error"]
    assert "model 'nothing' is not found in model repository" in refusal
    expected = {"identity": {200}, "extra": {200}, "gone": {404}}
    assert {name: statuses(name) for name in expected} == expected
    # It is named on the command line, and cannot be loaded any more; that ends no process that starts later.
    shutil.rmtree(models / "gone")
    for victim in running.members():
        os.kill(victim, signal.SIGKILL)
        wait_for(lambda victim=victim: victim not in running.members(), running)  # type: ignore[misc]
        wait_for(lambda: serving_count(running) == 2, running)
    assert states() == {"identity": "READY", "extra": "READY"}
    assert {name: statuses(name) for name in expected} == expected


@pytest.mark.long
def test_counters_of_reloaded_model_begin_at_zero(start_server: StartServer, tmp_path: Path) -> None:
    write_identity(tmp_path / "models")
    flags = ("--processes=2", "--model-control-mode=explicit", "--load-model=identity", "--metrics-interval-ms=20")
    running = start_server(tmp_path / "models", *flags)
    running.wait_ready()
    for _ in range(4):
        assert running.request("POST", INFER, BODY).status == 200
    assert inference_count(running) == successes(running) == 4
    replace_process(running)
    # Loading what has not changed loads nothing, and what the dead has counted stays.
    assert running.post("/v2/repository/models/identity/load").status == 200
    assert inference_count(running) == successes(running) == 4
    assert running.post("/v2/repository/models/identity/unload").status == 200
    assert running.post("/v2/repository/models/identity/load").status == 200
    wait_for(lambda: inference_count(running) == successes(running) == 0, running)
    assert running.request("POST", INFER, BODY).status == 200
    assert inference_count(running) == successes(running) == 1


EXTRA = "/v2/repository/models/extra"
ASKED: list[tuple[str, str, bytes]] = [
    ("POST", "/v2/repository/models/nothing/load", b""),
    ("POST", "/v2/repository/models/nothing/unload", b""),
    ("POST", f"{EXTRA}/load", b"{bad"),
    ("POST", f"{EXTRA}/load", b'{"parameters":{"x":1}}'),
    ("POST", "/v2/repository/x/models/extra/load", b""),
    ("GET", f"{EXTRA}/load", b""),
    ("POST", f"{EXTRA}/load", b""),
    ("POST", "/v2/repository/index", b""),
    ("POST", "/v2/repository/index", b'{"ready":true}'),
    ("POST", "/v2/repository/index", b"{bad"),
    ("POST", f"{EXTRA}/unload", b""),
    ("POST", "/v2/repository/index", b""),
    ("GET", "/v2/models/nothing/stats", b""),
    ("GET", "/v2/models/nothing/ready", b""),
    ("GET", "/v2/models/identity/versions/7/ready", b""),
    ("GET", "/v2/models/identity/ready", b""),
    ("GET", "/v2/models/identity/versions/1/stats", b""),
    ("POST", "/v2/models/stats", b""),
    ("GET", "/v2/systemsharedmemory/status", b""),
    ("POST", "/v2/systemsharedmemory/region/x/register", b'{"key":"/x","offset":0,"byte_size":4}'),
    ("POST", "/v2/logging", b"{}"),
    ("GET", "/v2/logging", b""),
    ("HEAD", "/v2/health/ready", b""),
    ("DELETE", "/v2/health/ready", b""),
    ("GET", "/v2/health/live", b""),
    ("GET", "/v2", b""),
]


def test_two_processes_answer_as_one_does(start_server: StartServer, tmp_path: Path) -> None:
    for name in ("identity", "extra"):
        write_identity(tmp_path / "models", name)
    flags = ("--model-control-mode=explicit", "--load-model=identity")
    answers = []
    for count in (1, 2):
        running = start_server(tmp_path / "models", f"--processes={count}", *flags)
        running.wait_ready()
        found = [running.request(method, path, body) for method, path, body in ASKED]
        answers.append([(each.status, each.body, each.headers.keys() - {"Date"}) for each in found])
    for asked, one, two in zip(ASKED, *answers, strict=True):
        assert (asked, one) == (asked, two)


def test_server_of_one_process_imports_nothing_of_this() -> None:
    program = "import sys, naiad.cli.serve, naiad.server.app; print(*[m for m in sys.modules if 'cluster' in m])"
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, env={"PYTHONPATH": str(SOURCE)}, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr


@pytest.mark.long
def test_log_settings_reach_old_and_new_processes(start_server: StartServer, shared_repository: Path) -> None:
    running = start_server(shared_repository, "--processes=2")
    running.wait_ready()

    def levels() -> set[int]:
        return {running.get("/v2/logging").json["log_verbose_level"] for _ in range(4)}

    assert levels() == {0}
    assert running.post("/v2/logging", {"log_verbose_level": 2}).json["log_verbose_level"] == 2
    assert levels() == {2}
    with grpc_client.InferenceServerClient(running.grpc_url) as client:
        client.update_log_settings({"log_verbose_level": 1})
    assert levels() == {1}
    for victim in running.members():
        os.kill(victim, signal.SIGKILL)
        wait_for(lambda victim=victim: victim not in running.members(), running)  # type: ignore[misc]
        wait_for(lambda: serving_count(running) == 2, running)
    assert levels() == {1}
