"""What is sent of a batch, and what is left when it cannot be sent."""

import os
import select
import socket
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from naiad.backend.workers.conversation.conversation import Conversation, Terms
from naiad.backend.workers.conversation.open_requests import DecoupledConversation
from naiad.backend.workers.conversation.tensor_rules import TensorRules
from naiad.backend.workers.process import worker_process
from naiad.backend.workers.process.server_channel import ServerChannel
from naiad.backend.workers.process.worker_process import CallsListener, WorkerProcess
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.batch import Batch, SequenceEnd
from naiad.core.errors import InferError
from naiad.worker.channel import buffer_pool as block_module
from naiad.worker.channel import channel as channel_module
from naiad.worker.channel import frame as frames
from naiad.worker.channel.channel import Channel
from naiad.worker.channel.flags_page import create_board
from naiad.worker.channel.frame import Frame, encode_frame
from naiad.worker.execution.codec import RequestDecoder
from support.backend_parts import make_header, make_request

CAP_BYTES = 1 << 20


class Talk:
    """A conversation, and the worker's end of it."""

    def __init__(self, kind: type[Conversation]) -> None:
        their_read, write_fd = os.pipe()
        read_fd, their_write = os.pipe()
        ours, theirs = socket.socketpair()
        self.channel = ServerChannel(read_fd, write_fd, ours, limit_bytes=CAP_BYTES)
        self.worker = Channel(their_read, their_write, theirs, limit_bytes=0, own=bytearray)
        self.board, self._board_fd = create_board()
        process: Any = SimpleNamespace(channel=self.channel, board=self.board, settled=threading.Event())
        owner: Any = SimpleNamespace(others_wait=None)
        rules = TensorRules(ModelConfig(name="m"))
        self.conversation = kind(process, Terms(owner, "m_0", "m", "1", CAP_BYTES, rules))
        self._headers: dict[int, Any] = {}
        self.request_decoder = RequestDecoder(frozenset({"OUT"}))

    def begin(self, size: int, request_id: str = "") -> None:
        arrays = {"IN": np.full(size, size % 251, np.uint8)}
        header = self._headers.setdefault(size, make_header(arrays))
        request = make_request(arrays, header=header)
        request.id = request_id
        batch = Batch([request], 1)
        batch.emit = lambda request, response: None
        self.conversation.begin(batch)

    def read(self) -> list[int]:
        """Have the worker read a batch; return its only input."""
        return self.understand(self.worker.receive())

    def understand(self, frame: Frame) -> list[int]:
        """Return the only input of a batch."""
        if isinstance(self.conversation, DecoupledConversation):
            frame.words = frame.words[1:]
        (request,) = self.request_decoder.requests(frame, lambda position: False)
        values: list[int] = request.inputs()[0].as_numpy().tolist()
        return values

    def close(self) -> None:
        self.channel.close()
        self.worker.close()
        self.board.close()
        os.close(self._board_fd)


@pytest.fixture(params=[Conversation, DecoupledConversation])
def talk(request: pytest.FixtureRequest) -> Iterator[Talk]:
    made = Talk(request.param)
    yield made
    made.close()


def test_batch_allowance_is_zero_when_calls_exceed_limit(talk: Talk) -> None:
    talk.conversation.take_room(CAP_BYTES + 1)
    talk.begin(3)
    assert talk.worker.receive().allowance_bytes == 0


def test_missing_memory_fails_only_one_batch(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(size_bytes: int) -> int:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(block_module, "anonymous_file", fail)
        with pytest.raises(OSError, match="Too many open files"):
            talk.begin(100_000)
    assert not talk.conversation.is_busy
    talk.begin(100_000)
    assert talk.read() == [100_000 % 251] * 100_000


def test_oversized_batch_is_rejected_and_next_executes(talk: Talk) -> None:
    with pytest.raises(InferError, match="do not fit into the shared memory"):
        talk.begin(2 * CAP_BYTES)
    talk.conversation._cap_bytes = 8 * CAP_BYTES
    talk.conversation.take_room(0)
    talk.begin(2 * CAP_BYTES)
    assert talk.read() == [2 * CAP_BYTES % 251] * 2 * CAP_BYTES


def test_failed_mapping_leaves_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer_owner = block_module.BufferOwner(CAP_BYTES)
    made: list[int] = []
    make = block_module.anonymous_file

    def note(size_bytes: int) -> int:
        made.append(make(size_bytes))
        return made[-1]

    def fail(descriptor: int, size_bytes: int) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(block_module, "anonymous_file", note)
    monkeypatch.setattr(block_module.mmap, "mmap", fail)
    with pytest.raises(OSError, match="Cannot allocate memory"):
        buffer_owner.lend([bytes(70_000)], 70_000)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(made[0])
    assert buffer_owner.total_bytes == 0


def test_stopped_worker_does_not_block_sender(talk: Talk) -> None:
    """The loop sends: it would wait in vain, and all other models with it."""
    talk.conversation.end_sequences([SequenceEnd(number, "expired") for number in range(20_000)])
    talk.begin(3, "i" * 300_000)
    assert talk.conversation.is_busy
    frames_read: list[Frame] = []
    while len(frames_read) < 2:
        frames_read += talk.worker.receive_some()
        talk.channel.flush()
    assert len(frames_read[0].extra["ended"]) == 20_000
    assert frames_read[1].text == "i" * 300_000
    assert talk.understand(frames_read[1]) == [3, 3, 3]


@pytest.mark.parametrize("length", [40_000, 700_000])
def test_partial_response_does_not_block_reader(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop reads: a worker that is stopped while it writes a long answer must not stop the server."""
    talk = Talk(Conversation)

    def wait(descriptor: int) -> None:
        raise AssertionError("it waits for more")

    monkeypatch.setattr(channel_module, "_await_input", wait)
    os.set_blocking(talk.channel.fileno(), False)
    talk.begin(3)
    answer = encode_frame(frames.EXECUTED, [0], "", {"errors": [[0, 1, "no" * length]]}, (), 0, 0, 0)
    for at in range(0, len(answer), 20_001):
        assert talk.conversation.is_busy
        os.write(talk.worker._write_fd, answer[at : at + 20_001])
        responses = talk.conversation.finish()
        assert (responses is None) == (at + 20_001 < len(answer))
    assert responses is not None
    assert responses[0].error is not None
    assert responses[0].error.message == "no" * length
    assert not talk.conversation.is_busy
    talk.close()


def test_incomplete_descriptors_are_closed() -> None:
    descriptors = os.pipe()
    listener = CallsListener(None)
    listener.passed.extend(descriptors)
    with pytest.raises(OSError, match="2 descriptors for a line of calls"):
        listener.open()
    for descriptor in descriptors:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)


def test_stopped_worker_gets_no_repeated_notices(talk: Talk) -> None:
    """With `execute_timeout_s` there are four occasions a second, and a pipe holds some 1,600 frames."""
    reading = select.poll()
    reading.register(talk.worker.fileno(), select.POLLIN)
    talk.conversation.tidy()
    assert reading.poll(0) == []
    talk.worker.buffer_owner.limit_bytes = CAP_BYTES
    block = talk.worker.buffer_owner.lend([bytes(70_000)], 70_000)
    talk.worker.send(frames.WAITING, payload_bytes=70_000, block=block)
    talk.channel.receive()
    for _ in range(2):
        talk.conversation.tidy()  # the block is free, which is reported once
    assert talk.worker.receive().kind == frames.TIDY
    assert reading.poll(0) == []


def test_failed_worker_start_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise OSError(24, "Too many open files")

    opened: list[int] = []
    make = os.pipe

    def note() -> tuple[int, int]:
        opened.extend(made := make())
        return made

    monkeypatch.setattr(worker_process.os, "pipe", note)
    monkeypatch.setattr(worker_process, "create_board", fail)
    with pytest.raises(OSError, match="Too many open files"):
        WorkerProcess("python", {}, model="m", transport_bytes=0)
    assert len(opened) == 6
    for descriptor in opened:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)


def test_dropped_blocks_of_idle_worker_leave_no_descriptors(talk: Talk) -> None:
    talk.worker.buffer_owner.limit_bytes = CAP_BYTES
    talk.worker.buffer_owner.board = talk.board.blocks
    block = talk.worker.buffer_owner.lend([bytes(70_000)], 70_000)
    talk.worker.send(frames.WAITING, payload_bytes=70_000, block=block)
    talk.channel.receive()
    talk.conversation.tidy()
    talk.worker.receive()
    talk.worker.buffer_owner.trim(0.0)  # and says nothing, since it has no batch to answer
    talk.conversation.tidy()
    assert talk.channel.buffer_user.total_bytes == 0
    talk.worker.send(frames.WAITING)
    assert talk.channel.receive().kind == frames.WAITING
