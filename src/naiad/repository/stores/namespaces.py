"""Namespaces: models of equal names in several repositories, distinguished by their repository."""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import InferError, invalid_argument
from naiad.core.model import ModelKey, name_of
from naiad.repository.stores.store import ModelEntry, ModelListing, Store

_log = logging.getLogger(__name__)


def ambiguous(name: str, count: int) -> InferError:
    """Return the error for an ambiguous name, with Triton's text."""
    return invalid_argument(
        f"There are {count} identifiers of model '{name}' in global map, model namespace must be provided to resolve "
        "ambiguity."
    )


class NamespacedStore(Store):
    """A store with keys of its location, the namespace, and the model names."""

    def __init__(self, store: Store) -> None:
        self.location = store.location
        self._store = store

    @property
    def away(self) -> str:  # type: ignore[override]  # read only
        """Why it could not be reached the last time."""
        return self._store.away

    @property
    def was_away(self) -> bool:  # type: ignore[override]  # read only
        """Whether it could not be reached at the start."""
        return self._store.was_away

    @property
    def is_missing(self) -> bool:  # type: ignore[override]  # read only
        """Whether nothing is known of its models."""
        return self._store.is_missing

    def key(self, name: str) -> ModelKey:
        """Return the key of a model of this store."""
        return ModelKey(self.location, name)

    def list_models(self) -> Sequence[str]:
        """Return the keys of all models. Raises InferError when the repository cannot be read."""
        return [self.key(name) for name in self._store.list_models()]

    def look(self) -> Mapping[str, ModelListing]:
        """Return how every model looks now, by key. Raises InferError when the repository cannot be read."""
        return {self.key(name): self._own(listing) for name, listing in self._store.look().items()}

    def sight(self, name: str) -> ModelListing | None:
        """Return how the model of a key looks now; None when it is not of this store. Raises InferError."""
        if not isinstance(name, ModelKey) or name.namespace != self.location:
            return None
        listing = self._store.sight(name.name)
        return None if listing is None else self._own(listing)

    def open_model(self, name: str) -> ModelEntry:
        """Bring the model of a key to local paths and describe it. Raises InferError(NOT_FOUND)."""
        return replace(self._store.open_model(name_of(name)), namespace=self.location)

    def _own(self, listing: ModelListing) -> ModelListing:
        return replace(listing, open=lambda: replace(listing.open(), namespace=self.location))


class Namespaces:
    """Resolves names to the keys of models."""

    def __init__(self, stores: Sequence[Store]) -> None:
        """Raise InferError(INVALID_ARG) if two stores are the same."""
        self.stores = [NamespacedStore(store) for store in stores]
        locations = [store.location for store in stores]
        for location in locations:
            if locations.count(location) > 1:
                raise invalid_argument(
                    f"--model-repository={location} is given twice, and namespaces are repositories"
                )
        self._is_there: Callable[[str], bool] = self._is_in_store
        self.unclear: dict[str, frozenset[str]] = {}
        """Ensembles some of whose members are ambiguous, with the names of all their members."""

    def add(self, store: Store) -> NamespacedStore:
        """Add a repository, and return its store with keys."""
        own = NamespacedStore(store)
        self.stores = [*self.stores, own]
        return own

    def remove(self, location: str) -> None:
        """Remove the repository of a location."""
        self.stores = [store for store in self.stores if store.location != location]

    def look_at(self, is_there: Callable[[str], bool]) -> None:
        """Resolve names with this set of existing keys, instead of querying the stores each time."""
        self._is_there = is_there

    def holders(self, name: str) -> list[str]:
        """Return the keys of all models of that name; that of the first repository if there is none.

        A key itself, also as text, resolves to itself.
        """
        if isinstance(name, ModelKey):
            return [name]
        for store in self.stores:
            if name.startswith(f"{store.location}::"):
                return [store.key(name.removeprefix(f"{store.location}::"))]
        keys = [store.key(name) for store in self.stores]
        return [key for key in keys if self._is_there(key)] or list(keys[:1])

    def link(self, key: str, config: ModelConfig) -> None:
        """Note the key of the model in each step of an ensemble. Raises InferError for an ambiguous name.

        It is the one in the ensemble's own namespace, otherwise the only one in the other namespaces.
        """
        unclear = []
        for step in config.ensemble_scheduling.step:
            found = self._meant(key, step.model_name)
            if len(found) > 1:
                unclear.append(step.model_name)
            step.model_namespace = found[0].namespace
        self.unclear.pop(key, None)
        if unclear:
            self.unclear[key] = frozenset(step.model_name for step in config.ensemble_scheduling.step)
            # Triton's text.
            names = ", ".join(sorted(set(unclear)))
            raise invalid_argument(f"ensemble {key} contains models that are not available or ambiguous: {names}")

    def links(self, key: str, names: Collection[str]) -> frozenset[str]:
        """Return the current keys of the names in an ensemble."""
        return frozenset(found for name in names for found in self._meant(key, name))

    def _meant(self, ensemble: str, name: str) -> list[ModelKey]:
        if isinstance(ensemble, ModelKey):
            own = ModelKey(ensemble.namespace, name)
            if self._is_there(own):
                return [own]
        return [key for key in self.holders(name) if isinstance(key, ModelKey)]

    def _is_in_store(self, key: str) -> bool:
        for store in self.stores:
            try:
                if store.sight(key) is not None:
                    return True
            except InferError as error:
                _log.error("looking for model '%s': %s", key, error.message)
        return False
