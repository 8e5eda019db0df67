"""One call of `/v1/completions` or `/v1/chat/completions`: a request to the model for each choice."""

import time
import uuid
from collections.abc import Sequence

from naiad.core.errors import InferError, internal
from naiad.core.request import InferRequest
from naiad.core.response import InferResponse
from naiad.engine.engine import Engine
from naiad.frontend import failed_requests
from naiad.frontend.context import CancelReason, HttpContext, encoding_error
from naiad.frontend.header_forwarding import HeaderForwarding, TraceFields, fields_of_context
from naiad.frontend.reply_headers import JSON_HEADERS
from naiad.frontend.rest.openai.served_models import OpenAiModel
from naiad.frontend.rest.stream import EVENTS, StreamedInference
from naiad.protocol.json.response import as_event
from naiad.protocol.openai.completion_reply import DONE, ReplyForm
from naiad.protocol.openai.completion_request import GenerationRequest
from naiad.protocol.openai.generation_tensors import (
    MAX_EXTRA_BYTES,
    Choice,
    generation_header,
    generation_tensors,
    token_limit,
    too_many_extras,
)
from naiad.protocol.openai.openai_error import encode_openai_error
from naiad.protocol.status_table import status_of
from naiad.wire.header_fields import written_fields

MAX_TEXT_CHARACTERS = 4 << 20
"""Limit of the text of a response that is not streamed."""


class GenerationCall:
    """Receives the responses of all choices. The first error ends the call, and cancels what still runs."""

    protocol = "HTTP"  # for traces
    transport = "openai"  # for recordings

    def __init__(
        self, context: HttpContext, engine: Engine, model: OpenAiModel, reference: str, asked: GenerationRequest
    ) -> None:
        """`reference` is the model as the client names it."""
        self._context = context
        self._engine = engine
        self._model = model
        self._asked = asked
        name = f"{'chatcmpl' if asked.is_chat else 'cmpl'}-{uuid.uuid4().hex}"
        self._form = ReplyForm(asked.is_chat, name, int(time.time()), reference)
        limit = token_limit(model.mapping, model.inputs, model.optional, asked.sampling)
        # New tokens begin behind a prompt that is repeated.
        offsets = [len(prompt) if asked.echo else 0 for prompt in asked.prompts for _ in range(asked.choice_count)]
        logprob_count = int(asked.sampling.get("logprobs", 0))
        self._choices = [
            Choice(index, model.mapping, asked.stops, limit, text_offset=offset, logprob_count=logprob_count)
            for index, offset in enumerate(offsets)
        ]
        self._texts: list[list[str]] = [[] for _ in self._choices]
        self._character_count = 0
        self._open: dict[InferRequest, Choice] = {}
        """The requests whose choices have not ended."""
        self._begun: set[int] = set()
        """Choices that have a first chunk."""
        self._has_begun = False
        self._is_over = False

    def start(self, forwarding: HeaderForwarding | None) -> None:
        """Submit the requests. Raises InferError if one is refused; then none is left."""
        requests = [self._request(choice, forwarding) for choice in self._choices]
        self._open = dict(zip(requests, self._choices, strict=True))
        self._context.on_disconnect = self._abandon
        self._context.on_pause = self._set_paused
        submitted_count = 0
        try:
            for request in requests:
                if self._is_over:
                    return
                self._engine.inference.submit(request)
                submitted_count += 1
        except InferError as error:
            self._cancel([each for each in self._stop() if each.model is not None])
            if submitted_count:
                raise error.of_part() from None
            raise

    def _request(self, choice: Choice, forwarding: HeaderForwarding | None) -> InferRequest:
        asked, model = self._asked, self._model
        prompt_index, repetition = divmod(choice.index, asked.choice_count)
        sampling = dict(asked.sampling)
        if "seed" in sampling and repetition:  # With one seed all choices would be equal.
            sampling["seed"] = min(sampling["seed"] + repetition, (1 << 63) - 1)
        prompt = asked.prompts[prompt_index]
        specs, data, parameters = generation_tensors(
            model.mapping, model.inputs, model.optional, prompt, sampling, stream=asked.stream, is_chat=asked.is_chat
        )
        header = generation_header(model.name, model.version, specs, parameters)
        if forwarding is not None:
            header = forwarding.apply(header, written_fields(self._context.headers))
        request_id = self._form.id if len(self._choices) == 1 else f"{self._form.id}-{choice.index}"
        context = self._context
        return StreamedInference(
            header, data, self.take, id=request_id, arrival_ns=context.arrival_ns, context=context
        )

    def trace_fields(self, request: InferRequest) -> TraceFields:
        """Return the trace fields of a request."""
        return fields_of_context(self._context)

    # --- responses --------------------------------------------------------------------------------------------------

    def take(self, request: InferRequest, response: InferResponse) -> None:
        """Take one response of one choice."""
        choice = self._open.get(request)
        if self._is_over or choice is None:
            return
        error = response.error
        if error is None:
            try:
                text = "" if response.empty_final else choice.take(response)
                if response.final:
                    text += choice.text.end()
                self._add(choice, text)
            except Exception as unfit:
                error = encoding_error(unfit, request)
        if error is not None:
            if not response.final:  # The response does not fit; the model would go on.
                self._engine.inference.cancel(request)
            self._fail(request, error)
        elif response.final or choice.text.is_stopped:
            self._end_choice(request, choice)
            if not response.final:
                self._engine.inference.cancel(request)

    def _add(self, choice: Choice, text: str) -> None:
        if self._asked.echo and choice.index not in self._begun:
            text = self._asked.prompts[choice.index // self._asked.choice_count] + text
        if self._asked.stream:
            self._begin_choice(choice)
            chunk = self._form.chunk(choice, text)
            if chunk is not None:
                self._send(chunk)
            return
        self._begun.add(choice.index)
        self._character_count += len(text)
        if self._character_count > MAX_TEXT_CHARACTERS:
            raise internal(f"the text has more than {MAX_TEXT_CHARACTERS} characters; ask for it with 'stream': true")
        if sum(each.extra_bytes for each in self._choices) > MAX_EXTRA_BYTES:
            raise too_many_extras()
        self._texts[choice.index].append(text)

    def _begin_choice(self, choice: Choice) -> None:
        if choice.index not in self._begun:
            self._begun.add(choice.index)
            first = self._form.first(choice.index)
            if first is not None:
                self._send(first)

    def _end_choice(self, request: InferRequest, choice: Choice) -> None:
        del self._open[request]
        if self._asked.stream:
            self._send(self._form.last(choice))
        if not self._open:
            self._finish()

    def _finish(self) -> None:
        self._is_over = True
        self._context.on_disconnect = self._context.on_pause = None
        prompt_count = len(self._asked.prompts)
        if not self._asked.stream:
            texts = ["".join(pieces) for pieces in self._texts]
            self._context.respond(200, JSON_HEADERS, (self._form.body(texts, self._choices, prompt_count),))
            return
        if self._asked.include_usage:
            self._send(self._form.usage_chunk(self._choices, prompt_count))
        self._context.send((DONE,))
        self._context.end()

    def _send(self, chunk: bytes) -> None:
        if not self._has_begun:
            self._has_begun = True
            self._context.start_stream(200, EVENTS.headers)
        self._context.send(as_event((chunk,)))

    # --- early ends -------------------------------------------------------------------------------------------------

    def _fail(self, request: InferRequest, error: InferError) -> None:
        others = self._stop(but=request)
        model, version = request.header.model_name, request.header.model_version
        self._cancel(others)
        if len(self._choices) > 1:
            error = error.of_part()
        if not self._has_begun:
            failed_requests.respond(self._context, request.id, model, version, error)
            return
        _, message = failed_requests.log("HTTP", request.id, model, version, error)
        self._send(encode_openai_error(status_of(error).http, message, error))
        self._context.end()

    def _abandon(self, why: CancelReason) -> None:
        requests = self._stop()
        self._cancel(requests[1:])
        if requests:
            failed_requests.abandon(self._engine, requests[0], why)

    def _stop(self, but: InferRequest | None = None) -> Sequence[InferRequest]:
        """Take no more responses, and return the requests that still run."""
        self._is_over = True
        requests = [request for request in self._open if request is not but]
        self._open.clear()
        self._texts.clear()
        self._context.on_disconnect = self._context.on_pause = None
        return requests

    def _cancel(self, requests: Sequence[InferRequest]) -> None:
        for request in requests:
            self._engine.inference.cancel(request)

    def _set_paused(self, is_paused: bool) -> None:
        for request in self._open:
            request.is_paused = is_paused
