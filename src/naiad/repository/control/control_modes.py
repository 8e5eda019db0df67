"""The control modes: what triggers loading and unloading, behind one interface for the engine.

NONE loads everything at start. EXPLICIT loads what is named at start, and then follows commands. For POLL see `poll`.
"""

import fnmatch
import functools
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Generic, TypeAlias

from naiad.core.errors import ErrorCode, InferError, invalid_argument
from naiad.core.model import name_of
from naiad.repository.catalog import Catalog
from naiad.repository.control.controller import ModelController
from naiad.repository.control.load_order import DRY_RUN
from naiad.repository.control.on_demand.on_demand_models import OnDemandModels
from naiad.repository.control.store_return import StoreReturn
from naiad.repository.lifecycle import V
from naiad.repository.load_pool import LoadPool
from naiad.repository.stores.bare_files import nothing_to_serve
from naiad.repository.stores.store import Store

_log = logging.getLogger(__name__)

_START_THREADS = 8
_PATTERN = frozenset("*?[")
"""Characters that make a name at start a pattern."""


MakeOnDemand: TypeAlias = Callable[[ModelController[V]], OnDemandModels[V]]
"""Returns the models on demand of a controller, before any model is known."""


class RepositoryControl(Generic[V]):
    """The repository as the engine controls it, in any mode."""

    def __init__(
        self,
        controller: ModelController[V],
        start: Callable[[], bool],
        stop: Callable[[float], object] = lambda timeout_s: None,
        *,
        takes_commands: bool,
        on_demand: OnDemandModels[V] | None = None,
    ) -> None:
        """`stop` ends triggers that continue, within a time in seconds."""
        self.catalog = controller.catalog
        self.on_demand = on_demand
        """The models that their requests load; None in a server without any."""
        self._controller = controller
        self.load_at_start = start
        """Loads the models of the start; whether all of them are ready. Raises InferError."""
        self._stop = stop
        self.takes_commands = takes_commands
        """Whether clients may load and unload models."""

    def load_model(self, name: str, parameters: Mapping[str, object], *, is_owner: bool = True) -> None:
        """Load a model by a client's command, see `ModelController.load`.

        Raises InferError: UNAVAILABLE in a mode without commands.
        """
        self._check_commands()
        load = functools.partial(self._controller.load, name, parameters, is_by_client=True, is_owner=is_owner)
        if self.on_demand is None or parameters.get(DRY_RUN):
            load()
        else:
            self.on_demand.load_by_command(name, load)

    def unload_model(
        self, name: str, parameters: Mapping[str, object], on_withdrawn: Callable[[], object] | None = None
    ) -> None:
        """Unload a model by a client's command, see `ModelController.unload`.

        Raises InferError(UNAVAILABLE) in a mode without commands.
        """
        self._check_commands()
        on_demand = self.on_demand
        if on_demand is None:
            self._controller.unload(name, parameters, on_withdrawn)
            return
        keys = self.catalog.known_as(name)
        for key in keys:
            on_demand.withdraw(key)
        self._controller.unload(name, parameters, on_withdrawn)
        for key in keys:
            on_demand.stay_withdrawn(key)

    def load_beside(self, key: str) -> None:
        """Load the versions that a model's rollout needs beside those that serve, in any mode. Raises InferError."""
        load = functools.partial(self._controller.load_beside, key)
        if self.on_demand is None:
            load()
        else:  # the model may be cold: what this brings takes room, too
            self.on_demand.load_by_command(key, load)

    def load_from(self, store: Store, name: str) -> None:
        """Register a repository and load one of its models; unregister it if that fails. Raises InferError."""
        self._check_commands()
        self.catalog.register(store)
        try:
            self._controller.load(name, {}, is_by_client=True)
        except InferError:
            self.unload_from(store, name)
            raise

    def unload_from(self, store: Store, name: str) -> None:
        """Unload a model and its dependents, and unregister their repository."""
        self._controller.unload(name, {"unload_dependents": True})
        self.catalog.unregister(store)

    def _check_commands(self) -> None:
        if not self.takes_commands:
            # Triton: the same text in mode NONE, and UNAVAILABLE, which invites clients to try again.
            raise InferError(
                ErrorCode.INVALID_ARG,
                "explicit model load / unload is not allowed if polling is enabled; start the server with "
                "--model-control-mode=explicit",
                triton_code=ErrorCode.UNAVAILABLE,
            )

    def abandon(self) -> None:
        """Stop loading: loads in progress finish, waiting ones do not begin."""
        self._stop(0.0)
        self._abandon()

    def unload_all(self, timeout_s: float) -> bool:
        """Unload everything; False when work or an accepted request did not finish within `timeout_s`."""
        deadline_s = time.monotonic() + timeout_s
        self._abandon()
        self._stop(timeout_s)
        return self._controller.unload_all(max(0.0, deadline_s - time.monotonic()))

    def _abandon(self) -> None:
        if self.on_demand is not None:
            self.on_demand.abandon()
        self._controller.abandon()


def no_control(
    catalog: Catalog[V],
    *,
    needs_models: bool = False,
    settle: Callable[[], object] = lambda: None,
    make_on_demand: MakeOnDemand[V] | None = None,
) -> RepositoryControl[V]:
    """Return the control of mode NONE: everything is loaded at start, and commands are rejected.

    With `needs_models`, a start without any model raises InferError; `settle` as in `ModelController`.
    """
    controller = ModelController(catalog, settle)
    on_demand = None if make_on_demand is None else make_on_demand(controller)
    later = StoreReturn(catalog.stores, lambda names: _load_each(controller, on_demand, names))

    def start() -> bool:
        all_loaded = catalog.load_all() if on_demand is None else catalog.load_all(on_demand.defers)
        if needs_models and not catalog.index():
            raise invalid_argument(nothing_to_serve(catalog.stores.locations))
        later.start()
        return all_loaded

    return RepositoryControl(controller, start, later.stop, takes_commands=False, on_demand=on_demand)


def explicit_control(
    catalog: Catalog[V],
    settle: Callable[[], object],
    at_start: Sequence[str] = (),
    *,
    make_on_demand: MakeOnDemand[V] | None = None,
) -> RepositoryControl[V]:
    """Return the control of mode EXPLICIT; `settle` as in `ModelController`."""
    controller = ModelController(catalog, settle)
    on_demand = None if make_on_demand is None else make_on_demand(controller)
    # Loading what has not changed loads nothing.
    later = StoreReturn(catalog.stores, lambda _: _load_named(controller, on_demand, at_start))

    def start() -> bool:
        all_loaded = _load_named(controller, on_demand, at_start)
        later.start()
        return all_loaded

    return RepositoryControl(controller, start, later.stop, takes_commands=True, on_demand=on_demand)


def poll_control(
    catalog: Catalog[V],
    settle: Callable[[], object],
    *,
    poll_s: float,
    settle_s: float,
    make_on_demand: MakeOnDemand[V] | None = None,
) -> RepositoryControl[V]:
    """Return the control of mode POLL, see `PollTrigger`."""
    from naiad.repository.control.poll import PollTrigger  # most servers do not poll

    controller = ModelController(catalog, settle)
    on_demand = None if make_on_demand is None else make_on_demand(controller)
    trigger = PollTrigger(controller, on_demand=on_demand, poll_s=poll_s, settle_s=settle_s)
    return RepositoryControl(controller, trigger.start, trigger.stop, takes_commands=False, on_demand=on_demand)


def _load_named(controller: ModelController[V], on_demand: OnDemandModels[V] | None, wanted: Sequence[str]) -> bool:
    """Load models by names and patterns; whether all of them are ready. Raises InferError."""
    names: dict[str, None] = {}
    all_found = True
    for each in wanted:
        if not _PATTERN.intersection(each):
            names[each] = None
            continue
        found = fnmatch.filter({name_of(key) for key in controller.catalog.names_at_start()}, each)
        names |= dict.fromkeys(found)
        if not found and each != "*" and not controller.catalog.stores.is_any_missing:
            _log.error("--load-model=%s: no model of any repository has such a name", each)
            all_found = False
    return _load_each(controller, on_demand, names) and all_found


def _load_each(controller: ModelController[V], on_demand: OnDemandModels[V] | None, names: Collection[str]) -> bool:
    """Load models, except those on demand; whether all of them are ready."""
    if not names:
        return True

    def load_or_know(name: str) -> bool:
        try:
            keys = [] if on_demand is None else controller.catalog.named(name)
            loads_later = [on_demand is not None and on_demand.register(key) for key in keys]
            if on_demand is None:
                controller.load(name, {}, is_by_client=False)
            elif not loads_later or not all(loads_later):
                stays_cold = on_demand.stays_cold
                load = functools.partial(controller.load, name, {}, is_by_client=False, stays_cold=stays_cold)
                on_demand.load_by_command(name, load)
        except InferError:
            return False  # the reason is in the log
        return True

    with LoadPool(_START_THREADS, "start") as pool:
        return all(list(pool.results([pool.submit(load_or_know, name) for name in names])))
