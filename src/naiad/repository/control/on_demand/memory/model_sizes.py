"""The sizes of the loaded models on demand: measured when they load, corrected when they grow."""

import sys
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Protocol

_IMPORTED_MODULES = 20
"""More than a model imports itself."""
_LIBRARY_SHARE = 2
_LIBRARY_BYTES = 8 << 20
"""A load with a library counts for the model at most this multiple of its files, and these bytes."""
_LEAST_GROWTH_BYTES = 16 << 20
_GROWTH_SHARE = 20
"""Growth of the process counts beyond this, and beyond this fraction of the budget: one part in twenty."""
_MOST_GROWTH = 4
"""A model counts at most this multiple of its size after its load: caches of the server are not the models."""

_UNEXPLAINED_RATE = 0.25
"""Weight of a look at what is unexplained: a load in progress has more memory for a moment than it will keep."""
_MOST_UNEXPLAINED = 4
_LEAST_UNEXPLAINED = 8
"""It counts at most one part in four of the budget, and at least minus one part in eight: caches of the server are
not the models, and pages that the system has taken for others come back."""

_LEARNING_RATE = 0.2
_LEAST_SHARE = 2
"""A model counts at least half of its files: the heap may have had room that an earlier model has left."""


class OwnMemory(Protocol):
    """Knows the memory that this process has, of the host or of a GPU."""

    def own_bytes(self) -> int:
        """Return it in bytes."""


class ModelSizes:
    """The bytes of this process that each loaded model has, of one kind of memory.

    Not thread-safe; the caller holds a lock.
    """

    def __init__(self, meter: OwnMemory) -> None:
        self._meter = meter
        self.own_bytes: dict[str, int] = {}
        """The part of each loaded model in this process, without its workers."""
        self._measured_bytes: dict[str, int] = {}
        """What the last load of each model that was measured has added."""
        self._most_bytes: dict[str, int] = {}
        self._ratio = 1.0
        """Learned: the growth of a load / the size of the files."""
        self._base_bytes = -1
        """The memory of the process without models; -1 before the first load."""
        self._unexplained_bytes = 0.0

    def note_loads(
        self,
        estimates: Mapping[str, int],
        begin_bytes: int,
        grown_bytes: int | None,
        *,
        brings_library: bool = False,
        were_there: bool = False,
        mapped: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """Note models that were loaded together: the growth is split as their estimated sizes are.

        `grown_bytes`: None for a load that could not be measured. It counts as it did before, or as its files let
        expect from the loads that were measured. `brings_library`: the growth has what later models need no more.
        `were_there`: the models were loaded before, and not on demand, or before the begin. `mapped`: bytes of files
        that are in memory only as they are used; a model counts at least as many.
        """
        if self._base_bytes < 0:
            self._base_bytes = begin_bytes
        if were_there:
            self._base_bytes += grown_bytes or 0
            grown_bytes = None
        total = sum(estimates.values())
        if grown_bytes is not None and brings_library:
            model_bytes = min(grown_bytes, total * _LIBRARY_SHARE + _LIBRARY_BYTES)
            self._base_bytes += grown_bytes - model_bytes
            grown_bytes = model_bytes
        elif grown_bytes is not None and total:
            self._ratio += _LEARNING_RATE * (grown_bytes / total - self._ratio)
        for key, estimate in estimates.items():
            if grown_bytes is None:
                size_bytes = self._measured_bytes.get(key, int(estimate * self._ratio))
            else:
                size_bytes = grown_bytes * estimate // total if total else grown_bytes // len(estimates)
                size_bytes = max(size_bytes, estimate // _LEAST_SHARE)
                self._measured_bytes[key] = size_bytes
            size_bytes = max(size_bytes, mapped.get(key, 0))
            self.own_bytes[key] = size_bytes
            self._most_bytes[key] = max(size_bytes, estimate) * _MOST_GROWTH
            self._base_bytes -= size_bytes if were_there else 0

    def assume(self, key: str, size_bytes: int) -> None:
        """Note a model whose memory cannot be read."""
        self.own_bytes[key] = self._measured_bytes.get(key, size_bytes)
        self._most_bytes[key] = max(size_bytes, self.own_bytes[key]) * _MOST_GROWTH

    def note_others(self, grown_bytes: int) -> None:
        """Note what a load has added to the process that brought no model on demand: it is none of their growth."""
        if self.has_begun:
            self._base_bytes += grown_bytes

    def pin(self, key: str) -> None:
        """Note that a model stays loaded, but is on demand no more: what it has is no growth of another one."""
        self.note_others(self.own_bytes.get(key, 0))
        self.forget(key)

    def begin_again(self) -> None:
        """Note that no model is loaded: what the process has now, it has without them."""
        if self.has_begun:
            self._base_bytes = self._meter.own_bytes()
            self._unexplained_bytes = 0.0

    @property
    def has_begun(self) -> bool:
        """Whether a model on demand was loaded: before, what others add is none of their growth."""
        return self._base_bytes >= 0

    def is_measured(self, key: str) -> bool:
        """Return whether a load of these files of a model was measured; others count as it did."""
        return key in self._measured_bytes

    def leave(self, key: str) -> None:
        """Note that a model was unloaded."""
        self._most_bytes.pop(key, None)
        self.own_bytes.pop(key, None)

    def forget(self, key: str) -> None:
        """Note that a model is on demand no more, or has other files."""
        self.leave(key)
        self._measured_bytes.pop(key, None)

    def note_unexplained(self, loading_bytes: int, budget_bytes: int) -> int:
        """Return what the process has grown by beyond the sizes of its models, averaged over some calls.

        It is what models take when they execute for the first time, what is left between the pieces of the heap, and
        what loads have for a moment: of models of 4 MB a tenth. The sizes of models do not have it, because most
        loads and executions go on beside others. It is less than nothing if models take less than was measured.
        `loading_bytes` is what models take that load now: they have it already, or nothing of it, or a part.
        Called about once a second.
        """
        if not self.has_begun:
            return 0
        grown_bytes = self._meter.own_bytes() - self._base_bytes - sum(self.own_bytes.values())
        excess_bytes = max(grown_bytes - loading_bytes, min(grown_bytes, 0))
        most_bytes, least_bytes = budget_bytes // _MOST_UNEXPLAINED, -budget_bytes // _LEAST_UNEXPLAINED
        bounded_bytes = min(most_bytes, max(least_bytes, excess_bytes))
        self._unexplained_bytes += _UNEXPLAINED_RATE * (bounded_bytes - self._unexplained_bytes)
        return int(self._unexplained_bytes)

    def note_growth(self, active: Collection[str], budget_bytes: int) -> Collection[str]:
        """Charge the growth of the process to the models that have executed; return those that have grown.

        Called while nothing loads and nothing is unloaded.
        """
        sizes = {key: self.own_bytes[key] for key in active if self.own_bytes.get(key)}
        total = sum(sizes.values())
        if not total:
            return ()
        excess_bytes = self._meter.own_bytes() - self._base_bytes - sum(self.own_bytes.values())
        if excess_bytes < max(_LEAST_GROWTH_BYTES, budget_bytes // _GROWTH_SHARE):
            return ()
        for key, size_bytes in sizes.items():
            self.own_bytes[key] = min(self._most_bytes[key], size_bytes + excess_bytes * size_bytes // total)
        explained_bytes = sum(self.own_bytes[key] for key in sizes) - total
        if self._unexplained_bytes > 0:
            self._unexplained_bytes = max(0.0, self._unexplained_bytes - explained_bytes)
        return sizes.keys()


def imported_modules() -> int:
    """Return the number of imported modules."""
    return len(sys.modules)


def is_library(imported_count: int) -> bool:
    """Return whether a load that has imported a number of modules has loaded the library of a backend as well."""
    return imported_count > _IMPORTED_MODULES
