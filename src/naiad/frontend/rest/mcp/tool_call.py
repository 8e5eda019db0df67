"""One call of a model that takes tensors: its responses become the result of the tool."""

from collections.abc import Sequence
from functools import partial

from naiad.core.errors import InferError, wrong_request
from naiad.core.request import InferRequest, RequestHeader
from naiad.core.response import InferResponse
from naiad.core.tensor import Buffer
from naiad.engine.engine import Engine
from naiad.frontend import failed_requests
from naiad.frontend.context import CancelReason, encoding_error
from naiad.frontend.header_forwarding import TraceFields, fields_of_context
from naiad.frontend.rest.mcp.tool_reply import ToolReply
from naiad.protocol.mcp.sequence_arguments import in_sequence
from naiad.protocol.mcp.tool_result import (
    MAX_RESULT_BYTES,
    encode_outputs,
    outputs_as_json,
    outputs_result,
    responses_result,
    text_of,
)

_PROGRESS_CHARACTERS = 1024


class ToolCall:
    """Receives the responses of one request; `rest.generate` decodes and submits it."""

    protocol = "HTTP"  # for traces
    transport = "mcp"  # for recordings

    def __init__(self, reply: ToolReply, engine: Engine, *, is_decoupled: bool, in_sequence: bool) -> None:
        """With `in_sequence`, the arguments name a sequence."""
        self._reply = reply
        self._engine = engine
        self._is_decoupled = is_decoupled
        self._in_sequence = in_sequence
        self._encoded: list[bytes] = []
        self._texts: list[str | None] = []
        self._byte_count = 0
        self._is_over = False

    def new_request(self, header: RequestHeader, data: Sequence[Buffer], request_id: str) -> InferRequest:
        """Return the request whose responses this takes. Raises InferError for a wrong sequence."""
        if self._in_sequence:
            header = in_sequence(header)
        return InferRequest(header, data, self.take, id=request_id, arrival_ns=self._reply.arrival_ns)

    def watch(self, request: InferRequest, engine: Engine) -> None:
        """Cancel the request when its client disconnects."""
        self._reply.on_disconnect = partial(self._abandon, request)

    def trace_fields(self, request: InferRequest) -> TraceFields:
        """Return the trace fields of a request."""
        return fields_of_context(self._reply)

    def take(self, request: InferRequest, response: InferResponse) -> None:
        """Keep a response, and send the result when the final one arrives."""
        if self._is_over:
            return
        error = response.error
        if error is None and not response.empty_final:
            try:
                self._add(request, response)
            except Exception as unfit:
                error = encoding_error(unfit, request)
        if error is not None:
            self._fail(request, response, error)
        elif response.final:
            self._finish(request, response)

    def _add(self, request: InferRequest, response: InferResponse) -> None:
        labels = {} if request.model is None else request.model.labels
        outputs = outputs_as_json(response, labels)
        encoded, text = encode_outputs(outputs), text_of(outputs)
        self._byte_count += len(encoded)
        if self._byte_count > MAX_RESULT_BYTES:
            raise wrong_request(f"the responses have more than {MAX_RESULT_BYTES} bytes; use generate_stream")
        self._encoded.append(encoded)
        self._texts.append(text)
        if self._is_decoupled:
            self._reply.show_progress(len(self._encoded), (text or "")[:_PROGRESS_CHARACTERS])

    def _finish(self, request: InferRequest, response: InferResponse) -> None:
        self._is_over = True
        if self._is_decoupled:
            self._reply.finish(responses_result(self._encoded, self._texts))
        elif self._encoded:
            self._reply.finish(outputs_result(self._encoded[0], self._texts[0]))
        else:
            self._fail(request, response, wrong_request("the model has sent no response"))

    def _fail(self, request: InferRequest, response: InferResponse, error: InferError) -> None:
        self._is_over = True
        if not response.final:
            self._engine.inference.cancel(request)
        header = request.header
        failed_requests.respond(self._reply, request.id, header.model_name, response.header.model_version, error)

    def _abandon(self, request: InferRequest, why: CancelReason) -> None:
        self._is_over = True
        failed_requests.abandon(self._engine, request, why)
