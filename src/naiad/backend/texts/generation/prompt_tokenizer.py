"""From prompts and chats to tokens: where the marks of a format are tokens, and where they are only text."""

import json
from collections.abc import Collection, Sequence
from typing import Any

from naiad.core.texts.chat_format import ChatMessage, chat_parts, format_chat, is_mark

SPECIAL_TOKENS = ("all", "prompts", "none")
"""Where special tokens in the text of clients count: in prompts and messages, in prompts alone, or nowhere."""


class PromptTokenizer:
    """The tokenizer of a decoder and the format of its chats.

    A prompt is the client's own, with the marks that it has put there. The text of a message comes from a user of the
    client, so `<|im_end|>` in it is text unless the owner of the model says otherwise. So are marks that the file
    does not call special.
    """

    def __init__(self, tokenizer: Any, chat_format: str, special_tokens: str) -> None:
        """`chat_format` is one of `CHAT_FORMATS` or empty, `special_tokens` one of `SPECIAL_TOKENS`."""
        self.tokenizer = tokenizer
        self.chat_format = chat_format
        self._special_tokens = special_tokens
        added = tokenizer.get_added_tokens_decoder()
        marks = {key: token for key, token in added.items() if is_mark(token.content, is_special=token.special)}
        self._plain = _without_marks(tokenizer, {token.content for token in marks.values() if not token.special})
        self._marks = frozenset(marks)
        # A mark that is searched for in normalised text may begin with another character in the text itself.
        is_exact = not any(token.normalized for token in marks.values())
        self._beginnings = frozenset(token.content[0] for token in marks.values()) if is_exact else None

    def text(self, prompt: str) -> Sequence[Any]:
        """Return the encodings of a prompt, which follow one another."""
        chosen = self._plain if self._special_tokens == "none" else self.tokenizer
        return _encoded(chosen, [prompt], adds_special_tokens=True)

    def chat(self, messages: Sequence[ChatMessage]) -> Sequence[Any]:
        """Return the encodings of a chat in its format, which follow one another."""
        # The marks of a format are in its text, the first token of all among them; "plain" has none.
        is_plain = self.chat_format == "plain"
        has_marks = self._special_tokens != "all" and any(self._has_mark(message.content) for message in messages)
        if is_plain or not has_marks:
            chosen = self._plain if has_marks else self.tokenizer
            return _encoded(chosen, [format_chat(self.chat_format, messages)], adds_special_tokens=is_plain)
        # Only here: some tokenizers put a space before each text, so parts have other tokens than the whole.
        return [
            encoded
            for text, is_content in chat_parts(self.chat_format, messages)
            for encoded in _encoded(self._plain if is_content else self.tokenizer, [text], adds_special_tokens=False)
        ]

    def _has_mark(self, text: str) -> bool:
        if not self._marks or (self._beginnings is not None and not any(each in text for each in self._beginnings)):
            return False
        # The tokenizer finds them as it will; a search for thousands of marks one by one would take too long.
        (found,) = _encoded(self.tokenizer, [text], adds_special_tokens=False)
        return not self._marks.isdisjoint(found.ids)


def _without_marks(tokenizer: Any, others: Collection[str]) -> Any:
    """Return a tokenizer for which special tokens, and `others`, are text like any other."""
    text = tokenizer.to_str()
    if others:  # rare, and a large vocabulary takes a while
        content = json.loads(text)
        for token in content["added_tokens"]:
            token["special"] = token["special"] or token["content"] in others
        text = json.dumps(content)
    plain = type(tokenizer).from_str(text)
    plain.encode_special_tokens = True  # which means: as any other text
    return plain


def _encoded(tokenizer: Any, texts: list[str], *, adds_special_tokens: bool) -> Sequence[Any]:
    # `encode` would hold the interpreter's lock, for seconds where a text is long; a batch does not.
    found: Sequence[Any] = tokenizer.encode_batch_fast(texts, add_special_tokens=adds_special_tokens)
    return found
