"""Text generation with causal models: an instance generates for one request at a time, with shared weights.

transformers computes logits and keeps the cache; the server chooses the tokens, so that sampling, stop strings and
ends are the same as for its other decoders.
"""

import logging
from typing import Any

import torch
import transformers

from naiad.backend.api import Instance, InstanceSpec, Model, ModelContext
from naiad.backend.framework import Parameters, threads_per_instance
from naiad.backend.huggingface.directory import HuggingFaceDirectory, SharedWeights
from naiad.backend.texts.generation.answer_instance import AnswerInstance, is_over
from naiad.backend.texts.generation.decoder_request import DecoderFacts, DecoderRequest
from naiad.backend.texts.generation.generation_directory import GenerationDirectory
from naiad.backend.texts.generation.text_generation import DECODER_OUTPUTS, ResponseTensors, decoder_signature
from naiad.backend.texts.generation.token_answer import TokenAnswer

_log = logging.getLogger(__name__)

SIGNATURE = decoder_signature("Hugging Face", has_text=True)
_NO_TOKEN = float("-inf")


class GenerationModel(Model):
    """One loaded version; the weights are loaded with the first instance of a device."""

    def __init__(self, context: ModelContext, directory: HuggingFaceDirectory, parameters: Parameters) -> None:
        """Read the directory without its weights. Raises InferError."""
        self._name = context.name
        self._weights = SharedWeights(context, directory, parameters)
        self.thread_count = threads_per_instance(context, parameters, "num_threads")
        self.facts = _facts(directory, GenerationDirectory(context), parameters)
        self.tensors = ResponseTensors(context.name, context.version, DECODER_OUTPUTS)
        _log.info(
            "model '%s' version %d: a window of %d tokens for each instance",
            context.name, context.version, self.facts.window,
        )  # fmt: skip

    def create_instance(self, spec: InstanceSpec) -> Instance:
        """Create an instance. Raises InferError."""
        return GenerationInstance(self, self._name, self._weights.on_device_of(spec))

    def close(self) -> None:
        """Release the weights."""
        self._weights.close()


def _facts(directory: HuggingFaceDirectory, files: GenerationDirectory, parameters: Parameters) -> DecoderFacts:
    """Return what holds for all requests. Raises InferError(INVALID_ARG)."""
    vocabulary = directory.text_setting("vocab_size")
    if type(vocabulary) is not int or vocabulary < 1:
        raise directory.error("says nowhere how many tokens it knows; write 'vocab_size' in config.json")
    return files.facts(parameters, vocabulary)


class GenerationInstance(AnswerInstance):
    """Generates for one request at a time."""

    def __init__(self, model: GenerationModel, model_name: str, executable: Any) -> None:
        super().__init__(model_name, "huggingface", model.facts, model.tensors)
        self._thread_count = model.thread_count
        self._executable = executable

    def compute(self, asked: DecoderRequest, answer: TokenAnswer) -> None:
        """Compute logits until the answer is over."""
        # PyTorch has the number for each thread that calls it.
        torch.set_num_threads(self._thread_count)
        prompt = torch.tensor([asked.prompt], device=self._executable.device)
        # Of a configuration of its own: the defaults of the files hold in `DecoderFacts`.
        settings = transformers.GenerationConfig(
            max_new_tokens=asked.max_tokens, do_sample=False, pad_token_id=0, use_cache=True
        )
        with torch.inference_mode():
            self._executable.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                generation_config=settings,
                logits_processor=[_ServerChoice(answer)],
                stopping_criteria=[_End(answer)],
            )


class _ServerChoice(transformers.LogitsProcessor):  # type: ignore[misc]
    """Has the server choose the next token: no other one has a finite logit after this."""

    def __init__(self, answer: TokenAnswer) -> None:
        self._answer = answer

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        answer = self._answer
        if is_over(answer):
            return scores
        answer.take(scores[0].float().cpu().numpy())
        chosen = torch.full_like(scores, _NO_TOKEN)
        chosen[0, answer.last_token] = 0
        return chosen


class _End(transformers.StoppingCriteria):  # type: ignore[misc]
    """Ends the loop of transformers after the last token, and for clients that have left."""

    def __init__(self, answer: TokenAnswer) -> None:
        self._answer = answer

    def __call__(self, input_ids: Any, scores: Any, **others: Any) -> Any:
        is_over = self._answer.over.is_set() or self._answer.is_cancelled
        return torch.full((len(input_ids),), is_over, dtype=torch.bool, device=input_ids.device)
