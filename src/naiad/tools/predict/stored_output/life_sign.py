"""A sign that a run writes its output now: an object that changes every few seconds until the output is there.

An upload may take hours, and its end replaces the output, whether or not the run still has the job. So another run
does not take the job over meanwhile. It watches the sign for a while by its own clock: clocks of
machines and stores are not compared.
"""

import contextlib
import logging
import secrets
import threading
import time
from collections.abc import Iterator

from naiad.core.errors import InferError
from naiad.repository.cloud.objects.objects import ObjectStore

_log = logging.getLogger(__name__)

BEAT_S = 5.0
"""Between changes."""
WATCH_S = 40.0
"""How long a run watches: a change may be late by the time limit of a small request."""
_LOOKS = 20
"""While it watches."""


def sign_of(run: str) -> str:
    """Return the key of the sign of a run."""
    return f"publishing-{run}"


@contextlib.contextmanager
def publishing(objects: ObjectStore, run: str) -> Iterator[None]:
    """Have the sign of a run for a block. Raises InferError if it cannot be written."""
    objects.write(sign_of(run), secrets.token_bytes(8), {})
    ended = threading.Event()
    thread = threading.Thread(target=_change, args=(objects.brief(), run, ended), name="publishing", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        with contextlib.suppress(InferError):  # it does not change any more
            objects.delete([sign_of(run)])


def _change(objects: ObjectStore, run: str, ended: threading.Event) -> None:
    while not ended.wait(BEAT_S):
        try:
            objects.write(sign_of(run), secrets.token_bytes(8), {})
        except InferError as error:
            _log.warning("the sign that the output is written cannot be changed: %s", error.message)


def is_publishing(objects: ObjectStore, run: str) -> bool:
    """Return whether a run writes its output; watch its sign until it changes. Raises InferError."""
    first = objects.find(sign_of(run))
    if first is None:
        return False
    _log.warning("another process has begun to write the output; looking for %g s whether it goes on", WATCH_S)
    end_s = time.monotonic() + WATCH_S
    while time.monotonic() < end_s:
        time.sleep(WATCH_S / _LOOKS)
        found = objects.find(sign_of(run))
        if found is None:
            return False
        if found != first:
            return True
    return False
