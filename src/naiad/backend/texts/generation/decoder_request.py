"""From the tensors of a request to what a decoder is to generate: tokens, sampling, ends."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from naiad.backend.texts.generation.generation_request import (
    NUMBERS,
    SamplingRules,
    json_of,
    tensors_of,
    text_of,
    wrong_sampling,
)
from naiad.backend.texts.generation.prompt_tokenizer import PromptTokenizer
from naiad.core.errors import InferError, excerpt, invalid_argument
from naiad.core.request import InferRequest
from naiad.core.texts.chat_format import ChatMessage

_MAX_TEXT_BYTES = 4 << 20
_MAX_TEXT_BYTES_PER_TOKEN = 128
"""A prompt with more bytes than this for each token of the window is refused before it is cut into tokens."""
_MIN_TEXT_BYTES = 64 << 10
_MAX_SAMPLING_BYTES = 64 << 10
_MAX_NUMBER = (1 << 31) - 1
_RULES = SamplingRules(
    "decoders",
    NUMBERS,
    {
        "max_tokens": (1, _MAX_NUMBER),
        "min_tokens": (0, _MAX_NUMBER),
        "top_k": (-1, _MAX_NUMBER),
        "seed": (-(1 << 63), (1 << 63) - 1),
    },
    ("ignore_eos",),
)
_ROLES = ("system", "developer", "user", "assistant")


@dataclass(frozen=True, slots=True)
class DecoderFacts:
    """What holds for all requests to one version."""

    prompts: PromptTokenizer | None
    """None: prompts are token numbers, and there is no text."""
    window: int
    """Tokens of a prompt and its answer."""
    vocabulary: int
    end_tokens: frozenset[int]
    sampling: Mapping[str, Any]
    """Parameters for requests that give none."""
    max_tokens: int
    """For requests that give no number, up to the window."""

    @property
    def tokenizer(self) -> Any:
        """The tokenizer that makes text of tokens; None without one."""
        return self.prompts.tokenizer if self.prompts is not None else None


@dataclass(frozen=True, slots=True)
class DecoderRequest:
    """One generation."""

    prompt: Sequence[int]
    """At least one token."""
    max_tokens: int
    sampling: Mapping[str, Any]
    stops: Sequence[str]
    streams: bool
    """Whether the client wants pieces."""


def read_decoder_request(request: InferRequest, facts: DecoderFacts) -> DecoderRequest:
    """Return what a request asks for. Raises InferError(INVALID_ARG) with input, value and what is expected."""
    tensors = tensors_of(request)
    text = _RULES.read(_text(tensors, "sampling_parameters", _MAX_SAMPLING_BYTES))
    sampling = {**facts.sampling, **text}
    stops = sampling.pop("stop", ())
    if stops and facts.tokenizer is None:
        raise wrong_sampling("stop", stops, "none: the model has no tokenizer.json beside it, so there is no text")
    prompt = _prompt(tensors, facts)
    return DecoderRequest(
        prompt,
        _max_tokens(len(prompt), sampling.pop("max_tokens", 0), facts),
        sampling,
        [stops] if isinstance(stops, str) else stops,
        bool(tensors["stream"][0]) if "stream" in tensors else False,
    )


def _text(tensors: Mapping[str, Any], name: str, max_bytes: int) -> str:
    return text_of(name, tensors[name], max_bytes) if name in tensors else ""


def _prompt(tensors: Mapping[str, Any], facts: DecoderFacts) -> Sequence[int]:
    max_bytes = min(_MAX_TEXT_BYTES, max(_MIN_TEXT_BYTES, _MAX_TEXT_BYTES_PER_TOKEN * facts.window))
    texts = {name: _text(tensors, name, max_bytes) for name in ("text_input", "messages")}
    given = [name for name, text in texts.items() if text]
    given += ["input_ids"] if len(tensors.get("input_ids", b"")) else []
    prompts = facts.prompts
    if len(given) != 1 or (given != ["input_ids"] and prompts is None):
        known = "'text_input', 'messages' or 'input_ids'" if prompts is not None else "'input_ids'"
        raise invalid_argument(f"a request has one of {known}, and not an empty one")
    if prompts is None or given == ["input_ids"]:
        return _token_numbers(tensors["input_ids"], facts)
    is_chat = given == ["messages"]
    encoded = prompts.chat(_messages(texts["messages"], prompts)) if is_chat else prompts.text(texts["text_input"])
    _check_length(sum(map(len, encoded)), facts)
    prompt = [number for part in encoded for number in part.ids]
    if not prompt:
        raise invalid_argument(f"'{given[0]}' has no tokens; send a longer text")
    if max(prompt) >= facts.vocabulary:
        raise invalid_argument(
            f"'{given[0]}' has the token {max(prompt)}, and the model knows {facts.vocabulary}: the tokenizer.json "
            "belongs to another model"
        )
    return prompt


def _token_numbers(data: Any, facts: DecoderFacts) -> Sequence[int]:
    numbers, vocabulary = np.frombuffer(data, "<i8"), facts.vocabulary
    _check_length(numbers.size, facts)
    if int(numbers.min()) < 0 or int(numbers.max()) >= vocabulary:
        wrong = next(number for number in numbers.tolist() if not 0 <= number < vocabulary)
        raise invalid_argument(f"'input_ids' has the token {wrong}; expected numbers from 0 to {vocabulary - 1}")
    found: Sequence[int] = numbers.tolist()
    return found


def _check_length(tokens: int, facts: DecoderFacts) -> None:
    """Refuse a prompt that does not fit, before its tokens become a list."""
    if tokens >= facts.window:
        _max_tokens(tokens, 0, facts)


def _max_tokens(prompt: int, wanted: int, facts: DecoderFacts) -> int:
    """Return how many tokens may follow the prompt. Raises InferError for a request that does not fit."""
    left = facts.window - prompt
    if max(1, wanted) <= left:
        return wanted or min(facts.max_tokens, left)
    asked = f" and max_tokens is {wanted}" if wanted else ""
    advice = f"at most {left} can follow it" if left > 0 else "send a shorter one"
    raise invalid_argument(
        f"the prompt has {prompt} tokens{asked}: this exceeds the available context size of {facts.window} tokens; "
        f"{advice}"
    )


def _messages(text: str, prompts: PromptTokenizer) -> Sequence[ChatMessage]:
    if not prompts.chat_format:
        raise invalid_argument(
            "the model has no chat template of a known format; send 'text_input', or set the parameter 'template'"
        )
    return [_message(each, position) for position, each in enumerate(json_of("messages", text, list))]


def _message(found: Any, position: int) -> ChatMessage:
    role, content = (found.get(name) for name in ("role", "content")) if isinstance(found, dict) else (None, None)
    if role not in _ROLES or not isinstance(content, str):
        raise _wrong_message(found, position)
    return ChatMessage("system" if role == "developer" else role, content)


def _wrong_message(found: Any, position: int) -> InferError:
    shown, roles = excerpt(repr(found)[:200]), ", ".join(_ROLES)
    return invalid_argument(
        f"'messages[{position}]' is {shown}; expected an object with a role ({roles}) and a text as content"
    )
