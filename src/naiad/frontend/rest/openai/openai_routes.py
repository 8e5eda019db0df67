"""The actions of the OpenAI API, below /v1."""

import time
from collections.abc import Callable, Mapping
from functools import partial

from naiad.core.errors import InferError, excerpt
from naiad.engine.engine import Engine
from naiad.frontend import failed_requests
from naiad.frontend.context import HttpContext, announced_bytes
from naiad.frontend.header_forwarding import HeaderForwarding
from naiad.frontend.long_work.thread_pool import RunInThread, run_at_once
from naiad.frontend.reply_headers import JSON_HEADERS
from naiad.frontend.rest.infer import MAX_INPUT_BYTES
from naiad.frontend.rest.openai.generation_call import GenerationCall
from naiad.frontend.rest.openai.served_models import OpenAiModels
from naiad.frontend.rest.openai.text_call import TextCall, TextRequest
from naiad.frontend.router import Action, respond_failure
from naiad.operations.openai import (
    CHAT_COMPLETIONS,
    COMPLETIONS,
    EMBEDDINGS,
    OPENAI_MODEL,
    OPENAI_MODELS,
    RERANK,
)
from naiad.operations.operation import AnyOperation
from naiad.protocol.openai.completion_request import GenerationRequest, read_chat, read_completion
from naiad.protocol.openai.embedding import read_embedding
from naiad.protocol.openai.members import BodyMembers, check_body_size, read_body
from naiad.protocol.openai.model_list import encode_model, encode_models
from naiad.protocol.openai.openai_error import OpenAiError
from naiad.protocol.openai.rerank import read_rerank

_CONTENT_CODING = b"content-encoding"
ReadGeneration = Callable[..., GenerationRequest]
ReadTexts = Callable[..., TextRequest]


class OpenAiRoutes:
    """Models, completions, chats, embeddings and reranking."""

    def __init__(
        self,
        engine: Engine,
        max_input_bytes: int = MAX_INPUT_BYTES,
        forwarding: HeaderForwarding | None = None,
        run_in_thread: RunInThread = run_at_once,
        start_s: int = 0,
    ) -> None:
        """`run_in_thread` lists the models and encodes many vectors, which takes too long for the event loop.

        `start_s` is when the server has started, in seconds since 1970; 0 for now.
        """
        self._engine = engine
        self._models = OpenAiModels(engine)
        self._max_input_bytes = max_input_bytes
        self._forwarding = forwarding
        self._run_in_thread = run_in_thread
        self._created_s = start_s or int(time.time())
        """When the server has started: OpenAI's clients expect a time of each model."""

    def actions(self) -> Mapping[AnyOperation, Action]:
        """Return the actions of all operations."""
        return {
            OPENAI_MODELS: self._list,
            OPENAI_MODEL: self._show,
            COMPLETIONS: self._complete,
            CHAT_COMPLETIONS: self._chat,
            EMBEDDINGS: self._embed,
            RERANK: self._rerank,
        }

    def checks(self) -> Mapping[AnyOperation, Action]:
        """Return what rejects requests by their headers."""
        return dict.fromkeys((COMPLETIONS, CHAT_COMPLETIONS, EMBEDDINGS, RERANK), self._check)

    def _check(self, context: HttpContext, arguments: Mapping[str, str]) -> None:
        self._check_body(context, announced_bytes(context.headers))

    def _check_body(self, context: HttpContext, size: int) -> None:
        if context.headers.get(_CONTENT_CODING, b"").lower() not in (b"identity", b""):
            raise OpenAiError("the body has a content encoding; send it as it is")
        check_body_size(size, self._max_input_bytes)

    def _list(self, context: HttpContext, arguments: Mapping[str, str]) -> None:
        self._run_in_thread(
            lambda: encode_models(self._models.names(), self._created_s),
            lambda body: context.respond(200, JSON_HEADERS, (body,)),
            partial(respond_failure, context),
        )

    def _show(self, context: HttpContext, arguments: Mapping[str, str]) -> None:
        self._models.find(arguments["model"])
        context.respond(200, JSON_HEADERS, (encode_model(arguments["model"], self._created_s),))

    def _complete(self, context: HttpContext, arguments: Mapping[str, str]) -> None:
        self._run(context, lambda body, model: self._generate(context, body, model, read_completion))

    def _chat(self, context: HttpContext, arguments: Mapping[str, str]) -> None:
        self._run(context, lambda body, model: self._generate(context, body, model, read_chat))

    def _embed(self, context: HttpContext, arguments: Mapping[str, str]) -> None:
        self._run(context, lambda body, model: self._submit_texts(context, body, model, read_embedding))

    def _rerank(self, context: HttpContext, arguments: Mapping[str, str]) -> None:
        self._run(context, lambda body, model: self._submit_texts(context, body, model, read_rerank))

    def _generate(self, context: HttpContext, body: BodyMembers, reference: str, read: ReadGeneration) -> None:
        model = self._models.find(reference)
        asked = read(body, model.mapping, reference)
        GenerationCall(context, self._engine, model, reference, asked).start(self._forwarding)

    def _submit_texts(self, context: HttpContext, body: BodyMembers, reference: str, read: ReadTexts) -> None:
        model = self._models.find(reference)
        asked = read(body, model.mapping, reference)
        TextCall(context, self._engine, model, reference, asked).start(self._forwarding, self._run_in_thread)

    def _run(self, context: HttpContext, call: Callable[[BodyMembers, str], None]) -> None:
        """Read the body and carry out the call, or respond with the error."""
        reference = ""
        try:
            self._check_body(context, len(context.body))
            body = read_body(context.body)
            reference = body.text("model")
            call(body, reference)
        except InferError as error:
            failed_requests.respond(context, "", excerpt(reference), "", error)
