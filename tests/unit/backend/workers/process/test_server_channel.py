"""The server's end of a channel does not wait for a worker that reads nothing."""

import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from naiad.backend.workers.process.server_channel import ServerChannel
from naiad.worker.channel.channel import Channel
from naiad.worker.channel.frame import ChannelClosedError, Frame

LONG = 300_000
"""More than a pipe holds."""


class Line:
    """Both ends of a channel."""

    def __init__(self) -> None:
        their_read, write_fd = os.pipe()
        read_fd, their_write = os.pipe()
        ours, theirs = socket.socketpair()
        self.channel = ServerChannel(read_fd, write_fd, ours, limit_bytes=1 << 20)
        self.worker: Any = Channel(their_read, their_write, theirs, limit_bytes=0, own=bytearray)
        self.calls = 0
        self.channel.on_full = self._count

    def _count(self) -> None:
        self.calls += 1

    def read(self, count: int) -> list[Frame]:
        """Have the worker read, and the server send what waits whenever there is room again."""
        frames: list[Frame] = []
        while len(frames) < count:
            frames += self.worker.receive_some()
            self.channel.flush()
        return frames

    def end_worker(self) -> None:
        worker, self.worker = self.worker, None
        if worker is not None:
            worker.close()

    def close(self) -> None:
        self.channel.close()
        self.end_worker()


@pytest.fixture
def line() -> Iterator[Line]:
    made = Line()
    yield made
    made.close()


def test_blocked_frames_arrive_whole_and_in_order(line: Line) -> None:
    for letter in "abc":
        line.channel.send(2, (7,), letter * LONG, {"of": letter})
    line.channel.send(2, text="d")
    assert line.calls == 1
    assert line.channel.full_fds == [line.channel.write_fds[0]]
    frames = line.read(4)
    assert [frame.text for frame in frames] == ["a" * LONG, "b" * LONG, "c" * LONG, "d"]
    assert [frame.extra for frame in frames] == [{"of": "a"}, {"of": "b"}, {"of": "c"}, {}]
    assert line.channel.full_fds == []
    line.channel.send(2, text="e")
    assert (line.worker.receive().text, line.calls) == ("e", 1)


def test_waiting_frame_announces_blocks(line: Line) -> None:
    line.channel.send(2, text="a" * LONG)
    block = line.channel.buffer_owner.lend([b"x" * 70_000], 70_000)
    line.channel.send(2, payload_bytes=70_000, block=block)
    _, frame = line.read(2)
    assert bytes(frame.payload) == b"x" * 70_000


def test_nothing_waits_for_a_worker_that_has_gone(line: Line) -> None:
    line.channel.send(2, text="a" * LONG)
    line.end_worker()
    with pytest.raises(ChannelClosedError):
        line.channel.flush()
    assert line.channel.full_fds == []
    with pytest.raises(ChannelClosedError):
        line.channel.send(2)
