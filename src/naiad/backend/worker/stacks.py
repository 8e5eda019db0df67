"""Stacks of a worker on demand, whatever it is doing: the server sends a signal, the worker writes to its stderr."""

from __future__ import annotations

import faulthandler
import signal

DUMP_SIGNAL: int = signal.SIGRTMIN + 7 if hasattr(signal, "SIGRTMIN") else signal.SIGUSR2
"""Not one that models use. What handles it is C: it works while native code holds the interpreter."""


def dump_on_signal() -> None:
    """Write the stacks of all threads to descriptor 2 whenever the signal comes."""
    faulthandler.register(DUMP_SIGNAL, file=2, all_threads=True)
