"""Prompts and sampling members → tensors and parameters of a model; its responses → text, counts and reasons."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import orjson

from naiad.config.openai_mapping import NEUTRAL, RETURN_LOGPROBS, SAMPLING_TEXT, SWITCHES, OpenAiMapping
from naiad.core.datatype import DataType
from naiad.core.errors import InferError, internal
from naiad.core.parameters import ParameterValue
from naiad.core.request import RequestHeader
from naiad.core.response import InferResponse
from naiad.core.tensor import Buffer, TensorSpec
from naiad.core.texts.text_stream import TextStream
from naiad.protocol.generate import Inputs
from naiad.protocol.json.tensor import decode_data
from naiad.protocol.openai.openai_error import OpenAiError
from naiad.protocol.openai.token_logprobs import openai_logprobs

DEFAULT_MAX_TOKENS = 256
"""For models whose input `max_tokens` is required, if neither client nor owner gives a number."""
MAX_EXTRA_BYTES = 2 << 20
"""Limit of the log probabilities of a response, and of its tool calls: they are parsed on the event loop."""
_REASONS = ("stop", "length", "content_filter", "tool_calls")
_TENSOR_NAMES = {"stop": "stop_words"}
"""Inputs with other names than the members."""


def generation_tensors(
    mapping: OpenAiMapping,
    inputs: Inputs,
    optional: frozenset[str],
    prompt: str,
    sampling: Mapping[str, Any],
    *,
    stream: bool,
    is_chat: bool = False,
) -> tuple[Sequence[TensorSpec], Sequence[Buffer], Mapping[str, ParameterValue]]:
    """Return specifications and data of the inputs for one prompt, and the parameters of the request.

    A sampling member goes to the input with its name, to `sampling_parameters`, or else to the parameters. Raises
    InferError for a value that the input cannot hold.
    """
    given = dict(sampling)
    if mapping.max_tokens:
        given.setdefault("max_tokens", mapping.max_tokens)
    values: dict[str, Any] = {mapping.messages if is_chat and mapping.messages else mapping.input: prompt}
    if "stream" in inputs and mapping.input != "stream":
        values["stream"] = stream
    values |= {name: value for name, value in SWITCHES.items() if name in inputs}
    if RETURN_LOGPROBS in inputs:
        values[RETURN_LOGPROBS] = "logprobs" in sampling
    for name in list(given):
        tensor = _TENSOR_NAMES.get(name, name)
        if tensor in inputs:
            values[tensor] = given.pop(name)
    if SAMPLING_TEXT in inputs:
        values[SAMPLING_TEXT] = orjson.dumps(given).decode()
        given = {}
    for name, value in {**NEUTRAL, "max_tokens": DEFAULT_MAX_TOKENS}.items():
        if name in inputs and name not in values and name not in optional:
            values[name] = value
    specs: list[TensorSpec] = []
    data: list[Buffer] = []
    for name, value in values.items():
        spec, content = _tensor(inputs[name], value)
        specs.append(spec)
        data.append(content)
    return specs, data, {name: _parameter(value) for name, value in given.items()}


def token_limit(mapping: OpenAiMapping, inputs: Inputs, optional: frozenset[str], sampling: Mapping[str, Any]) -> int:
    """Return the limit of new tokens that the model gets; 0 if it gets none."""
    is_required = "max_tokens" in inputs and "max_tokens" not in optional
    found: int = sampling.get("max_tokens", 0) or mapping.max_tokens or (DEFAULT_MAX_TOKENS if is_required else 0)
    return found


def generation_header(
    model: str, version: str, specs: Sequence[TensorSpec], parameters: Mapping[str, ParameterValue]
) -> RequestHeader:
    """Return the header of one request to a model."""
    return RequestHeader(model_name=model, model_version=version, inputs=specs, parameters=parameters)


def _parameter(value: Any) -> ParameterValue:
    accepted: ParameterValue = orjson.dumps(value).decode() if isinstance(value, list) else value
    return accepted


def _tensor(declared: TensorSpec, value: Any) -> tuple[TensorSpec, Buffer]:
    values = value if isinstance(value, list) else [value]
    shape = [1 if size == -1 else size for size in declared.shape]
    if len(values) > 1:
        shape = [*shape[:-1], len(values)]
    if declared.datatype is DataType.BYTES:
        values = [each if isinstance(each, str) else orjson.dumps(each).decode() for each in values]
    elif declared.datatype.name.startswith(("INT", "UINT")):
        # A fraction stays, and is refused: a temperature of 0.7 must not become 0.
        values = [each if isinstance(each, float) and not each.is_integer() else int(each) for each in values]
    spec = TensorSpec(declared.name, declared.datatype, tuple(shape))
    try:
        return spec, decode_data(spec, values)
    except InferError as error:
        raise OpenAiError(f"'{declared.name}': {error.message}", param=declared.name, code="invalid_value") from None


class Choice:
    """One choice while it is generated: its text so far, and what is known of its tokens."""

    __slots__ = (
        "_logprob_count",
        "_mapping",
        "_max_tokens",
        "_pieces",
        "_reason",
        "_text_offset",
        "completion_tokens",
        "extra_bytes",
        "index",
        "logprobs",
        "prompt_tokens",
        "text",
        "tool_calls",
    )

    def __init__(
        self,
        index: int,
        mapping: OpenAiMapping,
        stops: Sequence[str],
        max_tokens: int,
        *,
        text_offset: int = 0,
        logprob_count: int = 0,
    ) -> None:
        """`text_offset` is where the first new token begins in the text.

        `logprob_count` is the number of other tokens beside each, where the client wants log probabilities.
        """
        self.index = index
        self.text = TextStream(stops)
        self.prompt_tokens: int | None = None
        """As the model says; None if it does not."""
        self.completion_tokens: int | None = None
        self.logprobs: list[Any] = []
        """Tokens with their log probabilities, since the last `drain`."""
        self.tool_calls: list[Any] = []
        self.extra_bytes = 0
        """Bytes of both as JSON, over the whole text."""
        self._text_offset = text_offset
        self._logprob_count = logprob_count
        self._mapping = mapping
        self._max_tokens = max_tokens
        self._pieces = 0
        self._reason = ""

    def take(self, response: InferResponse) -> str:
        """Return the text that a response adds. Raises InferError if the response has no text."""
        mapping = self._mapping
        piece = b"".join(_texts(response, mapping.output))
        self._pieces += bool(piece)
        prompt_tokens = count_of(response, mapping.prompt_tokens)
        if prompt_tokens is not None:
            self.prompt_tokens = prompt_tokens
        new_tokens = count_of(response, mapping.completion_tokens)
        if new_tokens is not None:
            self.completion_tokens = (self.completion_tokens or 0) + new_tokens
        if mapping.finish_reason:
            reason = b"".join(_texts(response, mapping.finish_reason, is_required=False)).decode("utf-8", "replace")
            self._reason = reason if reason in _REASONS else self._reason
        if "logprobs" in mapping.offers:
            self.logprobs += openai_logprobs(self._list_of(response, "logprobs"), self._logprob_count)
        if "tools" in mapping.offers:
            self.tool_calls += self._list_of(response, "tool_calls")
        return self.text.feed(piece)

    def _list_of(self, response: InferResponse, name: str) -> list[Any]:
        """Return the elements of an output with a JSON list; none if it is empty or missing."""
        data = b"".join(_texts(response, name, is_required=False))
        if not data or data == b"null":  # vLLM's word for none
            return []
        self.extra_bytes += len(data)
        if len(data) > MAX_EXTRA_BYTES:
            raise too_many_extras()
        try:
            found = orjson.loads(data)
        except orjson.JSONDecodeError:
            found = None
        if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
            raise internal(f"output '{name}' of model '{response.header.model_name}' is no JSON list of objects")
        return found

    def drain(self) -> tuple[list[Any], list[Any]]:
        """Return log probabilities and tool calls that have come since the last call, and forget them."""
        found = self.logprobs, self.tool_calls
        self.logprobs, self.tool_calls = [], []
        return found

    def advance(self, characters: int) -> int:
        """Return where a token begins in the text, and move on by its length."""
        start = self._text_offset
        self._text_offset += characters
        return start

    @property
    def finish_reason(self) -> str:
        """Why the text has ended, when the last response is there.

        Where the model does not say it, a text with all the tokens that the client allows was cut by that limit. Each
        piece is a token at least.
        """
        if self.text.is_stopped:
            return "stop"
        if self._reason:
            return self._reason
        tokens = self._pieces if self.completion_tokens is None else self.completion_tokens
        return "length" if self._max_tokens and tokens >= self._max_tokens else "stop"


def too_many_extras() -> InferError:
    """Return the error for more log probabilities or tool calls than a response has."""
    return internal(
        f"log probabilities and tool calls have more than {MAX_EXTRA_BYTES} bytes; ask for them with 'stream': true, "
        "for fewer tokens, or for fewer 'top_logprobs'"
    )


def output_of(response: InferResponse, name: str) -> tuple[TensorSpec, Buffer] | None:
    """Return an output of a response; None if it has none of that name."""
    for spec, data in zip(response.header.outputs, response.data, strict=True):
        if spec.name == name:
            return spec, data
    return None


def _texts(response: InferResponse, name: str, *, is_required: bool = True) -> Sequence[bytes]:
    found = output_of(response, name)
    if found is None:
        if is_required:
            raise internal(f"the response of model '{response.header.model_name}' has no output '{name}'")
        return []
    data, position, texts = memoryview(found[1]), 0, []
    while position + 4 <= len(data):
        end = position + 4 + int.from_bytes(data[position : position + 4], "little")
        texts.append(bytes(data[position + 4 : end]))
        position = end
    return texts


def count_of(response: InferResponse, name: str) -> int | None:
    """Return the sum of an integer output; None without it. Raises InferError if it has another type."""
    found = output_of(response, name) if name else None
    if found is None:
        return None
    spec, data = found
    if spec.datatype.item_bytes == 0 or spec.datatype is DataType.BYTES:
        raise internal(f"output '{name}' is {spec.datatype.value}; a number of tokens is an integer")
    numbers = np.frombuffer(data, dtype=spec.datatype.numpy)
    return int(numbers.sum()) if numbers.size else None
