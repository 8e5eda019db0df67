"""Log probabilities of tokens in vLLM's form → OpenAI's.

    [{"464": {"logprob": -0.1, "rank": 1, "decoded_token": "The"}, "317": {...}}, ...]

Each element has the chosen token first, then the likeliest ones. Models may have OpenAI's form themselves.
"""

from collections.abc import Mapping, Sequence
from typing import Any


def openai_logprobs(found: Sequence[Mapping[str, Any]], count: int) -> Sequence[Mapping[str, Any]]:
    """Return elements of either form in OpenAI's; vLLM's get at most `count` other tokens."""
    return [_converted(each, count) if _is_of_vllm(each) else each for each in found]


def _is_of_vllm(found: Mapping[str, Any]) -> bool:
    return "token" not in found and all(isinstance(each, dict) and "logprob" in each for each in found.values())


def _converted(found: Mapping[str, Any], count: int) -> Mapping[str, Any]:
    tokens = [_token(each) for each in found.values()]
    chosen = tokens[0] if tokens else _token({})
    likeliest = sorted(tokens, key=lambda each: float(each["logprob"]), reverse=True)
    return {**chosen, "top_logprobs": likeliest[:count]}


def _token(found: Mapping[str, Any]) -> Mapping[str, Any]:
    text, logprob = found.get("decoded_token"), found.get("logprob")
    token = text if isinstance(text, str) else ""
    number = float(logprob) if isinstance(logprob, (int, float)) else 0.0
    return {"token": token, "bytes": list(token.encode("utf-8", "replace")), "logprob": number}
