"""The table of ready versions, where every request and query looks up its model."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from naiad.config.rollout.rollout_declaration import NAMES
from naiad.config.rollout.state import RolloutState
from naiad.core.errors import InferError
from naiad.core.model import IndexEntry, ModelKey, ModelState, version_number
from naiad.engine.lookup.missing import (
    misfit,
    missing_version,
    removed_model,
    rows_named,
    still_loading,
    suggestion,
    unknown_name,
)
from naiad.engine.phase import ServerPhase
from naiad.engine.rollout.rollouts import Rollouts
from naiad.engine.serving.served import Served

if TYPE_CHECKING:
    from naiad.engine.on_demand.held_requests import HeldRequests
    from naiad.repository.catalog import Catalog
    from naiad.telemetry.statistics.model_statistics import ModelStatistics

Rows = dict[str, dict[str, Served]]
"""Key or name of a model to its versions."""


class ModelTable:
    """The ready versions, and the errors of those that are not ready.

    `publish` replaces the table as a whole, so a look-up on the loop needs no lock.
    """

    def __init__(self, phase: ServerPhase, rollouts: Rollouts) -> None:
        self._phase = phase
        self._rollouts = rollouts
        self.catalog: Catalog[Served] | None = None
        """Knows the models that are not ready. Set once, before the frontends start."""
        self.held: HeldRequests | None = None
        """Knows the models on demand, and holds requests for them. Set once, before the frontends start."""
        self.left: dict[str, Sequence[ModelStatistics]] = {}
        """The counts of models on demand that are not loaded now."""
        self.suggests_models = True
        """Whether the error of an unknown model may name a similar one: every client may read the index."""
        self.rows: Rows = {}
        """Every model once, by its key."""
        self.named: Rows = {}
        """The same, and with namespaces also by the names of only one model."""
        self.known: Mapping[str, Mapping[int, Served]] = {}
        """The ready versions of the table, by the keys of the models."""
        self._lock = threading.Lock()
        """Held for microseconds: loading threads and the loop replace the table."""

    # --- changes --------------------------------------------------------------------------------------------------

    def publish(self, ready: Mapping[str, Mapping[int, Served]], name: str) -> None:
        """Replace the set of ready versions: model name to version to served model.

        Only the versions of the model `name` have changed.
        """
        with self._lock:
            before = self.known.get(name)
            self.known = ready
            if not ready.get(name):
                self._rollouts.forget(name)
                if before and self.held is not None and self.held.knows(name):
                    self.left[name] = [served.statistics for _, served in sorted(before.items())]
            else:
                self.left.pop(name, None)
            self._replace_row(name)

    def set_rollout(self, key: str, state: RolloutState, *, is_stored: bool) -> None:
        """Set the state of a rollout between two requests; on the loop. Raises InferError as `Rollouts.put`."""
        with self._lock:
            self._rollouts.put(key, state, is_stored=is_stored)
            if key in self.known:
                self._replace_row(key)

    def _replace_row(self, name: str) -> None:
        # Copied, which takes microseconds: the loop may be reading the table.
        table = dict(self.rows)
        versions = self.known.get(name)
        if versions:
            table[name] = self._rollouts.row(name, versions)
        else:
            table.pop(name, None)
        self.rows = table
        # A server has namespaces for all its models or for none.
        self.named = with_unique_names(table, self.known) if isinstance(name, ModelKey) else table

    # --- look-up --------------------------------------------------------------------------------------------------

    def served(self, name: str, version: str = "") -> Served:
        """Return the ready version. Raises InferError with Triton's texts without one."""
        # hot: once a request
        row = self.named.get(name)
        found = row.get(version) if row is not None else None
        if found is None:
            version = version_number(version)
            found = row.get(version) if row is not None else None
            if found is None:
                raise self.missing(name, version)
        return found

    def knows(self, name: str) -> bool:
        """Return whether the server has a model of that name, ready or not."""
        return name in self.named or bool(self.index_rows(name))

    def is_loaded(self, key: str) -> bool:
        """Return whether a version of a model is ready."""
        return key in self.known

    def all_versions(self) -> list[Served]:
        """Return every ready version once."""
        return [served for row in self.rows.values() for version, served in row.items() if version.isdigit()]

    def missing(self, name: str, version: str) -> InferError:
        """Return the error of a look-up that has found nothing; a `ColdModelError` if its request is to be held."""
        if self.held is not None and name not in self.named:
            cold = self.held.cold(name)
            if cold is not None:
                return cold
        rows = self.index_rows(name)
        if self._phase.is_starting and (not rows or any(row.state is ModelState.LOADING for row in rows)):
            return still_loading(name)
        if not rows and self.catalog is not None and self.catalog.is_removed(name):
            return removed_model(name, version)
        if not rows:
            has_namespaces = self.catalog is not None and self.catalog.namespaces is not None
            hint = suggestion(name, self.named) if self.suggests_models else ""
            return unknown_name(name, hint, has_namespaces=has_namespaces)
        state = self._rollouts.state(rows[0].name)
        refused = self._rollouts.refusal(rows[0].name) if version in ("", "-1", *NAMES) else ""
        names = {} if state is None else state.names
        return missing_version(name, version, rows, names, refused or misfit(version, rows))

    # --- the index ------------------------------------------------------------------------------------------------

    def index(self, ready_only: bool = False) -> Sequence[IndexEntry]:
        """Return the rows of the versions with a load or an attempt of one; with `ready_only` the ready ones."""
        return [] if self.catalog is None else self._current(self.catalog.index(ready_only), ready_only)

    def survey(self, ready_only: bool = False) -> Sequence[IndexEntry]:
        """Return the index including models that were never loaded.

        Reads the repository: not for the event loop. Raises InferError.
        """
        return [] if self.catalog is None else self._current(self.catalog.survey(ready_only), ready_only)

    def index_rows(self, name: str) -> Sequence[IndexEntry]:
        """Return the rows for a name of a client. Raises INVALID_ARG for an ambiguous one."""
        if self.catalog is None:
            return []
        return rows_named([self._current_row(row) for row in self.catalog.rows_named(name)], name)

    def _current(self, found: Sequence[IndexEntry], ready_only: bool) -> Sequence[IndexEntry]:
        rows = [self._current_row(row) for row in found]
        return [row for row in rows if row.state is ModelState.READY] if ready_only else rows

    def _current_row(self, row: IndexEntry) -> IndexEntry:
        """Return the current row of the index; a version with workers that died too often is no longer ready."""
        served = self.named.get(row.name, {}).get(row.version) if row.version else None
        reason = served.lost_reason if served is not None and row.state is ModelState.READY else ""
        return replace(row, state=ModelState.UNAVAILABLE, reason=reason) if reason else row


def with_unique_names(rows: Rows, known: Mapping[str, object]) -> Rows:
    """Return the rows also by the names of only one of the `known` models; unchanged without namespaces."""
    holders: dict[str, list[ModelKey]] = {}
    for key in known:
        if isinstance(key, ModelKey):
            holders.setdefault(key.name, []).append(key)
    if not holders:
        return rows
    unique = {name: keys[0] for name, keys in holders.items() if len(keys) == 1}
    return rows | {name: rows[key] for name, key in unique.items() if key in rows}
