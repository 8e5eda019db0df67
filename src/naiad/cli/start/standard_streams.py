"""Standard streams of a command that was started without them (`2>&-`, some service managers)."""

import os
import sys

_STREAMS = ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w"))


def open_standard_streams() -> None:
    """Open the null device in place of each standard stream that is closed.

    Otherwise Python has no stream there, so printing and logging fail, and the next file or socket gets its number:
    what a library or a worker process writes to its console would go to a client.
    """
    for number, name, mode in _STREAMS:
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", errors="replace", closefd=False))
