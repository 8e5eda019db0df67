"""Models in the shape of language models: text in, text out, whole or word by word."""

from pathlib import Path

from support.model_repository import write_model

# Answers each prompt with its words backwards, at most `max_tokens` of them.
WHOLE = """
import json
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        parameters = json.loads(request.parameters() or "{}")
        prompts = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy()
        texts = [b" ".join(prompt.split()[::-1][: parameters.get("max_tokens", 100)]) for prompt in prompts.ravel()]
        if not all(texts):
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("a prompt is empty"))
        text = np.array(texts, dtype=np.object_).reshape(prompts.shape)
        return pb_utils.InferenceResponse([pb_utils.Tensor("text_output", text)])
"""

# A response for each word, `delay_s` after the one before; after `fail_after` words it breaks down.
WORD_BY_WORD = """
import json
import time
import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            self.answer(request)

    def answer(self, request):
        parameters = json.loads(request.parameters() or "{}")
        prompt = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy().ravel()[0].decode()
        sender = request.get_response_sender()
        for number, word in enumerate(prompt.split()[::-1][: parameters.get("max_tokens", 100)]):
            if number == parameters.get("fail_after"):
                sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("out of words")), flags=FINAL)
                return
            deadline = time.monotonic() + (parameters.get("delay_s", 0) if number else 0)
            while time.monotonic() < deadline:
                if sender.is_cancelled():
                    sender.send(flags=FINAL)
                    return
                time.sleep(0.01)
            text = np.array([[word.encode()]], dtype=np.object_)
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("text_output", text)]))
        sender.send(flags=FINAL)
"""

_CONFIG = """
backend: "python"
max_batch_size: 8
input [ { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "text_output" data_type: TYPE_STRING dims: [ 1 ] } ]
"""


def write_whole(repository: Path) -> None:
    """Write `whole`, an ordinary model."""
    write_model(repository, "whole", _CONFIG, {"1/model.py": WHOLE})


def write_word_by_word(repository: Path) -> None:
    """Write `word_by_word`, which is decoupled."""
    decoupled = _CONFIG + "model_transaction_policy { decoupled: true }\n"
    write_model(repository, "word_by_word", decoupled, {"1/model.py": WORD_BY_WORD})
