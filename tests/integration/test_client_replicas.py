"""A client of two real servers: one is killed in the middle, another one refuses what it has not begun."""

import asyncio
import os
import signal
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from naiad.client import Client, ConnectionFailedError, ErrorCode, InferError, connect
from support.ensemble_models import tensor, write_ensemble
from support.model_repository import write_identity, write_model
from support.ports import free_port
from support.server_process import ServerProcess
from support.waiting import until, wait_until

NOTING = """
import os, time
import triton_python_backend_utils as pb_utils

NOTES = os.open({notes!r}, os.O_CREAT | os.O_WRONLY | os.O_APPEND)


class TritonPythonModel:
    def execute(self, requests):
        tensors = [pb_utils.get_input_tensor_by_name(request, "IN") for request in requests]
        for tensor in tensors:
            os.write(NOTES, b"%d\\n" % tensor.as_numpy().item())
        if any(tensor.as_numpy().item() < 0 for tensor in tensors):
            os.abort()
        time.sleep(0.002)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", each.as_numpy() * 2)]) for each in tensors]
"""
CONFIG = """
backend: "python" max_batch_size: 8 dynamic_batching { }
input [ { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
"""
AT_ONCE = 8


class Scene:
    """Two servers with the same models, each of which can be killed and started again."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.notes = root / "notes"
        write_model(root / "models", "noting", CONFIG, {"1/model.py": NOTING.format(notes=str(self.notes))})
        write_identity(
            root / "models",
            "narrow",
            parameters={"execute_delay_ms": "2000"},
            extra="dynamic_batching { default_queue_policy { max_queue_size: 1 } }",
        )
        write_identity(root / "models")
        steps = [
            ("identity", {"INPUT0": "IN"}, {"OUTPUT0": "row"}),
            ("narrow", {"INPUT0": "row"}, {"OUTPUT0": "OUT"}),
        ]
        write_ensemble(root / "models", "pair", [tensor("IN", dims="-1")], [tensor("OUT", dims="-1")], steps)
        self._ports = [(free_port(), free_port()) for _ in range(2)]
        self._count = 0
        self.servers = [self._start(index) for index in range(2)]
        for each in self.servers:
            each.wait_ready()

    def _start(self, index: int) -> ServerProcess:
        self._count += 1
        http, grpc = self._ports[index]
        flags = [f"--model-repository={self._root / 'models'}", f"--http-port={http}", f"--grpc-port={grpc}"]
        return ServerProcess(self._root / f"log-{self._count}", *flags, "--http-allowed-hosts=naiad.test")

    def urls(self, scheme: str) -> list[str]:
        return [f"{scheme}://127.0.0.1:{ports[scheme == 'grpc']}" for ports in self._ports]

    def kill(self, index: int) -> None:
        os.kill(self.servers[index].process.pid, signal.SIGKILL)
        self.servers[index].wait_exit()

    def restart(self, index: int) -> None:
        self.servers[index] = self._start(index)
        self.servers[index].wait_ready()

    def executions(self) -> Counter[int]:
        """Return how often each request was begun, and forget it."""
        found = Counter(int(line) for line in self.notes.read_text().split())
        os.truncate(self.notes, 0)
        return found


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    opened = Scene(tmp_path_factory.mktemp("replicas"))
    yield opened
    for each in opened.servers:
        each.stop()


def row(number: int) -> dict[str, np.ndarray]:
    return {"IN": np.array([[number]], np.int32)}


@pytest.mark.parametrize("scheme", ["grpc", "http"])
def test_a_kill_fails_only_what_had_begun(scene: Scene, scheme: str) -> None:
    answers: dict[int, int] = {}
    failures: dict[int, InferError] = {}

    async def send(client: Client, numbers: Iterator[int]) -> None:
        for number in numbers:
            try:
                answers[number] = (await client.infer("noting", row(number)))["OUT"].item()
            except InferError as error:
                failures[number] = error

    async def kill_and_restart() -> None:
        await until(lambda: len(answers) > 60)
        await asyncio.to_thread(scene.kill, 0)

    async def body() -> None:
        async with Client(scene.urls(scheme), timeout_s=60) as client:
            numbers = iter(range(300))
            await asyncio.gather(kill_and_restart(), *[send(client, numbers) for _ in range(AT_ONCE)])
            away, there = client.replicas
            assert away.problem
            assert (there.problem, client.retries.over_budget) == ("", 0)
            assert client.retries.calls == 300
            await asyncio.to_thread(scene.restart, 0)
            await until(lambda: not client.replicas[0].problem)
            before = client.replicas[0].calls
            await send(client, iter(range(300, 304)))
            assert client.replicas[0].calls > before, "it gets calls again"

    asyncio.run(body())
    executions = scene.executions()
    assert len(answers) + len(failures) == 304
    assert all(answer == 2 * number for number, answer in answers.items())
    assert all(isinstance(error, ConnectionFailedError) and error.has_begun for error in failures.values()), failures
    assert len(failures) <= AT_ONCE, "only those that were in flight"
    assert max(executions.values()) == 1
    assert answers.keys() <= executions.keys()


def test_plain_calls_lose_nothing_with_retry_begun(scene: Scene) -> None:
    answers: list[bool] = []

    with connect(scene.urls("http"), retry_begun=True, retry_s=0) as client:

        def send(first: int) -> None:
            for number in range(first, first + 50):
                answers.append(client.infer("noting", row(number))["OUT"].item() == 2 * number)

        threads = [threading.Thread(target=send, args=(50 * index,)) for index in range(4)]
        for thread in threads:
            thread.start()
        wait_until(lambda: len(answers) > 40)
        scene.kill(1)
        for thread in threads:
            thread.join()
        assert answers == [True] * 200
        assert client.retries.retries > 0
        assert [bool(each.problem) for each in client.replicas] == [False, True]
    scene.restart(1)
    scene.executions()


@pytest.mark.parametrize("scheme", ["grpc", "http"])
def test_a_full_queue_sends_requests_elsewhere(scene: Scene, scheme: str) -> None:
    rows = {"INPUT0": np.zeros((8, 2), np.float32)}

    async def body() -> None:
        async with Client(scene.urls(scheme)[0]) as one, Client(scene.urls(scheme)[::-1]) as both:
            busy = []
            for waiting in range(2):
                busy.append(asyncio.create_task(one.infer("narrow", rows)))
                wait = partial(scene.servers[0].wait_requests, "narrow", waiting=waiting, executing=1)
                await asyncio.to_thread(wait)
            with pytest.raises(InferError, match="Exceeds maximum queue size") as raised:
                await one.infer("narrow", rows)
            assert (raised.value.code, raised.value.has_begun) == (ErrorCode.UNAVAILABLE, False)
            with pytest.raises(InferError, match=r"in ensemble 'pair'.*Exceeds maximum queue size") as raised:
                await one.infer("pair", {"IN": rows["INPUT0"]})
            assert raised.value.has_begun, "its first step was executed"
            await both.infer("narrow", rows)
            assert [(each.calls, each.moved) for each in both.replicas] == [(1, 0), (1, 1)]
            await asyncio.gather(*busy)

    asyncio.run(body())


@pytest.mark.parametrize("scheme", ["grpc", "http"])
def test_a_request_that_kills_is_not_repeated(scene: Scene, scheme: str) -> None:
    async def body() -> None:
        async with Client(scene.urls(scheme)) as client:
            with pytest.raises(InferError, match="while it executed this request") as raised:
                await client.infer("noting", row(-1))
            assert (raised.value.code, raised.value.has_begun) == (ErrorCode.UNAVAILABLE, True)
            assert client.retries.retries == 0

    asyncio.run(body())
    assert scene.executions()[-1] == 1


def test_calls_for_one_server_are_refused(scene: Scene) -> None:
    async def body() -> None:
        async with Client(", ".join(scene.urls("http"))) as client:
            assert await client.is_ready()
            assert (await client.model_metadata("noting")).name == "noting"
            for call in (client.load("noting"), client.statistics(), client.repository_index()):
                with pytest.raises(InferError, match="the client has several") as raised:
                    await call
                assert raised.value.code is ErrorCode.UNSUPPORTED

    asyncio.run(body())


def test_all_addresses_of_a_name_are_servers(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    port = int(scene.urls("http")[0].rpartition(":")[2])

    async def numbers(self: object, host: str, *arguments: object, **more: object) -> list[object]:
        names = ["127.0.0.9", "127.0.0.1"] if host == "naiad.test" else [host]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (name, port)) for name in names]

    monkeypatch.setattr(asyncio.base_events.BaseEventLoop, "getaddrinfo", numbers)

    async def body() -> None:
        async with Client(f"http://naiad.test:{port}", resolve=True) as client:
            for number in range(4):
                assert (await client.infer("noting", row(number)))["OUT"].item() == 2 * number
            away, there = client.replicas
            assert away.url == f"http://naiad.test:{port} (127.0.0.9)"
            assert "Connection refused" in away.problem
            assert there.calls == 4

    asyncio.run(body())


@pytest.mark.parametrize(
    ("url", "text"),
    [
        (["http://a", "grpc://b"], "differ in protocol or TLS"),
        ([f"http://h{index}" for index in range(65)], "at most 64 addresses, not 65"),
        ("http://a, nonsense", "'nonsense' is not the address of a server"),
        ([], "is not the address of a server"),
        (" , ", "is not the address of a server"),
    ],
)
def test_wrong_lists_are_refused(url: str | list[str], text: str) -> None:
    with pytest.raises(InferError, match=text):
        Client(url)
