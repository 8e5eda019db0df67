"""Choices → bodies and chunks of `/v1/completions` and `/v1/chat/completions`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from naiad.protocol.openai.generation_tensors import Choice

DONE = b"data: [DONE]\n\n"
"""The last event of a stream."""


@dataclass(frozen=True, slots=True)
class ReplyForm:
    """What all bodies and chunks of a response have in common."""

    is_chat: bool
    id: str
    created_s: int
    model: str
    """As the client names it."""

    def body(self, texts: Sequence[str], choices: Sequence[Choice], prompt_count: int) -> bytes:
        """Return the body of a response that is not streamed."""
        found = [
            {
                "index": choice.index,
                **self._whole(text, choice.tool_calls),
                "logprobs": self._logprobs(choice, choice.logprobs),
                "finish_reason": choice.finish_reason,
            }
            for choice, text in zip(choices, texts, strict=True)
        ]
        return orjson.dumps({**self._head(""), "choices": found, "usage": usage_of(choices, prompt_count)})

    def first(self, index: int) -> bytes | None:
        """Return the chunk that begins a choice of a chat; None where none is needed."""
        return self._chunk(index, {"role": "assistant", "content": ""}, None) if self.is_chat else None

    def chunk(self, choice: Choice, text: str) -> bytes | None:
        """Return the chunk with what has been added to a choice; None if that is nothing."""
        logprobs, calls = choice.drain()
        if not (text or logprobs or calls):
            return None
        shown = self._logprobs(choice, logprobs)
        if not self.is_chat:
            return self._text_chunk(choice.index, text, None, shown)
        delta = {**({"content": text} if text else {}), **({"tool_calls": calls} if calls else {})}
        return self._chunk(choice.index, delta, None, shown)

    def last(self, choice: Choice) -> bytes:
        """Return the chunk that says why a choice has ended."""
        reason = choice.finish_reason
        return self._chunk(choice.index, {}, reason) if self.is_chat else self._text_chunk(choice.index, "", reason)

    def usage_chunk(self, choices: Sequence[Choice], prompt_count: int) -> bytes:
        """Return the chunk without choices that has the usage."""
        head = self._head(".chunk" if self.is_chat else "")
        return orjson.dumps({**head, "choices": [], "usage": usage_of(choices, prompt_count)})

    def _head(self, suffix: str) -> Mapping[str, Any]:
        name = "chat.completion" if self.is_chat else "text_completion"
        return {"id": self.id, "object": name + suffix, "created": self.created_s, "model": self.model}

    def _whole(self, text: str, calls: Sequence[Any]) -> Mapping[str, Any]:
        if not self.is_chat:
            return {"text": text}
        called = {"tool_calls": calls} if calls else {}
        content = None if calls and not text else text
        return {"message": {"role": "assistant", "content": content, "refusal": None, **called}}

    def _logprobs(self, choice: Choice, found: Sequence[Any]) -> Mapping[str, Any] | None:
        """Return log probabilities in the form of chats, or in that of completions."""
        if not found:
            return None
        if self.is_chat:
            return {"content": found, "refusal": None}
        tokens = [str(each.get("token", "")) for each in found]
        return {
            "tokens": tokens,
            "token_logprobs": [each.get("logprob") for each in found],
            "top_logprobs": [
                {str(other.get("token", "")): other.get("logprob") for other in each.get("top_logprobs", ())}
                for each in found
            ],
            "text_offset": [choice.advance(len(token)) for token in tokens],
        }

    def _chunk(
        self, index: int, delta: Mapping[str, Any], reason: str | None, logprobs: Mapping[str, Any] | None = None
    ) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        return orjson.dumps({**self._head(".chunk"), "choices": [choice]})

    def _text_chunk(
        self, index: int, text: str, reason: str | None, logprobs: Mapping[str, Any] | None = None
    ) -> bytes:
        choice = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}
        return orjson.dumps({**self._head(""), "choices": [choice]})


def usage_of(choices: Sequence[Choice], prompt_count: int) -> Mapping[str, int] | None:
    """Return the numbers of tokens; None if the model does not count them: they are not guessed.

    The tokens of a prompt count once, for all of its choices.
    """
    each = len(choices) // prompt_count
    prompts = [choice.prompt_tokens for choice in choices[::each]]
    completions = [choice.completion_tokens for choice in choices]
    if None in prompts or None in completions:
        return None
    prompt_tokens = sum(number for number in prompts if number is not None)
    completion_tokens = sum(number for number in completions if number is not None)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }
