"""Shows on the screen that a step of a demonstration still runs."""

import contextlib
import threading
import time
from collections.abc import Iterator

from rich.console import Console

INTERVAL_S = 4.0


@contextlib.contextmanager
def waiting(console: Console, text: str) -> Iterator[None]:
    """Show `text` during the block: a spinner on a terminal, otherwise a line every few seconds."""
    if console.is_terminal:
        with console.status(text):
            yield
        return
    has_ended = threading.Event()
    began = time.monotonic()

    def report() -> None:
        while not has_ended.wait(INTERVAL_S):
            console.print(f"  {text} ({time.monotonic() - began:.0f} s)", markup=False, highlight=False)

    reporter = threading.Thread(target=report)
    reporter.start()
    try:
        yield
    finally:
        has_ended.set()
        reporter.join()
