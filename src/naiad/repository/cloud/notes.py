"""Notes in an object store: objects beside the models, replaced on the condition that they are as they were read."""

import time
from collections.abc import Callable, Hashable, Mapping, Sequence

from naiad.core.errors import ErrorCode, InferError, unavailable
from naiad.repository.cloud.last_notes import LastNotes
from naiad.repository.cloud.objects.objects import ObjectStore
from naiad.repository.cloud.objects.stored_object import ObjectChangedError, StoredObject
from naiad.repository.stores.notes import MAX_NOTE_BYTES, Change, Notes, is_note, note_name, unreadable_name

_ATTEMPTS = 8
"""How often a note may be replaced by others while one server replaces it."""
_RETRY_S = 5.0
"""A store that could not be reached is not asked for the next notes."""
_LISTING_AGE_S = 5.0
"""A listing of this age says well enough whether a model has a note: servers look again later."""


class CloudNotes(Notes):
    """The notes of one repository in an object store. Used from several threads."""

    look_s = 10.0

    def __init__(
        self, objects: ObjectStore, now_s: Callable[[], float] = time.monotonic, last: LastNotes | None = None
    ) -> None:
        """`last` has what the notes said when they could be read last."""
        self.place = objects.url.text
        self._last = last
        self._away: tuple[float, InferError] | None = None
        """When the store could not be asked, and why."""
        self._objects = objects
        self._now_s = now_s
        self._known: tuple[float, Mapping[str, Hashable]] | None = None
        """When the repository was listed, and the identities of its notes then."""

    def observe(self, items: Sequence[StoredObject]) -> None:
        """Note what a listing of the repository has shown anyway: that saves requests."""
        self._known = (self._now_s(), {item.key: item.identity for item in items if is_note(item.key)})

    def where(self, model: str) -> str:
        """Return the URL of a model's note."""
        return self._objects.url.of(note_name(model))

    def file_name(self, model: str) -> str:
        """Return the name of a model's note in `look`."""
        return note_name(model)

    def read(self, model: str) -> bytes | None:
        """Return the content of a model's note; None without one.

        While the store cannot be reached, the note is as it was read last. Raises InferError.
        """
        try:
            if self._away is not None and self._now_s() - self._away[0] < _RETRY_S:
                raise self._away[1].with_traceback(None)
            content = self._read(model)
        except InferError as error:
            if error.code is not ErrorCode.UNAVAILABLE or self._last is None:
                raise
            if self._away is None or self._away[1] is not error:
                self._away = (self._now_s(), error)
            is_known, content = self._last.recall(model)
            if not is_known:
                raise
            return content
        self._away = None
        if self._last is not None:
            self._last.remember(model, content)
        return content

    def _read(self, model: str) -> bytes | None:
        name = note_name(model)
        if name not in self._listing(_LISTING_AGE_S):
            return None
        found = self._objects.read(name, MAX_NOTE_BYTES)
        return None if found is None else found[0]

    def exchange(self, model: str, change: Change) -> None:
        """Replace a model's note by what `change` makes of it. Raises InferError."""
        name = note_name(model)
        for _ in range(_ATTEMPTS):
            found = self._objects.read(name, MAX_NOTE_BYTES)
            content = change(None if found is None else found[0])
            if content is None:
                return
            try:
                self._objects.write(name, content, None if found is None else found[1])
            except ObjectChangedError:
                continue
            self._known = None
            return
        raise unavailable(f"{self._objects.url.of(name)} is replaced by other servers all the time; try again")

    def set_aside(self, model: str) -> str:
        """Rename a note that cannot be used. Raises InferError."""
        name = note_name(model)
        self._objects.move(name, unreadable_name(name))
        self._known = None
        return unreadable_name(name)

    def look(self) -> Mapping[str, Hashable]:
        """Return the identity of each note, by the last listing if it is young. Raises InferError."""
        return self._listing(self.look_s * 0.9)

    def _listing(self, max_age_s: float) -> Mapping[str, Hashable]:
        known = self._known
        if known is None or self._now_s() - known[0] > max_age_s:
            self.observe(self._objects.top_objects())
            known = self._known
        return {} if known is None else known[1]
