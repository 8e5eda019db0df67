"""The client of Redis while Redis is away: how often and how long it is asked."""

import queue
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from naiad.engine.cache.redis_store import RedisStore, encode
from naiad.engine.cache.store import CachedResponse
from support.waiting import wait_until


class Here:
    """A loop that calls back at once."""

    def call_soon_threadsafe(self, callback: Callable[..., object], *args: Any) -> None:
        callback(*args)


class Door:
    """Takes connections and closes them, as a proxy does whose Redis is away."""

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


@pytest.fixture
def store(door: Door) -> Iterator[RedisStore]:
    made = RedisStore({"host": "127.0.0.1", "port": str(door.port)}, Here())  # type: ignore[arg-type]  # all it needs
    yield made
    made.close()


def test_nobody_waits_while_the_client_tries_again_and_again(store: RedisStore, door: Door) -> None:
    said = threading.Semaphore(0)
    assert store.fetch(b"k", lambda found: said.release() if found is None else None)
    assert said.acquire(timeout=60)
    assert door.count <= 2
    assert store.counts().failure_count == 1


def test_questions_that_wait_when_it_fails_are_misses_at_once(store: RedisStore) -> None:
    asked: list[int] = []
    said = threading.Semaphore(0)
    may_fail = threading.Event()

    class Client:
        def pipeline(self, transaction: bool) -> "Client":
            asked.append(0)
            return self

        def get(self, key: bytes) -> None:
            asked[-1] += 1

        def execute(self, raise_on_error: bool) -> Sequence[object]:
            may_fail.wait(60)
            raise ConnectionError("gone")

        def close(self) -> None:
            pass

    store._client.close()
    store._client = Client()
    for number in range(1000):
        assert store.fetch(b"%d" % number, lambda found: said.release())
    may_fail.set()
    for _ in range(1000):
        assert said.acquire(timeout=60)
    assert len(asked) == 1
    assert store.counts().failure_count == 1000


def test_nobody_waits_for_a_redis_that_hangs_while_it_is_asked_whether_it_is_back(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("naiad.engine.cache.redis_store._RETRY_S", 0.0)
    caplog.set_level("INFO")
    is_asked, may_answer = threading.Event(), threading.Event()
    said: queue.Queue[CachedResponse | None] = queue.Queue()

    class Client:
        asked = pings = 0

        def pipeline(self, transaction: bool) -> "Client":
            return self

        def get(self, key: bytes) -> None:
            self.asked += 1

        def execute(self, raise_on_error: bool) -> Sequence[object]:
            if self.asked == 1:
                raise TimeoutError("Timeout reading from socket")
            return [None]

        def ping(self) -> None:
            self.pings += 1
            is_asked.set()
            may_answer.wait(60)
            if self.pings == 1:
                raise TimeoutError("Timeout reading from socket")

        def close(self) -> None:
            pass

    store._client.close()
    client = store._client = Client()
    assert store.fetch(b"k", said.put)
    assert said.get(timeout=60) is None
    # One request sends somebody to look; neither it nor those that come meanwhile wait for what is found.
    assert not any(store.fetch(b"k", said.put) for _ in range(100))
    assert is_asked.wait(60)
    assert not any(store.fetch(b"k", said.put) for _ in range(100))
    assert client.pings == 1
    may_answer.set()
    wait_until(lambda: store.fetch(b"k", said.put))
    assert said.get(timeout=60) is None
    assert (client.asked, client.pings) == (2, 2)
    assert caplog.text.count("cannot be asked") == caplog.text.count("answers again") == 1


def test_a_redis_that_is_full_answers_all_the_same_and_one_line_tells(
    store: RedisStore, caplog: pytest.LogCaptureFixture
) -> None:
    kept = CachedResponse((), (), {"a": 1})
    said: queue.Queue[CachedResponse | None] = queue.Queue()

    class Client:
        def __init__(self) -> None:
            self.results: list[object] = []

        def pipeline(self, transaction: bool) -> "Client":
            self.results = []
            return self

        def get(self, key: bytes) -> None:
            self.results.append(encode(kept))

        def set(self, key: bytes, value: bytes, ex: int | None) -> None:
            self.results.append(ValueError("OOM command not allowed when used memory > 'maxmemory'."))

        def execute(self, raise_on_error: bool) -> Sequence[object]:
            assert not raise_on_error
            return self.results

        def close(self) -> None:
            pass

    store._client.close()
    store._client = Client()
    for _ in range(10):
        store.put(b"k", kept)
        assert store.fetch(b"k", said.put)
        found = said.get(timeout=60)
        assert found is not None
        assert found.parameters == {"a": 1}
    assert store.counts().failure_count == 10
    assert caplog.text.count("refuses to keep or to give responses: OOM command not allowed") == 1
    assert "cannot be asked" not in caplog.text


def test_one_broken_exchange_keeps_no_other_waiting(store: RedisStore, caplog: pytest.LogCaptureFixture) -> None:
    said = threading.Semaphore(0)
    may_answer = threading.Event()

    class Client:
        def __init__(self) -> None:
            self.count = 0

        def pipeline(self, transaction: bool) -> "Client":
            self.count = 0
            return self

        def get(self, key: bytes) -> None:
            self.count += 1

        def execute(self, raise_on_error: bool) -> Sequence[object]:
            may_answer.wait(60)
            return [b"\x0c\x00\x00\x00[[], [1, 2]]"] * self.count

        def close(self) -> None:
            pass

    def broken(found: CachedResponse | None) -> None:
        raise RuntimeError("the connection is gone")

    store._client.close()
    store._client = Client()
    for found in (lambda found: said.release(), broken, lambda found: said.release() if found is None else None):
        assert store.fetch(b"k", found)
    may_answer.set()
    assert said.acquire(timeout=60)
    assert said.acquire(timeout=60)
    assert "passing on what Redis has said failed" in caplog.text
