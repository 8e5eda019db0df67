"""One generation: logits become tokens, and tokens the responses of a decoupled request."""

import threading
from collections.abc import Callable

from naiad.backend.texts.generation.decoder_request import DecoderFacts, DecoderRequest
from naiad.backend.texts.generation.text_generation import OutputValues, ResponseTensors
from naiad.backend.texts.generation.token_sampling import Sampler
from naiad.backend.texts.generation.token_text import TokenText
from naiad.core.errors import InferError
from naiad.core.request import InferRequest
from naiad.core.response import InferResponse
from naiad.core.tensor import Array
from naiad.core.texts.text_stream import TextStream

Emit = Callable[[InferRequest, InferResponse], None]


class TokenAnswer:
    """Used by the thread that computes; `over` and `interrupt` by the thread of the instance."""

    def __init__(
        self,
        request: InferRequest,
        asked: DecoderRequest,
        facts: DecoderFacts,
        tensors: ResponseTensors,
        emit: Emit,
    ) -> None:
        self.over = threading.Event()
        """Set when the last response has been sent: the slot is free."""
        self._request = request
        self._asked = asked
        self._ends = frozenset() if asked.sampling.get("ignore_eos") else facts.end_tokens
        self._min_tokens = int(asked.sampling.get("min_tokens", 0))
        self._tensors = tensors
        self._emit = emit
        self._sampler = Sampler(asked.sampling)
        self._decoded = TokenText(facts.tokenizer, asked.prompt) if facts.tokenizer is not None else None
        self._text = TextStream(asked.stops)
        self._is_interrupted = False
        self._texts: list[str] = []
        """Text that has not been sent."""
        self._ids: list[int] = []
        """Tokens that have not been sent."""
        self._count = 0
        self._last = -1

    @property
    def is_waiting(self) -> bool:
        """Whether its client does not read."""
        return self._request.is_paused

    @property
    def last_token(self) -> int:
        """The newest token, which the model has not read yet."""
        return self._last

    def take(self, logits: Array) -> None:
        """Choose the next token, and send what it completes. Raises InferError for logits that are no numbers."""
        excluded = self._ends if self._count < self._min_tokens else ()
        self._last = token = self._sampler.pick(logits, excluded)
        self._count += 1
        self._ids.append(token)
        is_end = token in self._ends
        if not is_end and self._decoded is not None:
            self._add(self._text.feed_text(self._decoded.add(token)))
        if is_end or self._text.is_stopped or self._count == self._asked.max_tokens:
            self._finish("stop" if is_end or self._text.is_stopped else "length")
        elif self._asked.streams and (self._texts or self._decoded is None):
            self._send("")

    def _add(self, text: str) -> None:
        if text:
            self._texts.append(text)

    def _finish(self, reason: str) -> None:
        if self._decoded is not None:
            self._add(self._text.feed_text(self._decoded.end()))
            self._add(self._text.end())
        self._send("stop" if self._text.is_stopped else reason)
        self.over.set()

    def _send(self, reason: str) -> None:
        values: OutputValues = {
            "text_output": "".join(self._texts),
            "finish_reason": reason,
            "num_input_tokens": len(self._asked.prompt) if reason else 0,
            "num_output_tokens": self._count if reason else 0,
            "token_ids": self._ids,
        }
        header, data = self._tensors.encode(self._request, values)
        self._texts, self._ids = [], []
        self._emit(self._request, InferResponse(header, data, final=bool(reason)))

    # --- early ends -------------------------------------------------------------------------------------------------

    @property
    def is_cancelled(self) -> bool:
        """Whether no client waits for the rest."""
        return self._request.cancelled or self._is_interrupted

    def interrupt(self) -> None:
        """Have it end before its next token."""
        self._is_interrupted = True

    def end_cancelled(self) -> None:
        """Send the empty end of a cancelled request."""
        self._end(InferResponse(self._tensors.empty, final=True, empty_final=True))

    def fail(self, error: InferError) -> None:
        """Send an error as the end."""
        self._end(InferResponse(self._tensors.empty, error=error))

    def _end(self, response: InferResponse) -> None:
        if self.over.is_set():
            return
        try:
            self._emit(self._request, response)
        finally:
            self.over.set()
