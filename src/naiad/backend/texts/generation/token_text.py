"""Text out of tokens, one by one: characters of several tokens arrive whole."""

from collections.abc import Sequence
from typing import Any

_UNKNOWN = "\ufffd"
_CONTEXT_TOKENS = 6
"""Tokens of the prompt that decide how the first new token looks: some tokenizers drop the space before the first."""
_MOST_HELD = 64
"""Tokens that make no character; after as many they become U+FFFD."""


class TokenText:
    """Decodes the tokens of one text. The pieces together are the text that all tokens have together.

    A part of a character decodes to U+FFFD until its other bytes have come, so such an end is held back. Only the
    tokens since the last clean end are decoded again, after one earlier group that gives them their context.
    """

    __slots__ = ("_context", "_decode", "_ids", "_shown")

    def __init__(self, tokenizer: Any, prompt: Sequence[int]) -> None:
        self._decode = tokenizer.decode
        self._ids = list(prompt[-_CONTEXT_TOKENS:])
        self._context = len(self._ids)
        """How many of `_ids` are context."""
        self._shown = len(self._text(self._ids))
        """Characters of the decoded `_ids` that are context or have been returned."""

    def _text(self, ids: Sequence[int]) -> str:
        text: str = self._decode(list(ids), skip_special_tokens=True)
        return text

    def add(self, token: int) -> str:
        """Return the text that a token completes; it may be empty."""
        self._ids.append(token)
        text = self._text(self._ids)
        clean = text.rstrip(_UNKNOWN)
        if len(clean) == len(text) or len(self._ids) - self._context > _MOST_HELD:
            piece = text[self._shown :]
            if not piece:
                # A special token, which is no context: after it alone the next word would lose its space.
                self._ids.pop()
                return ""
            self._ids = self._ids[self._context :]
            self._context = len(self._ids)
            self._shown = len(self._text(self._ids))
            return piece
        piece = clean[self._shown :]
        self._shown = max(self._shown, len(clean))
        return piece

    def end(self) -> str:
        """Return what is held back: bytes that are no character."""
        return self._text(self._ids)[self._shown :]
