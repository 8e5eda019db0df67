"""A generator process: `python -m naiad.tools.perf.generator.generator_process FD`. `processes` has the protocol.

A message is a length of 8 bytes and a pickle. Both ends are the same program, and the socket is inherited, so pickles
carry nothing foreign.
"""

import asyncio
import io
import os
import pickle
import socket
import struct
import sys
from types import MappingProxyType
from typing import Any

from naiad.core.errors import InferError
from naiad.tools.perf.generator.local_generator import LocalGenerator
from naiad.tools.perf.targets import make_target

_LENGTH = struct.Struct("<Q")


class _Pickler(pickle.Pickler):
    """Tensors may be views, and parameters read-only mappings: neither has a pickle of its own."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, memoryview):
            return bytes, (value.tobytes(),)
        if isinstance(value, MappingProxyType):
            return MappingProxyType, (dict(value),)
        if isinstance(value, InferError):
            return InferError, (value.code, value.message)
        return NotImplemented


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


async def serve(connection: socket.socket) -> None:
    """Carry out the calls of the session until it closes the connection."""
    reader, writer = await asyncio.open_connection(sock=connection)
    setup = await read(reader)
    generator = LocalGenerator(setup, make_target(setup.service))
    try:
        while True:
            method, arguments = await read(reader)
            try:
                result = await getattr(generator, method)(*arguments)
            except InferError as error:
                result = error
            await write(writer, result)
    except asyncio.IncompleteReadError:
        await generator.close()


def main() -> None:
    """Run the process."""
    import uvloop

    descriptor = int(sys.argv[1])
    os.set_inheritable(descriptor, False)
    uvloop.run(serve(socket.socket(fileno=descriptor)))


if __name__ == "__main__":
    main()
