"""An instance: a generator of onnxruntime-genai for each request, whose logits the server makes tokens of."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from naiad.backend.texts.generation.answer_instance import AnswerInstance, is_over
from naiad.backend.texts.generation.decoder_request import DecoderFacts, DecoderRequest
from naiad.backend.texts.generation.text_generation import ResponseTensors
from naiad.backend.texts.generation.token_answer import TokenAnswer
from naiad.core.tensor import Array

NewGenerator = Callable[[int], Any]
"""Makes a generator for a text with at most this number of tokens."""


def append_tokens(generator: Any, tokens: Sequence[int]) -> None:
    """Have a generator read tokens."""
    generator.append_tokens(np.array([tokens], np.int32))


def newest_logits(generator: Any) -> Array:
    """Return the logits of the token after the last one, [vocabulary]."""
    logits: Array = generator.get_logits()
    newest: Array = logits.reshape(-1, logits.shape[-1])[-1]
    return newest


class GenaiInstance(AnswerInstance):
    """Generates for one request at a time."""

    def __init__(
        self,
        model_name: str,
        facts: DecoderFacts,
        tensors: ResponseTensors,
        new_generator: NewGenerator,
        prompt_tokens: int,
    ) -> None:
        """`prompt_tokens` is the most tokens of a prompt that are read without looking for a cancellation."""
        super().__init__(model_name, "onnx_genai", facts, tensors)
        self._vocabulary = facts.vocabulary
        self._new_generator = new_generator
        self._prompt_tokens = prompt_tokens

    def compute(self, asked: DecoderRequest, answer: TokenAnswer) -> None:
        """See `AnswerInstance.compute`."""
        generator = self._new_generator(len(asked.prompt) + asked.max_tokens)
        for start in range(0, len(asked.prompt), self._prompt_tokens):
            if is_over(answer):
                return
            append_tokens(generator, asked.prompt[start : start + self._prompt_tokens])
        while not is_over(answer):
            # Some graphs have more logits than tokens, to fill a tile of the hardware.
            answer.take(newest_logits(generator)[: self._vocabulary])
            if not is_over(answer):
                append_tokens(generator, (answer.last_token,))
