"""The life of model versions: which state each is in, why, and what is loaded for it.

The table is the truth about models for every thread. Whoever changes it does so under one lock; readers on the event
loop use what was published (`publish` gets a fresh mapping of what is ready) or one cached verdict, and never wait.

A version is LOADING until `swap` puts something loaded in place (READY) or `fail_version` says why not (UNAVAILABLE).
A reload leaves the old version READY and in place until the swap.
"""

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Generic, Protocol, TypeVar

from naiad.core.model import UNLOADED, IndexEntry, ModelKey, ModelState, name_of

_STALE = "serving what was loaded before, its update failed: "


class LoadedVersion(Protocol):
    """A version that takes requests until it is stopped."""

    def stop(self, timeout_s: float) -> bool:
        """Refuse new requests, let accepted ones finish, release everything; whether all finished in time."""


V = TypeVar("V", bound=LoadedVersion)

Publish = Callable[[Mapping[str, Mapping[int, V]], str], None]
"""Gets, after every change, model name to version to what is loaded, for everything that is READY; and the name of
the model that has changed: looking for it among thousands, a thousand times, would take most of a start.

The mapping of a model that has not changed is the same object as before. Of models with a namespace also those are
there, with nothing, that should be served and are not: another of their name is not the one that is meant.
"""


class _Version(Generic[V]):
    """State of one version. `loaded` is set exactly while requests may reach it."""

    __slots__ = ("counts", "loaded", "reason", "state")

    def __init__(self) -> None:
        self.counts = True
        """Whether the server is not ready when it fails."""
        self.state = ModelState.UNKNOWN
        self.reason = ""
        self.loaded: V | None = None

    @property
    def is_wanted(self) -> bool:
        """Whether somebody loads it, or has."""
        return self.loaded is not None or self.state is ModelState.LOADING

    @property
    def has_failed(self) -> bool:
        """Whether it is neither available, nor on its way in or out, nor unloaded on purpose."""
        return self.state in (ModelState.UNKNOWN, ModelState.UNAVAILABLE) and self.reason != UNLOADED

    def become(self, state: ModelState, reason: str = "") -> None:
        self.state = state
        self.reason = reason


class _Model(Generic[V]):
    """One model: its versions, or the reason why it has none."""

    __slots__ = ("counts", "reason", "versions")

    def __init__(self) -> None:
        self.counts = True
        """Whether the server is not ready while it has no version."""
        self.reason = ""
        self.versions: dict[int, _Version[V]] = {}

    @property
    def has_failed(self) -> bool:
        """Whether it makes a server not ready that needs all its models."""
        if not self.versions:
            return self.counts
        return any(version.counts and version.has_failed for version in self.versions.values())


class ReadyRule:
    """Which models must be ready for the server to be ready.

    `all`: no version has failed, and no model is without one. What is on its way in or out does not count: more
    models, or fewer, are no reason to turn traffic away. Nor do models that a client's command failed to load, which
    other clients never had. Triton's strict readiness is the same but for those two. As in Triton, models without a
    readable configuration and those that several repositories have do not count either.
    `any`: at least one model is ready. `none`: the server answers, no more. Anything else names the models that
    count, comma-separated; each needs a ready version.
    """

    def __init__(self, rule: str = "all") -> None:
        self._rule = rule
        self._names = frozenset(name.strip() for name in rule.split(",") if name.strip())

    def holds(self, rows: Sequence[IndexEntry], ill: Collection[str] = ()) -> bool:
        """Tell whether the rule is met by the rows of the repository index, while the `ill` models cannot execute."""
        ready = {row.name for row in rows if row.state is ModelState.READY}
        return self.judge(ready, any(not _is_available(row) for row in rows), ill)

    def judge(self, ready: AbstractSet[str], has_failed: bool, ill: Collection[str] = ()) -> bool:
        """Tell whether the rule is met: `ready` have a version that is, `has_failed` says that some model failed."""
        if self._rule == "none":
            return True
        if self._rule == "any":
            return bool(ready - frozenset(ill) if ill else ready)
        if self._rule == "all":
            return not ill and not has_failed
        return self._names <= {*map(name_of, ready)} and self._names.isdisjoint(map(name_of, ill))


def _is_available(row: IndexEntry) -> bool:
    if row.state in (ModelState.READY, ModelState.LOADING, ModelState.UNLOADING):
        return True
    return row.state is ModelState.UNAVAILABLE and row.reason == UNLOADED


class Lifecycle(Generic[V]):
    """The table of models, versions and states."""

    def __init__(self, publish: Publish[V], ready_rule: ReadyRule | None = None) -> None:
        self._publish = publish
        self._ready_rule = ready_rule or ReadyRule()
        self._lock = threading.Lock()
        self._models: dict[str, _Model[V]] = {}
        self._ready: set[str] = set()
        """Models with a version that is READY."""
        self._failed: set[str] = set()
        """Models with a version that is neither available nor unloaded on purpose, or with none at all."""
        self._published: dict[str, Mapping[int, V]] = {}
        """What was published last; the entry of a model is another object only if the model has changed."""
        self._is_ready = self._ready_rule.holds(())

    @property
    def is_ready(self) -> bool:
        """Whether the readiness rule is met; answered without a lock."""
        return self._is_ready

    def is_ready_without(self, ill: Collection[str]) -> bool:
        """Tell whether the readiness rule is met while these models are loaded and cannot execute."""
        with self._lock:
            return self._ready_rule.judge(self._ready, bool(self._failed), ill)

    def rows(self) -> list[IndexEntry]:
        """Return a row per version, ordered by name and version, and one per model without versions."""
        with self._lock:
            return self._rows()

    def _rows(self) -> list[IndexEntry]:
        rows = []
        for name in sorted(self._models):
            rows += self._rows_of(name)
        return rows

    def _rows_of(self, name: str) -> list[IndexEntry]:
        model = self._models[name]
        if not model.versions:
            return [IndexEntry(name, "", ModelState.UNAVAILABLE if model.reason else None, model.reason)]
        numbered = sorted(model.versions.items())
        return [IndexEntry(name, str(number), version.state, version.reason) for number, version in numbered]

    def _changed(self, name: str, *, published: bool = False) -> None:
        """Take over a change of one model; the lock is held, so changes are published in their order.

        Only that model is looked at: with a thousand of them, looking at all on every change takes minutes.
        """
        rows = self._rows_of(name) if name in self._models else []
        for names, belongs in (
            (self._ready, any(row.state is ModelState.READY for row in rows)),
            (self._failed, name in self._models and self._models[name].has_failed),
        ):
            if belongs:
                names.add(name)
            else:
                names.discard(name)
        self._is_ready = self._ready_rule.judge(self._ready, bool(self._failed))
        has_namespace = isinstance(name, ModelKey)
        if published or has_namespace:
            versions = self._models[name].versions if name in self._models else {}
            loaded = {n: v.loaded for n, v in versions.items() if v.loaded is not None}
            if loaded or (has_namespace and any(row.is_wanted for row in rows)):
                self._published[name] = loaded
            else:
                self._published.pop(name, None)
            self._publish(dict(self._published), name)

    # --- loading ----------------------------------------------------------------------------------------------------

    def fail_model(self, name: str, reason: str, *, counts: bool = True) -> None:
        """Record why a model has no version to load; what it serves already stays, and says why it is not new.

        `counts`: whether a server that needs all its models is not ready then.
        """
        with self._lock:
            model = self._models.setdefault(name, _Model())
            model.reason = reason
            model.counts = counts
            for version in model.versions.values():
                if version.loaded is not None:
                    version.reason = _STALE + reason
            self._changed(name)

    def forget(self, name: str) -> None:
        """Remove a model that nothing is loaded of, nor about to be: an ensemble may want it meanwhile."""
        with self._lock:
            model = self._models.get(name)
            if model is not None and not any(version.is_wanted for version in model.versions.values()):
                del self._models[name]
            self._changed(name)

    def begin_load(self, name: str, versions: Sequence[int], *, counts: bool = True) -> None:
        """Declare versions LOADING, but for those that are READY: they serve until they are swapped.

        `counts`: whether a server that needs all its models is not ready when they fail. One whose failure has made
        it so counts on when a client then fails to load it.
        """
        with self._lock:
            model = self._models.setdefault(name, _Model())
            model.reason = ""
            for number in versions:
                version = model.versions.setdefault(number, _Version())
                if version.loaded is None:
                    had_failed = version.state is ModelState.UNAVAILABLE and version.has_failed
                    version.counts = counts or (version.counts and had_failed)
                    version.become(ModelState.LOADING)
            self._changed(name)

    def fail_version(self, name: str, version: int, reason: str) -> None:
        """Record why a version could not be loaded; a version that serves already stays READY."""
        with self._lock:
            record = self._models[name].versions[version]
            if record.loaded is None:
                record.become(ModelState.UNAVAILABLE, reason)
            elif reason != UNLOADED:
                record.reason = _STALE + reason
            self._changed(name)

    def swap(self, name: str, loaded: Mapping[int, V]) -> list[V]:
        """Put a new set of versions in place at once and return what it replaces, for the caller to stop.

        What is in the new set and in place already stays there.
        """
        with self._lock:
            versions = self._models[name].versions
            staying = {id(version) for version in loaded.values()}
            retired = [v.loaded for v in versions.values() if v.loaded is not None and id(v.loaded) not in staying]
            for number, record in versions.items():
                # Also what had failed before: the new set does not ask for it.
                if number not in loaded:
                    record.loaded = None
                    record.become(ModelState.UNAVAILABLE, UNLOADED)
            for number, new in loaded.items():
                record = versions.setdefault(number, _Version())
                record.loaded = new
                record.become(ModelState.READY)
            self._changed(name, published=True)
        return retired

    # --- unloading --------------------------------------------------------------------------------------------------

    def begin_unload(self, name: str, *, withdraw: bool = False) -> dict[int, V]:
        """Declare the ready versions of a model UNLOADING and return them.

        Requests still reach them, and are refused by them, until `end_unload`; with `withdraw` none reaches them.
        """
        with self._lock:
            versions = self._models[name].versions if name in self._models else {}
            unloading = {number: v.loaded for number, v in versions.items() if v.loaded is not None}
            for number in unloading:
                versions[number].become(ModelState.UNLOADING)
                if withdraw:
                    versions[number].loaded = None
            self._changed(name, published=withdraw)
        return unloading

    def forgive(self, name: str) -> None:
        """Declare what failed to load of a model unloaded: nobody wants it any more."""
        with self._lock:
            model = self._models.get(name)
            if model is None:
                return
            for version in model.versions.values():
                if version.loaded is None and version.state is ModelState.UNAVAILABLE:
                    version.become(ModelState.UNAVAILABLE, UNLOADED)
            if not model.versions:
                del self._models[name]
            self._changed(name)

    def loaded_versions(self, name: str) -> dict[int, V]:
        """Return what is in place of a model."""
        with self._lock:
            model = self._models.get(name)
            return {} if model is None else {n: v.loaded for n, v in model.versions.items() if v.loaded is not None}

    def known_as(self, name: str) -> list[str]:
        """Return the models of that name in all namespaces, sorted."""
        with self._lock:
            return sorted(key for key in self._models if name in (key, name_of(key)))

    def is_served(self, name: str) -> bool:
        """Tell whether requests reach a version of a model."""
        with self._lock:
            model = self._models.get(name)
            return model is not None and any(v.loaded is not None for v in model.versions.values())

    def end_unload(self, name: str, versions: Sequence[int]) -> None:
        """Declare versions unloaded."""
        with self._lock:
            for number in versions:
                record = self._models[name].versions[number]
                record.loaded = None
                record.become(ModelState.UNAVAILABLE, UNLOADED)
            self._changed(name, published=True)
