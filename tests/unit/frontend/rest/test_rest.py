import json
import logging
import struct
import tracemalloc
import types
from types import SimpleNamespace
from urllib.parse import unquote

import pytest

from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.datatype import DataType
from naiad.core.errors import ErrorCode, InferError, invalid_argument, not_found, unavailable
from naiad.core.model import IndexEntry, ModelMetadata, ModelState, ServerMetadata
from naiad.core.response import InferResponse, ResponseHeader
from naiad.core.tensor import TensorSpec
from naiad.engine.on_demand.held_requests import ColdModelError
from naiad.frontend.context import CancelReason
from naiad.frontend.long_work.slice_runner import SliceRunner
from naiad.frontend.rest.infer import InferRoute
from naiad.frontend.rest.metrics_port import metrics_route, respond_metrics
from naiad.frontend.rest.routes import RestApi
from naiad.frontend.router import Route, Router
from naiad.telemetry.statistics.version_statistics import VersionStatistics
from support.recording_engine import RecordingEngine

A = TensorSpec("A", DataType.FP32, (-1, -1))


def no_path(path):
    return {"error": f"Not Found: there is no {path} here; requests for a model go to /v2/models/NAME/infer"}


def no_method(path, allowed):
    return {"error": f"Method Not Allowed: {path} takes {allowed}"}


CONTROL = "explicit model load / unload is not allowed if polling is enabled"


class Engine(RecordingEngine):
    """One model "m" that returns its inputs when the test says so."""

    def __init__(self):
        super().__init__()
        self.is_draining = False
        self.live = self.ready = self.model_ready = True
        self.decoupled = False

    def is_live(self):
        return self.live

    def is_ready(self):
        return self.ready

    def _known(self, name, version):
        if name != "m":
            raise not_found(f"Request for unknown model: '{name}' is not found")
        if version not in ("", "1"):
            raise not_found(f"Request for unknown model: 'm' version {version} is not found")

    def is_model_ready(self, name, version=""):
        return self.model_ready and name == "m" and version in ("", "1")

    def served(self, name, version=""):
        self._known(name, version)
        return SimpleNamespace(is_decoupled=self.decoupled)

    def server_metadata(self):
        return ServerMetadata("triton", "1.0", ["statistics"])

    def model_metadata(self, name, version=""):
        self._known(name, version)
        return ModelMetadata("m", ["1"], "python", [A], [A])

    def model_config(self, name, version=""):
        self._known(name, version)
        return ModelConfig(name="m", max_batch_size=8)

    def statistics_in_slices(self, name="", version=""):
        if name not in ("", "m"):
            raise invalid_argument(f"requested model '{name}' is not available")
        return iterated([VersionStatistics("m", version or "1")])

    def repository_index(self, ready_only=False):
        rows = [IndexEntry("m", "1", ModelState.READY)]
        return rows if ready_only else [*rows, IndexEntry("other")]

    survey_repository = repository_index

    def load_model(self, name, parameters, *, is_owner=True):
        raise unavailable(CONTROL)

    unload_model = load_model

    def answer(self, **more):
        request = self.submitted.pop(0)
        outputs = [TensorSpec("OUT", spec.datatype, spec.shape) for spec in request.header.inputs]
        data = () if "error" in more else request.data
        header = ResponseHeader("m", "1", outputs if data else ())
        request.on_response(request, InferResponse(header, data, **more))


def iterated(result):
    yield
    return result


class Exchange:
    client = None
    query = ""

    def __init__(self, method, path, body, headers):
        self.method, self.path, self.body, self.headers = method, path, body, headers
        self.arrival_ns = 5
        self.on_disconnect = None
        self.answers = []

    def respond(self, status, headers, parts):
        self.on_disconnect = None
        self.answers.append((status, dict(headers), b"".join(parts)))


@pytest.fixture
def server():
    engine = Engine()
    router = RestApi(engine).router()

    def call(method, path, body=b"", **headers):
        fields = {name.replace("_", "-").encode(): value for name, value in headers.items()}
        context = Exchange(method, path, body, fields)
        router.handle(context)
        return context

    def ask(*arguments, **headers):
        ((status, _, body),) = call(*arguments, **headers).answers
        return status, json.loads(body) if body else None

    return types.SimpleNamespace(engine=engine, call=call, ask=ask)


def infer_body(**changes):
    entry = {"name": "A", "shape": [1, 2], "datatype": "FP32", "data": [1, 2], **changes}
    return json.dumps({"inputs": [entry]}).encode()


BINARY = b'{"inputs":[{"name":"A","shape":[1,1],"datatype":"FP32","parameters":{"binary_data_size":4}}],'
BINARY += b'"parameters":{"binary_data_output":true}}'


@pytest.mark.parametrize(
    ("method", "path", "status", "answer"),
    [
        ("GET", "/v2", 200, {"name": "triton", "version": "1.0", "extensions": ["statistics"]}),
        ("GET", "/v2/health/live", 200, None),
        ("GET", "/v2/health/ready", 200, None),
        ("HEAD", "/v2/health/ready", 200, None),
        ("GET", "/v2/models/m/ready", 200, None),
        ("GET", "/v2/models/m/versions/1/ready", 200, None),
        ("GET", "/v2/models/m/versions/001/ready", 200, None),
        ("GET", "/v2/models/z/ready", 400, {"error": "Model version not ready"}),
        ("GET", "/v2/models/z", 404, {"error": "Request for unknown model: 'z' is not found"}),
        ("GET", "/v2/models/m/versions/7", 404, {"error": "Request for unknown model: 'm' version 7 is not found"}),
        ("GET", "/v2/models/z/config", 404, {"error": "Request for unknown model: 'z' is not found"}),
        ("GET", "/v2/models/z/stats", 400, {"error": "requested model 'z' is not available"}),
        ("POST", "/v2/models/z/infer", 404, {"error": "Request for unknown model: 'z' is not found"}),
        ("POST", "/v2/repository/models/m/load", 503, {"error": CONTROL}),
        ("POST", "/v2/repository/models/m/unload", 503, {"error": CONTROL}),
        (
            "POST",
            "/v2/repository/r/models/m/load",
            501,
            {"error": "'repository_name' specification is not supported"},
        ),
        ("GET", "/other", 404, no_path("/other")),
        ("GET", "/v2/", 404, no_path("/v2/")),
        ("GET", "/v2/models/", 404, no_path("/v2/models/")),
        ("GET", "/v2/models//ready", 404, no_path("/v2/models//ready")),
        ("GET", "/v2/models/m/versions/x", 404, {"error": "Request for unknown model: 'm' version x is not found"}),
        ("GET", "/v2/models/m/versions/-1", 404, no_path("/v2/models/m/versions/-1")),
        ("GET", "/v2/health/ready/", 404, no_path("/v2/health/ready/")),
        ("POST", "/v2", 405, no_method("/v2", "GET, HEAD")),
        ("GET", "/v2/models/m/infer", 405, no_method("/v2/models/m/infer", "POST")),
        ("HEAD", "/v2/models/m/infer", 405, no_method("/v2/models/m/infer", "POST")),
        ("GET", "/v2/repository/index", 405, no_method("/v2/repository/index", "POST")),
    ],
)
def test_routes(server, method, path, status, answer):
    for _ in range(2):  # the second time from the cache of paths
        assert server.ask(method, path) == (status, answer)


def test_wrong_method_gets_allowed_methods(server):
    ((_, headers, _),) = server.call("POST", "/v2").answers
    assert headers[b"Allow"] == b"GET, HEAD"


def test_bodies_of_control_routes(server):
    assert server.ask("GET", "/v2/models/m")[1]["inputs"] == [{"name": "A", "datatype": "FP32", "shape": [-1, -1]}]
    assert server.ask("GET", "/v2/models/m/config")[1]["max_batch_size"] == 8
    assert server.ask("GET", "/v2/models/stats")[1]["model_stats"][0]["name"] == "m"
    assert server.ask("GET", "/v2/models/m/versions/1/stats")[1]["model_stats"][0]["version"] == "1"
    ready = {"name": "m", "version": "1", "state": "READY"}
    assert server.ask("POST", "/v2/repository/index") == (200, [ready, {"name": "other"}])
    assert server.ask("POST", "/v2/repository/index", b'{"ready":true}') == (200, [ready])
    assert server.ask("POST", "/v2/repository/r/index")[0] == 200
    assert server.ask("POST", "/v2/repository/index", b'{"ready":1}')[0] == 400
    assert server.ask("POST", "/v2/repository/models/m/load", b"{")[0] == 400


def test_health_says_no(server):
    server.engine.live = server.engine.ready = server.engine.model_ready = False
    assert server.ask("GET", "/v2/health/live") == (400, None)
    assert server.ask("GET", "/v2/health/ready") == (400, None)
    assert server.ask("GET", "/v2/models/m/ready") == (400, {"error": "Model version not ready"})


def test_draining_server_serves_but_rejects_commands(server):
    server.engine.phase.is_draining = True
    assert server.ask("GET", "/v2/health/ready") == (503, {"error": "Server exiting"})
    assert server.ask("POST", "/v2/repository/models/m/load") == (503, {"error": "Server not ready"})
    for path in ("/v2/health/live", "/v2/models/m", "/v2/models/m/config"):
        assert server.ask("GET", path)[0] == 200
    assert server.ask("POST", "/v2/repository/index")[0] == 200
    server.call("POST", "/v2/models/m/infer", infer_body())
    assert len(server.engine.submitted) == 1


def test_json_inference(server):
    context = server.call("POST", "/v2/models/m/versions/1/infer", infer_body())
    (request,) = server.engine.submitted
    assert (request.header.model_name, request.header.model_version, request.arrival_ns) == ("m", "1", 5)
    assert context.answers == []
    server.engine.answer()
    ((status, headers, body),) = context.answers
    assert (status, headers) == (200, {b"Content-Type": b"application/json"})
    assert json.loads(body)["outputs"] == [{"name": "OUT", "datatype": "FP32", "shape": [1, 2], "data": [1.0, 2.0]}]


def test_binary_inference(server):
    length = str(len(BINARY)).encode()
    for _ in range(2):
        context = server.call("POST", "/v2/models/m/infer", BINARY + b"abcd", inference_header_content_length=length)
        server.engine.answer()
        ((status, headers, body),) = context.answers
        assert status == 200
        assert headers[b"Content-Type"] == b"application/octet-stream"
        json_length = int(headers[b"Inference-Header-Content-Length"])
        assert json.loads(body[:json_length])["outputs"][0]["parameters"] == {"binary_data_size": 4}
        assert body[json_length:] == b"abcd"


@pytest.mark.parametrize("headers", [{"inference_header_content_length": b"0"}, {}])
def test_raw_inference(server, headers):
    body = struct.pack("<3f", 1, 2, 3) if headers else b""
    context = server.call("POST", "/v2/models/m/infer", body, **headers)
    (request,) = server.engine.submitted
    assert request.header.inputs[0].shape == (1, len(body) // 4)
    server.engine.answer()
    assert context.answers[0][0] == 200
    assert context.answers[0][2].endswith(body)


@pytest.mark.parametrize("media_type", [b"image/jpeg", b"Audio/wav", b"video/mp4; codecs=x"])
def test_media_are_raw_tensors(server, media_type):
    body = struct.pack("<3f", 1, 2, 3)
    server.call("POST", "/v2/models/m/infer", body, content_type=media_type)
    (request,) = server.engine.submitted
    assert (request.header.inputs[0].shape, bytes(request.data[0])) == ((1, 3), body)


def test_json_of_any_content_type_is_json(server):
    server.call("POST", "/v2/models/m/infer", infer_body(), content_type=b"application/octet-stream")
    assert server.engine.submitted[0].header.inputs[0].shape == (1, 2)


def test_raw_request_may_get_json_response(server):
    body = struct.pack("<2f", 1, 2)
    context = server.call("POST", "/v2/models/m/infer", body, content_type=b"image/x", accept=b"application/json")
    server.engine.answer()
    ((status, headers, answer),) = context.answers
    assert (status, headers) == (200, {b"Content-Type": b"application/json"})
    assert json.loads(answer)["outputs"][0]["data"] == [1, 2]


def test_json_request_may_get_binary_response(server):
    context = server.call("POST", "/v2/models/m/infer", infer_body(), accept=b"application/octet-stream")
    server.engine.answer()
    ((_, headers, answer),) = context.answers
    assert answer[int(headers[b"Inference-Header-Content-Length"]) :] == struct.pack("<2f", 1, 2)


def large_json(count=300_000):
    return infer_body(shape=[1, count], data=[1.5] * count)


def test_cost_of_large_json_is_reported_once_logged(server, caplog):
    caplog.set_level(logging.INFO)
    assert len(large_json()) > 1 << 20
    for _ in range(2):
        context = server.call("POST", "/v2/models/m/infer", large_json())
        server.engine.answer()
        (name, duration) = context.answers[0][1][b"Server-Timing"].split(b";dur=")
        assert (name, float(duration) > 0) == (b"decode", True)
    (line,) = [record.getMessage() for record in caplog.records if "of JSON took" in record.getMessage()]
    assert line.startswith("model 'm': decoding 1.5 MB of JSON took ")


def test_large_binary_bodies_get_no_cost_field(server):
    tail = bytes(1 << 21)
    text = BINARY.replace(b"[1,1]", b"[1,524288]").replace(b'"binary_data_size":4', b'"binary_data_size":2097152')
    length = str(len(text)).encode()
    for body, fields in (
        (text + tail, {"inference_header_content_length": length}),
        (tail, {"content_type": b"image/x"}),
    ):
        context = server.call("POST", "/v2/models/m/infer", body, **fields)
        server.engine.answer()
        assert (context.answers[0][0], b"Server-Timing" in context.answers[0][1]) == (200, False)


def test_large_body_waits_for_a_model_evicted_meanwhile():
    engine, turns, resumed = Engine(), [], []
    held = SimpleNamespace(hold=lambda cold, size, resume, refuse, **times: resumed.append(resume))
    config = engine.model_config

    def evicted(name, version=""):
        raise ColdModelError(held, name)

    route = InferRoute(engine, runner=SliceRunner(turns.append))
    for body, fields in ((large_json(), {}), (bytes(1 << 21), {b"content-type": b"image/x"})):
        context = Exchange("POST", "/v2/models/m/infer", body, fields)
        context.client = None  # of both: the second one waits for its turn
        route.handle(context, {"model": "m", "version": ""})
    engine.model_config = evicted
    while turns:
        turns.pop(0)()
    assert len(engine.submitted) == len(resumed) == 1
    engine.model_config = config
    resumed.pop()()
    while turns:
        turns.pop(0)()
    assert len(engine.submitted) == 2
    assert context.answers == []


def test_disconnect_cancels(server):
    context = server.call("POST", "/v2/models/m/infer", infer_body())
    context.on_disconnect(CancelReason.DISCONNECTED)
    assert server.engine.cancelled == server.engine.submitted


def failure(context):
    ((status, headers, body),) = context.answers
    return status, json.loads(body)["error"], headers[b"triton-request-id"].decode()


@pytest.fixture
def logged(monkeypatch):
    lines = []
    monkeypatch.setattr("naiad.frontend.failed_requests.log_request_failure", lambda **fields: lines.append(fields))
    return lines


def test_failure_is_logged_and_sent_with_same_id(server, logged):
    server.engine.rejection = invalid_argument("no")
    body = infer_body()[:-1] + b',"id":"r 1"}'
    context = server.call("POST", "/v2/models/m/infer", body)
    assert failure(context) == (400, "no", "r 1")
    (line,) = logged
    assert line["level"] == logging.WARNING
    assert (line["protocol"], line["request_id"], line["model"], line["version"]) == ("HTTP", "r 1", "m", "")
    assert line["error"] is server.engine.rejection


def test_failure_without_an_id_gets_one(server, logged):
    first = failure(server.call("POST", "/v2/models/z/infer", infer_body()))[2]
    second = failure(server.call("POST", "/v2/models/z/infer", infer_body()))[2]
    assert first != second
    assert [line["request_id"] for line in logged] == [first, second]


def test_id_of_undecodable_request_is_safe_in_header(server, logged):
    body = infer_body(shape=[-1])[:-1] + ',"id":"é\\r\\nX: 1"}'.encode()
    assert failure(server.call("POST", "/v2/models/m/infer", body))[2] == "%C3%A9%0D%0AX: 1"
    assert logged[0]["request_id"] == "é\r\nX: 1"


@pytest.mark.parametrize("letter", ["x", "é", "\N{ROCKET}"])
def test_long_id_is_truncated_in_header(server, letter):
    server.engine.rejection = invalid_argument("no")
    body = json.dumps({**json.loads(infer_body()), "id": letter * 300_000}).encode()
    context = server.call("POST", "/v2/models/m/infer", body)
    _, said, answered_id = failure(context)
    assert said == "no"
    assert unquote(answered_id) == letter * 200
    assert len(answered_id) < 4096


def test_failed_response_is_logged_and_answered(server, logged):
    context = server.call("POST", "/v2/models/m/infer", infer_body())
    server.engine.answer(error=InferError(ErrorCode.INTERNAL, "broke"))
    assert failure(context)[:2] == (500, "broke")
    assert [line["level"] for line in logged] == [logging.ERROR]


@pytest.mark.parametrize(("waits", "doing"), [(True, "it waited"), (False, "it was executed")])
def test_request_of_disconnected_client_is_logged_as_cancelled(server, logged, waits, doing):
    server.engine.waits = waits
    context = server.call("POST", "/v2/models/m/versions/1/infer", infer_body())
    context.on_disconnect(CancelReason.DISCONNECTED)
    server.engine.answer()
    assert not context.answers
    (line,) = logged
    assert (line["error"].code, line["version"], line["level"]) == (ErrorCode.CANCELLED, "1", logging.WARNING)
    assert line["error"].message == f"the client disconnected while {doing}"


def test_unavailable_response_has_retry_after(server):
    server.engine.rejection = unavailable("Exceeds maximum queue size")
    ((status, headers, _),) = server.call("POST", "/v2/models/m/infer", infer_body()).answers
    assert (status, headers[b"Retry-After"]) == (503, b"1")
    server.engine.rejection = invalid_argument("no")
    ((_, headers, _),) = server.call("POST", "/v2/models/m/infer", infer_body()).answers
    assert b"Retry-After" not in headers


def test_response_that_json_cannot_carry_is_a_failure(server, logged):
    text = BINARY.replace(b"FP32", b"FP16").replace(b'"binary_data_size":4', b'"binary_data_size":2')
    text = text.replace(b"true", b"false")
    length = str(len(text)).encode()
    context = server.call("POST", "/v2/models/m/infer", text + b"ab", inference_header_content_length=length)
    server.engine.answer()
    status, message, _ = failure(context)
    assert status == 400
    assert message.startswith("sending FP16 data via JSON is not supported")
    assert len(logged) == 1


def test_defect_of_a_response_is_a_failure(server, logged, caplog):
    context = server.call("POST", "/v2/models/m/infer", infer_body())
    (request,) = server.engine.submitted
    header = ResponseHeader("m", "1", [TensorSpec("OUT", DataType.FP64, (1,))])
    request.on_response(request, InferResponse(header, [b"123"]))  # no whole element
    assert failure(context)[:2] == (500, "internal error; see the server log")
    assert len(logged) == 1
    assert "encoding the response to request" in caplog.text


def test_decoupled_model_is_rejected(server, logged):
    server.engine.decoupled = True
    assert failure(server.call("POST", "/v2/models/m/infer", infer_body()))[:2] == (
        501,
        "HTTP end point doesn't support models with decoupled transaction policy",
    )


@pytest.mark.parametrize("coding", [b"br", b"gzip, identity", b"zstd"])
def test_body_of_unknown_coding_is_rejected(server, logged, coding):
    context = server.call("POST", "/v2/models/m/infer", infer_body(), content_encoding=coding)
    status, message, _ = failure(context)
    assert status == 501
    assert message == f"Unsupported compression type '{coding.decode()}'; use gzip, deflate or none"


@pytest.mark.parametrize("coding", [b"identity", b"Identity", b""])
def test_identity_is_no_compression(server, coding):
    context = server.call("POST", "/v2/models/m/infer", infer_body(), content_encoding=coding)
    server.engine.answer()
    assert context.answers[0][0] == 200


def test_log_of_failed_execution_has_executed_version(server, logged):
    server.call("POST", "/v2/models/m/infer", infer_body())
    server.engine.answer(error=InferError(ErrorCode.INTERNAL, "broke"))
    assert logged[0]["version"] == "1"


@pytest.mark.parametrize("length", [b"abc", b"12abc", b"", b"9" * 5000])
def test_json_length_that_is_no_number_is_rejected(server, logged, length):
    context = server.call("POST", "/v2/models/m/infer", infer_body(), inference_header_content_length=length)
    status, message, _ = failure(context)
    assert status == 400
    assert message.startswith("Unable to parse Inference-Header-Content-Length")


@pytest.mark.parametrize(
    ("method", "path", "status", "body"),
    [
        ("GET", "/metrics", 200, b"text"),
        ("HEAD", "/metrics", 200, b"text"),
        ("GET", "/other", 200, b"# metrics are at /metrics; models are served on other ports\n"),
        ("POST", "/metrics", 405, b'{"error":"Method Not Allowed"}'),
        ("POST", "/other", 405, b'{"error":"Method Not Allowed"}'),
    ],
)
def test_metrics_port(method, path, status, body):
    context = Exchange(method, path, b"", {})
    metrics_route(lambda context: respond_metrics(context, b"text"))(context)
    ((found_status, headers, found_body),) = context.answers
    assert (found_status, found_body) == (status, body)
    if status == 200:
        assert headers[b"Content-Type"] == b"text/plain; charset=utf-8"


def test_long_paths_are_not_remembered():
    lengths = []

    def act(context, arguments):
        lengths.append(len(arguments["model"]))

    router = Router([Route(r"/v2/models/(?P<model>[^/]+)/ready", "health", {"GET": act})])
    tracemalloc.start()
    try:
        for number in range(1000):
            path = f"/v2/models/{number:06d}{'n' * 8000}/ready"
            router.handle(types.SimpleNamespace(method="GET", path=path))
        kept_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert lengths == [8006] * 1000
    assert kept_bytes < 1_000_000
