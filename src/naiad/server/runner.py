"""What surrounds every process of a server: its log, its event loop, its exit status."""

import asyncio
import gc
import logging
import os
import sys
from collections.abc import Callable, Coroutine

import uvloop

from naiad.config.options import ServerOptions
from naiad.core.errors import InferError
from naiad.server.file_limit import raise_file_limit
from naiad.telemetry import log

_log = logging.getLogger(__name__)


def run_to_status(options: ServerOptions, run: Callable[[], Coroutine[object, object, int]]) -> int:
    """Set the log up, run `run` on an event loop and return its status, 1 when it raises InferError."""
    # What start-up allocates stays; collecting meanwhile only costs time.
    gc.disable()
    try:
        log.configure(options.log, escapes=os.environ.get("TRITON_SERVER_ESCAPE_LOG_MESSAGES") != "0")
    except OSError as error:
        print(f"naiad serve: --log-file {options.log.file}: {error.strerror}", file=sys.stderr)
        return 1
    if options.no_effect:
        _log.warning("flags without effect in this server: %s", ", ".join(options.no_effect))
    raise_file_limit(options.most_connections)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(run())
    except InferError as error:
        # Triton: "error: creating server: Internal - ...".
        _log.error("creating server: %s - %s", error.code.words, error.message)
        return 1
    finally:
        log.shut_down()
