"""A channel's reading side: frames whole, in pieces and several at once."""

import os
import socket
from collections.abc import Iterator

import pytest

from naiad.worker.channel import channel as channel_module
from naiad.worker.channel.channel import Channel
from naiad.worker.channel.frame import ChannelClosedError, ChannelError, encode_frame


class Line:
    """A channel whose peer is the test."""

    def __init__(self) -> None:
        read_fd, self._write_fd = os.pipe()
        self._unread_fd, write_fd = os.pipe()
        ours, self._theirs = socket.socketpair()
        self.channel = Channel(read_fd, write_fd, ours, limit_bytes=0, own=memoryview)

    def peer(self) -> Channel:
        """Return the other side, instead of the test; closed with the line."""
        return Channel(
            os.dup(self._unread_fd), os.dup(self._write_fd), self._theirs.dup(), limit_bytes=0, own=memoryview
        )

    def say(self, data: bytes) -> None:
        os.write(self._write_fd, data)

    def hang_up(self) -> None:
        if self._write_fd >= 0:
            os.close(self._write_fd)
            self._write_fd = -1

    def close(self) -> None:
        self.hang_up()
        os.close(self._unread_fd)
        self._theirs.close()
        self.channel.close()


@pytest.fixture
def line() -> Iterator[Line]:
    made = Line()
    yield made
    made.close()


def frame_of(text: str, payload: bytes = b"") -> bytes:
    return encode_frame(20, (1, 2), text, {"k": 1}, [payload], len(payload), 0, 0)


def test_one_read_yields_frames_and_keeps_rest(line):
    data = b"".join(frame_of(str(n), bytes(n)) for n in range(5))
    line.say(data[:-3])
    assert [frame.text for frame in line.channel.receive_some()] == ["0", "1", "2", "3"]
    line.say(data[-3:] + frame_of("5"))
    last, after = line.channel.receive_some()
    assert (last.text, bytes(last.payload), last.words, last.extra) == ("4", bytes(4), (1, 2), {"k": 1})
    assert after.text == "5"


@pytest.mark.parametrize("size", [1, 3, 7, 50])
def test_frames_in_pieces(line, size):
    data = frame_of("a", b"x" * 40) + frame_of("b")
    texts = []
    for at in range(0, len(data), size):
        line.say(data[at : at + size])
        texts += [frame.text for frame in line.channel.receive_some()]
    assert texts == ["a", "b"]


def test_a_frame_longer_than_one_look(line):
    data = frame_of("long", bytes(range(256)) * 150)
    line.say(data)
    frames = []
    while not frames:
        frames = line.channel.receive_some()
    assert bytes(frames[0].payload) == bytes(range(256)) * 150


def test_what_has_begun_is_left_for_receive(line):
    line.say(frame_of("a") + frame_of("b")[:20])
    assert [frame.text for frame in line.channel.receive_some()] == ["a"]
    line.say(frame_of("b")[20:])
    assert line.channel.receive().text == "b"


def test_non_blocking_descriptor_is_awaited(line, monkeypatch):
    """uvloop makes what it watches so, and a large batch is then waited for on a thread."""
    data = frame_of("a")
    pieces = [data[:20], data[20:]]
    os.set_blocking(line.channel.fileno(), False)
    monkeypatch.setattr(channel_module, "_await_input", lambda descriptor: line.say(pieces.pop(0)))
    assert line.channel.receive().text == "a"
    assert pieces == []


def test_the_end_and_nonsense(line):
    line.say(frame_of("a") + bytes(64))
    with pytest.raises(ChannelError, match="a frame of 0 bytes"):
        line.channel.receive_some()
    other = Line()
    other.hang_up()
    with pytest.raises(ChannelClosedError):
        other.channel.receive_some()
    other.close()


def test_closed_channel_touches_no_reused_descriptor():
    closed, other = Line(), Line()
    number = closed.channel.fileno()
    closed.close()
    other.say(frame_of("not for the other one"))
    os.dup2(other.channel.fileno(), number)
    try:
        for ask in (closed.channel.receive, closed.channel.receive_some, lambda: closed.channel.send(20)):
            with pytest.raises(ChannelClosedError):
                ask()
    finally:
        os.close(number)
        other.close()


def test_encode_error_leaves_block_notices_for_next_frame(line):
    # A descriptor without its notice would be taken for that of the next block: other memory, wrong answers.
    peer, buffer_owner = line.peer(), line.channel.buffer_owner
    buffer_owner.limit_bytes = 1 << 24
    not_sent = buffer_owner.lend([b"x" * 70_000], 70_000)
    with pytest.raises(AttributeError):
        line.channel.send(20, text=5, payload_bytes=70_000, block=not_sent)
    for filling in (b"a", b"b"):
        block = buffer_owner.lend([filling * 80_000], 80_000)
        line.channel.send(20, payload_bytes=80_000, block=block)
        assert bytes(peer.receive().payload) == filling * 80_000
    peer.close()


def test_released_blocks_are_reported_after_encode_error(line):
    peer = line.peer()
    peer.buffer_owner.limit_bytes = 1 << 24
    number = peer.buffer_owner.lend([b"x" * 70_000], 70_000)
    peer.send(20, payload_bytes=70_000, block=number)
    line.channel.receive()
    with pytest.raises(AttributeError):
        line.channel.send(20, text=5)
    line.channel.send(20)
    peer.receive()
    assert peer.buffer_owner.lend([b"y" * 70_000], 70_000) == number
    peer.close()
