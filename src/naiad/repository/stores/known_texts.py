"""Texts of configurations that were parsed before: models of one kind have the same text apart from their name.

Parsing takes 1,500 Python calls for a text of fifteen lines, as much as everything else that a load does. Texts
without any problem are kept, at most `_MOST_TEXTS` of them, by their content: a changed file is another text. The
name may differ if it is alone on a line. Then all else is at the same place in both texts.
"""

import re
import threading

from naiad.config.forms.pbtxt.lexer import ParsedConfig
from naiad.config.forms.pbtxt.text_format import parse_pbtxt
from naiad.core.limits.bounded_cache import BoundedCache

_NAME_LINE = re.compile(r'^name[ \t]*:[ \t]*"([A-Za-z0-9_.\-]+)"[ \t]*\r?$', re.MULTILINE)
_MOST_TEXTS = 512
_MOST_BYTES = 16 << 20
"""Of all of them together."""
_MOST_TEXT_BYTES = 1 << 20
"""A text that takes more is not kept."""
_SHARE_BYTES = 16
"""What is kept for each character of a text: the text itself, and the positions of its fields."""

_Key = tuple[str, ...]


class KnownTexts:
    """Parses configurations, each kind once. For several threads."""

    def __init__(self) -> None:
        self._texts: BoundedCache[_Key, ParsedConfig] = BoundedCache(
            max_entries=_MOST_TEXTS, max_bytes=_MOST_BYTES, max_entry_bytes=_MOST_TEXT_BYTES
        )
        """By the text before the name and that after it, or by the whole text."""
        self._lock = threading.Lock()
        """Held for a change of them."""

    def parse(self, text: str, filename: str) -> ParsedConfig:
        """Return what `parse_pbtxt` returns; its positions are not to be changed."""
        found = _NAME_LINE.search(text)
        key: _Key = (text,) if found is None else (text[: found.start(1)], text[found.end(1) :])
        known = self._texts.get(key)
        if known is not None:
            return _copy(known, filename, None if found is None else found[1])
        parsed = parse_pbtxt(text, filename)
        if parsed.problems or parsed.is_unread:
            return parsed
        if found is not None and not _is_name_of_model(parsed, found):
            return parsed
        kept = _copy(parsed, "", None if found is None else "")
        with self._lock:
            self._texts.remember(key, kept, _SHARE_BYTES * len(text))
        return parsed


def _is_name_of_model(parsed: ParsedConfig, found: "re.Match[str]") -> bool:
    """Return whether the line that was found names the model, and not a tensor."""
    position = parsed.positions.get("name")
    line = found.string.count("\n", 0, found.start()) + 1
    return position is not None and position.line == line and parsed.config.name == found[1]


def _copy(parsed: ParsedConfig, filename: str, name: str | None) -> ParsedConfig:
    """Return a copy for another file, with another name of the model unless `name` is None."""
    copy = ParsedConfig(filename)
    copy.config.CopyFrom(parsed.config)
    if name is not None:
        copy.config.name = name
    copy.positions = parsed.positions
    return copy


known_texts = KnownTexts()
"""Of this process."""
