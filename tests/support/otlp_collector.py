"""A collector of OpenTelemetry traces: OTLP over HTTP, as protobuf."""

import gzip
import threading
import time
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


class Span:
    """One span that was received, with the attributes of its resource."""

    def __init__(self, span: Any, resource: dict[str, object]) -> None:
        self.name = span.name
        self.trace_id = span.trace_id.hex()
        self.id = span.span_id.hex()
        self.parent = span.parent_span_id.hex()
        self.kind = span.kind
        self.start_ns, self.end_ns = span.start_time_unix_nano, span.end_time_unix_nano
        self.state = span.trace_state
        self.attributes = values(span.attributes)
        self.events = [(event.name, event.time_unix_nano) for event in span.events]
        self.error = span.status.message if span.status.code == 2 else ""
        self.resource = resource

    def __repr__(self) -> str:
        return f"{self.name} {self.id} in {self.parent or 'nothing'}: {self.attributes}"


class Collector:
    """Listens on a free port of the loopback until it is closed."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.batch_sizes: list[int] = []
        self.paths: set[str] = set()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                collector.take(self.path, ExportTraceServiceRequest.FromString(body))
                answer = ExportTraceServiceResponse().SerializeToString()
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    @property
    def address(self) -> str:
        """As a flag takes it, without a scheme."""
        return f"127.0.0.1:{self._server.server_port}/v1/traces"

    def take(self, path: str, request: ExportTraceServiceRequest) -> None:
        self.paths.add(path)
        for of_resource in request.resource_spans:
            resource = values(of_resource.resource.attributes)
            found = [Span(span, resource) for of_scope in of_resource.scope_spans for span in of_scope.spans]
            self.batch_sizes.append(len(found))
            self.spans += found

    def wait(self, condition: Callable[[Sequence[Span]], bool], timeout_s: float = 60.0) -> Sequence[Span]:
        """Return the spans as soon as they meet a condition."""
        deadline = time.monotonic() + timeout_s
        while not condition(list(self.spans)):
            assert time.monotonic() < deadline, self.spans
            time.sleep(0.02)
        return list(self.spans)

    def trace_of(self, request_id: str) -> Sequence[Span]:
        """Return the spans of the trace that a request is in, once its model's span has come."""
        spans = self.wait(lambda spans: any(span.attributes.get("triton.request_id") == request_id for span in spans))
        (trace_id,) = {span.trace_id for span in spans if span.attributes.get("triton.request_id") == request_id}
        return [span for span in spans if span.trace_id == trace_id]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(60)


def values(attributes: Any) -> dict[str, object]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}
