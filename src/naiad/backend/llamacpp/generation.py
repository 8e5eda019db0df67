"""One generation: chunks of llama.cpp become the responses of a decoupled request."""

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from naiad.backend.llamacpp.llama_request import LlamaRequest
from naiad.backend.texts.generation.text_generation import OutputValues, ResponseTensors
from naiad.core.errors import InferError, excerpt, internal, invalid_argument
from naiad.core.request import InferRequest
from naiad.core.response import InferResponse

_PAUSE_S = 0.01
Emit = Callable[[InferRequest, InferResponse], None]


class Generation:
    """Takes the chunks of one request on the thread of its instance."""

    def __init__(
        self,
        request: InferRequest,
        asked: LlamaRequest,
        tensors: ResponseTensors,
        emit: Emit,
        is_over: Callable[[], bool],
    ) -> None:
        """`is_over` says whether the instance is to end."""
        self._request = request
        self._asked = asked
        self._tensors = tensors
        self._emit = emit
        self._is_over = is_over
        self._texts: list[str] = []
        self._probabilities: list[Any] = []
        self._calls: list[dict[str, Any]] = []
        self._reason = ""
        self._usage: Mapping[str, Any] = {}
        self._error: BaseException | None = None

    def take(self, chunk: Mapping[str, Any]) -> bool:
        """Take a chunk; return True to end the generation. The library swallows exceptions, so they are kept."""
        try:
            self._take(chunk)
            self._wait_for_client()
        except BaseException as error:
            self._error = error
        return self._error is not None or self._is_cancelled

    @property
    def _is_cancelled(self) -> bool:
        return self._request.cancelled or self._is_over()

    def _wait_for_client(self) -> None:
        while self._request.is_paused and not self._is_cancelled:
            time.sleep(_PAUSE_S)

    def _take(self, chunk: Mapping[str, Any]) -> None:
        if "error" in chunk:
            raise error_of(chunk["error"])
        self._usage = chunk.get("usage") or self._usage
        for choice in chunk.get("choices", ()):
            delta = choice.get("delta") or {}
            text = choice.get("text") or delta.get("content") or ""
            calls = delta.get("tool_calls") or []
            probabilities = (choice.get("logprobs") or {}).get("content") or []
            self._reason = choice.get("finish_reason") or self._reason
            if self._asked.streams and (text or calls or probabilities):
                self._send(text, probabilities, calls)
            else:
                self._texts.append(text)
                self._probabilities += probabilities
                _merge(self._calls, calls)

    def _send(self, text: str, probabilities: list[Any], calls: list[Any], *, is_last: bool = False) -> None:
        values: OutputValues = {
            "text_output": text,
            "finish_reason": self._reason if is_last else "",
            "num_input_tokens": int(self._usage.get("prompt_tokens", 0)) if is_last else 0,
            "num_output_tokens": int(self._usage.get("completion_tokens", 0)) if is_last else 0,
            "logprobs": "" if self._asked.logprobs is None else json.dumps(self._shortened(probabilities)),
            "tool_calls": json.dumps(calls) if calls else "",
        }
        header, data = self._tensors.encode(self._request, values)
        self._emit(self._request, InferResponse(header, data, final=is_last))

    def _shortened(self, probabilities: list[Any]) -> list[Any]:
        """Return the probabilities with as many other tokens as the client wants: llama.cpp gives one at least."""
        count = self._asked.logprobs or 0
        return [{**each, "top_logprobs": (each.get("top_logprobs") or [])[:count]} for each in probabilities]

    def finish(self) -> None:
        """Send the last response. Raises what a chunk has raised."""
        if self._error is not None:
            raise self._error
        if self._is_cancelled:
            self._emit(self._request, InferResponse(self._tensors.empty, final=True, empty_final=True))
            return
        if not self._reason:
            raise internal("llama.cpp has ended a generation without a reason; its log has more")
        self._send("".join(self._texts), self._probabilities, self._calls, is_last=True)


def _merge(calls: list[dict[str, Any]], pieces: list[dict[str, Any]]) -> None:
    """Add pieces of tool calls, whose arguments come in several, to whole calls."""
    for piece in pieces:
        index = int(piece.get("index", len(calls)))
        while len(calls) <= index:
            calls.append({"id": "", "type": "function", "function": {"name": "", "arguments": ""}})
        function = piece.get("function") or {}
        calls[index]["id"] = piece.get("id") or calls[index]["id"]
        for name in ("name", "arguments"):
            calls[index]["function"][name] += function.get(name) or ""


def error_of(found: Any) -> InferError:
    """Return the error that llama.cpp has answered: a mistake of the client, or a failure."""
    message = str(found.get("message", found)) if isinstance(found, Mapping) else str(found)
    code = found.get("code", 500) if isinstance(found, Mapping) else 500
    make = invalid_argument if isinstance(code, int) and 400 <= code < 500 else internal
    return make(f"llama.cpp: {excerpt(message)}")
