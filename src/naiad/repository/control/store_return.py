"""Waits for model repositories that could not be reached at the start, and loads what they have when they return.

Until then the server serves what the cache has of them, or, with an empty cache, is not ready. In mode POLL the
regular listing does this.
"""

import logging
import threading
from collections.abc import Callable, Sequence

from naiad.repository.stores.stores import Stores, fingerprints_of
from naiad.telemetry.last_resort import keep_running

_log = logging.getLogger(__name__)

_FIRST_PAUSE_S = 5.0
_LONGEST_PAUSE_S = 60.0


class StoreReturn:
    """A thread that runs only while a repository cannot be reached."""

    def __init__(self, stores: Stores, load: Callable[[Sequence[str]], object]) -> None:
        """`load` gets the names of models that are new or look different than at the start."""
        self._stores = stores
        self._load = load
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="store-return", daemon=True)

    def start(self) -> None:
        """Begin to wait, if a repository cannot be reached."""
        if self._stores.was_any_away:
            self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """Wait no more; what is being loaded is not awaited."""
        self._stop.set()

    def _run(self) -> None:
        keep_running("waiting for model repositories", self._wait, self._stop.wait)

    def _wait(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while not self._stop.wait(pause_s):
            # What the start has loaded, if it could list it; any request may have reached the store since.
            loaded = self._stores.first_look or {}
            now = fingerprints_of(self._stores.look())
            away = self._stores.away
            if not away:
                changed = [name for name, look in now.items() if loaded.get(name) != look]
                _log.warning("all model repositories can be reached: %d models are new or have changed", len(changed))
                self._load(changed)
                return
            pause_s = min(_LONGEST_PAUSE_S, pause_s * 2)
            _log.warning("still not reached: %s; the next try is in %g s", "; ".join(away.values()), pause_s)
