"""The metadata at the beginning of a GGUF file: architecture, context, chat template.

    magic "GGUF", version u32, number of tensors u64, number of entries u64, then each entry: key, type u32, value.

Everything is little-endian; a text is its length u64 and its bytes. Reading is bounded: a file that is cut off or
damaged raises an error that names what is missing.
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from naiad.core.errors import excerpt
from naiad.core.texts.chat_format import is_mark

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
MAX_ENTRIES = 1 << 16
MAX_TEXT_BYTES = 16 << 20
MAX_ELEMENTS = 1 << 24
"""Limit of an array; vocabularies have some hundred thousand tokens."""
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
"""Number of a type to its format."""
_TEXT, _ARRAY = 8, 9
_TOKENS = "tokenizer.ggml.tokens"
_TYPES = "tokenizer.ggml.token_type"
_CONTROL, _USER_DEFINED = 3, 4
"""llama.cpp's types of tokens that are found in texts: special ones, and others that were added."""
_I32 = 5
_RANK = 4
"""llama.cpp's type of pooling for scores of pairs; 1 to 3 make vectors."""

Value = int | float | bool | str


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """What a GGUF file says of itself; arrays (the tokens) are left out."""

    entries: Mapping[str, Value]
    bos_token: str = ""
    """The token that begins a text; empty if the file does not say it."""
    eos_token: str = ""
    """The token that ends a text."""
    tokens_at: int = 0
    """Where the array of the tokens begins; 0 without one."""
    types_at: int = 0
    """Where the array of their types begins."""

    @property
    def architecture(self) -> str:
        """Such as `llama` or `bert`."""
        return str(self.entries.get("general.architecture", ""))

    @property
    def context_length(self) -> int:
        """The most tokens that the model was trained with; 0 if the file does not say it."""
        return self._number("context_length")

    @property
    def embedding_length(self) -> int:
        """The length of its vectors; 0 if the file does not say it."""
        return self._number("embedding_length")

    @property
    def makes_vectors(self) -> bool:
        """Whether the file says how the vectors of its tokens become one: then it is no model for text."""
        return self._number("pooling_type") > 0

    def check_pooling(self) -> None:
        """Raise ValueError for a way of pooling that makes no vectors: such a model is neither for text nor these."""
        kind = self._number("pooling_type")
        if kind == _RANK:
            raise ValueError("is a reranker, which this backend does not serve")
        if kind > _RANK:
            raise ValueError(f"has the pooling type {kind}; llama.cpp knows 0 to {_RANK}: convert the model again")

    @property
    def has_chat_template(self) -> bool:
        """Whether the file has the format of its chats."""
        return bool(self.entries.get("tokenizer.chat_template"))

    def _number(self, name: str) -> int:
        found = self.entries.get(f"{self.architecture}.{name}", 0)
        return found if isinstance(found, int) else 0


def read_gguf_header(path: Path) -> GgufHeader:
    """Read the metadata of a file. Raises ValueError for another format, a damaged file or a reranker, OSError."""
    with path.open("rb") as file:
        if file.read(4) != _MAGIC:
            raise ValueError("is no GGUF file: it does not begin with 'GGUF'")
        (version,) = _read(file, "<I")
        if version not in _VERSIONS:
            raise ValueError(f"has version {version} of GGUF; versions 2 and 3 are read. Convert the model again")
        _, count = _read(file, "<QQ")
        if count > MAX_ENTRIES:
            raise ValueError(f"says that it has {count} entries of metadata, more than {MAX_ENTRIES}: it is damaged")
        entries: dict[str, Value] = {}
        tokens_at = types_at = 0
        for _ in range(count):
            key = _read_text(file)
            (kind,) = _read(file, "<I")
            if kind == _ARRAY:
                tokens_at = file.tell() if key == _TOKENS else tokens_at
                types_at = file.tell() if key == _TYPES else types_at
                _skip_array(file, key)
            else:
                entries[key] = _read_value(file, kind, key)
        bos, eos = (
            _token(file, tokens_at, entries.get(f"tokenizer.ggml.{name}_token_id")) for name in ("bos", "eos")
        )
    header = GgufHeader(entries, bos, eos, tokens_at, types_at)
    header.check_pooling()
    return header


def read_marks(path: Path, header: GgufHeader) -> Sequence[str]:
    """Return the tokens that llama.cpp finds in a text as marks of a format. Raises ValueError, OSError."""
    if not header.tokens_at or not header.types_at:
        return []
    with path.open("rb") as file:
        file.seek(header.types_at)
        kind, count = _read(file, "<IQ")
        types = _read(file, f"<{count}i") if kind == _I32 else ()
        file.seek(header.tokens_at)
        file.seek(struct.calcsize("<IQ"), 1)
        found = []
        for each in types:
            if each in (_CONTROL, _USER_DEFINED):
                token = _read_text(file)
                found += [token] if is_mark(token, is_special=each == _CONTROL) else []
            else:
                file.seek(_text_size(file), 1)
    return found


def _read(file: BinaryIO, form: str) -> tuple[int, ...]:
    size = struct.calcsize(form)
    data = file.read(size)
    if len(data) != size:
        raise ValueError("is cut off in its metadata; copy or download it again")
    return struct.unpack(form, data)


def _text_size(file: BinaryIO) -> int:
    (size,) = _read(file, "<Q")
    if size > MAX_TEXT_BYTES:
        raise ValueError(f"has a text of {size} bytes in its metadata: it is damaged")
    return size


def _read_text(file: BinaryIO) -> str:
    size = _text_size(file)
    data = file.read(size)
    if len(data) != size:
        raise ValueError("is cut off in its metadata; copy or download it again")
    return data.decode("utf-8", "replace")


def _read_value(file: BinaryIO, kind: int, key: str) -> Value:
    if kind == _TEXT:
        return _read_text(file)
    if kind not in _SCALARS:
        raise ValueError(f"has an entry '{excerpt(key)}' of the unknown type {kind}: it is damaged")
    return _read(file, _SCALARS[kind])[0]


def _token(file: BinaryIO, tokens_at: int, number: Value | None) -> str:
    """Return a token of the array that begins at `tokens_at`; empty without it, or without a number."""
    if not tokens_at or type(number) is not int:
        return ""
    file.seek(tokens_at)
    kind, count = _read(file, "<IQ")
    if kind != _TEXT or not 0 <= number < count:
        return ""
    for _ in range(number):
        file.seek(_text_size(file), 1)
    return _read_text(file)


def _skip_array(file: BinaryIO, key: str) -> None:
    kind, count = _read(file, "<IQ")
    if count > MAX_ELEMENTS:
        raise ValueError(
            f"has an array '{excerpt(key)}' of {count} elements, more than {MAX_ELEMENTS}: it is damaged"
        )
    if kind in _SCALARS:
        file.seek(count * struct.calcsize(_SCALARS[kind]), 1)
        return
    if kind != _TEXT:
        raise ValueError(f"has an array '{excerpt(key)}' of the type {kind}, which is not read")
    for _ in range(count):
        file.seek(_text_size(file), 1)
