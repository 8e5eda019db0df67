"""Messages between the session and its generator processes: a length of 8 bytes and a pickle.

Both ends are the same program, and the socket is inherited, so pickles carry nothing foreign.
"""

import asyncio
import io
import pickle
import struct
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from naiad.core.errors import InferError

_LENGTH = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class Message:
    """A call of a method of the process's generator."""

    method: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Failed:
    """The call has raised an error."""

    error: InferError


class _Pickler(pickle.Pickler):
    """Tensors may be views, and parameters read-only mappings: neither has a pickle of its own."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, memoryview):
            return bytes, (value.tobytes(),)
        if isinstance(value, MappingProxyType):
            return MappingProxyType, (dict(value),)
        if isinstance(value, InferError):
            return _error, (value.code, value.message)
        return NotImplemented


def _error(code: Any, message: str) -> InferError:
    return InferError(code, message)


async def write(writer: asyncio.StreamWriter, value: object) -> None:
    """Send an object."""
    content = io.BytesIO()
    _Pickler(content, pickle.HIGHEST_PROTOCOL).dump(value)
    writer.write(_LENGTH.pack(content.tell()))
    writer.write(content.getbuffer())
    await writer.drain()


async def read(reader: asyncio.StreamReader) -> Any:
    """Return the next object. Raises asyncio.IncompleteReadError at the end of the connection."""
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    return pickle.loads(await reader.readexactly(length))
