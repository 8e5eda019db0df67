"""ModelStreamInfer: the service with a recording call and engine."""

import logging
import re
from types import SimpleNamespace

import pytest

from naiad.core.datatype import DataType
from naiad.core.errors import ErrorCode, InferError, internal, invalid_argument, not_found, rejected, unavailable
from naiad.core.response import InferResponse, ResponseHeader
from naiad.core.tensor import TensorSpec
from naiad.engine.on_demand.held_requests import ColdModelError
from naiad.frontend.context import CancelReason
from naiad.frontend.control.control import ControlCalls
from naiad.frontend.grpc import stream as grpc_stream
from naiad.frontend.grpc.compression import GrpcCompression
from naiad.frontend.grpc.ended_stream import ENDED
from naiad.frontend.grpc.service import InferenceGrpcService
from naiad.frontend.header_forwarding import HeaderForwarding
from naiad.frontend.long_work.slice_runner import SliceRunner
from naiad.frontend.reply_headers import REFUSED
from naiad.protocol import service_pb2 as pb
from naiad.protocol.grpc.walk import SHORT_BYTES
from naiad.wire.compression import MAX_INLINE_BYTES
from naiad.wire.grpc import GrpcStatus
from support.freed import freed_block
from support.recording_engine import RecordingEngine
from support.side_work import Aside

HEADER = ResponseHeader("m", "1", [TensorSpec("y", DataType.FP32, (1,))])
EMPTY = ResponseHeader("m", "1", ())


class Call:
    """A streaming call whose peer reads everything at once, unless `queued_bytes` is set."""

    deadline_ns = 0
    arrival_ns = 77

    client = None

    def __init__(self, metadata=()):
        self.path = "/inference.GRPCInferenceService/ModelStreamInfer"
        self.metadata = metadata
        self.on_cancel = None
        self.context = None
        self.queued_bytes = 0
        self.sent = []
        self.encoded = []
        self.status = self.trailers = None
        self.is_paused = False
        self.pauses = 0

    def respond(self, parts):
        raise AssertionError("the answer of a stream is not unary")

    def send(self, parts):
        assert self.status is None
        self.sent.append(pb.ModelStreamInferResponse.FromString(b"".join(parts)))

    def send_encoded(self, parts, encoding, *, is_compressed):
        assert self.status is None
        self.encoded.append(b"".join(parts))

    def finish(self, status, message="", trailers=()):
        assert self.status is None
        self.status, self.message, self.trailers = status, message, trailers

    def pause(self):
        self.is_paused = True
        self.pauses += 1

    def resume(self):
        assert self.is_paused
        self.is_paused = False

    def reserve_bytes(self, size):
        return True

    def release_bytes(self, size):
        pass

    @property
    def ids(self):
        return [response.infer_response.id for response in self.sent]


class Engine(RecordingEngine):
    """Knows the model m, and d, which is decoupled."""

    def cancel(self, request):
        super().cancel(request)
        return request.id == "b"

    def served(self, name, version=""):
        if name not in ("m", "d"):
            raise not_found(f"Request for unknown model: '{name}' is not found")
        return SimpleNamespace(is_decoupled=name == "d")


class Stage:
    def __init__(self, *, metadata=(), forwarding=None):
        self.engine = Engine()
        self.service = InferenceGrpcService(self.engine, forwarding)
        self.call = Call(metadata)

    def send(self, *names, model="m", **keywords):
        """Send one request per name, which is also its id."""
        for name in names:
            self.service.stream_message(self.call, memoryview(message(model, name, **keywords)))

    def request(self, name):
        (found,) = [request for request in self.engine.submitted if request.id == name]
        return found

    def answer(self, name, *, error=None, final=True, empty_final=False, value=b"5678", parameters=None):
        request = self.request(name)
        if error is not None:
            response = InferResponse(EMPTY, error=error, final=final)
        elif empty_final:
            response = InferResponse(HEADER, final=True, empty_final=True)
        else:
            response = InferResponse(HEADER, [value], final=final, parameters=parameters or {})
        request.on_response(request, response)

    def half_close(self):
        self.service.stream_half_closed(self.call)


def message(model="m", request_id="", version="", data=True, **parameters):
    request = pb.ModelInferRequest(model_name=model, id=request_id, model_version=version)
    for key, value in parameters.items():
        request.parameters[key].bool_param = value
    request.inputs.add(name="x", datatype="FP32", shape=[1])
    if data:
        request.raw_input_contents.append(b"1234")
    return request.SerializeToString()


def final_of(response):
    parameters = response.infer_response.parameters
    return parameters["triton_final_response"].bool_param if "triton_final_response" in parameters else None


@pytest.fixture
def stage():
    return Stage()


@pytest.fixture
def failures(caplog):
    caplog.set_level(logging.DEBUG, logger="naiad.request")
    return lambda: [record.getMessage() for record in caplog.records if record.name == "naiad.request"]


class TestOrdinaryModels:
    def test_one_response_per_request_marked_as_final(self, stage):
        stage.send("a")
        assert stage.request("a").arrival_ns == 77
        stage.answer("a")
        (sent,) = stage.call.sent
        response = sent.infer_response
        assert (sent.error_message, response.id, response.model_name, response.model_version) == ("", "a", "m", "1")
        assert list(response.raw_output_contents) == [b"5678"]
        assert [(o.name, o.datatype, list(o.shape)) for o in response.outputs] == [("y", "FP32", [1])]
        assert final_of(sent) is True
        assert stage.call.status is None

    def test_responses_leave_in_the_order_of_requests(self, stage):
        stage.send("a", "b", "c", "d")
        stage.answer("c")
        stage.answer("b", error=internal("it broke"))
        assert stage.call.ids == []
        stage.answer("a")
        assert stage.call.ids == ["a", "b", "c"]
        stage.answer("d")
        assert stage.call.ids == ["a", "b", "c", "d"]
        assert [sent.error_message for sent in stage.call.sent] == ["", "it broke", "", ""]

    def test_a_rejected_request_takes_its_turn(self, stage):
        stage.send("a")
        stage.send("bad", data=False)
        stage.send("?", model="?")
        stage.send("b")
        assert stage.call.ids == []
        stage.answer("a")
        assert stage.call.ids == ["a", "bad", "?"]
        stage.answer("b")
        assert stage.call.ids == ["a", "bad", "?", "b"]

    def test_parameters_of_the_model_stay_beside_the_marker(self, stage):
        stage.send("a")
        stage.answer("a", parameters={"mine": 7})
        (sent,) = stage.call.sent
        assert sent.infer_response.parameters["mine"].int64_param == 7
        assert final_of(sent) is True

    def test_sequence_parameters_reach_the_engine(self, stage):
        request = pb.ModelInferRequest.FromString(message(sequence_start=True, sequence_end=True))
        request.parameters["sequence_id"].int64_param = 9
        stage.service.stream_message(stage.call, request.SerializeToString())
        (submitted,) = stage.engine.submitted
        header = submitted.header
        assert (header.sequence_id, header.sequence_start, header.sequence_end) == (9, True, True)


class TestDecoupledModels:
    def test_responses_of_several_requests_interleave(self, stage):
        stage.send("a", "b", model="d")
        for name in ("b", "a", "b"):
            stage.answer(name, final=False)
        stage.answer("b")
        stage.answer("a")
        assert stage.call.ids == ["b", "a", "b", "b", "a"]
        assert [final_of(sent) for sent in stage.call.sent] == [False, False, False, True, True]

    def test_decoupled_and_ordinary_responses_do_not_wait_mutually(self, stage):
        stage.send("slow")
        stage.send("a", model="d")
        stage.send("next")
        stage.answer("a", final=False)
        stage.answer("slow")
        stage.answer("next")
        assert stage.call.ids == ["a", "slow", "next"]

    def test_empty_final_response_is_sent_only_on_request(self, stage):
        stage.send("a", model="d")
        stage.send("b", model="d", version="1", triton_enable_empty_final_response=True)
        stage.send("c", model="d", triton_enable_empty_final_response=False)
        for name in ("a", "b", "c"):
            stage.answer(name, empty_final=True)
        (sent,) = stage.call.sent
        response = sent.infer_response
        assert (response.id, response.model_name, response.model_version) == ("b", "d", "1")
        assert final_of(sent) is True
        assert not response.outputs
        assert not sent.error_message

    def test_empty_final_response_has_requested_version(self, stage):
        stage.send("b", model="d", triton_enable_empty_final_response=True)
        stage.answer("b", empty_final=True)
        assert stage.call.sent[0].infer_response.model_version == ""

    def test_error_between_responses_does_not_end_them(self, stage):
        stage.send("a", model="d")
        stage.answer("a", error=internal("one of them broke"), final=False)
        stage.answer("a", final=True)
        assert [sent.error_message for sent in stage.call.sent] == ["one of them broke", ""]
        assert [final_of(sent) for sent in stage.call.sent] == [False, True]


class TestErrors:
    def test_of_inference(self, stage, failures):
        stage.send("a", version="1")
        stage.answer("a", error=InferError(ErrorCode.INTERNAL, "it broke", detail="model.py:3"))
        (sent,) = stage.call.sent
        response = sent.infer_response
        assert (sent.error_message, response.id, response.model_name, response.model_version) == (
            "it broke",
            "a",
            "m",
            "1",
        )
        assert final_of(sent) is True
        assert not response.outputs
        assert stage.call.status is None
        (line,) = failures()
        assert "model.py:3" in line

    def test_early_ones_carry_the_id_only(self, stage, failures):
        stage.send("a", data=False)
        stage.engine.rejection = unavailable("Exceeds maximum queue size")
        stage.send("b")
        texts = [sent.error_message for sent in stage.call.sent]
        assert texts == [
            "unable to find data for input tensor 'x' for model 'm' in request.",
            "Exceeds maximum queue size",
        ]
        for sent, name in zip(stage.call.sent, ("a", "b"), strict=True):
            assert sent.infer_response == pb.ModelInferResponse(id=name)
        assert len(failures()) == 2
        stage.engine.rejection = None
        stage.send("c")
        stage.answer("c")
        assert stage.call.ids == ["a", "b", "c"]

    def test_unknown_model_wins_over_bad_tensors(self, stage):
        stage.send("a", model="?", data=False)
        assert stage.call.sent[0].error_message == "Request for unknown model: '?' is not found"

    def test_bytes_that_are_no_request(self, stage):
        stage.service.stream_message(stage.call, b"\xff")
        assert stage.call.sent[0].error_message.startswith("Unable to parse request")
        assert stage.call.status is None

    def test_rejected_decoupled_request_does_not_wait(self, stage):
        stage.send("slow")
        stage.send("a", model="d", data=False)
        assert stage.call.ids == ["a"]

    def test_an_error_without_text_gets_one(self, stage):
        # Clients take an empty text as success.
        stage.send("a")
        stage.answer("a", error=InferError(ErrorCode.CANCELLED, ""))
        assert "CANCELLED" in stage.call.sent[0].error_message

    def test_a_response_that_cannot_be_encoded(self, stage):
        stage.send("a")
        stage.answer("a", parameters={"p": b"bytes"})
        (sent,) = stage.call.sent
        assert "'p'" in sent.error_message
        assert final_of(sent) is True

    def test_defect_of_a_response_is_an_error(self, stage):
        stage.send("a", "b")
        header = ResponseHeader("m", "1", [TensorSpec("y", DataType.FP32, ("x",))])
        stage.request("a").on_response(stage.request("a"), InferResponse(header, [b"5678"]))
        stage.answer("b")
        assert [sent.error_message for sent in stage.call.sent] == ["internal error; see the server log", ""]

    def test_defect_ends_call_and_cancels_open_requests(self, stage):
        stage.send("a")
        stage.engine.rejection = ZeroDivisionError("defect")
        with pytest.raises(ZeroDivisionError):
            stage.send("b")
        assert stage.request("a").cancelled

    def test_a_header_that_may_not_be_forwarded(self):
        stage = Stage(metadata=((b"priority", b"7"),), forwarding=HeaderForwarding(re.compile("priority")))
        stage.send("a")
        assert "cannot be forwarded" in stage.call.sent[0].error_message


class TestGrpcErrorMode:
    @pytest.fixture
    def stage(self):
        return Stage(metadata=((b"user-agent", b"x"), (b"triton_grpc_error", b"true")))

    def test_the_first_error_of_inference_ends_the_call(self, stage, failures):
        stage.send("a")
        stage.send("b", "c", model="d")
        stage.answer("b", error=invalid_argument("not this"))
        assert (stage.call.status, stage.call.message) == (3, "not this")
        assert {request.id for request in stage.engine.cancelled} == {"a", "c"}
        stage.answer("a")
        stage.answer("c", error=internal("later"))
        assert stage.call.sent == []
        assert len(failures()) == 1

    @pytest.mark.parametrize("name", ["a", "b"])
    @pytest.mark.parametrize("is_answered", [True, False])
    def test_error_of_several_requests_has_no_mark(self, stage, name, is_answered):
        stage.send("a", "b")
        if is_answered and name == "b":
            stage.answer("a")
        stage.answer(name, error=rejected("the server stops"))
        assert stage.call.status == GrpcStatus.UNAVAILABLE
        assert REFUSED not in stage.call.trailers

    def test_large_requests_count_for_the_mark(self, stage):
        stage.send("a", "b" * (SHORT_BYTES + 1))
        stage.answer("a", error=rejected("the server stops"))
        assert REFUSED not in stage.call.trailers

    @pytest.mark.parametrize("size", [1, SHORT_BYTES + 1])
    def test_error_of_the_only_request_has_the_mark(self, stage, size):
        stage.send("a" * size)
        stage.answer("a" * size, error=rejected("the server stops"))
        assert REFUSED in stage.call.trailers

    def test_early_errors_stay_messages(self, stage):
        stage.send("a", data=False)
        assert stage.call.sent[0].error_message
        assert stage.call.status is None

    def test_other_values_do_not_switch_it_on(self):
        stage = Stage(metadata=((b"triton_grpc_error", b"false"),))
        stage.send("a")
        stage.answer("a", error=internal("it broke"))
        assert stage.call.status is None


class TestEnd:
    def test_without_a_request(self, stage):
        stage.half_close()
        assert stage.call.status == 0

    def test_half_close_waits_for_what_is_open(self, stage):
        stage.send("a")
        stage.send("b", model="d")
        stage.half_close()
        stage.answer("a")
        stage.answer("b", final=False)
        assert stage.call.status is None
        stage.answer("b", empty_final=True)
        assert stage.call.status == 0
        assert stage.call.on_cancel is None
        assert stage.call.context is ENDED

    def test_cancel_reaches_every_open_request_and_ends_writing(self, stage, caplog):
        stage.send("a", "b", "done")
        stage.send("c", model="d")
        stage.answer("a")
        stage.call.on_cancel(CancelReason.CANCELLED)
        assert {request.id for request in stage.engine.cancelled} == {"b", "done", "c"}
        stage.answer("b")
        stage.answer("c", final=False)
        stage.answer("c")
        assert stage.call.ids == ["a"]
        lines = [record.getMessage() for record in caplog.records if record.name == "naiad.request"]
        doing = {"b": "it waited", "done": "it was executed", "c": "it was executed"}
        ends = {line.partition("] ")[0].rpartition(" ")[2]: line.partition("failed: ")[2] for line in lines}
        assert len(lines) == len(ends)
        assert ends == {name: f"CANCELLED: the client cancelled the request while {doing[name]}" for name in doing}

    def test_draining_ends_an_idle_stream_at_once(self, stage):
        stage.send("a")
        stage.answer("a")
        stage.service.stream_draining(stage.call)
        assert (stage.call.status, stage.call.message) == (14, "Server exiting")

    def test_draining_finishes_open_requests_and_rejects_further_ones(self, stage):
        stage.send("a", model="d")
        stage.service.stream_draining(stage.call)
        stage.service.stream_draining(stage.call)
        stage.send("b")
        assert [sent.error_message for sent in stage.call.sent] == ["Server exiting"]
        stage.answer("a")
        assert stage.call.ids == ["b", "a"]
        assert stage.call.status == 14

    def test_draining_a_half_closed_stream_ends_it_well(self, stage):
        stage.send("a")
        stage.half_close()
        stage.service.stream_draining(stage.call)
        stage.answer("a")
        assert stage.call.status == 0


class TestEndBehindCompression:
    """The status of a call waits for responses that are being compressed; until then the call is open."""

    @pytest.fixture
    def aside(self):
        return Aside()

    @pytest.fixture
    def stage(self, aside):
        stage = Stage(metadata=((b"grpc-accept-encoding", b"gzip"), (b"triton_grpc_error", b"true")))
        stage.service = InferenceGrpcService(stage.engine, compression=GrpcCompression(1, aside))
        return stage

    def test_draining_meanwhile_does_not_cut_the_response_off(self, stage, aside):
        stage.send("a")
        stage.half_close()
        stage.answer("a", value=bytes(MAX_INLINE_BYTES))
        stage.service.stream_draining(stage.call)
        assert stage.call.status is None
        aside.go()
        assert len(stage.call.encoded) == 1
        assert stage.call.status == 0

    def test_later_peer_actions_do_not_hide_error(self, stage, aside):
        stage.send("a", "b", model="d")
        stage.answer("a", value=bytes(MAX_INLINE_BYTES))
        stage.answer("b", error=internal("broken"))
        stage.send("c")
        stage.half_close()
        assert stage.call.status is None
        aside.go()
        assert (len(stage.call.encoded), stage.call.status) == (1, 13)
        assert [request.id for request in stage.engine.submitted] == ["a", "b"]

    def test_failed_compression_cancels_the_open_requests(self, stage, aside):
        stage.send("a", "b", model="d")
        stage.answer("a", value=bytes(MAX_INLINE_BYTES))
        _, _, failed = aside.waiting.pop()
        failed(MemoryError())
        assert stage.call.status == GrpcStatus.INTERNAL
        assert [request.id for request in stage.engine.cancelled] == ["b"]
        stage.answer("b", final=False)
        assert not stage.call.encoded


class TestBounds:
    @pytest.fixture(autouse=True)
    def small(self, monkeypatch):
        monkeypatch.setattr(grpc_stream, "MAX_OPEN_REQUESTS", 3)
        monkeypatch.setattr(grpc_stream, "MAX_OPEN_BYTES", 1000)
        monkeypatch.setattr(grpc_stream, "MAX_QUEUED_BYTES", 100)

    def test_many_open_requests_hold_the_call(self, stage):
        stage.send("a", "b", model="d")
        assert not stage.call.is_paused
        stage.send("c", model="d")
        assert stage.call.is_paused
        stage.answer("b", final=False)
        assert stage.call.is_paused
        stage.answer("b")
        assert not stage.call.is_paused

    def test_large_requests_hold_the_call(self, stage):
        stage.send("x" * 600)
        assert not stage.call.is_paused
        stage.send("y" * 600)
        assert stage.call.is_paused
        stage.answer("x" * 600)
        assert not stage.call.is_paused

    def test_waiting_rejected_requests_pause_call(self, stage):
        stage.send("a")
        stage.send("b", "c", data=False)
        assert stage.call.is_paused
        stage.answer("a")
        assert not stage.call.is_paused

    def test_slow_reader_is_paused_until_it_reads(self, stage):
        stage.send("a", model="d")
        stage.call.queued_bytes = 101
        stage.answer("a", final=False)
        assert stage.call.is_paused
        assert stage.request("a").is_paused
        stage.call.queued_bytes = 51
        stage.service.stream_writable(stage.call)
        assert stage.call.is_paused
        stage.call.queued_bytes = 50
        stage.service.stream_writable(stage.call)
        assert not stage.call.is_paused
        assert not stage.request("a").is_paused

    def test_large_request_of_paused_stream_is_paused(self):
        clock_ns, turns = [0], []

        def tick() -> int:
            clock_ns[0] += step_ns
            return clock_ns[0]

        stage, step_ns = Stage(), 10_000_000  # no slice before its turn
        calls = ControlCalls(stage.engine, runner=SliceRunner(turns.append, clock_ns=tick))
        stage.service = InferenceGrpcService(stage.engine, calls=calls)
        stage.send("a", model="d")
        large = pb.ModelInferRequest.FromString(message("d", "b", data=False))
        large.raw_input_contents.append(bytes(100_000))
        stage.service.stream_message(stage.call, memoryview(large.SerializeToString()))
        stage.call.queued_bytes = grpc_stream.MAX_QUEUED_BYTES + 1
        stage.answer("a", final=False)
        step_ns = 0
        turns.pop()()
        assert stage.request("b").is_paused
        stage.call.queued_bytes = 0
        stage.service.stream_writable(stage.call)
        assert not stage.request("b").is_paused

    def test_ordinary_responses_wait_for_slow_reader_without_loss(self, stage):
        # The transport resets a call with too many queued bytes, but these requests came before the first was slow.
        stage.send("a", "b", "c")
        stage.call.queued_bytes = 101
        stage.answer("a")
        stage.answer("b")
        stage.answer("c")
        assert stage.call.ids == ["a"]
        assert stage.call.is_paused
        stage.call.queued_bytes = 50
        stage.service.stream_writable(stage.call)
        assert stage.call.ids == ["a", "b", "c"]
        assert not stage.call.is_paused

    def test_end_follows_responses_waiting_for_slow_reader(self, stage):
        stage.send("a", "b")
        stage.half_close()
        stage.call.queued_bytes = 101
        stage.answer("a")
        stage.answer("b")
        assert stage.call.status is None
        stage.call.queued_bytes = 0
        stage.service.stream_writable(stage.call)
        assert stage.call.ids == ["a", "b"]
        assert stage.call.status == 0

    def test_requests_count_as_large_as_the_last_response(self, stage):
        stage.send("a")
        stage.answer("a", value=bytes(600))
        stage.send("b")
        assert not stage.call.is_paused
        stage.send("c")
        assert stage.call.is_paused
        stage.answer("b")
        assert not stage.call.is_paused

    def test_requests_delivered_on_resume_may_pause_again(self, stage):
        def resume():
            stage.call.is_paused = False
            stage.send("d", model="d")

        stage.call.resume = resume
        stage.send("a", "b", "c", model="d")
        stage.answer("a")
        assert stage.call.is_paused
        assert stage.call.pauses == 2

    def test_nothing_is_released_after_the_end(self, stage):
        stage.send("a", "b", "c", model="d")
        stage.call.on_cancel(CancelReason.CANCELLED)
        stage.answer("a")
        assert stage.call.is_paused


def test_wait_counts_from_the_arrival_of_its_request(stage, monkeypatch):
    resumes, times = [], []

    def hold(cold, size, resume, refuse, **limits):
        resumes.append(resume)
        times.append(limits)

    def evicted(name, version=""):
        raise ColdModelError(SimpleNamespace(hold=hold), name)

    request = pb.ModelInferRequest.FromString(message())
    request.parameters["timeout"].int64_param = 1000
    monkeypatch.setattr(stage.engine, "served", evicted)
    stage.service.stream_message(stage.call, memoryview(request.SerializeToString()))
    resumes.pop()()  # it was evicted again
    assert times == [{"since_ns": 77, "deadline_ns": 1_000_077}] * 2


def test_message_that_cannot_be_decoded_is_freed(stage):
    with freed_block(message("unknown", "a", data=False)) as views:
        stage.service.stream_message(stage.call, views.pop())
    assert "unknown" in stage.call.sent[0].error_message
