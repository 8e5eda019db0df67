"""Generations with a scripted generator in the place of onnxruntime-genai's."""

import numpy as np

from naiad.backend.onnx_genai.genai_instance import GenaiInstance
from naiad.backend.texts.generation.decoder_request import DecoderFacts
from naiad.backend.texts.generation.text_generation import DECODER_OUTPUTS, ResponseTensors
from support.decoder_clients import DecoderClient

FACTS = DecoderFacts(None, 64, 10, frozenset({9}), {"temperature": 0}, 64)


class ScriptedGenerator:
    """Counts: the token after n is n + 1. Its last two logits belong to no token."""

    def __init__(self, max_length, after_part=None):
        self.max_length = max_length
        self.parts = []
        self._after_part = after_part

    def append_tokens(self, tokens):
        assert (tokens.dtype, tokens.shape[0]) == (np.int32, 1)
        self.parts.append(tokens[0].tolist())
        assert sum(map(len, self.parts)) <= self.max_length
        if self._after_part is not None:
            self._after_part(self.parts)

    def get_logits(self):
        logits = np.zeros((1, 1, 12), np.float32)
        logits[0, 0, [(self.parts[-1][-1] + 1) % 10, 11]] = (1, 5)
        return logits


def run(client, *, prompt_tokens=4, after_part=None):
    made = []

    def new_generator(max_length):
        made.append(ScriptedGenerator(max_length, after_part))
        return made[-1]

    instance = GenaiInstance("m", FACTS, ResponseTensors("m", 1, DECODER_OUTPUTS), new_generator, prompt_tokens)
    client.run(instance)
    return made[0]


def test_prompt_is_read_in_parts():
    client = DecoderClient([1, 2, 3, 4, 5, 6], max_tokens=3)
    generator = run(client)
    assert client.tokens == [7, 8, 9]
    assert generator.parts == [[1, 2, 3, 4], [5, 6], [7], [8]]
    assert generator.max_length == 9


def test_end_token_ends_the_text():
    client = DecoderClient([6], max_tokens=30, ignore_eos=False)
    assert run(client).parts == [[6], [7], [8]]
    assert client.tokens == [7, 8, 9]


def test_cancelled_prompt_is_not_read_on():
    client = DecoderClient([1] * 12, max_tokens=3)

    def cancel(parts):
        client.request.cancelled = len(parts) == 2

    assert len(run(client, after_part=cancel).parts) == 2
    assert (client.tokens, client.error) == ([], None)


def test_cancelled_text_ends_before_its_next_token():
    client = DecoderClient([1], max_tokens=50)
    client.after[5] = lambda: setattr(client.request, "cancelled", True)
    assert len(run(client).parts) == 5
    assert len(client.tokens) == 5


def test_failure_of_the_library_fails_the_request():
    client = DecoderClient([1], max_tokens=50)

    def fail(parts):
        raise RuntimeError("no memory")

    run(client, after_part=fail)
    assert client.error.message == "model 'm' failed on its tokens: RuntimeError: no memory"
