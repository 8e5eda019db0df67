"""REST and gRPC over TLS through the proxies of deploy/proxies, also when a server ends."""

import http.server
import itertools
import json
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

from naiad.protocol.status_table import NOT_BEGUN
from support.certificates import Certificates
from support.model_repository import write_identity
from support.ports import free_port
from support.proxies import Proxy, find_program
from support.sequence_models import write_running_sum
from support.server_process import ServerProcess
from support.waiting import wait_until

INFER = "/v2/models/identity/infer"
SLOW = "/v2/models/slow/infer"
PAUSE_S = 0.1
"""Between requests of a thread."""
STEP_S = 0.1
"""Between requests of a sequence."""
DRAIN_S = 6
"""A proxy on a busy machine has asked twice for the readiness before this is over."""
SETTLE_S = 2.5
"""After this the proxy has noticed that both ports of a server are ready, when it has noticed one."""
STALL_S = 4.0
"""After this a server that does not answer would have failed two checks of a second each."""
SEQUENCE_LENGTH = 10
VALUES = np.arange(4, dtype=np.float32).reshape(1, 4)
ROW = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 4], "data": VALUES.ravel().tolist()}
BODY = json.dumps({"inputs": [ROW]}).encode()


@pytest.fixture(params=["nginx", "haproxy", "envoy"])
def kind(request: pytest.FixtureRequest) -> str:
    if find_program(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    return str(request.param)


def has_served(server: ServerProcess) -> bool:
    text = server.get("/metrics", url=server.metrics_url).body.decode()
    return re.search(r'^nv_inference_request_success\{model="identity",.*\} [1-9]', text, re.MULTILINE) is not None


class Scene:
    """Two servers, each of which can be replaced, behind a proxy."""

    def __init__(self, kind: str, root: Path, certificates: Certificates) -> None:
        self._root = root
        self._start_count = 0
        write_identity(root / "models")
        write_running_sum(root / "models", "running_sum", "direct { }")
        write_identity(root / "models", "slow", parameters={"execute_delay_ms": "3000"})
        self._ports = [free_port(), free_port()]
        self.servers = [self._start(index) for index in range(2)]
        for server in self.servers:
            server.wait_ready()
        self.proxy = Proxy(kind, root, certificates, [f"127.0.0.1:{port}" for port in self._ports])

    def _start(self, index: int) -> ServerProcess:
        self._start_count += 1
        flags = (f"--model-repository={self._root / 'models'}", f"--http-port={self._ports[index]}")
        ends = (f"--drain-seconds={DRAIN_S}", "--exit-timeout-secs=30")
        return ServerProcess(self._root / f"log-{self._start_count}", *flags, *ends)

    def restart(self, index: int) -> None:
        """End a server gracefully and start its successor on the same port."""
        self.servers[index].signal()
        assert self.servers[index].wait_exit() == 0
        self.servers[index] = self._start(index)
        self.servers[index].wait_ready()
        wait_until(lambda: has_served(self.servers[index]), "the proxy sends nothing to a server that is ready")
        time.sleep(SETTLE_S)

    def stop(self) -> None:
        """End the servers, without a drain."""
        for server in self.servers:
            server.process.kill()
            server.wait_exit()


@pytest.fixture
def scene(kind: str, tmp_path: Path, certificates: Certificates) -> Iterator[Scene]:
    opened = Scene(kind, tmp_path, certificates)
    yield opened
    opened.proxy.stop()
    opened.stop()


def grpc_request() -> list[grpcclient.InferInput]:
    given = grpcclient.InferInput("INPUT0", [1, 4], "FP32")
    given.set_data_from_numpy(VALUES)
    return [given]


def stream(client: grpcclient.InferenceServerClient, count: int) -> list[bool]:
    """Send requests over one stream; return which of their responses are right."""
    responses: SimpleQueue[tuple[Any, Any]] = SimpleQueue()
    client.start_stream(lambda result, error: responses.put((result, error)))
    for _ in range(count):
        client.async_stream_infer("identity", grpc_request())
    arrived = [responses.get(timeout=30) for _ in range(count)]
    client.stop_stream()
    return [error is None and np.array_equal(result.as_numpy("OUTPUT0"), VALUES) for result, error in arrived]


def sequence_sums(client: grpcclient.InferenceServerClient, number: int) -> list[float]:
    """Send a sequence of ones, which the proxy keeps on a server; return the sums that the model answers."""
    one = grpcclient.InferInput("INPUT", [1, 1], "FP32")
    one.set_data_from_numpy(np.ones((1, 1), np.float32))
    sums = []
    for place in range(SEQUENCE_LENGTH):
        result = client.infer(
            "running_sum",
            [one],
            headers={"sequence-id": str(number)},
            sequence_id=number,
            sequence_start=place == 0,
            sequence_end=place == SEQUENCE_LENGTH - 1,
        )
        sums.append(result.as_numpy("OUTPUT").item())
        time.sleep(STEP_S)
    return sums


def executions(server: ServerProcess, model: str) -> int:
    """Return how many requests a server has executed, or executes."""
    text = server.get("/metrics", url=server.metrics_url).body.decode()
    names = "nv_inference_request_success|naiad_inference_executing_request_count"
    rows = re.findall(rf'^(?:{names})\{{model="{model}",.*\}} (\S+)$', text, re.MULTILINE)
    return sum(int(float(each)) for each in rows)


def kill_while_executing(scene: Scene, client: grpcclient.InferenceServerClient, kind: str) -> ServerProcess:
    """Kill the server that executes a slow request, which fails; return the other server."""
    statuses: SimpleQueue[object] = SimpleQueue()

    def send() -> None:
        if kind == "envoy":
            try:
                client.infer("slow", grpc_request())
                statuses.put(200)
            except InferenceServerException:
                statuses.put(502)
        else:
            statuses.put(scene.proxy.rest(SLOW, BODY)[0])

    thread = threading.Thread(target=send)
    thread.start()
    wait_until(lambda: sum(executions(each, "slow") for each in scene.servers) == 1)
    victim = next(each for each in scene.servers if executions(each, "slow"))
    victim.process.kill()
    victim.wait_exit()
    thread.join()
    assert statuses.get() in (502, 503)
    return next(each for each in scene.servers if each is not victim)


def test_rest_and_grpc_pass_and_are_retried(scene: Scene, kind: str) -> None:
    proxy = scene.proxy
    status, body = proxy.rest(INFER, BODY)
    assert status == 200
    assert json.loads(body)["outputs"][0]["data"] == ROW["data"]
    with proxy.grpc() as client:
        assert client.is_server_ready()
        result = client.infer("identity", grpc_request())
        assert np.array_equal(result.as_numpy("OUTPUT0"), VALUES)
        assert stream(client, 3) == [True] * 3
        # Model control is not for clients.
        assert proxy.rest("/v2/repository/index", b"{}")[0] == 403
        with pytest.raises(InferenceServerException):
            client.load_model("identity")
        # One server is gone at once, while it executes a request: others reach the other one, that one fails.
        left = kill_while_executing(scene, client, kind)
        assert executions(left, "slow") == 0, "a request that had begun is not repeated"
        for _ in range(20):
            assert proxy.rest(INFER, BODY)[0] == 200
            assert np.array_equal(client.infer("identity", grpc_request()).as_numpy("OUTPUT0"), VALUES)
        assert stream(client, 3) == [True] * 3


class Refusing(http.server.BaseHTTPRequestHandler):
    """A server that is healthy and refuses each request; another one, `is_willing`, does not."""

    is_willing = False
    header = ""

    def do_GET(self) -> None:
        self.answer(200)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(200 if self.is_willing else 503)

    def answer(self, status: int) -> None:
        self.send_response(status)
        if status == 503 and self.header:
            self.send_header(self.header, "1")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.mark.parametrize(("kind", "header"), [("envoy", NOT_BEGUN.decode()), ("envoy", "")], indirect=["kind"])
def test_envoy_repeats_what_was_not_begun(kind: str, header: str, tmp_path: Path, certificates: Certificates) -> None:
    servers = [
        http.server.ThreadingHTTPServer(
            ("127.0.0.1", 0), type("Handler", (Refusing,), {"is_willing": is_willing, "header": header})
        )
        for is_willing in (False, True)
    ]
    for each in servers:
        threading.Thread(target=each.serve_forever, daemon=True).start()
    proxy = Proxy(kind, tmp_path, certificates, [f"127.0.0.1:{each.server_port}" for each in servers])
    try:
        wait_until(lambda: proxy.rest(INFER, BODY)[0] == 200)
        statuses = {proxy.rest(INFER, BODY)[0] for _ in range(30)}
        assert statuses == ({200} if header else {200, 503})
    finally:
        proxy.stop()
        for each in servers:
            each.shutdown()
            each.server_close()


class Load:
    """Threads that send requests one after the other until the end of a `with` block."""

    def __init__(self, senders: Sequence[tuple[str, Callable[[], bool]]]) -> None:
        """`senders` are names and functions that send one request and return whether its response is right."""
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._repeat, args=sender) for sender in senders]
        self.counts = Counter[str]()
        self.failures: list[str] = []

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def _repeat(self, name: str, send: Callable[[], bool]) -> None:
        while not self._is_over.wait(PAUSE_S):
            self.counts[name] += 1
            try:
                failed = [] if send() else [name]
            except Exception as error:
                failed = [f"{name}: {error}"]
            self.failures += failed


@pytest.mark.parametrize(("kind", "restart_count"), [("haproxy", 1), ("envoy", 1)], indirect=["kind"])
def test_rolling_restarts_fail_no_request(scene: Scene, kind: str, restart_count: int) -> None:
    with scene.proxy.grpc() as client:

        def infer() -> bool:
            return np.array_equal(client.infer("identity", grpc_request()).as_numpy("OUTPUT0"), VALUES)

        def rest() -> bool:
            return scene.proxy.rest(INFER, BODY)[0] == 200

        def streams() -> bool:
            with scene.proxy.grpc() as own:
                return all(stream(own, 3))

        def sequence() -> bool:
            number = next(ids)
            return sequence_sums(client, number) == [float(place + 1) for place in range(SEQUENCE_LENGTH)]

        ids = itertools.count(1)
        senders = [("rest", rest), ("grpc", infer), ("stream", streams)]
        if kind == "haproxy":  # Nginx and Envoy do not keep a sequence on its server.
            senders.append(("sequence", sequence))
        with Load([*senders, *senders]) as load:
            for restart in range(restart_count):
                scene.restart(restart % 2)
    assert load.failures == []
    assert min(load.counts.values()) > restart_count, load.counts


@pytest.mark.parametrize("kind", ["haproxy"], indirect=True)
@pytest.mark.long
def test_late_health_checks_fail_no_request(scene: Scene) -> None:
    scene.servers[0].process.kill()
    scene.servers[0].wait_exit()
    process = scene.servers[1].process
    process.send_signal(signal.SIGSTOP)
    try:
        time.sleep(STALL_S)
        going_on = threading.Timer(1.0, process.send_signal, [signal.SIGCONT])
        going_on.start()
        assert scene.proxy.rest(INFER, BODY)[0] == 200
        going_on.join()
    finally:
        process.send_signal(signal.SIGCONT)
