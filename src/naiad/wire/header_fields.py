"""Header fields of a message: a list of pairs, and the dictionary that keeps them as they were written."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110 5.6.2
_FORBIDDEN_IN_VALUE = re.compile(rb"[\x00\r\n]")

Headers = Sequence[tuple[bytes, bytes]]


class HeaderFields(dict[bytes, bytes]):
    """The fields of an HTTP request by their lower-case names."""

    __slots__ = ("memo", "written")

    def __init__(self) -> None:
        super().__init__()
        self.written: list[tuple[bytes, bytes]] = []
        """The fields as they came, names in their original case."""
        self.memo: Any = None
        """What the route has read from the fields: requests with the same header block share them."""

    def add(self, name: bytes, value: bytes, separator: bytes = b", ") -> None:
        """Add a field as it came; fields of the same name are joined."""
        self.written.append((name, value))
        lower = name.lower()
        known = self.get(lower)
        self[lower] = value if known is None else known + separator + value


def written_fields(headers: Mapping[bytes, bytes]) -> Iterable[tuple[bytes, bytes]]:
    """Return the fields of a request with their names as they came, as far as the transport knows."""
    return headers.written if isinstance(headers, HeaderFields) else headers.items()


def copy_of(headers: Mapping[bytes, bytes]) -> HeaderFields:
    """Return fields of a request to change, without what the route has read."""
    fields = HeaderFields()
    fields.update(headers)
    fields.written = list(written_fields(headers))
    return fields


def check_field(name: str, value: str) -> tuple[bytes, bytes]:
    """Return a header field as bytes. Raises ValueError for one that HTTP cannot carry."""
    try:
        raw_name, raw_value = name.encode("ascii"), value.encode("latin-1")
    except UnicodeEncodeError:
        raise _uncarriable(name) from None
    if not _TOKEN.fullmatch(raw_name) or _FORBIDDEN_IN_VALUE.search(raw_value):
        raise _uncarriable(name)
    return raw_name, raw_value


def _uncarriable(name: str) -> ValueError:
    return ValueError(f"header field {name[:200]!r} has characters that HTTP cannot carry")
