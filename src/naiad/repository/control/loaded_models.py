"""What the models of a server were loaded from and why; the catalog's life cycle holds their states."""

from collections import Counter
from collections.abc import Collection, Iterable
from typing import Generic

from naiad.repository.catalog import Catalog
from naiad.repository.control.load_order import LoadRecord
from naiad.repository.control.reconcile import LoadedModel
from naiad.repository.lifecycle import V


class LoadedModels(Generic[V]):
    """The records of the loaded models. A record is changed only while its name is locked."""

    def __init__(self, catalog: Catalog[V]) -> None:
        self._catalog = catalog
        self.records: dict[str, LoadRecord] = {}
        self.failed: dict[str, LoadRecord] = {}
        """Models that failed to load, for polling; not by a client's command, which may name any number of them."""
        self.generations: Counter[str] = Counter()
        """How often each model was loaded."""

    def state(self, names: Iterable[str], *, with_failed: bool = False) -> dict[str, LoadedModel]:
        """Return these models and their members as they were loaded; `with_failed` also those that failed to load."""
        found: dict[str, LoadedModel] = {}
        for name in names:
            record = self.records.get(name)
            if record is None and with_failed:
                record = self.failed.get(name)
            if record is None:
                continue
            for each in (name, *record.members):
                if each not in found and (own := record if each == name else self.records.get(each)) is not None:
                    found[each] = self._loaded(each, own)
        return found

    def _loaded(self, name: str, record: LoadRecord) -> LoadedModel:
        return LoadedModel(
            record.files_seen,
            record.members,
            is_served=self._catalog.is_served(name),
            is_requested=record.is_explicit,
            generation=self.generations[name],
            member_generations=record.member_generations,
        )

    def ensembles(self) -> dict[str, LoadedModel]:
        """Return the ensembles and their members as they were loaded."""
        return self.state([name for name, record in list(self.records.items()) if record.members])

    def generations_of(self, names: Collection[str]) -> dict[str, int]:
        """Return how often each of these models was loaded; 0 for one that is not loaded."""
        return {name: self.generations[name] if name in self.records else 0 for name in names}
