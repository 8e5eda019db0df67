"""Header fields of a message: a list of pairs, and the dictionary that keeps them as they were written."""

from collections.abc import Iterable, Mapping, Sequence

Headers = Sequence[tuple[bytes, bytes]]


class HeaderFields(dict[bytes, bytes]):
    """The fields of an HTTP request by their lower-case names."""

    __slots__ = ("written",)

    def __init__(self) -> None:
        super().__init__()
        self.written: list[tuple[bytes, bytes]] = []
        """The fields as they came, names in their original case."""


def written_fields(headers: Mapping[bytes, bytes]) -> Iterable[tuple[bytes, bytes]]:
    """Return the fields of a request with their names as they came, as far as the transport knows."""
    return headers.written if isinstance(headers, HeaderFields) else headers.items()
