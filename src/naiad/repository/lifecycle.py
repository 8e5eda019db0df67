"""The life cycle of model versions: the state of each, its reason, and the loaded version.

The table is the source of truth for every thread. It changes under one lock; readers on the event loop use the
published mapping of ready versions (`publish`) or one cached verdict, and never wait.

A version is LOADING until `swap` puts a loaded one in place (READY) or `fail_version` records the reason
(UNAVAILABLE). A reload leaves the old version READY and in place until the swap.
"""

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Generic, Protocol, TypeVar

from naiad.core.model import COLD, MISFIT, UNLOADED, IndexEntry, ModelKey, ModelState, name_of

_MOST_REMOVED = 1024
_STALE = "serving what was loaded before, its update failed: "


class LoadedVersion(Protocol):
    """A version that accepts requests until it is stopped."""

    def stop(self, timeout_s: float) -> bool:
        """Reject new requests, let accepted ones finish, release everything; return whether all finished in time."""


V = TypeVar("V", bound=LoadedVersion)

Publish = Callable[[Mapping[str, Mapping[int, V]], str], None]
"""Gets, after every change, model name to version to the loaded version, for everything that is READY; and the name
of the changed model: finding it among thousands, a thousand times, would take most of a start.

The mapping of an unchanged model is the same object as before. With namespaces, unserved models that should be served
have empty mappings: a model of the same name in another namespace must not replace them.
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
        """Whether a load of it is in progress or done."""
        return self.loaded is not None or self.state is ModelState.LOADING

    @property
    def has_failed(self) -> bool:
        """Whether it is neither available, nor in transition, nor unloaded on purpose."""
        return self.state in (ModelState.UNKNOWN, ModelState.UNAVAILABLE) and self.reason not in (UNLOADED, COLD)

    def become(self, state: ModelState, reason: str = "") -> None:
        self.state = state
        self.reason = reason


class _Model(Generic[V]):
    """One model: its versions, or the reason why it has none."""

    __slots__ = ("counts", "is_on_demand", "reason", "versions")

    def __init__(self) -> None:
        self.counts = True
        """Whether the server is not ready while it has no version."""
        self.is_on_demand = False
        """Whether a request loads it: then it counts as ready until a load has failed."""
        self.reason = ""
        self.versions: dict[int, _Version[V]] = {}

    @property
    def is_ready(self) -> bool:
        """Whether a version is ready."""
        return any(version.state is ModelState.READY for version in self.versions.values())

    @property
    def has_failed(self) -> bool:
        """Whether it makes a server unready that needs all its models."""
        if not self.versions:
            return self.counts
        return any(version.counts and version.has_failed for version in self.versions.values())


class ReadyRule:
    """The models that must be ready for a ready server.

    `all`: no version has failed, and no model is without one. Versions in transition do not count, because more or
    fewer models are no reason to stop traffic. Models that a client's command failed to load do not count either,
    because other clients never had them. Triton's strict readiness differs only in those two. As in Triton, models
    without a readable configuration and models in several repositories do not count. `any`: at least one model is
    ready. `none`: the server responds. Any other value is a comma-separated list of models, each of which needs a
    ready version.
    """

    def __init__(self, rule: str = "all") -> None:
        self._rule = rule
        given = frozenset(name.strip() for name in rule.split(",") if name.strip())
        self.needs_all = rule == "all"
        self.names = frozenset[str]() if rule in ("all", "any", "none") else given
        """The models of a rule that names them."""

    def holds(self, ready: AbstractSet[str], has_failed: bool, ill: Collection[str] = ()) -> bool:
        """Return whether the rule holds: `ready` models have a ready version, `ill` ones cannot execute.

        `has_failed`: some model has failed to load.
        """
        if self._rule == "none":
            return True
        if self._rule == "any":
            return bool(ready - frozenset(ill) if ill else ready)
        if self._rule == "all":
            return not ill and not has_failed
        return self.names <= {*map(name_of, ready)} and self.names.isdisjoint(map(name_of, ill))


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
        self._removed: dict[str, None] = {}
        """Names of models that were loaded and are not in the index any more, in order; the last ones."""
        self._is_ready = self._ready_rule.holds(set(), has_failed=False)

    @property
    def is_ready(self) -> bool:
        """Whether the readiness rule holds; needs no lock."""
        return self._is_ready

    @property
    def needs_all(self) -> bool:
        """Whether the server needs all its models to be ready."""
        return self._ready_rule.needs_all

    def is_ready_without(self, ill: Collection[str]) -> bool:
        """Return whether the readiness rule holds while these models are loaded and cannot execute."""
        with self._lock:
            return self._ready_rule.holds(self._ready, bool(self._failed), ill)

    def rows(self) -> list[IndexEntry]:
        """Return a row per version, ordered by name and version, and one per model without versions."""
        with self._lock:
            return [row for name in sorted(self._models) for row in self._rows_of(name)]

    def rows_named(self, name: str, *, has_namespaces: bool) -> list[IndexEntry]:
        """Return the rows of the models that a client may mean by `name`, in the order of `rows`.

        Without namespaces the number of models does not matter, so a client's wrong names cost little.
        """
        with self._lock:
            if not has_namespaces:
                return self._rows_of(name) if name in self._models else []
            keys = [key for key in self._models if key == name or (isinstance(key, ModelKey) and key.name == name)]
            return [row for key in sorted(keys) for row in self._rows_of(key)]

    def _rows_of(self, name: str) -> list[IndexEntry]:
        model = self._models[name]
        if not model.versions:
            return [IndexEntry(name, "", ModelState.UNAVAILABLE if model.reason else None, model.reason)]
        numbered = sorted(model.versions.items())
        return [IndexEntry(name, str(number), version.state, version.reason) for number, version in numbered]

    def _changed(self, name: str, *, published: bool = False) -> None:
        """Apply a change of one model; the lock is held, so changes are published in order.

        Only that model is checked: with a thousand models, checking all on every change takes minutes.
        """
        model = self._models.get(name)
        is_ready = model is not None and (model.is_ready or self._is_answerable(name))
        for names, belongs in ((self._ready, is_ready), (self._failed, model is not None and model.has_failed)):
            if belongs:
                names.add(name)
            else:
                names.discard(name)
        self._is_ready = self._ready_rule.holds(self._ready, bool(self._failed))
        has_namespace = isinstance(name, ModelKey)
        if published or has_namespace:
            versions = {} if model is None else model.versions
            loaded = {n: v.loaded for n, v in versions.items() if v.loaded is not None}
            rows = self._rows_of(name) if has_namespace and model is not None else ()
            if loaded or any(row.is_wanted for row in rows):
                self._published[name] = loaded
            else:
                self._published.pop(name, None)
            self._publish(dict(self._published), name)

    def _is_answerable(self, name: str) -> bool:
        """Return whether a request for a model on demand is answered."""
        model = self._models.get(name)
        if model is None or not model.is_on_demand or model.reason:
            return False
        return not any(version.has_failed for version in model.versions.values())

    # --- loading ----------------------------------------------------------------------------------------------------

    def fail_model(self, name: str, reason: str, *, counts: bool = True) -> None:
        """Record why a model has no version to load; its served versions stay, with the reason of the failed update.

        `counts`: whether the failure makes a server unready that needs all its models.
        """
        with self._lock:
            model = self._models.setdefault(name, _Model())
            model.reason = reason
            model.counts = counts
            for version in model.versions.values():
                if version.loaded is not None:
                    version.reason = _STALE + reason
                elif version.reason == COLD:  # the index has the versions of a model, so they say it
                    version.counts = counts
                    version.become(ModelState.UNAVAILABLE, reason)
            self._changed(name)

    def forget(self, name: str) -> None:
        """Remove a model without loaded versions or loads in progress: an ensemble may need it meanwhile."""
        with self._lock:
            model = self._models.get(name)
            if model is not None and not any(version.is_wanted for version in model.versions.values()):
                del self._models[name]
                if model.versions:
                    self._removed[name] = None
                    if len(self._removed) > _MOST_REMOVED:
                        del self._removed[next(iter(self._removed))]
            self._changed(name)

    def is_removed(self, name: str) -> bool:
        """Return whether a model of that name has left its repository after it was loaded, not too long ago."""
        return name in self._removed

    def begin_load(self, name: str, versions: Sequence[int], *, counts: bool = True) -> None:
        """Set versions to LOADING, except READY ones: they serve until they are swapped.

        `counts`: whether a failure makes a server unready that needs all its models. A model whose failure counts
        keeps counting when a client then fails to load it.
        """
        with self._lock:
            self._removed.pop(name, None)
            model = self._models.setdefault(name, _Model())
            model.reason = ""
            for number in versions:
                version = model.versions.setdefault(number, _Version())
                if version.loaded is None:
                    had_failed = version.state is ModelState.UNAVAILABLE and version.has_failed
                    version.counts = counts or (version.counts and had_failed)
                    # Its requests get the reason until it serves again.
                    version.become(ModelState.LOADING, version.reason if version.reason.startswith(MISFIT) else "")
            self._changed(name)

    def fail_version(self, name: str, version: int, reason: str) -> None:
        """Record why a version could not be loaded; a serving version stays READY."""
        with self._lock:
            record = self._models[name].versions[version]
            if record.loaded is None:
                record.become(ModelState.UNAVAILABLE, reason)
            elif reason != UNLOADED:
                record.reason = _STALE + reason
            self._changed(name)

    def forgive_updates(self, name: str) -> None:
        """Drop the failures of updates of a served model: its files hold what is served again."""
        with self._lock:
            model = self._models.get(name)
            if model is None or not model.is_ready:
                return
            model.reason = ""
            for version in model.versions.values():
                if version.state is ModelState.READY:
                    version.reason = ""
                elif not version.is_wanted and version.has_failed:
                    version.become(ModelState.UNAVAILABLE, UNLOADED)
            self._changed(name)

    def note_misfit(self, name: str, reason: str) -> None:
        """Record why versions that leave or have failed cannot serve; the server is ready without the model."""
        with self._lock:
            model = self._models.get(name)
            for version in () if model is None else model.versions.values():
                if version.state is ModelState.UNLOADING or (not version.is_wanted and version.has_failed):
                    version.counts = False
                    version.loaded = None
                    version.become(ModelState.UNAVAILABLE, reason)
            self._changed(name, published=True)

    def swap(self, name: str, loaded: Mapping[int, V]) -> list[V]:
        """Put a new set of versions in place at once and return the replaced ones, for the caller to stop.

        Versions of the new set that are already in place stay there.
        """
        with self._lock:
            versions = self._models[name].versions
            staying = {id(version) for version in loaded.values()}
            retired = [v.loaded for v in versions.values() if v.loaded is not None and id(v.loaded) not in staying]
            for number, record in versions.items():
                # Also versions that had failed before: the new set does not include them.
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

    def begin_unload(self, name: str, *, withdraw: bool = False, reason: str = "") -> dict[int, V]:
        """Set the ready versions of a model to UNLOADING, for a `reason`, and return them.

        Requests still reach them, and are rejected by them, until `end_unload`; with `withdraw` no request reaches
        them.
        """
        with self._lock:
            versions = self._models[name].versions if name in self._models else {}
            unloading = {number: v.loaded for number, v in versions.items() if v.loaded is not None}
            for number in unloading:
                versions[number].become(ModelState.UNLOADING, reason)
                if withdraw:
                    versions[number].loaded = None
            self._changed(name, published=withdraw)
        return unloading

    def note_cold(self, name: str, versions: Sequence[int]) -> None:
        """Set versions that are not loaded to cold: their next request loads them. Other versions are as before."""
        with self._lock:
            model = self._models.setdefault(name, _Model())
            model.is_on_demand = True
            model.reason = ""
            for number in versions:
                version = model.versions.setdefault(number, _Version())
                if not version.is_wanted:
                    version.become(ModelState.UNAVAILABLE, COLD)
            self._changed(name)

    def end_on_demand(self, name: str) -> None:
        """Show a model as one that no request loads any more."""
        with self._lock:
            model = self._models.get(name)
            if model is None or not model.is_on_demand:
                return
            model.is_on_demand = False
            for version in model.versions.values():
                if version.reason == COLD:
                    version.become(ModelState.UNAVAILABLE, UNLOADED)
            self._changed(name)

    def forgive(self, name: str) -> None:
        """Set the failed versions of a model to unloaded: they are no longer wanted."""
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
        """Return the loaded versions of a model."""
        with self._lock:
            model = self._models.get(name)
            return {} if model is None else {n: v.loaded for n, v in model.versions.items() if v.loaded is not None}

    def known_as(self, name: str) -> list[str]:
        """Return the models of that name in all namespaces, sorted."""
        with self._lock:
            return sorted(key for key in self._models if name in (key, name_of(key)))

    def is_served(self, name: str) -> bool:
        """Return whether requests reach a version of a model."""
        with self._lock:
            model = self._models.get(name)
            return model is not None and any(v.loaded is not None for v in model.versions.values())

    def end_unload(self, name: str, versions: Sequence[int]) -> None:
        """Set versions to unloaded."""
        with self._lock:
            for number in versions:
                record = self._models[name].versions[number]
                record.loaded = None
                record.become(ModelState.UNAVAILABLE, UNLOADED)
            self._changed(name, published=True)
