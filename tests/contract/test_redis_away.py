"""The client of Redis while Redis is away: how often and how long it is asked."""

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from naiad.engine.redis_store import RedisStore
from naiad.engine.response_cache import CachedResponse


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

        def execute(self) -> Sequence[object]:
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

        def execute(self) -> Sequence[object]:
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
