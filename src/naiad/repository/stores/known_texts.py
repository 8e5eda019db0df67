"""Texts of configurations that were parsed before: models of one kind have the same text apart from their name.

Parsing takes 1,500 Python calls for a text of fifteen lines, as much as everything else that a load does. Texts
without any problem are kept, at most `_MOST_TEXTS` of them, by their content: a changed file is another text. The
name may differ if it is alone on a line. Then all else is at the same place in both texts.
"""

import re
import threading

from naiad.config.forms.pbtxt.lexer import ParsedConfig
from naiad.config.forms.pbtxt.text_format import parse_pbtxt

_NAME_LINE = re.compile(r'^name[ \t]*:[ \t]*"([A-Za-z0-9_.\-]+)"[ \t]*\r?$', re.MULTILINE)
_MOST_TEXTS = 512
_MOST_CHARACTERS = 64 << 10
"""A longer text is not kept."""

_Key = tuple[str, ...]


class KnownTexts:
    """Parses configurations, each kind once. For several threads."""

    def __init__(self) -> None:
        self._texts: dict[_Key, ParsedConfig] = {}
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
        if len(text) > _MOST_CHARACTERS or parsed.problems or parsed.is_unread:
            return parsed
        if found is not None and not _is_name_of_model(parsed, found):
            return parsed
        kept = _copy(parsed, "", None if found is None else "")
        with self._lock:
            self._texts[key] = kept
            if len(self._texts) > _MOST_TEXTS:
                del self._texts[next(iter(self._texts))]
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
