"""The process that executes a request of a sequence, and the state of sequences in other processes."""

from collections import Counter
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from naiad.cluster.member import forwarded
from naiad.cluster.member.peers import SequenceModel, owner_of
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.datatype import DataType
from naiad.core.errors import ErrorCode, FailureReason, InferError, UnknownSequenceError
from naiad.core.request import ExecutionTimes, InferRequest, RequestedOutput, RequestHeader, SharedMemoryRegion
from naiad.core.response import InferResponse, ResponseHeader
from naiad.core.tensor import TensorSpec

PROCESSES = 4


class Forwarding:
    def __init__(self) -> None:
        self.sent: list[tuple[int, InferRequest]] = []
        self.cancelled: list[InferRequest] = []

    def forward(self, owner: int, model: str, version: str, request: InferRequest) -> None:
        assert (model, version) == ("m", "1")
        self.sent.append((owner, request))

    def cancel(self, request: InferRequest) -> None:
        self.cancelled.append(request)


class Served:
    """A served version of this process."""

    name, version, labels, is_decoupled, statistics = "m", "1", {}, False, None
    live_sequence_count = 0

    def __init__(self) -> None:
        self.config = ModelConfig(name="m")
        self.config.sequence_batching.SetInParent()
        self.taken: list[InferRequest] = []
        self.cancelled: list[InferRequest] = []
        self.error: InferError | None = None

    def submit(self, request: InferRequest) -> None:
        if self.error is not None:
            raise self.error
        request.model = self
        self.taken.append(request)

    def cancel(self, request: InferRequest) -> bool:
        self.cancelled.append(request)
        return True

    def is_waiting(self, request: InferRequest) -> bool:
        return request.queue is not None


def model_of(*, slot: int = 1, is_successor: bool = False) -> tuple[SequenceModel, Served, Forwarding]:
    served, forwarding = Served(), Forwarding()
    membership = SimpleNamespace(slot=slot, process_count=PROCESSES, is_successor=is_successor)
    return SequenceModel("m", served, membership, forwarding), served, forwarding  # type: ignore[arg-type]


def request_of(sequence: int | str, *, start: bool = False, end: bool = False) -> InferRequest:
    header = RequestHeader(model_name="m", sequence_id=sequence, sequence_start=start, sequence_end=end)
    return InferRequest(header, [], lambda request, response: None)


def sequence_of(owner: int, nth: int = 0) -> int:
    return [number for number in range(1, 200) if owner_of("m", number, PROCESSES) == owner][nth]


@given(st.one_of(st.integers(0, 2**64 - 1), st.text()), st.integers(1, 64))
def test_every_sequence_has_one_process(sequence: int | str, count: int) -> None:
    assert 0 <= owner_of("m", sequence, count) < count
    assert owner_of("m", sequence, count) == owner_of("m", sequence, count)


def test_sequences_with_regular_ids_are_spread_evenly() -> None:
    for ids in (range(1, 4001), range(4, 16001, 4), [f"user-{n}" for n in range(4000)]):
        shares = Counter(owner_of("m", each, PROCESSES) for each in ids)
        assert all(800 < shares[slot] < 1200 for slot in range(PROCESSES))


def test_same_id_of_another_model_is_separate() -> None:
    assert {owner_of(f"model{n}", 7, PROCESSES) for n in range(50)} == set(range(PROCESSES))


def test_own_sequences_are_executed_here() -> None:
    model, served, forwarding = model_of(slot=1)
    request = request_of(sequence_of(1), start=True)
    model.submit(request)
    assert (served.taken, forwarding.sent) == ([request], [])
    assert model.cancel(request)
    assert served.cancelled == [request]


def test_forwarded_request_is_not_known_to_wait() -> None:
    model, _, _ = model_of(slot=1)
    here, elsewhere = (request_of(sequence_of(owner), start=True) for owner in (1, 3))
    for request in (here, elsewhere):
        model.submit(request)
    assert not model.is_waiting(here)
    here.queue = "queue"
    assert model.is_waiting(here)
    assert not model.is_waiting(elsewhere)


def test_request_without_id_is_rejected_locally() -> None:
    model, served, forwarding = model_of()
    for sequence in (0, ""):
        model.submit(request_of(sequence))
    assert (len(served.taken), forwarding.sent) == (2, [])


def test_sequences_of_others_are_forwarded() -> None:
    model, served, forwarding = model_of(slot=1)
    request = request_of(sequence_of(3), start=True)
    model.submit(request)
    assert (served.taken, forwarding.sent) == ([], [(3, request)])
    assert request.model is model
    for _ in range(2):
        assert not model.cancel(request)
    assert forwarding.cancelled == [request]
    assert request.cancelled


def test_only_successor_reports_death() -> None:
    refusal = UnknownSequenceError(ErrorCode.INVALID_ARG, "must specify the START flag")
    for is_successor, text in ((False, "flag$"), (True, "been replaced: begin the sequence again")):
        model, served, _ = model_of(is_successor=is_successor)
        served.error = refusal
        with pytest.raises(InferError, match=text) as caught:
            model.submit(request_of(sequence_of(1)))
        assert caught.value.code is ErrorCode.INVALID_ARG


# --- messages -------------------------------------------------------------------------------------------------------


def test_request_arrives_without_sender_state() -> None:
    header = RequestHeader(
        model_name="m",
        inputs=[TensorSpec("A", DataType.FP32, (1, 2)), TensorSpec("B", DataType.BYTES, (1,))],
        outputs=[RequestedOutput("X", classification=3), RequestedOutput("Y", binary=True)],
        parameters={"a": 1, "b": "two", "c": True, "d": 0.5},
        priority=2,
        timeout_us=77,
        sequence_id="name",
        sequence_start=True,
        sequence_end=True,
        wants_empty_final=True,
        shared_memory={"A": SharedMemoryRegion("region", 0, 8)},
    )
    data = [memoryview(bytearray(8)), b"\x01\0\0\0x"]
    request = InferRequest(header, data, lambda request, response: None, id="r", arrival_ns=5)
    packed = forwarded.pack_request(9, "m", "3", request)
    arrived = forwarded.unpack_header(packed)
    for name in ("model_name", "inputs", "parameters", "priority", "timeout_us", "sequence_id", "wants_empty_final"):
        assert getattr(arrived, name) == getattr(header, name), name
    assert arrived.model_version == "3"
    assert arrived.sequence_start
    assert arrived.sequence_end
    assert [output.name for output in arrived.outputs] == ["X", "Y"]
    assert arrived.is_plain
    assert (packed.number, packed.request_id, packed.arrival_ns, packed.wants_times) == (9, "r", 5, False)
    assert packed.data == [bytes(8), b"\x01\0\0\0x"]


def test_a_response_arrives_as_it_was() -> None:
    headers = forwarded.ResponseHeaders()
    sent = InferResponse(
        ResponseHeader("m", "3", [TensorSpec("X", DataType.INT64, (1,))]),
        [memoryview(bytes(8))],
        parameters={"p": 1},
        final=False,
        empty_final=False,
    )
    packed = forwarded.pack_response(4, ExecutionTimes(), sent)
    assert packed.times is None  # not the final one
    header = headers.find("m", packed.model_version, packed.outputs)
    arrived = forwarded.unpack_response(packed, header)
    assert (arrived.header.outputs, arrived.header.model_version) == (sent.header.outputs, "3")
    assert (list(arrived.data), arrived.parameters) == ([bytes(8)], {"p": 1})
    assert (arrived.final, arrived.empty_final, arrived.error) == (False, False, None)
    assert headers.find("m", packed.model_version, packed.outputs) is header


def test_times_go_with_the_final_response() -> None:
    times, filled = ExecutionTimes(), ExecutionTimes()
    times.exec_start_ns, times.compute_start_ns, times.compute_end_ns, times.exec_end_ns = 1, 2, 3, 4
    packed = forwarded.pack_response(4, times, InferResponse(ResponseHeader("m", "3", ())))
    assert packed.times is not None
    forwarded.unpack_times(packed.times, filled)
    assert (filled.exec_start_ns, filled.compute_start_ns, filled.compute_end_ns, filled.exec_end_ns) == (1, 2, 3, 4)


@pytest.mark.parametrize("reason", [None, FailureReason.CANCELED])
def test_an_error_arrives_as_it_was(reason: FailureReason | None) -> None:
    error = InferError(ErrorCode.CANCELLED, "text", detail="log", reason=reason)
    packed = forwarded.pack_response(4, None, InferResponse(ResponseHeader("m", "3", ()), error=error))
    arrived = forwarded.unpack_response(packed, ResponseHeader("m", "3", ())).error
    assert arrived is not None
    assert (arrived.code, arrived.message, arrived.detail, arrived.reason) == (error.code, "text", "log", reason)


def test_headers_of_responses_are_bounded() -> None:
    headers = forwarded.ResponseHeaders()
    for number in range(5000):
        headers.find("m", "1", (("X", "FP32", (number,)),))
    assert len(headers._headers) <= 1024
