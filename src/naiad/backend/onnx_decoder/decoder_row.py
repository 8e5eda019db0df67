"""One generation as a row of the decoder."""

from collections.abc import Sequence

from naiad.backend.onnx_decoder.kv_cache import RowCache
from naiad.backend.texts.generation.decoder_request import DecoderFacts, DecoderRequest
from naiad.backend.texts.generation.text_generation import ResponseTensors
from naiad.backend.texts.generation.token_answer import Emit, TokenAnswer
from naiad.core.request import InferRequest


class DecoderRow(TokenAnswer):
    """What the planner of turns sees of a generation."""

    def __init__(
        self,
        request: InferRequest,
        asked: DecoderRequest,
        facts: DecoderFacts,
        tensors: ResponseTensors,
        emit: Emit,
    ) -> None:
        super().__init__(request, asked, facts, tensors, emit)
        self.cache = RowCache()
        self._prompt = asked.prompt

    @property
    def length(self) -> int:
        """Tokens in its cache."""
        return self.cache.length

    @property
    def prompt_left(self) -> int:
        """Tokens of its prompt that are not in the cache yet."""
        return max(0, len(self._prompt) - self.cache.length)

    def next_prompt(self, count: int) -> Sequence[int]:
        """Return the next tokens of the prompt, at most `count`."""
        return self._prompt[self.cache.length : self.cache.length + count]
