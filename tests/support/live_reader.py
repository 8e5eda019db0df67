"""Reads the live stream of a real server, as the page does."""

import contextlib
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import orjson

from naiad.client.live_events import LiveEvent
from naiad.wire.event_stream import EventStreamResponse
from support.raw_http1 import connect

_PATIENCE_S = 60.0


class LiveReader:
    """An open stream."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.response = EventStreamResponse()
        self.events: list[LiveEvent] = []
        """All events that were taken."""
        self._waiting: deque[LiveEvent] = deque()

    def read_until(self, is_enough: Callable[[LiveEvent], bool]) -> LiveEvent:
        """Take events until one is enough, and return it; the following ones wait."""
        end_s = time.monotonic() + _PATIENCE_S
        while time.monotonic() < end_s:
            while self._waiting:
                event = self._waiting.popleft()
                self.events.append(event)
                if is_enough(event):
                    return event
            data = self.connection.recv(1 << 20)
            assert data, f"the stream ended after {self.events[-1:]}"
            found = self.response.feed(data)
            self._waiting += [LiveEvent(event.name, orjson.loads(event.data)) for event in found]
        raise AssertionError(f"no such event within {_PATIENCE_S} s, the last is {self.events[-1:]}")

    def next(self, name: str) -> Mapping[str, Any]:
        """Return the data of the next event of a name."""
        return self.read_until(lambda event: event.name == name).data

    def version(self, name: str, is_enough: Callable[[Mapping[str, Any]], bool]) -> Mapping[str, Any]:
        """Return the counters of a version, `model/version`, as soon as they are enough."""

        def has_it(event: LiveEvent) -> bool:
            return event.name == "sample" and is_enough(
                event.data["versions"].get(name, {"success": -1, "failure": -1})
            )

        found: Mapping[str, Any] = self.read_until(has_it).data["versions"][name]
        return found


@contextlib.contextmanager
def reading(url: str, query: str = "interval_ms=250", **headers: str) -> Iterator[LiveReader]:
    """Open the live stream of `host:port`."""
    with connect(url) as connection:
        fields = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        connection.sendall(f"GET /v2/live?{query} HTTP/1.1\r\nHost: {url}\r\n{fields}\r\n".encode())
        yield LiveReader(connection)
