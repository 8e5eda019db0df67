"""A tokenizer.json that only counts: how many tokens a model reads of texts."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from naiad.core.errors import excerpt

_MAX_BYTES = 256 << 20
_AT_ONCE = 32
"""Texts that are cut into tokens at once: tokens take some hundred bytes each until they are counted."""


class FileTokenizer:
    """Counts the tokens of texts, special ones too. Texts are cut where the file says; padding does not count."""

    def __init__(self, path: Path) -> None:
        """Raises ValueError for a file that is no tokenizer."""
        if path.stat().st_size > _MAX_BYTES:
            raise ValueError(f"it is larger than {_MAX_BYTES} bytes")
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises Exception itself
            raise ValueError(excerpt(str(error))) from error
        self._tokenizer.no_padding()

    def count(self, texts: Sequence[str], pairs: Sequence[str] = ()) -> int:
        """Return the number of tokens of all texts, each together with its text of `pairs` if there are any."""
        inputs: Sequence[Any] = list(zip(texts, pairs, strict=True)) if pairs else texts
        encode = self._tokenizer.encode_batch_fast
        starts = range(0, len(inputs), _AT_ONCE)
        return sum(len(found) for start in starts for found in encode(list(inputs[start : start + _AT_ONCE])))
