"""Mode opentelemetry: spans as a collector gets them, of clients that take part in traces and of others."""

import itertools
import queue
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

from support.model_repository import write_identity, write_model
from support.otlp_collector import Collector, Span
from support.server_process import ServerProcess

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

FAILING = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse(error=pb_utils.TritonError("no luck")) for _ in requests]
"""
CONTEXT = """
import json
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            context = request.trace().get_context()
            text = np.array([[json.loads(context)["traceparent"] if context else "none"]], dtype=object)
            called = pb_utils.InferenceRequest(
                model_name="identity",
                inputs=[pb_utils.Tensor("INPUT0", np.ones((1, 4), np.float32))],
                requested_output_names=["OUTPUT0"],
                trace=request.trace(),
            ).exec()
            assert not called.has_error()
            response = pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor("OUTPUT0", text)])
            DECOUPLED
        return RETURN
"""
TENSORS = """
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
max_batch_size: 8
"""
CHAIN = (
    TENSORS
    + """
platform: "ensemble"
ensemble_scheduling { step [
  { model_name: "identity" model_version: -1 input_map { key: "INPUT0" value: "INPUT0" }
    output_map { key: "OUTPUT0" value: "between" } },
  { model_name: "identity" model_version: -1 input_map { key: "INPUT0" value: "between" }
    output_map { key: "OUTPUT0" value: "OUTPUT0" } }
] }
"""
)
TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PROTOCOLS = pytest.mark.parametrize(("module", "name"), [(httpclient, "HTTP"), (grpcclient, "GRPC")])


@pytest.fixture
def collector() -> Iterator[Collector]:
    opened = Collector()
    yield opened
    opened.close()


def write_repository(root: Path) -> Path:
    write_identity(root)
    write_model(root, "failing", 'backend: "python"' + TENSORS, {"1/model.py": FAILING})
    write_model(root, "chain", CHAIN)
    plain = CONTEXT.replace("DECOUPLED", "responses.append(response)").replace("RETURN", "responses")
    sent = "request.get_response_sender().send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)"
    decoupled = CONTEXT.replace("DECOUPLED", sent).replace("RETURN", "None")
    texts = 'backend: "python"' + TENSORS.replace(
        '"OUTPUT0" data_type: TYPE_FP32', '"OUTPUT0" data_type: TYPE_STRING'
    )
    write_model(root, "context", texts, {"1/model.py": plain})
    streamed = texts + "model_transaction_policy { decoupled: true }"
    write_model(root, "streamed_context", streamed, {"1/model.py": decoupled})
    return root


@pytest.fixture
def start(start_server, tmp_path: Path, collector: Collector):
    def started(*more: str, rate: int = 1, wait: bool = True) -> ServerProcess:
        running = start_server(
            write_repository(tmp_path / "models"),
            "--trace-config=mode=opentelemetry",
            "--trace-config=level=TIMESTAMPS",
            f"--trace-config=rate={rate}",
            f"--trace-config=opentelemetry,url={collector.address}",
            "--trace-config=opentelemetry,bsp_schedule_delay=50",
            *more,
        )
        running.wait_ready()
        return running

    return started


def client_of(module, running: ServerProcess):
    return module.InferenceServerClient(running.http_url if module is httpclient else running.grpc_url)


def infer(module, client, model: str = "identity", request_id: str = "", headers: dict | None = None):
    made = module.InferInput("INPUT0", [1, 4], "FP32")
    made.set_data_from_numpy(np.ones((1, 4), np.float32))
    return client.infer(model, [made], request_id=request_id, headers=headers)


def traceparent(flags: str = "01", trace: str = TRACE) -> dict[str, str]:
    return {"traceparent": f"00-{trace}-{CALLER}-{flags}"}


def named(spans, name: str) -> Span:
    (found,) = [span for span in spans if span.name == name]
    return found


@PROTOCOLS
def test_a_request_is_three_spans(start, collector: Collector, module, name: str) -> None:
    running = start()
    before_ns = time.time_ns()
    with client_of(module, running) as client:
        infer(module, client, request_id="one")
    spans = collector.trace_of("one")
    root, model, compute = (named(spans, each) for each in ("InferRequest", "identity", "compute"))
    assert len(spans) == 3
    assert (root.parent, model.parent, compute.parent) == ("", root.id, model.id)
    assert collector.paths == {"/v1/traces"}
    assert model.attributes == {
        "triton.model_name": "identity",
        "triton.model_version": 1,
        "triton.trace_id": 1,
        "triton.trace_parent_id": 0,
        "triton.request_id": "one",
    }
    receiving = (
        ["HTTP_RECV_START", "HTTP_RECV_END"] if name == "HTTP" else ["GRPC_WAITREAD_START", "GRPC_WAITREAD_END"]
    )
    assert [event for event, _ in root.events] == [*receiving, f"{name}_SEND_START", f"{name}_SEND_END"]
    assert [event for event, _ in model.events] == [
        *("REQUEST_START", "QUEUE_START", "INFER_RESPONSE_COMPLETE", "REQUEST_END")
    ]
    assert [event for event, _ in compute.events] == [
        *("COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END")
    ]
    assert before_ns - 10**9 < root.start_ns <= model.start_ns <= compute.start_ns
    assert compute.start_ns <= compute.end_ns <= model.end_ns <= root.end_ns < time.time_ns() + 10**9
    for span in spans:
        assert span.kind == 2  # SERVER
        times = [at for _, at in span.events]
        assert times == sorted(times)
        assert span.start_ns <= times[0]
        assert times[-1] <= span.end_ns
        assert span.resource["service.name"] == "triton-inference-server"


@PROTOCOLS
def test_traced_client_is_parent_at_any_rate(start, collector: Collector, module, name: str) -> None:
    running = start(rate=0)
    with client_of(module, running) as client:
        infer(module, client, request_id="untraced")
        infer(module, client, request_id="unrecorded", headers=traceparent("00"))
        infer(module, client, request_id="malformed", headers={"traceparent": "00-123-456-01"})
        infer(module, client, request_id="traced", headers={**traceparent(), "tracestate": "vendor=x"})
    spans = collector.trace_of("traced")
    root = named(spans, "InferRequest")
    assert {span.trace_id for span in spans} == {TRACE}
    assert root.parent == CALLER
    assert {span.state for span in spans} == {"vendor=x"}
    running.signal()
    assert running.wait_exit() == 0
    assert len(collector.spans) == 3


def test_streams_and_generate_take_part(start, collector: Collector) -> None:
    running = start(rate=0)
    answers: queue.Queue = queue.Queue()
    with client_of(grpcclient, running) as client:
        client.start_stream(lambda result, error: answers.put(error), headers=traceparent())
        made = grpcclient.InferInput("INPUT0", [1, 4], "FP32")
        made.set_data_from_numpy(np.ones((1, 4), np.float32))
        for number in range(3):
            client.async_stream_infer("identity", [made], request_id=f"stream {number}")
        assert [answers.get(timeout=60) for _ in range(3)] == [None] * 3
    other = "1" * 32
    for path in ("generate", "generate_stream"):
        body = b'{"id":"%s","INPUT0":[1.0,2.0]}' % path.encode()
        assert running.request("POST", f"/v2/models/identity/{path}", body, traceparent(trace=other)).status == 200
    spans = collector.wait(lambda spans: len(spans) == 15)
    assert [span.trace_id for span in spans].count(TRACE) == 9
    assert [span.trace_id for span in spans].count(other) == 6
    assert {span.parent for span in spans if span.name == "InferRequest"} == {CALLER}


def test_steps_of_an_ensemble_lie_in_it(start, collector: Collector) -> None:
    running = start()
    with client_of(grpcclient, running) as client:
        infer(grpcclient, client, "chain", "whole", headers=traceparent())
    spans = collector.wait(lambda spans: len(spans) == 6)
    assert {span.trace_id for span in spans} == {TRACE}
    root, whole = named(spans, "InferRequest"), named(spans, "chain")
    assert (root.parent, whole.parent) == (CALLER, root.id)
    steps = [span for span in spans if span.name == "identity"]
    assert [step.parent for step in steps] == [whole.id] * 2
    assert {step.attributes["triton.trace_parent_id"] for step in steps} == {whole.attributes["triton.trace_id"]}
    assert sorted(span.parent for span in spans if span.name == "compute") == sorted(step.id for step in steps)


@pytest.mark.parametrize("model", ["context", "streamed_context"])
def test_models_go_on_with_the_trace(start, collector: Collector, model: str) -> None:
    running = start(rate=0)
    answers: queue.Queue = queue.Queue()
    with client_of(grpcclient, running) as client:
        for headers in ({}, traceparent()):
            client.start_stream(lambda result, error: answers.put((result, error)), headers=headers)
            made = grpcclient.InferInput("INPUT0", [1, 4], "FP32")
            made.set_data_from_numpy(np.ones((1, 4), np.float32))
            client.async_stream_infer(model, [made])
            result, error = answers.get(timeout=60)
            assert error is None
            (seen,) = result.as_numpy("OUTPUT0").ravel()
            client.stop_stream()
            if not headers:
                assert seen == b"none"
    # The execution of a decoupled model has no end of its own.
    spans = collector.wait(lambda spans: len(spans) == (5 if model == "context" else 4))
    own, called = named(spans, model), named(spans, "identity")
    assert seen.decode() == f"00-{TRACE}-{own.id}-01"
    assert called.parent == own.id
    assert {span.trace_id for span in spans} == {TRACE}


def test_failure_is_recorded(start, collector: Collector) -> None:
    running = start()
    with client_of(httpclient, running) as client, pytest.raises(InferenceServerException, match="no luck"):
        infer(httpclient, client, "failing", "bad")
    spans = collector.trace_of("bad")
    assert "no luck" in named(spans, "failing").error
    assert "no luck" in named(spans, "InferRequest").error
    assert named(spans, "compute").error == ""


def test_rate_resource_and_batches(start, collector: Collector) -> None:
    running = start(
        "--trace-config=opentelemetry,resource=service.name=mine",
        "--trace-config=opentelemetry,resource=zone=a=b",
        "--trace-config=opentelemetry,bsp_schedule_delay=60000",
        "--trace-config=opentelemetry,bsp_max_queue_size=200",
        "--trace-config=opentelemetry,bsp_max_export_batch_size=4",
        rate=5,
    )
    with client_of(grpcclient, running) as client:
        for _ in range(20):
            infer(grpcclient, client)
        settings = client.get_trace_settings(as_json=True)["settings"]
        assert settings["trace_mode"]["value"] == ["opentelemetry"]
        changed = client.update_trace_settings(settings={"trace_rate": "0"}, as_json=True)["settings"]
        assert changed["trace_rate"]["value"] == ["0"]
        for _ in range(20):
            infer(grpcclient, client)
    # A full batch does not wait for its time; the rest is sent when the server ends.
    collector.wait(lambda spans: len(spans) >= 4)
    running.signal()
    assert running.wait_exit() == 0
    assert len(collector.spans) == 12
    assert max(collector.batch_sizes) <= 4
    assert {(span.resource["service.name"], span.resource["zone"]) for span in collector.spans} == {("mine", "a=b")}


def test_the_environment_counts_where_flags_say_nothing(start_server, tmp_path: Path, collector: Collector) -> None:
    running = start_server(
        write_repository(tmp_path / "models"),
        "--trace-config=mode=opentelemetry",
        "--trace-config=level=TIMESTAMPS",
        "--trace-config=rate=1",
        environment={
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"http://{collector.address}",
            "OTEL_RESOURCE_ATTRIBUTES": "service.name=from-outside",
            "OTEL_BSP_SCHEDULE_DELAY": "50",
        },
    )
    running.wait_ready()
    with client_of(httpclient, running) as client:
        infer(httpclient, client, request_id="one")
    assert {span.resource["service.name"] for span in collector.trace_of("one")} == {"from-outside"}


def test_every_process_sends_its_spans(start, collector: Collector) -> None:
    running = start("--processes=2")
    for number in range(6):
        with client_of(httpclient, running) as client:
            infer(httpclient, client, request_id=f"r{number}")
    spans = collector.wait(lambda spans: len(spans) == 18)
    assert len({span.trace_id for span in spans}) == 6
    assert all(len(set(pair)) == 2 for pair in itertools.combinations((span.id for span in spans), 2))


def test_collector_that_is_not_there_costs_spans_alone(start_server, tmp_path: Path) -> None:
    running = start_server(
        write_repository(tmp_path / "models"),
        "--trace-config=mode=opentelemetry",
        "--trace-config=level=TIMESTAMPS",
        "--trace-config=rate=1",
        "--trace-config=opentelemetry,url=127.0.0.1:1/v1/traces",
        "--trace-config=opentelemetry,bsp_schedule_delay=20",
    )
    running.wait_ready()
    with client_of(httpclient, running) as client:
        for _ in range(50):
            infer(httpclient, client)
    running.signal()
    assert running.wait_exit() == 0


def test_without_extra_server_says_what_to_install(start_server, tmp_path: Path) -> None:
    hidden = tmp_path / "hidden" / "opentelemetry"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text("raise ImportError('hidden')")
    # The source must still be found behind it.
    paths = f"{hidden.parent}:{Path(__file__).resolve().parents[2] / 'src'}"
    running = start_server(
        write_repository(tmp_path / "models"),
        "--trace-config=mode=opentelemetry",
        environment={"PYTHONPATH": paths},
    )
    assert running.wait_exit() == 1
    assert "pip install 'naiad[otel]'" in running.log_text()
