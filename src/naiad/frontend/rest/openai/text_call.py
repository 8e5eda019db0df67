"""One call of `/v1/embeddings` or `/v1/rerank`: its texts in batches, of which some are with the model at a time."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

from naiad.config.openai_mapping import OpenAiMapping
from naiad.core.errors import InferError, cause_of, internal
from naiad.core.request import InferRequest
from naiad.core.response import InferResponse
from naiad.engine.engine import Engine
from naiad.frontend import failed_requests
from naiad.frontend.context import CancelReason, HttpContext, encoding_error
from naiad.frontend.header_forwarding import HeaderForwarding, TraceFields, fields_of_context
from naiad.frontend.long_work.thread_pool import RunInThread
from naiad.frontend.reply_headers import JSON_HEADERS
from naiad.frontend.rest.openai.served_models import OpenAiModel
from naiad.protocol.openai.embedding import (
    MAX_NUMBERS,
    Vectors,
    batches_of,
    embedding_header,
    embedding_tensor,
    tokens_of,
    vectors_of,
)
from naiad.telemetry.logs.log import new_request_id
from naiad.wire.header_fields import written_fields

if TYPE_CHECKING:
    from naiad.engine.serving.served import TokenCounter

MAX_REQUESTS = 16
"""Requests of one call that are with the model at a time: the texts of other clients come between."""
_SHORT_NUMBERS = 16384
"""Up to as many numbers are encoded on the event loop, in a millisecond or two."""


class TextRequest(Protocol):
    """What a client asks: texts for a model that returns numbers, and what becomes of these."""

    @property
    def texts(self) -> Sequence[str]:
        """The texts of the model's first input."""

    def columns(self, mapping: OpenAiMapping) -> Mapping[str, Sequence[str]]:
        """Return the texts of each input, as many as `texts`."""

    def encode(self, parts: Sequence[Vectors], model: str, prompt_tokens: int | None) -> bytes:
        """Return the body of a response: `parts` are the rows of all batches. Raises InferError."""


class TextCall:
    """Receives the vectors of all batches. The first error ends the call, and cancels what still runs."""

    protocol = "HTTP"  # for traces
    transport = "openai"  # for recordings

    def __init__(
        self, context: HttpContext, engine: Engine, model: OpenAiModel, reference: str, asked: TextRequest
    ) -> None:
        """`reference` is the model as the client names it."""
        self._context = context
        self._engine = engine
        self._model = model
        self._reference = reference
        self._asked = asked
        self._id = new_request_id()
        declared = model.inputs[model.mapping.input]
        self._batches = batches_of(asked.texts, declared, model.config.max_batch_size)
        self._waiting: deque[InferRequest] = deque()
        self._positions: dict[InferRequest, int] = {}
        """The requests that are with the model, and their batches."""
        self._vectors: dict[int, Vectors] = {}
        self._number_count = 0
        self._tokens: int | None = 0
        """As the model says; None if it does not."""
        self._counters: dict[int, TokenCounter | None] = {}
        """By the positions of batches: what counts tokens for the version that has read the batch."""
        self._run_in_thread: RunInThread | None = None
        self._is_over = False

    def start(self, forwarding: HeaderForwarding | None, run_in_thread: RunInThread) -> None:
        """Submit the first requests; the next ones follow. Raises InferError if one is refused."""
        self._run_in_thread = run_in_thread
        for columns in self._parts():
            tensors = [embedding_tensor(self._model.inputs[name], texts) for name, texts in columns.items()]
            specs, data = zip(*tensors, strict=True)
            header = embedding_header(self._model.name, self._model.version, specs)
            if forwarding is not None:
                header = forwarding.apply(header, written_fields(self._context.headers))
            self._waiting.append(
                InferRequest(header, data, self.take, id=self._id, arrival_ns=self._context.arrival_ns)
            )
        self._context.on_disconnect = self._abandon
        for _ in range(min(MAX_REQUESTS, len(self._waiting))):
            self._submit_next()

    def _parts(self) -> Iterator[Mapping[str, Sequence[str]]]:
        """Yield the texts of each input, batch by batch."""
        columns = self._asked.columns(self._model.mapping)
        start = 0
        for batch in self._batches:
            end = start + len(batch)
            yield {name: texts[start:end] for name, texts in columns.items()}
            start = end

    def _submit_next(self) -> None:
        if self._is_over or not self._waiting:
            return
        request = self._waiting.popleft()
        position = self._positions[request] = len(self._batches) - len(self._waiting) - 1
        try:
            self._engine.inference.submit(request)
        except InferError as error:
            del self._positions[request]
            self._cancel(self._stop())
            if position:
                raise error.of_part() from None
            raise

    def trace_fields(self, request: InferRequest) -> TraceFields:
        """Return the trace fields of a request."""
        return fields_of_context(self._context)

    def take(self, request: InferRequest, response: InferResponse) -> None:
        """Take the vectors of one batch."""
        position = self._positions.get(request)
        if self._is_over or position is None:
            return
        error = response.error
        try:
            if error is None and not response.empty_final:
                self._add(position, request, response)
            if error is None and response.final:
                del self._positions[request]
                if position not in self._vectors:
                    error = internal(f"model '{self._model.name}' has returned no vectors")
                else:
                    self._submit_next()
        except Exception as unfit:
            error = encoding_error(unfit, request)
        if error is not None:
            self._positions.pop(request, None)
            if not response.final:  # The response does not fit; the model would go on.
                self._engine.inference.cancel(request)
            self._fail(request, error)
        elif response.final and not self._positions and not self._is_over:
            self._finish()

    def _add(self, position: int, request: InferRequest, response: InferResponse) -> None:
        mapping = self._model.mapping
        vectors = vectors_of(response, mapping, len(self._batches[position]))
        self._number_count += vectors.size
        if self._number_count > MAX_NUMBERS:
            raise internal(f"the vectors have more than {MAX_NUMBERS} numbers; send fewer texts")
        self._vectors[position] = vectors
        if mapping.tokenizer:
            self._counters[position] = request.model.token_counter
            return
        tokens = tokens_of(response, mapping)
        self._tokens = None if tokens is None or self._tokens is None else self._tokens + tokens

    def _finish(self) -> None:
        self._is_over = True
        parts = [self._vectors[position] for position in range(len(self._batches))]
        work = partial(self._encode, parts)
        self._context.on_disconnect = None
        is_long = self._number_count > _SHORT_NUMBERS or bool(self._counters)
        if is_long and self._run_in_thread is not None:
            self._run_in_thread(work, self._respond, self._respond_error)
            return
        try:
            body = work()
        except InferError as error:
            self._respond_error(error)
        else:
            self._respond(body)

    def _encode(self, parts: Sequence[Vectors]) -> bytes:
        """Return the body of the response; tokens are counted here if the model does not."""
        if self._model.mapping.tokenizer:
            self._tokens = self._counted()
        return self._asked.encode(parts, self._reference, self._tokens)

    def _counted(self) -> int | None:
        total = 0
        for position, columns in enumerate(self._parts()):
            counter = self._counters[position]
            if counter is None:
                return None
            total += counter.count(*columns.values())
        return total

    def _respond(self, body: bytes) -> None:
        self._context.respond(200, JSON_HEADERS, (body,))

    def _respond_error(self, error: Exception) -> None:
        known = error if isinstance(error, InferError) else internal(cause_of(error))
        failed_requests.respond(self._context, self._id, self._model.name, self._model.version, known)

    # --- early ends -------------------------------------------------------------------------------------------------

    def _fail(self, request: InferRequest, error: InferError) -> None:
        self._cancel(self._stop())
        self._respond_error(error if len(self._batches) == 1 else error.of_part())

    def _abandon(self, why: CancelReason) -> None:
        requests = self._stop()
        self._cancel(requests[1:])
        if requests:
            failed_requests.abandon(self._engine, requests[0], why)

    def _stop(self) -> Sequence[InferRequest]:
        """Take no more responses, and return the requests that still run."""
        self._is_over = True
        requests = list(self._positions)
        self._positions.clear()
        self._waiting.clear()
        self._vectors.clear()
        self._context.on_disconnect = None
        return requests

    def _cancel(self, requests: Sequence[InferRequest]) -> None:
        for request in requests:
            self._engine.inference.cancel(request)
