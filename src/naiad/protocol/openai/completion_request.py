"""Bodies of `/v1/completions` and `/v1/chat/completions` ⇄ prompts and sampling members, checked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from naiad.config.openai_mapping import MAX_TOKENS, OpenAiMapping
from naiad.core.errors import excerpt
from naiad.protocol.openai.chat_options import MAX_COMPLETION_LOGPROBS, check_offer, read_chat_options
from naiad.protocol.openai.chat_template import read_messages, render_chat
from naiad.protocol.openai.members import BodyMembers
from naiad.protocol.openai.openai_error import OpenAiError

MAX_CHOICES = 128
"""Limit of `n`, and of the prompts of a request times `n`: each is a request to the model."""
MAX_PROMPT_CHARACTERS = 4 << 20
"""Limit of the prompts of all choices together: each choice sends its prompt to the model, and may repeat it."""
MAX_STOPS = 4
MAX_STOP_CHARACTERS = 256
_MAX_INT64 = (1 << 63) - 1

_NUMBERS: Mapping[str, tuple[float, float]] = {
    "temperature": (0, 2),
    "top_p": (0, 1),
    "min_p": (0, 1),
    "frequency_penalty": (-2, 2),
    "presence_penalty": (-2, 2),
    "repetition_penalty": (0, 100),
}
_INTEGERS: Mapping[str, tuple[int, int]] = {
    "top_k": (-1, MAX_TOKENS),
    "min_tokens": (0, MAX_TOKENS),
    "seed": (-(1 << 63), _MAX_INT64),
}
_WITHOUT_EFFECT = ("metadata", "prompt_cache_key", "safety_identifier", "service_tier", "store", "user")
"""What OpenAI stores with a request; it does not change the text."""
_BOTH = ("model", "n", "stream", "stream_options", "stop", "max_tokens", "logit_bias", "logprobs", *_NUMBERS)
_COMPLETION = (*_BOTH, *_INTEGERS, *_WITHOUT_EFFECT, "prompt", "best_of", "echo", "suffix")
_CHAT = (
    *_BOTH,
    *_INTEGERS,
    *_WITHOUT_EFFECT,
    *("messages", "max_completion_tokens", "top_logprobs", "response_format", "tools", "tool_choice", "functions"),
    *("function_call", "parallel_tool_calls", "modalities", "audio", "prediction", "reasoning_effort", "verbosity"),
    "web_search_options",
)
_NOT_TAKEN = {
    "audio": "sound is not made",
    "functions": "tools are not supported",
    "logit_bias": "biases of tokens are not supported",
    "prediction": "predicted outputs are not supported",
    "reasoning_effort": "the model has no such setting",
    "suffix": "text is only added at the end of a prompt",
    "verbosity": "the model has no such setting",
    "web_search_options": "there is no web search",
}
"""Members that change the result in a way that is not offered: they are refused, not ignored."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """What a client asks to be generated."""

    is_chat: bool
    prompts: Sequence[str]
    choice_count: int
    """Of each prompt."""
    stream: bool
    include_usage: bool
    """Streams: whether a last chunk has the usage."""
    echo: bool
    stops: Sequence[str]
    sampling: Mapping[str, Any]
    """By OpenAI's names; `max_tokens` and `stop` included, where the client gives them.

    `logprobs` is the number of other tokens beside each. Members of `OFFERS` with an input are JSON texts.
    """

    @property
    def max_tokens(self) -> int:
        """The limit that the client gives; 0 without one."""
        found: int = self.sampling.get("max_tokens", 0)
        return found


def read_completion(body: BodyMembers, mapping: OpenAiMapping, model: str) -> GenerationRequest:
    """Return the request of a body for `/v1/completions`. Raises OpenAiError."""
    if not mapping.generates or (mapping.template == "json" and not mapping.messages):
        what = "chats" if mapping.generates else mapping.task
        raise OpenAiError(f"model '{excerpt(model)}' is for {what}, not for completions of prompts", param="model")
    body.check_names(_COMPLETION)
    best_of = body.whole("best_of", 1, MAX_CHOICES)
    if best_of is not None and best_of != (body.get("n") or 1):
        raise body.wrong("best_of", "the same number as 'n': choices are not compared")
    logprobs = body.whole("logprobs", 0, MAX_COMPLETION_LOGPROBS)
    check_offer(body, mapping, "logprobs")
    options = {} if logprobs is None or "logprobs" not in mapping.offers else {"logprobs": logprobs}
    return _request(body, _prompts(body), options, is_chat=False)


def read_chat(body: BodyMembers, mapping: OpenAiMapping, model: str) -> GenerationRequest:
    """Return the request of a body for `/v1/chat/completions`. Raises OpenAiError."""
    if not mapping.generates:
        raise OpenAiError(f"model '{excerpt(model)}' is for {mapping.task}, not for chats", param="model")
    if not mapping.template:
        raise OpenAiError(
            f"model '{excerpt(model)}' has no chat template: its owner names one with the parameter 'openai', such "
            'as "chat,template=chatml"',
            param="model",
        )
    body.check_names(_CHAT)
    options = read_chat_options(body, mapping)
    messages = read_messages(body, takes_tools="tools" in mapping.offers)
    return _request(body, [render_chat(mapping.template, messages)], options, is_chat=True)


def _prompts(body: BodyMembers) -> Sequence[str]:
    prompt = body.get("prompt")
    prompts = prompt if isinstance(prompt, list) else [body.text("prompt")]
    if not prompts or not all(isinstance(each, str) and each for each in prompts):
        raise body.wrong("prompt", "a text, or a list of texts, none empty; numbers of tokens are not taken")
    return prompts


def _request(
    body: BodyMembers, prompts: Sequence[str], extras: Mapping[str, Any], *, is_chat: bool
) -> GenerationRequest:
    for name, reason in _NOT_TAKEN.items():
        if body.get(name) not in (None, False, 0, "", [], {}):
            raise body.wrong(name, f"no such member: {reason}")
    count = body.whole("n", 1, MAX_CHOICES) or 1
    if count * len(prompts) > MAX_CHOICES:
        raise OpenAiError(
            f"{len(prompts)} prompts with n = {count} are {count * len(prompts)} choices; a request has at most "
            f"{MAX_CHOICES}. Send fewer prompts, or a smaller n",
            param="n" if count > 1 else "prompt",
            code="invalid_value",
        )
    stream = body.flag("stream")
    options = body.object("stream_options")
    if options is not None:
        options.check_names(("include_usage", "include_obfuscation"))
        if not stream:
            raise body.wrong("stream_options", "no such member without 'stream': true")
    characters = count * sum(map(len, prompts))
    if characters > MAX_PROMPT_CHARACTERS:
        raise OpenAiError(
            f"the prompts of all choices have {characters} characters, and a request at most {MAX_PROMPT_CHARACTERS}."
            " Send shorter prompts, or a smaller n",
            param="n" if count > 1 else "prompt",
            code="request_too_large",
        )
    stops = _stops(body)
    echo = not is_chat and body.flag("echo")
    include_usage = options is not None and options.flag("include_usage")
    sampling = {**_sampling(body, stops), **extras}
    return GenerationRequest(is_chat, prompts, count, stream, include_usage, echo, stops, sampling)


def _stops(body: BodyMembers) -> Sequence[str]:
    stop = body.get("stop")
    stops = [] if stop is None else [stop] if isinstance(stop, str) else stop
    if not isinstance(stops, list) or len(stops) > MAX_STOPS:
        raise body.wrong("stop", f"a text, or a list of at most {MAX_STOPS} texts")
    if not all(isinstance(each, str) and 0 < len(each) <= MAX_STOP_CHARACTERS for each in stops):
        raise body.wrong("stop", f"texts of 1 to {MAX_STOP_CHARACTERS} characters")
    return stops


def _sampling(body: BodyMembers, stops: Sequence[str]) -> Mapping[str, Any]:
    found: dict[str, Any] = {name: body.number(name, *limits) for name, limits in _NUMBERS.items()}
    found |= {name: body.whole(name, *limits) for name, limits in _INTEGERS.items()}
    limit = body.whole("max_completion_tokens", 1, MAX_TOKENS - 1)
    found["max_tokens"] = body.whole("max_tokens", 1, MAX_TOKENS - 1) if limit is None else limit
    found["stop"] = list(stops) or None
    return {name: value for name, value in found.items() if value is not None}
