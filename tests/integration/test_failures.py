"""Models that fail: what callers and the log get, what goes on, and what readiness is meanwhile."""

import http.client
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from naiad.protocol.service_pb2 import ModelInferRequest
from support.departures import grpc_client_timeout, json_body
from support.failing_models import UNLOADABLE, write_mischief, write_unloadable
from support.held_models import Notes, write_held
from support.model_repository import write_identity
from support.process_resources import ProcessResources
from support.server_process import ServerProcess
from support.waiting import wait_until

StartServer = Callable[..., ServerProcess]

GRPC_INFER = "/inference.GRPCInferenceService/ModelInfer"
DEADLY = {
    "exits": "exited with code 7",
    "segfaults": "SIGSEGV",
    "is_killed": "SIGKILL",
    "loops": "execute_timeout_s",
}


def start_over(root: Path, log: Path, *flags: str) -> ServerProcess:
    return ServerProcess(log, f"--model-repository={root}", *flags)


GRPC_TO_HTTP = {0: 200, 2: 400, 13: 500, 5: 404, 3: 400, 14: 503, 12: 501, 6: 400, 1: 400}


class Caller:
    """Asks for one inference over HTTP or gRPC and gives status and message in HTTP's terms."""

    def __init__(self, server: ServerProcess, protocol: str) -> None:
        self._server = server
        self.protocol = protocol

    def __call__(self, model: str, kind: str, request_id: str = "", version: str = "") -> tuple[int, str]:
        return getattr(self, f"_{self.protocol.lower()}")(model, kind, request_id, version)

    def _http(self, model: str, kind: str, request_id: str, version: str) -> tuple[int, str]:
        tensor = {"name": "KIND", "datatype": "BYTES", "shape": [1], "data": [kind]}
        path = f"/v2/models/{model}{f'/versions/{version}' if version else ''}/infer"
        answer = self._server.post(path, {"id": request_id, "inputs": [tensor]})
        if answer.status == 200:
            return 200, str(answer.json["outputs"][0]["data"])
        assert list(answer.json) == ["error"]
        return answer.status, answer.json["error"]

    def _grpc(self, model: str, kind: str, request_id: str, version: str) -> tuple[int, str]:
        request = ModelInferRequest(model_name=model, model_version=version, id=request_id)
        request.inputs.add(name="KIND", datatype="BYTES", shape=[1]).contents.bytes_contents.append(kind.encode())
        with grpc.insecure_channel(self._server.grpc_url) as channel:
            try:
                channel.unary_unary(GRPC_INFER)(request.SerializeToString(), timeout=60)
            except grpc.RpcError as error:
                return GRPC_TO_HTTP[error.code().value[0]], error.details()
        return 200, "[1.5, 2.5]"


# --- loading ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def crippled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server most of whose models could not be loaded."""
    root = tmp_path_factory.mktemp("unloadable")
    write_unloadable(root)
    running = start_over(root, tmp_path_factory.mktemp("log") / "log", "--exit-on-error=false")
    try:
        running.wait_started()
        yield running
    finally:
        running.stop()


@pytest.fixture(scope="module")
def index(crippled: ServerProcess) -> dict[str, dict[str, str]]:
    return {row["name"]: row for row in crippled.post("/v2/repository/index").json}


class TestLoad:
    @pytest.mark.parametrize("name", UNLOADABLE)
    def test_reason_is_in_index_and_in_log(
        self, crippled: ServerProcess, index: dict[str, dict[str, str]], name: str
    ) -> None:
        pattern = UNLOADABLE[name][2]
        assert index[name]["state"] == "UNAVAILABLE"
        assert re.search(pattern, index[name]["reason"]), index[name]["reason"]
        about = [line for line in crippled.log_text().splitlines() if name in line and line[0] in "EW"]
        assert re.search(pattern, "\n".join(about)), about

    def test_nothing_is_left_of_them(self, crippled: ServerProcess) -> None:
        assert ProcessResources(crippled.process.pid).child_count() == 0

    def test_readiness_is_correct(self, crippled: ServerProcess) -> None:
        assert crippled.get("/v2/health/live").status == 200
        assert crippled.get("/v2/health/ready").status != 200
        for name in UNLOADABLE:
            assert crippled.get(f"/v2/models/{name}/ready").status != 200, name
        assert crippled.get("/v2/models/good/ready").status == 200

    @pytest.mark.parametrize("protocol", ["HTTP", "gRPC"])
    def test_they_are_not_there_for_requests(self, crippled: ServerProcess, protocol: str) -> None:
        status, text = Caller(crippled, protocol)("python_raises", "good")
        assert (status, text) == (404, "Request for unknown model: 'python_raises' has no available versions")

    def test_other_models_serve(self, crippled: ServerProcess) -> None:
        tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}
        assert crippled.post("/v2/models/good/infer", {"inputs": [tensor]}).status == 200
        assert "Traceback" not in crippled.log_text().replace("Traceback (most recent call last):\\n  File", "")


# --- executing ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def notes(tmp_path_factory: pytest.TempPathFactory) -> Notes:
    return Notes(tmp_path_factory.mktemp("notes"))


@pytest.fixture(scope="module")
def mischief(tmp_path_factory: pytest.TempPathFactory, notes: Notes) -> Iterator[ServerProcess]:
    """A server with models that do what requests say; each model that dies does so for one test only."""
    root = tmp_path_factory.mktemp("mischief")
    write_mischief(root, "mischief", strict_outputs="true")
    for kind in DEADLY:
        limit = {"execute_timeout_s": "1"} if kind == "loops" else {}
        write_mischief(root, f"one_{kind}", refuse_after_deaths="0", **limit)
    write_mischief(root, "two", instances=2)
    write_identity(root, "bystander")
    write_held(root, "slow", notes.where)
    write_held(root, "queued", notes.where, extra=QUEUE)
    running = start_over(root, tmp_path_factory.mktemp("log") / "log")
    try:
        running.wait_ready()
        yield running
    finally:
        running.stop()


QUEUE = """
dynamic_batching {
  preferred_batch_size: [ 1 ]
  default_queue_policy {
    max_queue_size: 1 default_timeout_microseconds: 600000000 allow_timeout_override: true
  }
}
"""


@pytest.fixture(params=["HTTP", "gRPC"])
def call(mischief: ServerProcess, request: pytest.FixtureRequest) -> Caller:
    return Caller(mischief, request.param)


@pytest.fixture(autouse=True)
def bystander_is_served(request: pytest.FixtureRequest) -> Iterator[None]:
    """Another model answers throughout, for any failure of the first."""
    if "mischief" not in request.fixturenames:
        yield
        return
    server: ServerProcess = request.getfixturevalue("mischief")
    tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}
    body = json.dumps({"inputs": [tensor]}).encode()
    done = threading.Event()
    statuses = []

    connection = http.client.HTTPConnection(server.http_url, timeout=60)

    def ask() -> None:
        connection.request("POST", "/v2/models/bystander/infer", body)
        response = connection.getresponse()
        response.read()
        statuses.append(response.status)

    def ask_again() -> None:
        while not done.wait(0.02):
            ask()

    ask()
    thread = threading.Thread(target=ask_again)
    thread.start()
    yield
    done.set()
    thread.join()
    ask()
    connection.close()
    assert set(statuses) == {200}


def metrics_of(server: ServerProcess) -> str:
    return server.get("/metrics", url=server.metrics_url).body.decode()


def executions(server: ServerProcess, model: str) -> int:
    (row,) = server.get(f"/v2/models/{model}/stats").json["model_stats"]
    return int(row["execution_count"])


def lines_about(server: ServerProcess, request_id: str) -> list[str]:
    """Return the lines of the log with a request id, after those that come later than they do."""
    mark = f"mark-{time.monotonic_ns()}"
    assert Caller(server, "HTTP")("nothing", "good", mark)[0] == 404
    server.wait_log(re.escape(mark))
    return [line for line in server.log_text().splitlines() if f"[request id: {request_id}]" in line]


def assert_logged_once(server: ServerProcess, caller: Caller, request_id: str, model: str, cause: str) -> str:
    (line,) = lines_about(server, request_id)
    assert line[0] in "EW"
    assert f" {caller.protocol} request for model '{model}' version " in line
    assert re.search(cause, line), line
    return line


ANSWERED = {
    "raises": (500, r"ValueError: boom 17"),
    "raises_model_exception": (500, r"not today"),
    "answers_error": (500, r"^bad luck$"),
    "answers_not_found": (404, r"^no such user$"),
    "answers_invalid": (400, r"^too short$"),
    "answers_unavailable": (503, r"^come back later$"),
    "returns_nothing": (500, r"Expected a list in the execute return"),
    "returns_no_list": (500, r"Expected a list in the execute return"),
    "returns_too_many": (
        500,
        r"Number of InferenceResponse objects do not match the number of InferenceRequest objects",
    ),
    "returns_too_few": (
        500,
        r"Number of InferenceResponse objects do not match the number of InferenceRequest objects",
    ),
    "returns_other_things": (500, r"Expected an 'InferenceResponse' object in the execute function return list"),
    "returns_wrong_datatype": (500, r"OUTPUT0.*INT32.*FP32|OUTPUT0.*FP32.*INT32"),
    "returns_wrong_shape": (500, r"OUTPUT0.*\[3\].*\[2\]|OUTPUT0.*\[2\].*\[3\]"),
    "returns_wrong_rank": (500, r"OUTPUT0.*\[2,2\].*\[2\]|OUTPUT0.*\[2\].*\[2,2\]"),
    "returns_no_output": (500, r"OUTPUT0"),
    "returns_unknown_output": (500, r"OUTPUT0"),
}


class TestExecution:
    @pytest.mark.parametrize("kind", list(ANSWERED))
    def test_failure_reaches_caller_and_log_once_each(self, mischief: ServerProcess, call: Caller, kind: str) -> None:
        status, pattern = ANSWERED[kind]
        request_id = f"{kind}-{call.protocol}"
        got, text = call("mischief", kind, request_id)
        assert got == status
        assert re.search(pattern, text), text
        if not kind.startswith("answers"):
            assert "mischief" in text
        line = assert_logged_once(mischief, call, request_id, "mischief", pattern.strip("^$"))
        assert " version 1 failed" in line
        assert call("mischief", "good") == (200, "[1.5, 2.5]")
        assert mischief.get("/v2/models/mischief/ready").status == 200

    def test_exception_is_reported_with_place(self, mischief: ServerProcess, call: Caller) -> None:
        request_id = f"place-{call.protocol}"
        _, text = call("mischief", "raises", request_id)
        assert re.search(r"model\.py\(\d+\): raise_deep_down", text)
        (line,) = lines_about(mischief, request_id)
        assert re.search(r"mischief/1/model\.py.{1,9}\d+\D+raise_deep_down", line), line

    def test_exceptions_count_as_failures_error_responses_do_not(self, mischief: ServerProcess, call: Caller) -> None:
        """Protocol notes 8: that is how Triton's Python backend counts."""

        def counts() -> tuple[int, int]:
            (row,) = mischief.get("/v2/models/mischief/stats").json["model_stats"]
            return row["inference_stats"]["success"]["count"], row["inference_stats"]["fail"]["count"]

        success, fail = counts()
        call("mischief", "answers_error")
        assert counts() == (success + 1, fail)
        call("mischief", "raises")
        assert counts() == (success + 1, fail + 1)
        labels = '{model="mischief",reason="BACKEND",version="1"}'
        assert f"nv_inference_request_failure{labels} {fail + 1}" in metrics_of(mischief)

    def test_hundreds_of_failures_leave_nothing(self, mischief: ServerProcess) -> None:
        caller = Caller(mischief, "HTTP")
        caller("mischief", "good")
        resources = ProcessResources(mischief.process.pid)
        for _ in range(100):
            assert caller("mischief", "raises")[0] == 500
            assert caller("mischief", "answers_error")[0] == 500
        caller("mischief", "good")
        resources.assert_back()


class TestDeath:
    """Users 5: callers get errors at once, readiness is correct, the worker comes back."""

    @pytest.mark.parametrize("kind", DEADLY)
    def test_dead_worker_is_reported_and_replaced(self, mischief: ServerProcess, kind: str) -> None:
        model = f"one_{kind}"
        for protocol in ("HTTP", "gRPC"):
            caller = Caller(mischief, protocol)
            request_id = f"{kind}-{protocol}"
            started = time.monotonic()
            status, text = caller(model, kind, request_id)
            assert status in (500, 503)
            assert f"{model}_0" in text
            assert DEADLY[kind] in text
            assert time.monotonic() - started < 60
            assert_logged_once(mischief, caller, request_id, model, DEADLY[kind])
            self.assert_back(mischief, model)
        assert mischief.get("/v2/health/ready").status == 200

    @staticmethod
    def assert_back(server: ServerProcess, model: str) -> None:
        """The model is not ready, and then it is and answers; never does it say so and not answer."""
        caller = Caller(server, "HTTP")
        deadline = time.monotonic() + 60
        unready = 0
        while server.get(f"/v2/models/{model}/ready").status != 200:
            unready += 1
            assert time.monotonic() < deadline, server.log_text()
            if unready == 1:
                status, text = caller(model, "good")
                assert (status, text) == (200, "[1.5, 2.5]") or (status == 503 and model in text)
            time.sleep(0.02)
        assert unready
        assert caller(model, "good") == (200, "[1.5, 2.5]")

    def test_other_instance_goes_on_and_model_stays_ready(self, mischief: ServerProcess) -> None:
        caller = Caller(mischief, "HTTP")
        status, text = caller("two", "exits")
        assert status in (500, 503)
        assert "two_0_" in text
        for _ in range(50):
            assert mischief.get("/v2/models/two/ready").status == 200
            assert caller("two", "good") == (200, "[1.5, 2.5]")

    def test_restarts_are_counted(self, mischief: ServerProcess) -> None:
        Caller(mischief, "HTTP")("one_exits", "exits")
        self.assert_back(mischief, "one_exits")
        pattern = r'^naiad_worker_restarts_total\{.*model="one_exits",version="1"\} [1-9]'
        assert re.search(pattern, metrics_of(mischief), re.MULTILINE)

    def test_worker_that_keeps_dying_fails_its_requests(self, start_server: StartServer, tmp_path: Path) -> None:
        write_mischief(tmp_path / "models", "hopeless", restart_limit="2", refuse_after_deaths="0")
        write_identity(tmp_path / "models", "bystander")
        running = start_server(tmp_path / "models")
        running.wait_ready()
        caller = Caller(running, "HTTP")
        deadline = time.monotonic() + 60
        while "2 deaths within 60 s: requests are refused" not in caller("hopeless", "exits")[1]:
            assert time.monotonic() < deadline, running.log_text()
            time.sleep(0.05)
        status, text = caller("hopeless", "good")
        assert status == 503
        assert "hopeless_0" in text
        assert "exited with code 7" in text
        assert running.get("/v2/models/hopeless/ready").status != 200
        rows = {row["name"]: row for row in running.post("/v2/repository/index").json}
        assert rows["hopeless"]["state"] == "UNAVAILABLE"
        assert "tried again every 30 s" in rows["hopeless"]["reason"]
        assert rows["bystander"]["state"] == "READY"
        assert running.get("/v2/health/ready").status != 200
        assert running.get("/v2/health/live").status == 200
        assert running.get("/v2/models/bystander/ready").status == 200
        running.signal()
        assert running.wait_exit() == 0


class TestLogOfRefusals:
    """Users 2: one line for each failed request at default verbosity, for every cause."""

    @pytest.mark.parametrize("protocol", ["HTTP", "gRPC"])
    def test_refused_at_the_door(self, mischief: ServerProcess, protocol: str) -> None:
        caller = Caller(mischief, protocol)
        table = [
            ("nothing", "", "NOT_FOUND: Request for unknown model: 'nothing' is not found"),
            ("mischief", "7", "NOT_FOUND: Request for unknown model: 'mischief' version 7 is not found"),
            ("bystander", "", "INVALID_ARG: .*unexpected inference input 'KIND'"),
        ]
        for number, (model, version, cause) in enumerate(table):
            request_id = f"door-{protocol}-{number}"
            assert caller(model, "good", request_id, version)[0] in (400, 404)
            line = assert_logged_once(mischief, caller, request_id, model, cause)
            assert line.startswith("W")

    def test_full_queue_and_timeout_in_the_queue(self, mischief: ServerProcess, notes: Notes) -> None:
        def ask(request_id: str, **parameters: int) -> tuple[int, str]:
            answer = mischief.request("POST", "/v2/models/queued/infer", json_body(request_id, **parameters))
            return answer.status, answer.json.get("error", "")

        with ThreadPoolExecutor(2) as pool:
            runs = pool.submit(ask, "q-runs")
            notes.wait("q-runs", "began")
            assert ask("q-expires", timeout=1000) == (503, "Request timeout expired")
            waits = pool.submit(ask, "q-waits")
            mischief.wait_requests("queued", waiting=1)
            status, refusal = ask("q-full")
            for request_id in ("q-runs", "q-waits"):
                notes.release(request_id)
            assert [runs.result(60), waits.result(60)] == [(200, "")] * 2
        assert status == 503
        assert "Exceeds maximum queue size" in refusal
        caller = Caller(mischief, "HTTP")
        assert_logged_once(mischief, caller, "q-expires", "queued", "UNAVAILABLE: Request timeout expired")
        assert_logged_once(mischief, caller, "q-full", "queued", "UNAVAILABLE: .*Exceeds maximum queue size")

    def test_client_disconnects_while_request_waits_or_executes(self, mischief: ServerProcess, notes: Notes) -> None:
        ids = ("gone-executes-http", "gone-waits-http", "gone-waits-grpc")
        connections = []
        for waiting, request_id in enumerate(ids[:2]):
            connections.append(http.client.HTTPConnection(mischief.http_url, timeout=60))
            connections[-1].request("POST", "/v2/models/slow/infer", json_body(request_id))
            notes.wait(ids[0], "began")
            mischief.wait_requests("slow", waiting=waiting, executing=1)
        grpc_client_timeout(mischief, "slow", ids[2])()
        connections[1].close()
        # Otherwise the instance, which is free when what executes is cancelled, could take what still waits.
        mischief.wait_requests("slow", waiting=0, executing=1)
        connections[0].close()
        for request_id in ids:
            mischief.wait_log(re.escape(request_id))
            (line,) = lines_about(mischief, request_id)
            protocol = "gRPC" if request_id.endswith("grpc") else "HTTP"
            assert line.startswith("W")
            # A deadline passes on both sides: the client's reset may come before the server's timer, and after it.
            codes = "CANCELLED|DEADLINE_EXCEEDED" if protocol == "gRPC" else "CANCELLED"
            assert re.search(f" {protocol} request for model 'slow' version 1 failed: ({codes}): ", line)
        # What executes is notified at once, and ends when its model returns.
        wait_until(lambda: executions(mischief, "slow") == 1)
        # What waited would follow.
        notes.release("last")
        assert mischief.request("POST", "/v2/models/slow/infer", json_body("last")).status == 200
        assert executions(mischief, "slow") == 2
