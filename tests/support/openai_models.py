"""Python models in the forms that the OpenAI API takes: prompts, tensors of vLLM, messages, embeddings."""

from pathlib import Path

from support.model_repository import write_model

# The tensors of Triton's vLLM backend. Tokens are the words of the prompt, and it answers with these in pieces; bytes
# of one character may be in two pieces.
VLLM = """
import json
import time
import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


def text_of(request, name):
    return pb_utils.get_input_tensor_by_name(request, name).as_numpy().ravel()[0].decode()


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            self.answer(request)

    def answer(self, request):
        prompt = text_of(request, "text_input")
        sampling = json.loads(text_of(request, "sampling_parameters"))
        sender = request.get_response_sender()
        if prompt == "sampling":
            prompt = json.dumps(sampling, separators=(",", ":"), sort_keys=True)
        if prompt == "bytes":
            pieces = [bytes([each]) for each in "a \\u20ac \\U0001f600".encode()]
        else:
            words = prompt.split()
            pieces = [(" " * bool(number) + word).encode() for number, word in enumerate(words)]
        limit = sampling.get("max_tokens", 1000)
        for number, piece in enumerate(pieces[:limit]):
            if piece.strip() == b"fail":
                sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("out of words")), flags=FINAL)
                return
            if piece.strip() == b"long":
                piece = b"x" * ((4 << 20) + 1)
            deadline = time.monotonic() + (60 if piece.strip() == b"wait" else 0)
            while time.monotonic() < deadline:
                if sender.is_cancelled():
                    sender.send(flags=FINAL)
                    return
                time.sleep(0.01)
            self.send(sender, piece, len(prompt.split()))
        sender.send(flags=FINAL)

    def send(self, sender, piece, count):
        text = pb_utils.Tensor("text_output", np.array([piece], dtype=np.object_))
        asked = pb_utils.Tensor("num_input_tokens", np.array([count], dtype=np.uint32))
        made = pb_utils.Tensor("num_output_tokens", np.array([1], dtype=np.uint32))
        sender.send(pb_utils.InferenceResponse([text, asked, made]))
"""

VLLM_CONFIG = """
backend: "python"
max_batch_size: 0
model_transaction_policy { decoupled: true }
input [
  { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] },
  { name: "stream" data_type: TYPE_BOOL dims: [ 1 ] optional: true },
  { name: "sampling_parameters" data_type: TYPE_STRING dims: [ 1 ] optional: true },
  { name: "exclude_input_in_output" data_type: TYPE_BOOL dims: [ 1 ] optional: true },
  { name: "return_num_input_tokens" data_type: TYPE_BOOL dims: [ 1 ] optional: true },
  { name: "return_num_output_tokens" data_type: TYPE_BOOL dims: [ 1 ] optional: true }
]
output [
  { name: "text_output" data_type: TYPE_STRING dims: [ -1 ] },
  { name: "num_input_tokens" data_type: TYPE_UINT32 dims: [ 1 ] },
  { name: "num_output_tokens" data_type: TYPE_UINT32 dims: [ 1 ] }
]
"""

# An ordinary model with names of its own: the last message, backwards by words; the parameters of the request.
ECHO = """
import json
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        parameters = json.loads(request.parameters() or "{}")
        messages = json.loads(pb_utils.get_input_tensor_by_name(request, "CHAT").as_numpy().ravel()[0])
        words = messages[-1]["content"].split()[::-1][: parameters.get("max_tokens", 100)]
        text = np.array([[" ".join(words).encode()]], dtype=np.object_)
        return pb_utils.InferenceResponse([pb_utils.Tensor("REPLY", text)])
"""

ECHO_CONFIG = """
backend: "python"
max_batch_size: 8
input [ { name: "CHAT" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "REPLY" data_type: TYPE_STRING dims: [ 1 ] } ]
parameters { key: "openai" value { string_value: "chat,template=json" } }
"""

# The vector of a text: the number of its characters, of its words, 3, 4.
EMBEDDING = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        texts = [each.decode() for each in pb_utils.get_input_tensor_by_name(request, "text").as_numpy().ravel()]
        vectors = np.array([[len(text), len(text.split()), 3, 4] for text in texts], dtype=np.float32)
        counts = np.array([[len(text.split())] for text in texts], dtype=np.int32)
        tensors = [pb_utils.Tensor("vector", vectors), pb_utils.Tensor("tokens", counts)]
        return pb_utils.InferenceResponse(tensors)
"""

EMBEDDING_CONFIG = """
backend: "python"
max_batch_size: 4
input [ { name: "text" data_type: TYPE_STRING dims: [ 1 ] } ]
output [
  { name: "vector" data_type: TYPE_FP32 dims: [ 4 ] },
  { name: "tokens" data_type: TYPE_INT32 dims: [ 1 ] }
]
parameters { key: "openai" value { string_value: "embedding,output=vector,prompt_tokens=tokens" } }
"""

_BOTH_VERSIONS = "version_policy { all { } }\n"
_CHAT_PARAMETER = 'parameters { key: "openai" value { string_value: "chat,template=chatml" } }\n'


def write_openai_models(repository: Path) -> None:
    """Write `words` (vLLM's form), `talk` (the same with a chat template), `echo`, `vectors` and `other`."""
    write_model(repository, "words", VLLM_CONFIG + _BOTH_VERSIONS, {"1/model.py": VLLM, "2/model.py": VLLM})
    write_model(repository, "talk", VLLM_CONFIG + _CHAT_PARAMETER, {"1/model.py": VLLM})
    write_model(repository, "echo", ECHO_CONFIG, {"1/model.py": ECHO})
    write_model(repository, "vectors", EMBEDDING_CONFIG, {"1/model.py": EMBEDDING})
    other = ECHO_CONFIG.partition("parameters {")[0]
    write_model(repository, "other", other, {"1/model.py": ECHO})
