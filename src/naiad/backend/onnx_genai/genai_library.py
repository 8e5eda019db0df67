"""The weights of a version, as onnxruntime-genai has loaded them."""

from typing import Any

import onnxruntime_genai

from naiad.backend.framework import reason
from naiad.backend.onnx_genai.genai_directory import GenaiDirectory
from naiad.backend.onnx_genai.genai_instance import append_tokens, newest_logits
from naiad.core.errors import internal

# The library would report its use to its maker.
onnxruntime_genai.disable_telemetry_events()


class GenaiWeights:
    """Makes generators, each of which has a cache of its own."""

    def __init__(self, directory: GenaiDirectory, thread_count: int) -> None:
        """Load the weights. Raises InferError with what the library says."""
        try:
            config = onnxruntime_genai.Config(str(directory.path))
            config.overlay(directory.session_overlay(thread_count))
            self._model: Any = onnxruntime_genai.Model(config)
        except Exception as error:  # the library raises RuntimeError for everything
            version = onnxruntime_genai.__version__
            text = f"cannot be loaded by onnxruntime-genai {version}: {reason(error)}"
            raise directory.error(text, internal) from error

    def generator(self, max_length: int) -> Any:
        """Return a generator for a text with at most this number of tokens, the prompt among them."""
        settings = onnxruntime_genai.GeneratorParams(self._model)
        settings.set_search_options(max_length=max_length, batch_size=1, num_beams=1)
        return onnxruntime_genai.Generator(self._model, settings)


def try_weights(weights: GenaiWeights, directory: GenaiDirectory, vocabulary: int) -> None:
    """Compute one token. Raises InferError for a graph that fails, or has other logits than the file says."""
    try:
        generator = weights.generator(2)
        append_tokens(generator, (0,))
        logits = newest_logits(generator)
    except Exception as error:  # the library raises RuntimeError for everything
        raise directory.error(f"fails on its first token: {reason(error)}", internal) from error
    if logits.size < vocabulary:
        raise directory.error(
            f"has logits for {logits.size} tokens, and 'vocab_size' is {vocabulary}; {directory.again}"
        )
