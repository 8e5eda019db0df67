"""What a load would load: the model and its members, as the stores, the command and the loaded models have it."""

import logging
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Generic

from naiad.config.changes.override import limited_override
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import ErrorCode, InferError, UnloadableError, excerpt, invalid_argument
from naiad.core.model import ModelKey, name_of
from naiad.repository.catalog import Catalog
from naiad.repository.control.load_order import (
    LoadOrder,
    Override,
    UploadedFiles,
    config_of_files,
    owner_config,
    with_config,
)
from naiad.repository.control.loaded_models import LoadedModels
from naiad.repository.control.reconcile import Listed, reconcile
from naiad.repository.lifecycle import V
from naiad.repository.loads import reason_of
from naiad.repository.model_plan import ModelPlan, member_names
from naiad.repository.stores.fingerprint import file_state
from naiad.repository.stores.store import ModelEntry

_log = logging.getLogger(__name__)

_UPLOADED = "uploaded"
"""In place of a fingerprint, of files that a command has uploaded."""


class LoadPlanning(Generic[V]):
    """Makes the plans of load commands, and says which of them are to be loaded."""

    def __init__(self, catalog: Catalog[V], loaded: LoadedModels[V]) -> None:
        self._catalog = catalog
        self._loaded = loaded

    def prepare(self, order: LoadOrder) -> None:
        """Read a model and its members from the stores. Raises InferError: INTERNAL unless it could be read."""
        try:
            self._plan(order, order.name, order.override)
        except Exception as error:
            if isinstance(error, InferError) and error.code is ErrorCode.PERMISSION_DENIED:
                raise  # the command is refused, the model is as it was
            reason = reason_of(error)
            if self._catalog.is_served(order.name):
                self._catalog.note_failure(order.name, reason)
            elif isinstance(error, UnloadableError) and not order.is_by_client:
                self._catalog.note_failure(order.name, reason, counts=True)
            else:
                _log.error("Poll failed for model '%s': %s", order.name, reason)
            if isinstance(error, UnloadableError):
                raise invalid_argument(f"load failed for model '{excerpt(order.name)}': {reason}\n") from None
            # Triton: INTERNAL, whether the client, its files or the server is at fault.
            known = error.code if isinstance(error, InferError) else ErrorCode.INTERNAL
            raise InferError(
                known if known in (ErrorCode.NOT_FOUND, ErrorCode.INVALID_ARG) else ErrorCode.INTERNAL,
                f"failed to load '{excerpt(order.name)}', failed to poll from model repository: {reason}",
                triton_code=ErrorCode.INTERNAL,
            ) from None
        self._plan_members(order, order.name)

    def names_of(self, order: LoadOrder) -> Collection[str]:
        """Return the models of a command, as what is loaded now makes it: it may have changed since the last call."""
        for name in order.borrowed & order.plans.keys():
            record = self._loaded.records.get(name)
            if record is not None and record.plan is order.plans[name]:
                continue
            try:
                self._plan(order, name, None)
            except Exception as error:  # its load reports it
                _log.debug("'%s' cannot be read any more: %s", name, reason_of(error))
            else:
                self._plan_members(order, name)
        return order.plans.keys()

    def _plan_members(self, order: LoadOrder, name: str) -> None:
        """Read the members of an ensemble, and theirs, as far as it has not been done."""
        waiting = list(member_names(order.plans[name].config))
        while waiting:
            member = waiting.pop()
            if member in order.plans:
                continue
            try:
                self._plan(order, member, None)
            except Exception as error:
                # The ensemble's own failure follows from it, unless the served version is still good.
                _log.error("Poll failed for model '%s': %s", member, reason_of(error))
            else:
                waiting += member_names(order.plans[member].config)

    def _plan(self, order: LoadOrder, name: str, override: Override | None) -> None:
        if override is not None and override.files:
            order.files = UploadedFiles(name_of(name), override.files)
            order.files_seen[name] = None
            entry = order.files.entry(override.config)
            if isinstance(name, ModelKey):
                entry = replace(entry, namespace=name.namespace)
        else:
            entry = self._catalog.stores.find(name)
            order.note_opened(entry)
            order.files_seen[name] = file_state(entry)
            if override is not None:
                order.replaced_config = config_of_files(entry)
                if override.is_limited:
                    override = replace(override, config=self._limited(name, entry, override.config))
                entry = with_config(entry, override)
        record = self._loaded.records.get(name)
        if record is not None and name not in self.to_load(order, [name]):
            order.plans[name] = record.plan
            order.borrowed.add(name)
        else:
            order.plans[name] = self._catalog.plan(entry)
            order.borrowed.discard(name)

    def _limited(self, name: str, entry: ModelEntry, config: ModelConfig) -> ModelConfig:
        """Return a configuration of a client without permission with the owner's values. Raises InferError."""
        owner = owner_config(entry)
        record, served = self._loaded.records.get(name), self._catalog.served_config(name)
        known = [self._catalog.completed_config(entry)]
        if served is not None and record is not None and record.files is None:
            known.append(served)
        return limited_override(config, owner, known)

    def to_load(self, order: LoadOrder, names: Iterable[str]) -> list[str]:
        """Return the `names` of a command that are not loaded as the command wants them, members first."""
        listing = {name: self._listed(order, name) for name in names if not self._keeps_override(order, name)}
        state = self._loaded.state(listing)
        steps = reconcile({*state, *listing}, listing, state, forced=order.forced)
        return [step.name for step in steps if step.name in listing]

    def _keeps_override(self, order: LoadOrder, name: str) -> bool:
        """Return whether a command has configured a member: loading an ensemble above it does not undo that."""
        record = self._loaded.records.get(name)
        is_member = name != order.name
        return is_member and record is not None and record.is_overridden and self._catalog.is_served(name)

    def _listed(self, order: LoadOrder, name: str) -> Listed:
        # Triton: an override stays until some file of the model has changed.
        files = order.files_seen[name] or _UPLOADED
        record = self._loaded.records.get(name)
        if record is None or (name in order.plans and name not in order.borrowed):
            plan = order.plans.get(name)
            return Listed(files, None if plan is None else frozenset(member_names(plan.config)))
        namespaces = self._catalog.namespaces
        if namespaces is None or not record.members:
            return Listed(files)
        return Listed(files, namespaces.links(name, {*map(name_of, record.members)}))

    def own_plan(self, order: LoadOrder, name: str) -> ModelPlan:
        """Return a plan to load from: a model that seemed current may be unloaded before it is locked."""
        if name in order.borrowed:
            self._plan(order, name, None)
        return order.plans[name]
