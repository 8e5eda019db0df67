"""A worker's calls and the server's line of calls, joined by their pipes: limits, back pressure, ends, nonsense."""

import os
import socket
import struct
from collections.abc import Iterator, Sequence
from types import SimpleNamespace

import numpy as np
import pytest

from naiad.backend.workers import bls_channel
from naiad.backend.workers.bls_channel import BlsChannel
from naiad.backend.workers.process.server_channel import ServerChannel
from naiad.core.datatype import DataType
from naiad.core.environment.model_call import ModelCall, ModelCommand
from naiad.core.errors import InferError, unavailable
from naiad.core.request import InferRequest, RequestHeader
from naiad.core.response import InferResponse, ResponseHeader
from naiad.core.tensor import TensorSpec
from naiad.telemetry.statistics.part_statistics import CallStatistics
from naiad.telemetry.statistics.version_statistics import Duration
from naiad.worker import bls_calls as calls_module
from naiad.worker.api.failure import ErrorCode as WorkerCode
from naiad.worker.api.failure import TritonModelException
from naiad.worker.api.request import InferenceRequest
from naiad.worker.api.tensor import Tensor
from naiad.worker.bls_calls import Calls
from naiad.worker.channel import buffer_pool as block
from naiad.worker.channel.buffer_pool import BufferOwner
from naiad.worker.channel.channel import Channel
from naiad.worker.control_socket import ExecutionContext
from support.model_call_parts import ManualLoop

ONE = ResponseHeader("m", "1", [TensorSpec("OUT", DataType.FP32, (1,))])


class Side:
    """Keeps the descriptors that the worker gives the server."""

    def __init__(self) -> None:
        self.passed: list[int] = []

    def pass_descriptors(self, name: str, descriptors: Sequence[int]) -> None:
        self.passed = [os.dup(each) for each in descriptors]


class Loop(ManualLoop):
    """Readers and writers are called when the test says."""

    def __init__(self) -> None:
        super().__init__()
        self.readers: dict[int, object] = {}
        self.writers: dict[int, object] = {}

    def add_reader(self, fd, callback):
        self.readers[fd] = callback

    def add_writer(self, fd, callback):
        self.writers[fd] = callback

    def remove_reader(self, fd):
        self.readers.pop(fd, None)

    def remove_writer(self, fd):
        self.writers.pop(fd, None)


class Port:
    """Takes calls; the test answers them."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.calls: list[ModelCall] = []
        self.cancelled: list[ModelCall] = []
        self.closed: list[ModelCall] = []
        self.commands: list[ModelCommand] = []
        self.refusal: InferError | None = None

    def submit(self, call):
        if self.refusal is not None:
            raise self.refusal
        self.calls.append(call)

    def cancel(self, call):
        self.cancelled.append(call)

    def close(self, call):
        self.closed.append(call)

    def is_decoupled(self, name, version):
        return False

    def is_ready(self, name, version):
        return name == "m"

    def command(self, command, on_done):
        self.commands.append(command)
        on_done(None)


class Server:
    """The worker's process, and its conversation."""

    room_bytes = 1 << 24

    def __init__(self) -> None:
        self.kills: list[str] = []
        self.requests: list[InferRequest] = []
        self.taken_bytes = 0

    def parents(self, serial, slots):
        return self.requests

    def request_at(self, serial, place):
        return self.requests[place]

    def take_room(self, taken_bytes):
        self.taken_bytes = taken_bytes

    def kill(self, why):
        self.kills.append(why)


class Pair:
    """A worker and its server."""

    def __init__(self) -> None:
        self.side, self.scope, self.port, self.server = Side(), ExecutionContext(), Port(), Server()
        self.scope.is_open = True
        ours, _ = socket.socketpair()
        self._batches = Channel(*os.pipe(), ours, limit_bytes=0, own=memoryview)
        self.calls = Calls(self.side, self.scope, self._batches)
        self.calls.transport_bytes = 1 << 24
        self.calls._line()
        read_fd, write_fd, blocks = self.side.passed
        self.channel = ServerChannel(read_fd, write_fd, socket.socket(fileno=blocks), limit_bytes=0)
        life = SimpleNamespace(conversation=self.server)
        self.called = CallStatistics()
        self.line = BlsChannel(
            self.channel,
            self.port,
            self.server,
            life,
            model="caller",
            instance=object(),
            metrics=None,
            called=self.called,
        )
        self.line.attach()

    def ask(self, *tensors: Tensor, execution_timeout: int = 0, **fields):
        """Send a call and let the server read it; return the iterator of its responses."""
        request = InferenceRequest(
            inputs=list(tensors), **{"model_name": "m", "requested_output_names": [], **fields}
        )
        responses = self.calls.exec(request, True, execution_timeout)
        self.pump()
        return responses

    def pump(self) -> None:
        (reader,) = self.port.loop.readers.values()
        reader()

    def counted(self) -> dict[str, tuple[int, int]]:
        """The calls that succeeded and failed, by model."""
        found = [each.snapshot() for each in self.called.counts]
        return {each.model: (each.success.count, each.fail.count) for each in found}

    def answer(self, call: ModelCall, response: InferResponse | None = None, *, final: bool = True) -> None:
        call.on_response(call, response or InferResponse(ONE, [b"\0\0\x80\x3f"], final=final))

    def close(self) -> None:
        self.line.close()
        self._batches.close()
        if self.calls._channel is not None:
            self.calls._channel.close()


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    made = Pair()
    yield made
    made.close()


def error_of(response) -> tuple[WorkerCode, str]:
    return response.error().code(), response.error().message()


def test_a_call_and_its_answer(pair):
    parent = pair.server.requests = [InferRequest(RequestHeader(model_name="caller"), (), lambda *_: None)]
    pair.scope.is_executing = True
    responses = pair.ask(Tensor("A", np.arange(3, dtype=np.int8)), request_id="r1")
    (call,) = pair.port.calls
    assert (call.id, call.caller_model, call.parents) == ("r1", "caller", parent)
    assert call.holds_execution
    assert [bytes(each) for each in call.data] == [b"\0\1\2"]
    pair.answer(call)
    (response,) = responses
    assert response.output_tensors()[0].as_numpy().tolist() == [1]
    assert pair.port.closed == [call]
    assert call.data == ()


def test_each_call_is_counted_once_when_it_ends(pair, monkeypatch):
    monkeypatch.setattr(bls_channel, "_now_ns", iter([1000, 2000, 2500, 4000]).__next__)
    first, second = pair.ask(model_name="a"), pair.ask(model_name="b")
    assert pair.counted() == {}
    for call in pair.port.calls:
        pair.answer(call)
    (a, b) = [each.snapshot() for each in pair.called.counts]
    assert (a.model, a.success, b.model, b.success) == ("a", Duration(1, 1500), "b", Duration(1, 2000))
    assert [len(list(each)) for each in (first, second)] == [1, 1]


def test_failed_calls_are_counted_as_failures(pair):
    failure = InferResponse(ONE, error=unavailable("busy"), final=False)
    streamed, late, refused = pair.ask(), pair.ask(execution_timeout=2000), None
    one, other = pair.port.calls
    pair.answer(one, failure)  # of a stream, which goes on
    assert pair.counted() == {}
    pair.answer(one, InferResponse(ONE, empty_final=True))
    pair.port.loop.fire()
    assert pair.counted() == {"m": (0, 2)}
    pair.answer(other)  # too late: it is counted already
    pair.port.refusal = unavailable("the queue is full")
    refused = pair.ask(model_name="full")
    assert pair.counted() == {"m": (0, 2), "full": (0, 1)}
    pair.port.refusal = None
    lost = pair.ask()
    pair.line.close()
    assert pair.counted() == {"m": (0, 3), "full": (0, 1)}
    del streamed, late, refused, lost


def test_shared_memory_of_tensors_is_counted_and_released(pair):
    array = np.arange(100_000, dtype=np.float32)
    responses = pair.ask(Tensor("A", array))
    (call,) = pair.port.calls
    assert bytes(call.data[0]) == array.tobytes()
    assert pair.server.taken_bytes >= array.nbytes
    header = ResponseHeader("m", "1", [TensorSpec("OUT", DataType.FP32, (100_000,))])
    pair.answer(call, InferResponse(header, [array.tobytes()]))
    (response,) = responses
    assert np.array_equal(response.output_tensors()[0].as_numpy(), array)
    assert pair.server.taken_bytes >= 2 * array.nbytes


def test_idle_memory_of_calls_goes_back_to_batches(pair):
    responses = pair.ask(Tensor("A", np.zeros(10, np.int8)))
    header = ResponseHeader("m", "1", [TensorSpec("OUT", DataType.INT8, (100_000,))])
    pair.answer(pair.port.calls[0], InferResponse(header, [bytes(100_000)]))
    assert len(list(responses)) == 1
    assert pair.server.taken_bytes >= 100_000
    pair.channel.buffer_owner.take_back([1])  # the worker has released it
    owner = pair.channel.buffer_owner
    owner.trim = lambda idle_s=0.0: BufferOwner.trim(owner, idle_s)
    ((_, trim, _),) = pair.port.loop.timers
    trim()
    assert pair.server.taken_bytes == 0


def test_oversized_tensors_raise_and_channel_continues(pair):
    pair.calls.transport_bytes = 100_000
    with pytest.raises(TritonModelException, match="do not fit into the shared memory"):
        pair.ask(Tensor("A", np.zeros(1_000_000, np.int8)))
    responses = pair.ask(Tensor("A", np.zeros(10, np.int8)))
    pair.answer(pair.port.calls[0])
    assert not next(responses).has_error()


def test_oversized_response_is_error_and_channel_continues(pair):
    pair.server.room_bytes = 1000
    header = ResponseHeader("m", "1", [TensorSpec("OUT", DataType.INT8, (100_000,))])
    responses = pair.ask()
    pair.answer(pair.port.calls[0], InferResponse(header, [bytes(100_000)]))
    code, message = error_of(next(responses))
    assert code is WorkerCode.UNAVAILABLE
    assert "100000 bytes of tensors do not fit" in message
    responses = pair.ask()
    pair.answer(pair.port.calls[1])
    assert not next(responses).has_error()


def test_rejected_call_gets_error_response(pair):
    pair.port.refusal = unavailable("the queue is full")
    assert error_of(next(pair.ask())) == (WorkerCode.UNAVAILABLE, "the queue is full")


def test_a_timeout_answers_and_cancels(pair):
    responses = pair.ask(execution_timeout=2000)
    (call,) = pair.port.calls
    ((delay_s, _, _),) = pair.port.loop.timers
    assert delay_s == 0.002
    pair.port.loop.fire()
    assert "exceeded its execution_timeout, 2000 us" in error_of(next(responses))[1]
    assert pair.port.cancelled == [call]
    pair.answer(call)  # comes too late, and goes nowhere
    assert next(responses, None) is None


def test_fast_sender_is_paused_then_cancelled(pair, monkeypatch):
    monkeypatch.setattr(bls_channel, "_MOST_AHEAD", 100)
    responses = pair.ask()
    (call,) = pair.port.calls
    for _ in range(bls_channel._AHEAD):
        assert not call.is_paused
        pair.answer(call, final=False)
    assert call.is_paused
    for _ in range(48):
        next(responses)
    pair.pump()
    assert not call.is_paused
    for _ in range(100):
        pair.answer(call, final=False)
    assert pair.port.cancelled == [call]
    *_, last = responses
    assert "sends responses faster than its caller takes them" in error_of(last)[1]


def test_cancelled_iterator_cancels_its_call_and_listens(pair):
    responses = pair.ask()
    responses.cancel()
    pair.pump()
    (call,) = pair.port.cancelled
    assert pair.port.calls == [call]
    assert call.is_listening
    pair.answer(call, final=False)
    pair.answer(call)
    assert [response.has_error() for response in responses] == [False, False]


def test_cancelled_iterator_that_is_released_listens_no_more(pair):
    responses = pair.ask()
    responses.cancel()
    pair.pump()
    (call,) = pair.port.cancelled
    call.is_paused = True
    del responses
    pair.pump()
    assert not call.is_listening
    assert not call.is_paused


def test_released_iterator_cancels_call(pair):
    responses = pair.ask()
    del responses
    pair.pump()
    assert pair.port.cancelled == pair.port.calls


def test_call_ends_when_all_its_requests_are_cancelled(pair):
    first, second = pair.server.requests = [
        InferRequest(RequestHeader(model_name="caller"), (), lambda *_: None) for _ in range(2)
    ]
    responses = pair.ask()
    first.cancelled = True
    pair.line.parent_cancelled(first)
    assert pair.port.cancelled == []
    second.cancelled = True
    pair.line.parent_cancelled(second)
    assert pair.port.cancelled == pair.port.calls
    assert error_of(next(responses))[0] is WorkerCode.CANCELLED
    assert "the request that it was made for is cancelled" in error_of(next(pair.ask()))[1]
    assert len(pair.port.calls) == 1


def test_open_calls_are_bounded_on_both_sides(pair, monkeypatch):
    monkeypatch.setattr(calls_module, "MOST_CALLS", 3)
    kept = [pair.ask() for _ in range(3)]
    with pytest.raises(TritonModelException, match="the model has 3 calls of other models open"):
        pair.ask()
    monkeypatch.setattr(calls_module, "MOST_CALLS", 4096)
    monkeypatch.setattr(bls_channel, "MOST_CALLS", 1)
    assert error_of(next(pair.ask()))[0] is WorkerCode.UNAVAILABLE
    assert len(kept) == len(pair.port.calls)


def test_when_the_worker_goes_its_calls_are_cancelled(pair):
    kept = pair.ask()
    pair.line.close()
    assert pair.port.cancelled == pair.port.calls
    assert pair.port.loop.readers == {}
    # And the worker, if it is not gone after all, hears that the server is.
    assert error_of(next(kept)) == (WorkerCode.UNAVAILABLE, "The server has exited.")
    with pytest.raises(TritonModelException, match="The server has exited"):
        pair.calls.exec(InferenceRequest(model_name="m", inputs=[], requested_output_names=[]), True, 0)


def test_a_worker_that_sends_nonsense_is_killed(pair):
    channel = pair.calls._line()
    channel.send(99)
    pair.pump()
    assert pair.server.kills == ["was killed because it sent nonsense (a frame of kind 99 on the line of calls)"]
    assert pair.port.loop.readers == {}


def test_responses_wait_for_stopped_worker(pair):
    header = ResponseHeader("m", "1", [TensorSpec("OUT", DataType.INT8, (40_000,))])
    responses = pair.ask()
    (call,) = pair.port.calls
    for number in range(10):
        pair.answer(call, InferResponse(header, [bytes([number]) * 40_000], final=number == 9))
    (flush,) = pair.port.loop.writers.values()
    found = []
    for _ in range(10):
        found.append(int(next(responses).output_tensors()[0].as_numpy()[0]))
        if pair.port.loop.writers:
            flush()
    assert found == list(range(10))
    assert pair.port.loop.writers == {}


def test_calls_outside_model_life_raise(pair):
    pair.scope.is_open = False
    with pytest.raises(TritonModelException, match="BLS is only supported during the 'execute' function"):
        pair.ask()
    with pytest.raises(TritonModelException, match="during the 'initialize' and 'execute' functions only"):
        pair.calls.command({"command": "is_ready", "model": "m", "version": ""})


def test_unsendable_call_leaves_channel_unchanged(pair, monkeypatch):
    """Its header is sent with the next call, no caller waits for its response, and its memory is free."""
    channel, send = pair.calls._channel, pair.calls._channel.send

    def fail(*arguments: object) -> None:
        monkeypatch.setattr(channel, "send", send)
        raise MemoryError

    monkeypatch.setattr(channel, "send", fail)
    array = np.arange(100_000, dtype=np.int8)
    with pytest.raises(MemoryError):
        pair.ask(Tensor("A", array))
    assert not pair.calls._waiting
    responses = pair.ask(Tensor("A", array))
    assert pair.server.kills == []
    (call,) = pair.port.calls
    assert bytes(call.data[0]) == array.tobytes()
    assert pair.server.taken_bytes < 2 * array.nbytes
    pair.answer(call)
    assert not next(responses).has_error()


def test_huge_timeout_has_no_effect(pair):
    responses = pair.ask(execution_timeout=1 << 80)
    pair.answer(pair.port.calls[0])
    assert not next(responses).has_error()


def test_stopped_worker_does_not_block_loop(pair):
    # A socket holds the descriptors of some 280 blocks.
    pair.server.room_bytes = 1 << 30
    # A blocking send fails instead of waiting without end.
    pair.channel._descriptors.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 5, 0))
    header = ResponseHeader("m", "1", [TensorSpec("OUT", DataType.UINT8, (60_000,))])
    responses = [pair.ask() for _ in range(20)]
    payloads = [bytes([n]) * 60_000 for n in range(40)]
    for call in pair.port.calls:
        for payload in payloads:
            pair.answer(call, InferResponse(header, [payload], final=payload is payloads[-1]))
    assert pair.port.loop.writers
    found = []
    for stream in responses:
        for response in stream:
            found.append(bytes(response.output_tensors()[0].as_numpy()))
            for write in list(pair.port.loop.writers.values()):
                write()
    assert found == payloads * 20
    assert not pair.port.loop.writers


def test_missing_memory_is_error_response(pair, monkeypatch):
    def fail(size_bytes: int) -> int:
        raise OSError(24, "Too many open files")

    header = ResponseHeader("m", "1", [TensorSpec("OUT", DataType.UINT8, (60_000,))])
    responses, later = pair.ask(), pair.ask()
    with monkeypatch.context() as patched:
        patched.setattr(block, "anonymous_file", fail)
        pair.answer(pair.port.calls[0], InferResponse(header, [bytes(60_000)]))
    code, message = error_of(next(responses))
    assert code is WorkerCode.UNAVAILABLE
    assert "Too many open files" in message
    pair.answer(pair.port.calls[1], InferResponse(header, [bytes(60_000)]))
    assert not next(later).has_error()
