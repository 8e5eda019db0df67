"""Loads by requests, as far as the models are wanted still: commands and changed files come between."""

import logging
from collections.abc import Callable
from typing import Generic

from naiad.config.load_policy import LOAD_POLICY, LoadPolicy, read_load_policy
from naiad.core.errors import InferError, unavailable
from naiad.core.model import name_of
from naiad.repository.control.controller import ModelController
from naiad.repository.control.load_order import config_of_files
from naiad.repository.control.on_demand.measured_models import OnDemandTable
from naiad.repository.control.on_demand.resident import ResidencePhase
from naiad.repository.lifecycle import V
from naiad.repository.stores.store import ModelEntry

_log = logging.getLogger(__name__)
_STOPPING = "Server not ready"


class WantedLoads(Generic[V]):
    """Loads models for their requests. For threads."""

    def __init__(
        self,
        controller: ModelController[V],
        default: LoadPolicy,
        table: OnDemandTable,
        is_stopping: Callable[[], bool],
    ) -> None:
        """`default` is the policy of models that name none."""
        self._controller = controller
        self._catalog = controller.catalog
        self._default = default
        self._models, self._changed = table.residency.models, table.changed
        self._is_stopping = is_stopping

    def check(self, key: str) -> None:
        """Raise InferError if a model is not to be loaded any more; the lock is held."""
        if self._is_stopping():
            raise unavailable(_STOPPING)
        if key not in self._models:
            raise withdrawn(key)

    def load(self, key: str) -> None:
        """Load a model; unload it again if it was withdrawn meanwhile. Raises InferError."""
        while not self._load_current(key):
            _log.info("loading '%s' again: its files have changed since its load has begun", key)
        with self._changed:
            is_wanted = key in self._models
        if is_wanted or self._is_pinned(key):
            return  # in the second case a command has pinned it
        self._controller.unload(key, {})
        raise withdrawn(key)

    def _load_current(self, key: str) -> bool:
        """Load a model; return False if its files have changed since. Raises InferError."""
        with self._changed:
            model = self._models.get(key)
            if model is not None:
                model.has_new_files = False
        try:
            self._controller.load(key, {}, is_by_client=True)
        except InferError as error:
            if model is not None and model.has_new_files:
                return False
            if key in self._models:  # files that are gone fail before any version: it would seem cold
                self._catalog.note_failure(key, error.message, is_known=True)
            raise
        return model is None or not model.has_new_files

    def says_on_demand(self, entry: ModelEntry) -> bool:
        """Return whether a model is on demand as far as its files say it."""
        config = config_of_files(entry)
        is_own = LOAD_POLICY in config.parameters
        return read_load_policy(config, self._default).is_on_demand if is_own else self._default.is_on_demand

    def may_leave(self, key: str) -> bool:
        """Return whether an eviction may go on: the model may have been loaded again by a command, or pinned."""
        model = self._models.get(key)
        return model is not None and model.phase is ResidencePhase.EVICTING and not self._is_pinned(key)

    def _is_pinned(self, key: str) -> bool:
        """Return whether a model is loaded to stay."""
        config = self._catalog.served_config(key)
        return config is not None and not read_load_policy(config, self._default).is_on_demand


def not_loaded(key: str, failure: InferError) -> InferError:
    """Return the error of requests for a model that could not be loaded."""
    return unavailable(f"model '{name_of(key)}' could not be loaded: {failure.message.strip()}")


def withdrawn(key: str) -> InferError:
    """Return the error of requests for a model that is on demand no more."""
    return unavailable(f"model '{name_of(key)}' was unloaded")
