"""The outbox of a decoupled model's worker: what leaves at once, what gathers, what is refused, how it arrives."""

import os
import threading
from collections.abc import Iterator

import numpy as np
import pytest
import triton_python_backend_utils as pb_utils
from hypothesis import given, settings
from hypothesis import strategies as st

from naiad.backend.workers.conversation.emitted_responses import DecoupledDecoder
from naiad.backend.workers.conversation.tensor_rules import TensorRules
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import ErrorCode
from naiad.core.response import InferResponse
from naiad.worker.api.response import InferenceResponseSender
from naiad.worker.channel import frame as frames
from naiad.worker.channel.buffer_pool import GRANULE_BYTES, NUMBERS, BufferOwner
from naiad.worker.channel.flags_page import CANCELLED, PAUSED, FlagsPage, create_board
from naiad.worker.channel.frame import ChannelClosedError, ChannelError, Frame, decode_frame, encode_frame
from naiad.worker.execution.response_sender import OpenStream, ResponseSender
from support.backend_parts import output_arrays

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
OUTPUTS = frozenset({"OUT", "TEXT"})


class PaperChannel:
    """Keeps what is sent."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.buffer_owner = BufferOwner(8 * GRANULE_BYTES)
        self.frames: list[Frame] = []
        self.arrived = threading.Semaphore(0)
        self.is_closed = False
        self.on_waiting = lambda: None

    def send(self, kind, words=(), text="", extra=None, parts=(), payload_bytes=0, block=0):
        if self.is_closed:
            raise ChannelClosedError("closed")
        data = encode_frame(kind, words, text, extra, parts, payload_bytes, block, 0)
        self.frames.append(decode_frame(data, memoryview))
        if block:
            self.frames[-1].payload = memoryview(self.buffer_owner._lent[block].map)[:payload_bytes].tobytes()
        self.arrived.release()
        if kind == frames.WAITING:
            self.on_waiting()


def decoder() -> DecoupledDecoder:
    config = ModelConfig(name="m")
    config.output.add(name="OUT", data_type="TYPE_FP32", dims=[-1])
    config.output.add(name="TEXT", data_type="TYPE_STRING", dims=[-1])
    return DecoupledDecoder("m", "1", TensorRules(config))


class Ends:
    """An outbox, the board, and a decoder where its frames arrive."""

    def __init__(self) -> None:
        self.server_board, descriptor = create_board()
        self.board = FlagsPage(descriptor)
        os.close(descriptor)
        self.channel = PaperChannel()
        self.response_sender = ResponseSender(self.channel, self.board)  # type: ignore[arg-type]
        self._decoder = decoder()

    def stream(self, slot: int = 0) -> OpenStream:
        return OpenStream(self.response_sender, slot, OUTPUTS)

    def sender(self, slot: int = 0) -> InferenceResponseSender:
        return InferenceResponseSender(self.stream(slot))

    def read(self) -> list[tuple[int, InferResponse]]:
        """Take what has arrived, as the server does."""
        came: list[tuple[int, InferResponse]] = []
        taken, self.channel.frames = self.channel.frames, []
        for frame in taken:
            if frame.kind == frames.EMITTED:
                self.server_board.count_taken()
                came += self._decoder.emitted(frame)
        return came

    def close(self) -> None:
        self.channel.is_closed = True
        self.response_sender._over()
        self.response_sender.abort(0)
        self.response_sender._jobs.put(0)
        self.channel.buffer_owner.close()


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    made.close()


def number(n: float) -> pb_utils.InferenceResponse:
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([n], np.float32))])


def numbers(came: list[tuple[int, InferResponse]]) -> list[tuple[int, float]]:
    return [(slot, float(output_arrays(each)["OUT"][0])) for slot, each in came if not each.empty_final]


def test_first_response_is_sent_and_rest_is_collected(ends):
    sender = ends.sender(7)
    ends.response_sender._is_armed = True  # nothing leaves by itself in this test
    sender.send(number(0))
    assert len(ends.channel.frames) == 1
    for n in range(1, 10):
        sender.send(number(n))
    assert len(ends.channel.frames) == 1
    assert numbers(ends.read()) == [(7, 0.0)]
    sender.send(number(10))
    assert len(ends.channel.frames) == 1
    assert numbers(ends.read()) == [(7, float(n)) for n in range(1, 11)]
    sender.send(number(11))
    sender.send(number(12))
    sender.send(flags=FINAL)
    (_, first), (_, second), (slot, last) = ends.read()
    assert slot == 7
    assert (first.final, second.final, last.final, last.empty_final) == (False, False, True, True)


def test_what_has_gathered_leaves_by_itself(ends):
    sender = ends.sender()
    sender.send(number(0))
    sender.send(number(1))
    for _ in range(2):
        assert ends.channel.arrived.acquire(timeout=30)
    assert numbers(ends.read()) == [(0, 0.0), (0, 1.0)]
    sender.send(flags=FINAL)


def test_arrays_may_be_written_to_after_send(ends):
    ends.response_sender._is_armed = True
    sender = ends.sender()
    array = np.zeros(1, np.float32)
    tensor = pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)])
    for n in range(3):
        array[0] = n
        sender.send(tensor)
    sender.send(flags=FINAL)
    assert numbers(ends.read()) == [(0, 0.0), (0, 1.0), (0, 2.0)]


def test_many_or_large_responses_do_not_gather(ends):
    ends.response_sender._is_armed = True
    sender = ends.sender()
    for n in range(5000):
        sender.send(number(n))
    waiting = len(ends.response_sender._reply.words)
    assert 0 < waiting <= 2048
    sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.full(20_000, 5000, np.float32))]))
    assert not ends.response_sender._reply.words
    assert numbers(ends.read()) == [(0, float(n)) for n in range(5001)]
    sender.send(flags=FINAL)


def test_unsendable_response_does_not_affect_other_responses(ends):
    ends.response_sender._is_armed = True
    sender = ends.sender()
    strange = np.empty(1, object)
    strange[0] = "\ud800"
    texts = pb_utils.Tensor("TEXT", strange)
    huge = pb_utils.Tensor("OUT", np.zeros(3 * GRANULE_BYTES, np.float32))
    sender.send(number(0))
    sender.send(number(1))
    for flags in (0, FINAL):
        with pytest.raises(pb_utils.TritonModelException, match=r"output 'TEXT' .* half of a surrogate pair"):
            sender.send(pb_utils.InferenceResponse([huge, texts], parameters={"lost": 1}), flags)
        with pytest.raises(pb_utils.TritonModelException, match="786432 bytes of tensors do not fit"):
            sender.send(pb_utils.InferenceResponse([huge], parameters={"lost": 1}), flags)
    sender.send(number(2), FINAL)
    came = ends.read()
    assert numbers(came) == [(0, 0.0), (0, 1.0), (0, 2.0)]
    assert all(not each.parameters for _, each in came)
    assert came[-1][1].final


def test_large_response_is_sent_without_collected_ones(ends):
    ends.response_sender._is_armed = True
    sender = ends.sender()
    for n in range(3):
        sender.send(number(n))
    sender.send(
        pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.full(2 * GRANULE_BYTES, 3, np.float32))]), FINAL
    )
    assert numbers(ends.read()) == [(0, float(n)) for n in range(4)]


def test_full_memory_waits_for_released_blocks(ends):
    """The server says on the board which blocks it has read, when it is asked."""

    def release() -> None:
        for block in list(ends.channel.buffer_owner._lent):
            ends.server_board.blocks[block % NUMBERS] = 1

    ends.channel.on_waiting = release
    sender = ends.sender()
    for n in range(8):
        sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.full(GRANULE_BYTES, n, np.float32))]))
    sender.send(flags=FINAL)
    asked = [frame for frame in ends.channel.frames if frame.kind == frames.WAITING]
    assert 1 <= len(asked) < 8
    assert numbers(ends.read()) == [(0, float(n)) for n in range(8)]
    assert ends.channel.buffer_owner.total_bytes <= 8 * GRANULE_BYTES


def test_paused_client_is_awaited_until_server_resumes(ends):
    sender = ends.sender(3)
    ends.server_board.slots[3] = PAUSED
    asked = []

    def answer() -> None:
        asked.append(len(ends.channel.frames))
        if len(asked) == 3:
            ends.server_board.slots[3] = 0

    ends.channel.on_waiting = answer
    sender.send(number(1))
    assert len(asked) == 3
    ends.sender(4).send(number(2), FINAL)
    sender.send(flags=FINAL)
    assert numbers(ends.read()) == [(3, 1.0), (4, 2.0)]


def test_disconnected_client_gets_only_the_end(ends):
    sender = ends.sender(3)
    ends.server_board.slots[3] = CANCELLED
    assert sender.is_cancelled()
    sender.send(number(1))
    sender.send(number(2))
    assert ends.read() == []
    sender.send(flags=FINAL)
    ((slot, last),) = ends.read()
    assert (slot, last.empty_final) == (3, True)
    ends.server_board.slots[3] = 0
    assert sender.is_cancelled()  # the slot is another request's now


def test_failed_batch_closes_streams_after_sent_responses(ends):
    ends.response_sender._is_armed = True
    streams = [ends.stream(0), ends.stream(1)]
    senders = [InferenceResponseSender(stream) for stream in streams]
    for sender in senders:
        sender.send(number(1))
    ends.response_sender.failed(streams, {"message": "no"})
    assert [frame.kind for frame in ends.channel.frames] == [frames.EMITTED, frames.EMITTED, frames.FAILED]
    for sender in senders:
        with pytest.raises(pb_utils.TritonModelException, match="Response sender has been closed"):
            sender.send(flags=FINAL)


def test_unreferenced_stream_gets_response(ends):
    stream = ends.stream(5)
    del stream
    assert ends.channel.arrived.acquire(timeout=30)
    ((slot, last),) = ends.read()
    assert (slot, last.final) == (5, True)
    assert last.error is not None
    assert last.error.message.startswith("the model released the response sender of this request")


def test_exited_server_is_error_in_send(ends):
    sender = ends.sender()
    ends.channel.is_closed = True
    with pytest.raises(pb_utils.TritonModelException, match="The server has exited"):
        sender.send(number(1))


RESPONSES = st.one_of(
    st.tuples(st.just("numbers"), st.lists(st.floats(width=32, allow_nan=False), max_size=20)),
    st.tuples(st.just("texts"), st.lists(st.binary(max_size=20), max_size=4)),
    st.tuples(st.just("error"), st.text(max_size=10)),
    st.tuples(st.just("nothing"), st.none()),
    st.tuples(st.just("large"), st.integers(0, 100)),
    st.tuples(st.just("the server reads"), st.none()),
)


def _made(kind, content) -> pb_utils.InferenceResponse:
    if kind == "numbers":
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array(content, np.float32))])
    if kind == "large":
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.full(13_000, content, np.float32))])
    if kind == "texts":
        array = np.empty(len(content), object)
        array[:] = content
        return pb_utils.InferenceResponse([pb_utils.Tensor("TEXT", array)], parameters={"n": len(content)})
    if kind == "error":
        return pb_utils.InferenceResponse(error=pb_utils.TritonError(content, pb_utils.TritonError.NOT_FOUND))
    return pb_utils.InferenceResponse([])


def _seen(response: InferResponse):
    if response.error is not None:
        assert response.error.code is ErrorCode.NOT_FOUND
        return "error", response.error.message
    arrays = output_arrays(response)
    if "TEXT" in arrays:
        assert dict(response.parameters) == {"n": len(arrays["TEXT"])}
        return "texts", arrays["TEXT"].tolist()
    if not arrays:
        return "nothing", None
    found = arrays["OUT"].tolist()
    return ("large", found[0]) if len(found) == 13_000 else ("numbers", found)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), RESPONSES), max_size=30))
def test_every_response_arrives_once_and_in_order(steps):
    ends = Ends()
    senders = [ends.sender(slot) for slot in range(3)]
    expected: list[list[object]] = [[], [], []]
    came: list[tuple[int, InferResponse]] = []
    for slot, (kind, content) in steps:
        if kind == "the server reads":
            came += ends.read()
        else:
            senders[slot].send(_made(kind, content))
            expected[slot].append((kind, content))
    for sender in senders:
        sender.send(flags=FINAL)
    came += ends.read()
    for slot in range(3):
        *some, last = [response for each, response in came if each == slot]
        assert last.empty_final
        assert [_seen(response) for response in some] == expected[slot]
    ends.close()


@given(
    st.lists(st.integers(0, 30), max_size=12),
    st.binary(max_size=64),
    st.fixed_dictionaries(
        {},
        optional={
            "headers": st.lists(st.tuples(st.integers(1, 3), st.just([["OUT", "FP32", [1]]])), max_size=2),
            "errors": st.lists(st.tuples(st.integers(-1, 9), st.integers(0, 9), st.text(max_size=3)), max_size=2),
            "parameters": st.lists(
                st.tuples(st.integers(0, 9), st.dictionaries(st.text(), st.integers())), max_size=2
            ),
        },
    ),
)
def test_malformed_worker_frame_is_only_an_error(words, payload, extra):
    frame = Frame(frames.EMITTED, tuple(words), "", extra, payload, len(payload), 0, 0)
    try:
        emitted = decoder().emitted(frame)
    except ChannelError:
        return
    assert all(slot <= 30 for slot, _ in emitted)


def test_final_response_ignores_the_next_cancellation(ends: Ends) -> None:
    stream = ends.stream(slot=3)
    send = ends.channel.send

    def send_and_reuse(*args, **options):
        send(*args, **options)
        # The server gives the slot to another request as soon as it has the final response.
        ends.server_board.slots[3] = CANCELLED

    ends.channel.send = send_and_reuse
    InferenceResponseSender(stream).send(flags=FINAL)
    assert stream.is_closed
    assert not stream.is_cancelled()
