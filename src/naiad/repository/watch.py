"""What a look at the repositories means: which models have changed and are complete. Pure: time is an argument.

A model that is being copied changes from one look to the next. It is taken when it has looked the same for the settle
time, so a half-written file is never loaded, however slow the copy, and one bad model never keeps others waiting.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass


@dataclass(slots=True)
class _Change:
    """A state of a model that differs from what was acted upon."""

    fingerprint: bytes | None
    """None for a model that is gone."""
    since_s: float


class Watch:
    """Remembers how models looked, and tells what has settled since."""

    def __init__(self, settle_s: float) -> None:
        """`settle_s`: how long a model must look the same before it is acted upon."""
        self._settle_s = settle_s
        self._acted: dict[str, bytes] = {}
        """How each model looked when it was last loaded, be it in vain."""
        self._changes: dict[str, _Change] = {}

    @property
    def is_unsettled(self) -> bool:
        """Whether some model has changed and is not acted upon yet, so that another look is due soon."""
        return bool(self._changes)

    def has(self, name: str) -> bool:
        """Tell whether a model was there, whole, when it was acted upon last."""
        return name in self._acted

    def note(self, name: str, fingerprint: bytes) -> None:
        """Record that a model was acted upon as it looked then."""
        self._acted[name] = fingerprint
        self._changes.pop(name, None)

    def look(
        self, seen: Mapping[str, bytes], incomplete: Collection[str], now_s: float
    ) -> tuple[dict[str, bytes], list[str]]:
        """Take in how all models look now; return those to load with how they look, and those to unload.

        `incomplete` are models that say of themselves that they are being written, and those that are being worked
        on: an unload that begins before the load of the same model has ended could be done first.
        """
        to_load: dict[str, bytes] = {}
        for name, fingerprint in seen.items():
            if name in incomplete:
                self._changes[name] = _Change(b"", now_s)
            elif self._acted.get(name) == fingerprint:
                self._changes.pop(name, None)
            elif self._has_settled(name, fingerprint, now_s):
                to_load[name] = fingerprint
        gone = [name for name in self._acted if name not in seen]
        to_unload = [name for name in gone if self._has_settled(name, None, now_s) and name not in incomplete]
        for name in to_unload:
            del self._acted[name]
        for name in [name for name in self._changes if name not in seen and name not in gone]:
            del self._changes[name]
        for name, fingerprint in to_load.items():
            self.note(name, fingerprint)
        for name in to_unload:
            self._changes.pop(name, None)
        return to_load, to_unload

    def _has_settled(self, name: str, fingerprint: bytes | None, now_s: float) -> bool:
        change = self._changes.get(name)
        if change is None or change.fingerprint != fingerprint:
            self._changes[name] = _Change(fingerprint, now_s)
            return self._settle_s <= 0
        return now_s - change.since_s >= self._settle_s
