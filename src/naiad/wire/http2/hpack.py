"""HPACK decoding (RFC 7541) behind a cache of whole header blocks.

Clients repeat their header blocks byte for byte. What a block means depends on the dynamic table, so a block is
served from the cache only when decoding it again would (1) change nothing and (2) give the same fields: it inserted
nothing, resized nothing, and either refers to no dynamic entry or the table has not changed since.

Tables and Huffman codes are the `hpack` package's. The loop over a block is our own: the package's copies the rest of
the block for each field and reads integers of any length, both quadratic in what a hostile peer sends.
"""

from typing import Generic, NamedTuple, TypeVar

from hpack.exceptions import HPACKError
from hpack.huffman_table import decode_huffman
from hpack.table import HeaderTable

from naiad.wire.http2.connection_limits import Http2Limits
from naiad.wire.http2.headers import (
    KEPT_OF_TOO_MANY,
    Field,
    Fields,
    RequestHead,
    ResponseHead,
    parse_request_head,
    parse_response_head,
    too_large_head,
)

_CACHED_BLOCKS = 64
_CACHED_BLOCK_BYTES = 2048
_STATIC = HeaderTable.STATIC_TABLE
_STATIC_COUNT = len(_STATIC)
_KEPT_VALUE_BYTES = 1024
_SHORT_BYTES = 32
_MAX_RESIZES = 2  # RFC 7541 4.2: the smallest size in between, and the final one
_MAX_INTEGER_BYTES = 5  # carries 2**35; nothing in HPACK is larger than 2**32


class HpackError(Exception):
    """The block cannot be decoded; the connection's compression state is lost (COMPRESSION_ERROR)."""


class HeaderListTooLargeError(Exception):
    """The block unfolds to far more than a limit; decoding stopped (ENHANCE_YOUR_CALM)."""


H = TypeVar("H")


class HeaderDecoder(Generic[H]):
    """Decodes the header blocks of one connection in the order of their arrival.

    `H` is what a block means to the side that receives it.
    """

    __slots__ = (
        "_changed_table",
        "_hard_limit_bytes",
        "_hard_limit_fields",
        "_is_over_limit",
        "_limit_bytes",
        "_limit_fields",
        "_table",
        "_table_limit_bytes",
        "_used_dynamic",
        "cached",
        "cached_static",
    )

    def __init__(
        self, header_list_bytes: int, header_fields: int = 128, table_bytes: int = HeaderTable.DEFAULT_SIZE
    ) -> None:
        self._limit_bytes = header_list_bytes
        self._limit_fields = header_fields
        # Between the two the block is decoded, as the next one may refer to it, and only its message is refused.
        self._hard_limit_bytes = 2 * header_list_bytes
        self._hard_limit_fields = 2 * header_fields
        self._is_over_limit = False
        self._table = HeaderTable()
        self._table_limit_bytes = table_bytes
        self._changed_table = False
        self._used_dynamic = False
        self.cached: dict[bytes, H] = {}
        """Blocks that are valid until the dynamic table changes. Hot: callers look here before `decode`."""
        self.cached_static: dict[bytes, H] = {}
        """Blocks that do not refer to the dynamic table."""

    def decode(self, block: bytes) -> H:
        """Return what `block` means, from the cache where that is right.

        Raises HpackError or HeaderListTooLargeError; both end the connection.
        """
        known = self.cached.get(block) or self.cached_static.get(block)
        if known is not None:
            return known
        decoded = self._parse(self.decode_fields(block))
        if not self._changed_table and len(block) <= _CACHED_BLOCK_BYTES:
            blocks = self.cached if self._used_dynamic else self.cached_static
            if len(blocks) >= _CACHED_BLOCKS:
                blocks.clear()
            blocks[block] = decoded
        return decoded

    def _parse(self, fields: Fields) -> H:
        raise NotImplementedError

    def decode_fields(self, block: bytes) -> Fields:
        """Return the fields of trailers, never from the cache. Raises as `decode` does."""
        self._changed_table = self._used_dynamic = False
        try:
            return self._read_fields(block)
        except (HPACKError, IndexError) as error:
            raise HpackError(str(error)) from error

    def _read_fields(self, block: bytes) -> Fields:
        position = self._read_resizes(block)
        fields: list[Field] = []
        size, count, end = 0, 0, len(block)
        # A larger block has a larger list, as Huffman codes are used where they are shorter.
        self._is_over_limit = end > self._limit_bytes
        while position < end:
            first = block[position]
            if first & 0x80:
                index, position = _read_integer(block, position, 0x7F)
                field = self._entry(index)
            elif first & 0xE0 == 0x20:
                raise HpackError("table size update after a field")
            elif self._is_over_limit:
                field, position = self._skip_literal(block, position, first)
            else:
                field, position = self._read_literal(block, position, first)
            size += 32 + len(field[0]) + len(field[1])
            count += 1
            if size > self._limit_bytes or count > self._limit_fields:
                self._check_hard_limits(size, count)
                self._is_over_limit = True
                if not self._is_kept(field):
                    continue
            fields.append(field)
        return tuple(fields)

    def _check_hard_limits(self, size: int, count: int) -> None:
        if size > self._hard_limit_bytes:
            raise HeaderListTooLargeError(f"header list of more than {self._hard_limit_bytes} bytes")
        if count > self._hard_limit_fields:
            raise HeaderListTooLargeError(f"more than {self._hard_limit_fields} header fields")

    def _is_kept(self, field: Field) -> bool:
        """Return whether a field beyond a limit is kept."""
        return True

    def _read_resizes(self, block: bytes) -> int:
        """Apply the table size updates in front of the fields (RFC 7541 4.2) and return where they end."""
        position = count = 0
        while position < len(block) and block[position] & 0xE0 == 0x20:
            count += 1
            if count > _MAX_RESIZES:
                raise HpackError(f"more than {_MAX_RESIZES} table size updates in a block")
            size, position = _read_integer(block, position, 0x1F)
            if size > self._table_limit_bytes:
                raise HpackError(f"table size update to {size}, above {self._table_limit_bytes}")
            self._note_change()
            self._table.maxsize = size
        return position

    def _skip_literal(self, block: bytes, position: int, first: int) -> tuple[Field, int]:
        """Pass a field of a block whose message is refused: decoding takes long, only the table needs it."""
        if first & 0x40:
            return self._read_indexed(block, position, first)
        index, position = _read_integer(block, position, 0x0F)
        if index:
            name = self._entry(index)[0]
        elif block[position] & 0x7F <= _SHORT_BYTES:
            name, position = _read_string(block, position)
        else:
            name, position = b"", _end_of_string(block, position)
        if name in KEPT_OF_TOO_MANY:
            value, position = _read_string(block, position)
            return (name, value), position
        return (name, b""), _end_of_string(block, position)

    def _read_indexed(self, block: bytes, position: int, first: int) -> tuple[Field, int]:
        """Read a field for the table; one that does not fit empties it (RFC 7541 4.4)."""
        index, start = _read_integer(block, position, 0x3F)
        if not index:
            start = _end_of_string(block, start)
        end = _end_of_string(block, start)
        # No Huffman code has more than 30 bits.
        if (end - start) * 8 // 30 <= self._table.maxsize:
            return self._read_literal(block, position, first)
        self._note_change()
        size, self._table.maxsize = self._table.maxsize, 0
        self._table.maxsize = size
        return (b"", b""), end

    def _read_literal(self, block: bytes, position: int, first: int) -> tuple[Field, int]:
        inserts = first & 0x40
        index, position = _read_integer(block, position, 0x3F if inserts else 0x0F)
        if index:
            name = self._entry(index)[0]
        else:
            name, position = _read_string(block, position)
        value, position = _read_string(block, position)
        if inserts:
            self._note_change()
            self._table.add(name, value)
        return (name, value), position

    def _entry(self, index: int) -> Field:
        if 0 < index <= _STATIC_COUNT:
            return _STATIC[index - 1]
        self._used_dynamic = True
        return self._table.get_by_index(index)

    def _note_change(self) -> None:
        self._changed_table = True
        self.cached.clear()


class RequestHeadDecoder(HeaderDecoder[RequestHead]):
    """Decodes the header blocks of a client. A head over the size limit has `is_too_large` set."""

    __slots__ = ()

    def __init__(self, limits: Http2Limits) -> None:
        super().__init__(limits.header_list_bytes, limits.header_fields)
        self._hard_limit_bytes = limits.discarded_list_bytes
        self._hard_limit_fields = limits.discarded_fields

    def _parse(self, fields: Fields) -> RequestHead:
        return too_large_head(fields) if self._is_over_limit else parse_request_head(fields)

    def _is_kept(self, field: Field) -> bool:
        return field[0] in KEPT_OF_TOO_MANY and len(field[1]) <= _KEPT_VALUE_BYTES

    def forget_memos(self) -> None:
        """Drop what was derived from the heads that are remembered."""
        for head in (*self.cached.values(), *self.cached_static.values()):
            head.memo = None


class ResponseBlock(NamedTuple):
    """A header block that a client has received: a head or trailers."""

    fields: Fields
    """As trailers."""
    head: ResponseHead
    """As a head; with an error if it is none."""


class ResponseHeadDecoder(HeaderDecoder[ResponseBlock]):
    """Decodes the header blocks of a server."""

    __slots__ = ()

    def _parse(self, fields: Fields) -> ResponseBlock:
        # gRPC's PROTOCOL-HTTP2 lets metadata have outer spaces, which RFC 9113 8.2.1 forbids, and strips them.
        stripped = tuple([(name, value.strip(b" \t")) for name, value in fields])
        return ResponseBlock(stripped, parse_response_head(stripped))


def _read_integer(block: bytes, position: int, mask: int) -> tuple[int, int]:
    number = block[position] & mask
    position += 1
    if number < mask:
        return number, position
    for shift in range(0, 7 * _MAX_INTEGER_BYTES, 7):
        byte = block[position]
        position += 1
        number += (byte & 0x7F) << shift
        if byte < 0x80:
            return number, position
    raise HpackError("integer is too long")


def _end_of_string(block: bytes, position: int) -> int:
    length, position = _read_integer(block, position, 0x7F)
    if position + length > len(block):
        raise HpackError("string runs past the end of the block")
    return position + length


def _read_string(block: bytes, position: int) -> tuple[bytes, int]:
    is_huffman = block[position] & 0x80
    length, position = _read_integer(block, position, 0x7F)
    end = position + length
    if end > len(block):
        raise HpackError("string runs past the end of the block")
    text = block[position:end]
    return (decode_huffman(text) if is_huffman else text), end
