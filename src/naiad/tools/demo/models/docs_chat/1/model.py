"""Answers a question from documents with two other models of the server.

`minilm` makes a vector of the question. The passages whose vectors are nearest become a part of the chat that
`smollm2` continues; its pieces of text are passed on as they come.
"""

import asyncio
import json
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
PASSAGES = 2
# A model of this size follows a request that comes last, and copies well; without the text it invents.
PROMPT = "{text}\n\nUse only this text. {question} Answer in one sentence."
SAMPLING = {"temperature": 0, "max_tokens": 80}
PASSED_ON = ["text_output", "finish_reason", "num_input_tokens", "num_output_tokens"]


class AnswerError(Exception):
    """An error for the client: of its request, or of a model that was called."""

    def __init__(self, message, code=pb_utils.TritonError.INVALID_ARG):
        super().__init__(message)
        self.error = pb_utils.TritonError(message, code)


class TritonPythonModel:
    """The pipeline."""

    def initialize(self, args):
        """Read the passages and their vectors, of length 1."""
        folder = Path(args["model_repository"]) / args["model_version"]
        self.passages = json.loads((folder / "passages.json").read_text(encoding="utf-8"))
        self.vectors = np.load(folder / "vectors.npy")

    async def execute(self, requests):
        """Answer all requests at the same time."""
        await asyncio.gather(*(self.answer(request) for request in requests))

    async def answer(self, request):
        """Send the pieces of an answer, or an error."""
        sender = request.get_response_sender()
        try:
            messages = read_messages(request)
            found = await self.nearest(messages[-1]["content"])
            titles = np.array([passage["title"].encode() for passage in found], np.object_)
            async for response in await generate(request, with_passages(messages, found)):
                outputs = outputs_of(response)
                if outputs:  # none at the end of a request that was cancelled
                    sender.send(pb_utils.InferenceResponse([*outputs, pb_utils.Tensor("sources", titles)]))
                    titles = titles[:0]  # only the first piece has them
        except AnswerError as failure:
            sender.send(pb_utils.InferenceResponse(error=failure.error), flags=FINAL)
        else:
            sender.send(flags=FINAL)

    async def nearest(self, question):
        """Return the passages that are nearest to a question, the nearest first."""
        text = pb_utils.Tensor("text", np.array([[question.encode()]], np.object_))
        call = pb_utils.InferenceRequest(model_name="minilm", inputs=[text], requested_output_names=["embedding"])
        (vectors,) = outputs_of(await call.async_exec())
        vector = vectors.as_numpy()[0]
        order = np.argsort(-(self.vectors @ vector), kind="stable")[:PASSAGES]
        return [self.passages[number] for number in order]


def read_messages(request):
    """Return the messages of a request; a text is one of the user. Raises AnswerError."""
    text, chat = text_of(request, "text_input"), text_of(request, "messages")
    if bool(text) == bool(chat):
        raise AnswerError("a request has either 'text_input' or 'messages', and not an empty one")
    messages = json_of("messages", chat, list) if chat else [{"role": "user", "content": text}]
    last = messages[-1] if messages and isinstance(messages[-1], dict) else {}
    if last.get("role") != "user" or not isinstance(last.get("content"), str):
        raise AnswerError("the last of 'messages' is no text of the role 'user': send a question as the last one")
    return messages


def json_of(name, text, kind):
    """Return the JSON of an input. Raises AnswerError."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise AnswerError(f"'{name}' is no JSON: {error}") from error
    if not isinstance(found, kind):
        raise AnswerError(f"'{name}' is JSON of another kind; expected a {kind.__name__}")
    return found


def with_passages(messages, found):
    """Return the chat with the passages in its last message."""
    text = "\n".join(passage["text"] for passage in found)
    question = PROMPT.format(text=text, question=messages[-1]["content"])
    return [*messages[:-1], {"role": "user", "content": question}]


async def generate(request, messages):
    """Return the responses of the language model, in pieces if the client wants them."""
    sampling = text_of(request, "sampling_parameters") or "{}"
    sampling = {**SAMPLING, **json_of("sampling_parameters", sampling, dict)}
    inputs = [
        pb_utils.Tensor("messages", np.array([json.dumps(messages).encode()], np.object_)),
        pb_utils.Tensor("sampling_parameters", np.array([json.dumps(sampling).encode()], np.object_)),
    ]
    stream = pb_utils.get_input_tensor_by_name(request, "stream")
    if stream is not None:
        inputs.append(pb_utils.Tensor("stream", stream.as_numpy()))
    call = pb_utils.InferenceRequest(model_name="smollm2", inputs=inputs, requested_output_names=PASSED_ON)
    return await call.async_exec(decoupled=True)


def outputs_of(response):
    """Return the outputs of a model that was called. Raises AnswerError with its error."""
    if response.has_error():
        raise AnswerError(response.error().message(), response.error().code())
    return response.output_tensors()


def text_of(request, name):
    """Return the text of an optional input; empty without it."""
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return tensor.as_numpy().ravel()[0].decode() if tensor is not None else ""
