"""A generator process: `python -m naiad.perf.generator.worker FD`. `processes` has the protocol."""

import asyncio
import os
import socket
import sys

from naiad.client import InferError
from naiad.perf.generator.local import LocalGenerator
from naiad.perf.generator.messages import Failed, Message, read, write
from naiad.perf.targets import make_target


async def serve(connection: socket.socket) -> None:
    """Carry out the messages of the session until it closes the connection."""
    reader, writer = await asyncio.open_connection(sock=connection)
    setup = await read(reader)
    generator = LocalGenerator(setup, make_target(setup.service))
    try:
        while True:
            message = await read(reader)
            await write(writer, await _reply(generator, message))
    except asyncio.IncompleteReadError:
        await generator.close()


async def _reply(generator: LocalGenerator, message: Message) -> object:
    try:
        return await getattr(generator, message.method)(*message.arguments)
    except InferError as error:
        return Failed(error)


def main() -> None:
    """Run the process."""
    import uvloop

    descriptor = int(sys.argv[1])
    os.set_inheritable(descriptor, False)
    uvloop.run(serve(socket.socket(fileno=descriptor)))


if __name__ == "__main__":
    main()
