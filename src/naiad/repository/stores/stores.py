"""Several repositories seen as one: which models there are, and where each of them is."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from naiad.core.errors import ErrorCode, InferError, invalid_argument, not_found
from naiad.core.model import name_of
from naiad.repository.stores.fingerprint import content_digest
from naiad.repository.stores.store import ModelEntry, ModelListing, Store, check_model_name

_log = logging.getLogger(__name__)

DUPLICATE = "model appears in two or more repositories"
"""Triton's reason for a model that is not unique."""


@dataclass(slots=True)
class RepositoryListing:
    """How all stores looked at one moment."""

    listings: dict[str, list[tuple[str, ModelListing]]] = field(default_factory=dict)
    """By name of the model, each with the location of the store."""
    unreadable: dict[str, InferError] = field(default_factory=dict)
    """Locations of stores that could not be read."""


class Stores:
    """The stores of a server; every question reads them."""

    def __init__(self, stores: Sequence[Store]) -> None:
        self._stores = stores
        self._last_names: dict[str, list[str]] = {}
        """By location, as `known_names` found them."""
        self.first_look: dict[str, bytes] | None = None
        """The fingerprints of all models when they were looked at first; None before."""

    def add(self, store: Store) -> None:
        """Add a store. Raises InferError(ALREADY_EXISTS) if there is one of its location."""
        if store.location in self.locations:
            raise InferError(ErrorCode.ALREADY_EXISTS, f"model repository '{store.location}' is registered already")
        self._stores = [*self._stores, store]

    def remove(self, location: str) -> None:
        """Remove the store of a location."""
        self._stores = [store for store in self._stores if store.location != location]
        self._last_names.pop(location, None)

    @property
    def away(self) -> dict[str, str]:
        """Locations of the stores that cannot be reached now, with the reasons."""
        return {store.location: store.away for store in self._stores if store.away}

    @property
    def was_any_away(self) -> bool:
        """Whether a store could not be reached at the start."""
        return any(store.was_away for store in self._stores)

    @property
    def is_any_missing(self) -> bool:
        """Whether nothing is known of the models of a store, which could not be reached since the start."""
        return any(store.is_missing for store in self._stores)

    @property
    def locations(self) -> Sequence[str]:
        """The path or URL of each store."""
        return [store.location for store in self._stores]

    def list_names(self) -> list[str]:
        """Return the names of all models in all stores, sorted. Reads them. Raises InferError when it cannot."""
        return sorted({name for store in self._stores for name in store.list_models()})

    def known_names(self) -> list[str]:
        """Return the names as `list_names`, of a store that cannot be read those it had when it could."""
        for store in self._stores:
            try:
                self._last_names[store.location] = list(store.list_models())
            except InferError as error:
                _log.error("the index lacks what is new in %s: %s", store.location, error.message)
        return sorted({name for names in self._last_names.values() for name in names})

    def find(self, name: str) -> ModelEntry:
        """Return a model as the stores have it; the caller releases it.

        Raises InferError when none or several have it. One that cannot be read does not keep the models of others.
        """
        check_model_name(name_of(name))
        if len(self._stores) == 1:
            return self._stores[0].open_model(name)
        found: list[tuple[str, ModelListing]] = []
        unreadable: InferError | None = None
        for store in self._stores:
            try:
                listing = store.sight(name)
            except InferError as error:
                _log.error("looking for model '%s': %s", name, error.message)
                unreadable = error
                continue
            if listing is not None:
                found.append((store.location, listing))
        if not found:
            where = ", ".join(store.location for store in self._stores)
            raise unreadable or not_found(f"no model '{name_of(name)}' in {where}")
        if len(found) > 1:
            raise invalid_argument(f"{DUPLICATE}: {', '.join(location for location, _ in found)}")
        return found[0][1].open()

    def contents(self, name: str) -> bytes:
        """Return what is the same as long as a model's files hold the same. Raises InferError, OSError."""
        entry = self.find(name)
        try:
            return content_digest(entry)
        finally:
            entry.release()

    def look(self) -> RepositoryListing:
        """Return how all models look now, with one question to each store."""
        look = RepositoryListing()
        for store in self._stores:
            try:
                models = store.look()
            except InferError as error:
                look.unreadable[store.location] = error
                continue
            for name, listing in models.items():
                look.listings.setdefault(name, []).append((store.location, listing))
        if self.first_look is None:
            self.first_look = fingerprints_of(look)
        return look


def fingerprints_of(look: RepositoryListing) -> dict[str, bytes]:
    """Return how each model looks, as far as the stores know it without the files."""
    return {name: b"".join(each.fingerprint for _, each in found) for name, found in look.listings.items()}
