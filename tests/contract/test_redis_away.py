"""The Redis store while Redis is away, hangs or is full: waiting, log lines, counters."""

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence

import pytest

from naiad.engine.cache.redis_store import RedisStore, encode
from naiad.engine.cache.response_store import CachedResponse

NO_RESPONSE = b"\x0c\x00\x00\x00[[], [1, 2]]"


class Door:
    """Accepts connections and closes them, like a proxy without its Redis."""

    def __init__(self) -> None:
        self.count = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.count += 1
            connection.close()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


@pytest.fixture
def door() -> Iterator[Door]:
    made = Door()
    yield made
    made.close()


class Client:
    """A Redis client whose results the test decides."""

    def __init__(self, results: Callable[[list[bytes]], Awaitable[Sequence[object]]]) -> None:
        self._results = results
        self._commands: list[bytes] = []
        self.pings = 0
        self.on_ping = asyncio.Event()
        self.may_answer_ping = asyncio.Event()

    def pipeline(self, transaction: bool) -> "Client":
        self._commands = []
        return self

    def get(self, key: bytes) -> None:
        self._commands.append(b"GET")

    def set(self, key: bytes, value: bytes, ex: int | None) -> None:
        self._commands.append(b"SET")

    async def execute(self, raise_on_error: bool) -> Sequence[object]:
        assert not raise_on_error
        return await self._results(self._commands)

    async def ping(self) -> None:
        self.pings += 1
        self.on_ping.set()
        await self.may_answer_ping.wait()
        if self.pings == 1:
            raise TimeoutError("Timeout reading from socket")

    async def aclose(self) -> None:
        pass


def run(test: Callable[[RedisStore], Awaitable[None]], port: int = 1) -> None:
    """Run a test with a store on an event loop of its own."""

    async def main() -> None:
        store = RedisStore({"host": "127.0.0.1", "port": str(port)})
        try:
            await test(store)
        finally:
            await store.close()

    asyncio.run(asyncio.wait_for(main(), 60))


async def until(condition: Callable[[], object]) -> None:
    """Wait until a condition holds."""
    while not condition():
        await asyncio.sleep(0.001)


def test_lookup_is_a_miss_after_one_retry(door: Door) -> None:
    async def test(store: RedisStore) -> None:
        found: asyncio.Queue[CachedResponse | None] = asyncio.Queue()
        assert store.fetch(b"k", found.put_nowait)
        assert await found.get() is None
        assert door.count <= 2
        assert store.counts().failure_count == 1

    run(test, door.port)


def test_a_redis_that_hangs_is_a_miss() -> None:
    async def test(store: RedisStore) -> None:
        found: asyncio.Queue[CachedResponse | None] = asyncio.Queue()
        assert store.fetch(b"k", found.put_nowait)
        assert await found.get() is None
        assert not store.fetch(b"k", found.put_nowait)
        assert store.counts().failure_count == 2

    with socket.create_server(("127.0.0.1", 0)) as silent:
        run(test, silent.getsockname()[1])


def test_all_waiting_lookups_miss_when_one_batch_fails() -> None:
    executed: list[int] = []

    async def fail(commands: list[bytes]) -> Sequence[object]:
        executed.append(len(commands))
        raise ConnectionError("gone")

    async def test(store: RedisStore) -> None:
        found: asyncio.Queue[CachedResponse | None] = asyncio.Queue()
        store._client = Client(fail)
        for number in range(1000):
            assert store.fetch(b"%d" % number, found.put_nowait)
        for _ in range(1000):
            assert await found.get() is None
        assert len(executed) == 1
        assert store.counts().failure_count == 1000

    run(test)


def test_full_queue_is_a_miss() -> None:
    async def test(store: RedisStore) -> None:
        store._client = Client(_misses)
        results = [store.fetch(b"k", lambda found: None) for _ in range(5000)]
        assert results.index(False) == 4096
        assert store.counts().failure_count == 5000 - 4096

    run(test)


def test_no_request_waits_for_the_ping(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("naiad.engine.cache.redis_store._RETRY_S", 0.0)
    caplog.set_level("INFO")
    executed: list[int] = []

    async def fail_first(commands: list[bytes]) -> Sequence[object]:
        executed.append(len(commands))
        if len(executed) == 1:
            raise TimeoutError("Timeout reading from socket")
        return [None] * len(commands)

    async def test(store: RedisStore) -> None:
        found: asyncio.Queue[CachedResponse | None] = asyncio.Queue()
        client = store._client = Client(fail_first)
        assert store.fetch(b"k", found.put_nowait)
        assert await found.get() is None
        assert not any(store.fetch(b"k", found.put_nowait) for _ in range(100))
        await client.on_ping.wait()
        assert not any(store.fetch(b"k", found.put_nowait) for _ in range(100))
        assert client.pings == 1
        client.may_answer_ping.set()
        await until(lambda: store.fetch(b"k", found.put_nowait))
        assert await found.get() is None
        assert (executed, client.pings) == ([1, 1], 2)

    run(test)
    assert caplog.text.count("cannot be reached") == caplog.text.count("answers again") == 1


def test_a_full_redis_still_returns_entries(caplog: pytest.LogCaptureFixture) -> None:
    stored = CachedResponse((), (), {"a": 1})

    async def reject_set(commands: list[bytes]) -> Sequence[object]:
        error = ValueError("OOM command not allowed when used memory > 'maxmemory'.")
        return [encode(stored) if command == b"GET" else error for command in commands]

    async def test(store: RedisStore) -> None:
        found: asyncio.Queue[CachedResponse | None] = asyncio.Queue()
        store._client = Client(reject_set)
        for _ in range(10):
            store.put(b"k", stored)
            assert store.fetch(b"k", found.put_nowait)
            response = await found.get()
            assert response is not None
            assert response.parameters == {"a": 1}
        assert store.counts().failure_count == 10

    run(test)
    assert caplog.text.count("rejects commands of the response cache: OOM command not allowed") == 1
    assert "cannot be reached" not in caplog.text


def test_one_failing_callback_affects_no_other(caplog: pytest.LogCaptureFixture) -> None:
    async def answer(commands: list[bytes]) -> Sequence[object]:
        return [NO_RESPONSE] * len(commands)

    def broken(found: CachedResponse | None) -> None:
        raise RuntimeError("the connection is gone")

    async def test(store: RedisStore) -> None:
        found: asyncio.Queue[CachedResponse | None] = asyncio.Queue()
        store._client = Client(answer)
        for callback in (found.put_nowait, broken, found.put_nowait):
            assert store.fetch(b"k", callback)
        assert [await found.get(), await found.get()] == [None, None]

    run(test)
    assert "processing a lookup's result from Redis failed" in caplog.text


async def _misses(commands: list[bytes]) -> Sequence[object]:
    return [None] * len(commands)
