import asyncio
import logging
from types import SimpleNamespace

import pytest

from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.datatype import DataType
from naiad.core.errors import ErrorCode, InferError, invalid_argument, not_found, unavailable
from naiad.core.model import IndexEntry, ModelMetadata, ModelState, ServerMetadata
from naiad.core.response import InferResponse, ResponseHeader
from naiad.core.tensor import TensorSpec
from naiad.frontend.context import CancelReason
from naiad.frontend.grpc.service import InferenceGrpcService
from naiad.protocol import service_pb2 as pb
from naiad.protocol.header_memory import SIGHTINGS
from support.freed import freed_block
from support.recording_engine import RecordingEngine

SERVICE = "/inference.GRPCInferenceService/"
RESPONSE_HEADER = ResponseHeader("m", "1", [TensorSpec("y", DataType.FP32, (1,))])


def iterated(result):
    yield
    return result


class Call:
    client = None
    metadata = ()
    deadline_ns = 0
    timing = None
    arrival_ns = 77

    def __init__(self, path):
        self.path = path
        self.on_cancel = None
        self.answer = None
        self.status = None

    def respond(self, parts):
        assert self.status is None
        self.answer, self.status = b"".join(parts), 0

    def send(self, parts):
        raise AssertionError("unary calls send nothing")

    def finish(self, status, message="", trailers=()):
        assert self.status is None
        self.status, self.message, self.trailers = status, message, dict(trailers)


class Engine(RecordingEngine):
    """Knows the model m with the versions "" and 1, and the decoupled model d."""

    def __init__(self):
        super().__init__()
        self.controlled = []
        self.ready = True
        self.is_draining = False

    def served(self, name, version=""):
        self.check(name, version)
        return SimpleNamespace(is_decoupled=name == "d")

    def check(self, name, version):
        if name not in ("m", "d") or version not in ("", "1"):
            raise not_found(f"Request for unknown model: '{name}' is not found")

    def is_live(self):
        return True

    def is_ready(self):
        return self.ready and not self.is_draining

    def is_model_ready(self, name, version):
        return name == "m" and version in ("", "1")

    def server_metadata(self):
        return ServerMetadata("naiad", "1", ["statistics"])

    def model_metadata(self, name, version):
        self.check(name, version)
        return ModelMetadata(name, ["1"], "identity", [], [])

    def model_config(self, name, version):
        self.check(name, version)
        return ModelConfig(name=name)

    def statistics_in_slices(self, name, version):
        if name:
            raise invalid_argument(f"requested model '{name}' is not available")
        return iterated([])

    def repository_index(self, ready_only=False):
        entries = [IndexEntry("m", "1", ModelState.READY), IndexEntry("other")]
        return entries[:1] if ready_only else entries

    survey_repository = repository_index

    def load_model(self, name, parameters, *, is_owner=True):
        self.controlled.append(("load", name, parameters, is_owner))

    def unload_model(self, name, parameters):
        raise unavailable("explicit model load / unload is not allowed if polling is enabled")


@pytest.fixture
def engine():
    return Engine()


@pytest.fixture
def service(engine):
    return InferenceGrpcService(engine)


@pytest.fixture
def failures(caplog):
    caplog.set_level(logging.DEBUG, logger="naiad.request")

    def lines():
        return [record for record in caplog.records if record.name == "naiad.request"]

    return lines


def call(service, method, message=b"", prefix=SERVICE):
    it = Call(prefix + method)
    service.unary(it, memoryview(message if isinstance(message, bytes) else message.SerializeToString()))
    return it


def infer_message(model="m", request_id="", data=True):
    message = pb.ModelInferRequest(model_name=model, id=request_id)
    message.inputs.add(name="x", datatype="FP32", shape=[1])
    if data:
        message.raw_input_contents.append(b"1234")
    return message


class TestInfer:
    def test_response_contains_engine_result(self, service, engine):
        it = call(service, "ModelInfer", infer_message(request_id="7"))
        (request,) = engine.submitted
        assert (request.id, request.arrival_ns, [bytes(d) for d in request.data]) == ("7", 77, [b"1234"])
        assert it.status is None
        request.on_response(request, InferResponse(RESPONSE_HEADER, [b"5678"]))
        parsed = pb.ModelInferResponse.FromString(it.answer)
        assert (parsed.id, parsed.model_name, list(parsed.raw_output_contents)) == ("7", "m", [b"5678"])

    def test_requests_with_equal_headers_share_the_header(self, service, engine):
        for number in range(SIGHTINGS + 2):
            call(service, "ModelInfer", infer_message(request_id=str(number)))
            engine.submitted[-1].header.admission = "admitted"
        assert engine.submitted[-2].header is engine.submitted[-1].header

    def test_error_of_the_model(self, service, engine, failures):
        it = call(service, "ModelInfer", infer_message(request_id="7"))
        (request,) = engine.submitted
        error = InferError(ErrorCode.INTERNAL, "it broke", detail="model.py:3")
        request.on_response(request, InferResponse(ResponseHeader("m", "1", ()), error=error))
        assert (it.status, it.message, it.trailers) == (13, "it broke", {b"triton-request-id": b"7"})
        (line,) = failures()
        assert line.levelno == logging.ERROR
        assert all(word in line.getMessage() for word in ("7", "m", "1", "it broke", "model.py:3"))

    def test_rejected_at_admission(self, service, engine, failures):
        engine.rejection = unavailable("Exceeds maximum queue size")
        it = call(service, "ModelInfer", infer_message())
        assert (it.status, it.message, it.on_cancel) == (14, "Exceeds maximum queue size", None)
        (line,) = failures()
        made_id = it.trailers[b"triton-request-id"].decode()
        assert made_id
        assert made_id in line.getMessage()

    def test_made_ids_differ(self, service):
        ids = {call(service, "ModelInfer", infer_message("?")).trailers[b"triton-request-id"] for _ in range(3)}
        assert len(ids) == 3

    @pytest.mark.parametrize("request_id", ["ä\n\r\0", "a b%", "x" * 100_000, " "])
    def test_trailer_is_legal_header_value_for_any_id(self, service, request_id):
        it = call(service, "ModelInfer", infer_message("?", request_id))
        trailer = it.trailers[b"triton-request-id"]
        assert 0 < len(trailer) < 4096
        assert all(0x21 <= byte <= 0x7E for byte in trailer)

    def test_unknown_model(self, service, failures):
        it = call(service, "ModelInfer", infer_message("?"))
        assert (it.status, it.message) == (5, "Request for unknown model: '?' is not found")
        assert len(failures()) == 1

    def test_unknown_model_wins_over_bad_tensors(self, service):
        assert call(service, "ModelInfer", infer_message("?", data=False)).status == 5

    def test_decoupled_model(self, service, engine):
        for data in (True, False):
            it = call(service, "ModelInfer", infer_message("d", data=data))
            assert it.status == 12
            assert it.message == "ModelInfer RPC doesn't support models with decoupled transaction policy"
        assert not engine.submitted

    def test_bad_tensors(self, service, failures):
        it = call(service, "ModelInfer", infer_message(request_id="9", data=False))
        assert it.status == 3
        assert it.message == "unable to find data for input tensor 'x' for model 'm' in request."
        assert it.trailers == {b"triton-request-id": b"9"}
        assert len(failures()) == 1

    def test_unparsable(self, service, failures):
        it = call(service, "ModelInfer", b"\xff")
        assert it.status == 3
        assert it.message.startswith("Unable to parse request")
        assert len(failures()) == 1

    def test_response_that_cannot_be_encoded(self, service, engine, failures):
        it = call(service, "ModelInfer", infer_message())
        (request,) = engine.submitted
        request.on_response(request, InferResponse(RESPONSE_HEADER, [b"5678"], parameters={"p": b"bytes"}))
        assert it.status == 12
        assert len(failures()) == 1

    def test_defect_of_a_response_is_a_failure(self, service, engine, failures):
        it = call(service, "ModelInfer", infer_message())
        (request,) = engine.submitted
        header = ResponseHeader("m", "1", [TensorSpec("OUT", DataType.FP32, ("x",))])
        request.on_response(request, InferResponse(header, [b"5678"]))
        assert it.status == 13
        assert len(failures()) == 1

    def test_defect_costs_one_call(self, service, engine, caplog):
        engine.rejection = ZeroDivisionError("defect")
        it = call(service, "ModelInfer", infer_message())
        assert it.status == 13
        assert "internal error" in it.message
        assert "defect" in caplog.text


class TestCancel:
    def test_reaches_the_engine(self, service, engine):
        it = call(service, "ModelInfer", infer_message())
        it.on_cancel(CancelReason.CANCELLED)
        assert engine.cancelled == engine.submitted

    def test_response_drops_the_handler(self, service, engine):
        it = call(service, "ModelInfer", infer_message())
        (request,) = engine.submitted
        request.on_response(request, InferResponse(RESPONSE_HEADER, [b"5678"]))
        assert it.on_cancel is None

    @pytest.mark.parametrize(
        ("why", "status", "words"),
        [
            (CancelReason.CANCELLED, 1, "the client cancelled the request"),
            (CancelReason.DISCONNECTED, 1, "the client disconnected"),
            (CancelReason.DEADLINE, 4, "the deadline passed"),
        ],
    )
    @pytest.mark.parametrize(("waits", "doing"), [(True, "it waited"), (False, "it was executed")])
    def test_is_answered_and_logged_once(self, service, engine, failures, why, status, words, waits, doing):
        engine.waits = waits
        it = call(service, "ModelInfer", infer_message(request_id="gone"))
        it.on_cancel(why)
        assert (it.status, it.message) == (status, f"{words} while {doing}")
        assert it.trailers == {b"triton-request-id": b"gone"}
        (request,) = engine.submitted
        request.on_response(request, InferResponse(RESPONSE_HEADER, [b"5678"]))
        (line,) = failures()
        assert line.getMessage().startswith("[request id: gone] gRPC request for model 'm'")


class TestControl:
    def test_health(self, service, engine):
        assert pb.ServerLiveResponse.FromString(call(service, "ServerLive").answer).live
        assert pb.ServerReadyResponse.FromString(call(service, "ServerReady").answer).ready
        engine.ready = False
        assert not pb.ServerReadyResponse.FromString(call(service, "ServerReady").answer).ready

    def test_standard_health(self, service, engine):
        assert call(service, "Check", prefix="/grpc.health.v1.Health/").answer == b"\x08\x01"
        engine.phase.is_draining = True
        assert call(service, "Check", prefix="/grpc.health.v1.Health/").answer == b"\x08\x02"
        assert call(service, "Watch", prefix="/grpc.health.v1.Health/").status == 12

    def test_health_of_a_service(self, service, engine):
        for name, status in (("", 0), ("inference.GRPCInferenceService", 0), ("nope", 5), ("inference", 5)):
            message = bytes((10, len(name))) + name.encode() if name else b""
            assert (call(service, "Check", message, "/grpc.health.v1.Health/").status or 0) == status, name

    def test_not_ready_while_draining(self, service, engine):
        engine.phase.is_draining = True
        it = call(service, "ServerReady")
        assert (it.status, it.message) == (14, "Server exiting")
        assert pb.ServerLiveResponse.FromString(call(service, "ServerLive").answer).live

    @pytest.mark.parametrize(("name", "ready"), [("m", True), ("d", False)])
    def test_model_ready(self, service, name, ready):
        it = call(service, "ModelReady", pb.ModelReadyRequest(name=name))
        assert pb.ModelReadyResponse.FromString(it.answer).ready is ready

    @pytest.mark.parametrize("method", ["ModelMetadata", "ModelConfig"])
    def test_unknown_model(self, service, method, failures):
        it = call(service, method, pb.ModelReadyRequest(name="?"))
        assert (it.status, it.message) == (5, "Request for unknown model: '?' is not found")
        assert not failures()

    def test_metadata_and_config(self, service):
        assert pb.ServerMetadataResponse.FromString(call(service, "ServerMetadata").answer).name == "naiad"
        it = call(service, "ModelMetadata", pb.ModelMetadataRequest(name="m", version="1"))
        assert pb.ModelMetadataResponse.FromString(it.answer).platform == "identity"
        it = call(service, "ModelConfig", pb.ModelConfigRequest(name="m"))
        assert pb.ModelConfigResponse.FromString(it.answer).config.name == "m"

    def test_statistics(self, service):
        assert call(service, "ModelStatistics").answer == b""
        it = call(service, "ModelStatistics", pb.ModelStatisticsRequest(name="?"))
        assert (it.status, it.message) == (3, "requested model '?' is not available")

    @pytest.mark.parametrize(("ready", "names"), [(False, ["m", "other"]), (True, ["m"])])
    def test_index(self, service, ready, names):
        it = call(service, "RepositoryIndex", pb.RepositoryIndexRequest(ready=ready))
        assert [m.name for m in pb.RepositoryIndexResponse.FromString(it.answer).models] == names

    def test_load(self, service, engine):
        request = pb.RepositoryModelLoadRequest(model_name="m")
        request.parameters["config"].string_param = "{}"
        assert call(service, "RepositoryModelLoad", request).answer == b""
        assert engine.controlled == [("load", "m", {"config": "{}"}, False)], "without a rule no client is the owner"

    def test_unload_that_is_not_allowed(self, service):
        it = call(service, "RepositoryModelUnload", pb.RepositoryModelUnloadRequest(model_name="m"))
        assert it.status == 14
        assert it.message == "explicit model load / unload is not allowed if polling is enabled"

    def test_malformed(self, service):
        assert call(service, "ModelReady", b"\xff").status == 3

    @pytest.mark.parametrize("method", ["Nonsense"])
    def test_unimplemented(self, service, method):
        it = call(service, method)
        assert it.status == 12
        assert method in it.message


def test_one_method_streams(service):
    assert service.is_streaming(SERVICE + "ModelStreamInfer")
    assert not service.is_streaming(SERVICE + "ModelInfer")


def test_control_calls_are_answered_after_the_delay(service, monkeypatch):
    later = []

    class Loop:
        def call_later(self, delay_s, handle):
            later.append((delay_s, handle))

    monkeypatch.setattr(asyncio, "get_running_loop", Loop)
    service.control_delay_s = 2
    it = call(service, "ServerLive")
    failing = call(service, "NoSuchMethod")
    assert it.status is None
    assert [delay_s for delay_s, _ in later] == [2, 2]
    for _, handle in later:
        handle()
    assert (it.status, failing.status) == (0, 12)


def test_response_that_cannot_be_encoded_is_freed(service, engine):
    it = call(service, "ModelInfer", infer_message())
    (request,) = engine.submitted
    with freed_block(b"x" * 20) as views:
        request.on_response(request, InferResponse(RESPONSE_HEADER, [views.pop()], parameters={"p": 2**70}))
    assert "does not fit into 64 bits" in it.message


def test_message_that_cannot_be_decoded_is_freed(service):
    it = Call(SERVICE + "ModelInfer")
    with freed_block(infer_message("unknown", data=False).SerializeToString()) as views:
        service.unary(it, views.pop())
    assert "unknown" in it.message
