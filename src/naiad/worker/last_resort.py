"""The last resort of the worker's own threads: without one of them requests would wait forever.

A worker cannot go on without its threads, but the server can go on without this worker: it fails the open requests
with the reason and starts another one, after a pause that grows with each death (`backend/workers/life_cycle.py`).
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Callable

EXIT_STATUS = 70
"""EX_SOFTWARE of sysexits.h: an error in the worker itself."""


def start_thread(name: str, work: Callable[[], object]) -> threading.Thread:
    """Start a thread of the worker; any exception that ends it ends the process."""

    def run() -> None:
        try:
            work()
        except BaseException:
            try:
                print(f"thread '{name}' of the worker has failed; the worker exits", file=sys.stderr)
                traceback.print_exc()
                sys.stderr.flush()
            finally:
                os._exit(EXIT_STATUS)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread
