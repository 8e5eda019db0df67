"""Control mode POLL: the repositories are looked at again and again, and what is served follows them."""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from naiad.core.errors import ErrorCode, InferError
from naiad.repository.catalog import Catalog, reason_of
from naiad.repository.control import ExplicitControl, refuse_commands
from naiad.repository.fingerprint import content_digest, fingerprint
from naiad.repository.lifecycle import V
from naiad.repository.store import ModelEntry
from naiad.repository.watch import Watch

_log = logging.getLogger(__name__)

INCOMPLETE_MARK = ".uploading"
"""While a model's directory has a file of this name, the model is being written."""
_SOON_S = 0.5
"""How soon a model that has changed is looked at again."""
_WORK_THREADS = 8


class PollControl(ExplicitControl[V]):
    """Loads what is new or has changed, unloads what is gone; takes no commands."""

    def __init__(self, catalog: Catalog[V], settle: Callable[[], object], *, poll_s: float, settle_s: float) -> None:
        """Look every `poll_s` seconds; a change counts when it has stood for `settle_s`."""
        super().__init__(catalog, settle)
        self._poll_s = poll_s
        self._watch = Watch(settle_s)
        self._contents: dict[str, bytes] = {}
        """What the files of each loaded model hold: one that was only touched is not loaded anew."""
        self._busy: set[str] = set()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._unreadable = ""
        self._pool = ThreadPoolExecutor(_WORK_THREADS, thread_name_prefix="poll-work")
        self._thread = threading.Thread(target=self._run, name="poll", daemon=True)

    # --- what a mode does -------------------------------------------------------------------------------------------

    def load_at_start(self) -> bool:
        """Load everything that is there, then begin to look; whether all of it is ready. Raises InferError."""
        found: list[bool] = []
        entries = self._look()
        for name, entry in entries.items():
            self._watch.note(name, fingerprint(entry))
        with ThreadPoolExecutor(_WORK_THREADS, thread_name_prefix="start") as pool:
            found += pool.map(self._load_quietly, entries)
        self._thread.start()
        return all(found) and len(entries) == len(self._catalog.list_names())

    def load_model(self, name: str, parameters: Mapping[str, object]) -> None:
        """Refuse. Raises InferError(UNAVAILABLE)."""
        refuse_commands()

    def unload_model(
        self, name: str, parameters: Mapping[str, object], on_withdrawn: Callable[[], object] | None = None
    ) -> None:
        """Refuse. Raises InferError(UNAVAILABLE)."""
        refuse_commands()

    def abandon(self) -> None:
        """Look no more; what is being loaded finishes."""
        self._stop.set()
        super().abandon()

    def unload_all(self, timeout_s: float) -> bool:
        """Unload everything; whether all work and every accepted request finished within `timeout_s`."""
        deadline_s = time.monotonic() + timeout_s
        self.abandon()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        self._pool.shutdown(wait=False, cancel_futures=True)
        return super().unload_all(max(0.0, deadline_s - time.monotonic()))

    # --- looking ----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stop.wait(min(_SOON_S, self._poll_s) if self._watch.is_unsettled else self._poll_s):
            try:
                self._poll_once()
            except InferError as error:
                self._note_unreadable(error.message)
            except Exception:
                _log.exception("looking at the model repositories failed")

    def _note_unreadable(self, reason: str) -> None:
        # What is served goes on: a share that is away for a minute is no reason to unload anything.
        if reason != self._unreadable:
            _log.error("the model repositories cannot be read, what is loaded stays: %s", reason)
        self._unreadable = reason

    def _poll_once(self) -> None:
        entries = self._look()
        if self._unreadable:
            _log.info("the model repositories can be read again")
            self._unreadable = ""
        with self._lock:
            busy = set(self._busy)
        seen = {name: fingerprint(entry) for name, entry in entries.items()}
        incomplete = [name for name, entry in entries.items() if (entry.model_dir / INCOMPLETE_MARK).exists()]
        to_load, to_unload = self._watch.look(seen, [*incomplete, *(busy & seen.keys())], time.monotonic())
        for name in to_load:
            self._begin(name, self._load_quietly)
        for name in to_unload:
            self._begin(name, self._unload_quietly)

    def _look(self) -> dict[str, ModelEntry]:
        """Return every model that can be opened; of the others the index tells the reason. Raises InferError."""
        entries: dict[str, ModelEntry] = {}
        for name in self._catalog.list_names():
            try:
                entries[name] = self._catalog.find(name)
            except (InferError, OSError) as error:
                self._catalog.note_failure(name, reason_of(error))
        return entries

    def _begin(self, name: str, work: Callable[[str], object]) -> None:
        with self._lock:
            self._busy.add(name)

        def run() -> None:
            try:
                work(name)
            finally:
                with self._lock:
                    self._busy.discard(name)

        self._pool.submit(run)

    # --- acting -----------------------------------------------------------------------------------------------------

    def _load_quietly(self, name: str) -> bool:
        """Load a model unless its files hold what is served already; what goes wrong is in the log and the index."""
        try:
            contents = content_digest(self._catalog.find(name))
            if self._catalog.is_served(name) and self._contents.get(name) == contents:
                _log.info("model '%s' was touched, its files hold what is loaded", name)
                return True
            super().load_model(name, {})
            self._contents[name] = contents
        except InferError as error:
            # A version that failed to load has said so already.
            if error.code is ErrorCode.INTERNAL and not self._catalog.is_served(name):
                self._catalog.note_failure(name, reason_of(error))
            return False
        except OSError as error:
            self._catalog.note_failure(name, reason_of(error))
            return False
        return True

    def _unload_quietly(self, name: str) -> None:
        self._contents.pop(name, None)
        try:
            super().unload_model(name, {})
        except InferError as error:
            _log.error("unloading '%s' failed: %s", name, error.message)
        self._catalog.forget(name)
