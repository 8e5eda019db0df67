"""A directory in Hugging Face's layout: reading its JSON files, with errors that name file and value."""

import json
import math
from collections.abc import Mapping
from typing import Any, ClassVar

from tokenizers import Tokenizer

from naiad.backend.framework import ModelFile
from naiad.core.errors import excerpt

AGAIN = "copy the whole directory again, as save_pretrained writes it"


class JsonDirectory(ModelFile):
    """The files of one model version beside its weights. All methods raise InferError(INVALID_ARG)."""

    again: ClassVar[str] = AGAIN
    """What to do about files that are damaged."""

    def read_json(self, name: str, default: Any) -> Any:
        """Return the content of a file, which is a list or a dictionary as `default` is."""
        path = self.path / name
        if not path.is_file():
            return default
        try:
            content = json.loads(path.read_bytes())
        except (ValueError, RecursionError) as error:
            raise self.error(f"has a {name} that is no JSON: {error}; {self.again}") from error
        if default is not None and not isinstance(content, type(default)):
            raise self.error(f"has a {name} with a {type(content).__name__}; {self.again}")
        return content

    def whole(self, file: str, content: Mapping[str, Any], name: str) -> int:
        """Return a number that is not negative, of the content of a file; 0 without it."""
        value = content.get(name) or 0
        is_number = type(value) is int or (type(value) is float and math.isfinite(value))
        if not is_number or value < 0:
            raise self.error(
                f"has '{name}' in {file} with {excerpt(repr(value))}; expected a whole number; {self.again}"
            )
        return int(value)

    def special_token(self, name: str) -> str:
        """Return a token of `tokenizer_config.json`; empty without it."""
        token = self.read_json("tokenizer_config.json", {}).get(name)
        return str(token.get("content", "")) if isinstance(token, dict) else str(token or "")

    def plain_tokenizer(self) -> Tokenizer:
        """Return the tokenizer as its file has it."""
        try:
            return Tokenizer.from_file(str(self.path / "tokenizer.json"))
        except Exception as error:  # the library raises Exception itself
            raise self.error(
                f"has a tokenizer.json that cannot be read: {excerpt(str(error))}; {self.again}"
            ) from error
