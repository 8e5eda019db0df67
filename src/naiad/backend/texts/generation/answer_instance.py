"""An instance that generates for one request at a time, with logits of any library."""

import abc
import time
from collections.abc import Sequence

from naiad.backend.api import Instance
from naiad.backend.framework import reason
from naiad.backend.signature import ModelSignature, SignatureCheck
from naiad.backend.texts.generation.decoder_request import DecoderFacts, DecoderRequest, read_decoder_request
from naiad.backend.texts.generation.text_generation import ResponseTensors
from naiad.backend.texts.generation.token_answer import Emit, TokenAnswer
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.batch import Batch
from naiad.core.errors import InferError, internal, invalid_argument
from naiad.core.request import InferRequest
from naiad.core.response import InferResponse, ResponseHeader

_PAUSE_S = 0.01


def check_generation(config: ModelConfig, backend: str, signature: ModelSignature) -> None:
    """Raise InferError(INVALID_ARG) if the configuration is not that of a model that generates text."""
    if not config.model_transaction_policy.decoupled or config.max_batch_size:
        raise invalid_argument(
            f"model '{config.name}': the {backend} backend generates text with model_transaction_policy "
            f"{{ decoupled: true }} and max_batch_size: 0, not {config.max_batch_size}; each instance generates for "
            "one request at a time"
        )
    SignatureCheck(config, signature).check()


def is_over(answer: TokenAnswer) -> bool:
    """Wait for the client of an answer to read; return whether no client wants another token."""
    while answer.is_waiting and not answer.is_cancelled:
        time.sleep(_PAUSE_S)
    return answer.over.is_set() or answer.is_cancelled


class GeneratingInstance(Instance):
    """Generates for each request of a batch; the responses may follow later."""

    def __init__(self, backend: str, empty: ResponseHeader) -> None:
        """`backend` is its name, for errors; `empty` the header of a response with an error."""
        self._backend = backend
        self._empty = empty
        self._is_interrupted = False

    def execute(self, batch: Batch) -> Sequence[InferResponse]:
        """Generate for each request of a batch, and emit its responses."""
        emit = batch.emit
        if emit is None:
            raise invalid_argument(f"the {self._backend} backend generates text in decoupled models only")
        batch.compute_start_ns = time.monotonic_ns()
        for request in batch.requests:
            try:
                self._generate(request, emit)
            except InferError as error:
                emit(request, InferResponse(self._empty, error=error))
        batch.compute_end_ns = time.monotonic_ns()
        return ()

    @abc.abstractmethod
    def _generate(self, request: InferRequest, emit: Emit) -> None:
        """Generate for a request and emit its responses. An InferError becomes its response."""


class AnswerInstance(GeneratingInstance):
    """Generates for one request at a time; the server chooses the tokens."""

    def __init__(self, model_name: str, backend: str, facts: DecoderFacts, tensors: ResponseTensors) -> None:
        """`backend` is its name, for errors."""
        super().__init__(backend, tensors.empty)
        self._model_name = model_name
        self._facts = facts
        self._tensors = tensors
        self._answer: TokenAnswer | None = None

    @abc.abstractmethod
    def compute(self, asked: DecoderRequest, answer: TokenAnswer) -> None:
        """Hand logits to `answer.take` until `is_over(answer)`. What it raises becomes the error of the request."""

    def _generate(self, request: InferRequest, emit: Emit) -> None:
        asked = read_decoder_request(request, self._facts)
        self._answer = answer = TokenAnswer(request, asked, self._facts, self._tensors, emit)
        if self._is_interrupted:
            answer.interrupt()
        try:
            self.compute(asked, answer)
        except InferError as error:
            answer.fail(error)
        except Exception as error:  # libraries raise classes of their own
            text = f"model '{self._model_name}' failed on its tokens: {reason(error)}"
            answer.fail(internal(text))
        finally:
            self._answer = None
        if not answer.over.is_set():
            answer.end_cancelled()

    def interrupt(self) -> None:
        """End the generation before its next token."""
        self._is_interrupted = True
        answer = self._answer
        if answer is not None:
            answer.interrupt()
