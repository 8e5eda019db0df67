"""The models on demand of a server: asked for on the loop, loaded and evicted on threads. See the package."""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Generic

from naiad.config.load_policy import LoadPolicy, read_load_policy
from naiad.core.errors import InferError, cause_of, internal, unavailable
from naiad.repository.control.controller import ModelController
from naiad.repository.control.on_demand.known_models import directory_bytes
from naiad.repository.control.on_demand.load_pace import EvictionThreads, LoadThreads, LoadTurns
from naiad.repository.control.on_demand.measured_models import MeasuredModels, OnDemandTable
from naiad.repository.control.on_demand.memory.budgets import Amounts, freed_text, gpu_budgets_of, no_room
from naiad.repository.control.on_demand.memory.memory_meter import MemoryMeter, workers_bytes
from naiad.repository.control.on_demand.on_demand_settings import ModelSize, OnDemandSettings, VersionUse
from naiad.repository.control.on_demand.reloads import Reloads
from naiad.repository.control.on_demand.residency import Residency
from naiad.repository.control.on_demand.resident import Ask, LoadRefusal, ResidencePhase, Room
from naiad.repository.control.on_demand.room_line import RoomLine
from naiad.repository.control.on_demand.wanted_loads import WantedLoads, not_loaded, withdrawn
from naiad.repository.lifecycle import V
from naiad.repository.loads import reason_of
from naiad.repository.model_plan import ModelPlan, member_names
from naiad.telemetry.last_resort import keep_running, report

_log = logging.getLogger(__name__)
_SWEEP_S = 1.0
_MOST_LOADERS = 64
"""Loads with a thread, most of which wait for room; further loads wait for one of these to end."""
_EXITING = "Server exiting"


class OnDemandModels(Generic[V]):
    """The models that their requests load. `ask` is for the event loop, everything else for threads."""

    def __init__(
        self,
        controller: ModelController[V],
        settings: OnDemandSettings,
        use_of: Callable[[V], VersionUse],
        *,
        clock: Callable[[], float] = time.monotonic,
        meter: MemoryMeter | None = None,
    ) -> None:
        self._controller = controller
        self._catalog = controller.catalog
        self._settings = settings
        self._clock = clock
        self._residency = Residency(settings.budgets)
        self._meter = meter or MemoryMeter(devices=settings.devices)
        table = self._table = OnDemandTable(self._residency, self._meter)
        self._known, self._changed = table.known, table.changed
        self._line = RoomLine(table.lock, table.changed, self._residency)
        self._measured = MeasuredModels(
            controller,
            settings,
            table,
            use_of,
            clock,
            withdraw=self.withdraw,
            on_known=self._start_sweeper,
            on_brought=lambda key: self.on_settled(key, None),
        )
        self._turns = LoadTurns(settings.load_count, settings.core_count)
        self._threads = LoadThreads(self._load, _MOST_LOADERS)
        self._loading: set[str] = set()
        """The loads that have a thread."""
        self._urgent: set[str] = set()
        """The urgent loads whose thread has not begun yet."""
        self._pinning: set[str] = set()
        """Models that are being loaded to stay: requests that were held before wait for the end of that load."""
        self._evictions = EvictionThreads(self._evict)
        self._reloads = Reloads()
        self._stop = threading.Event()
        self._wanted = WantedLoads(controller, settings.default, table, self._stop.is_set)
        self._sweeper: threading.Thread | None = None
        self.load_count = 0
        self.failure_count = 0
        self.eviction_count = 0
        self.on_settled: Callable[[str, InferError | None], object] = lambda key, failure: None
        """Called on a thread when a load has ended, with the error if it failed. The caller then calls `release`."""

    # --- which models are on demand ---------------------------------------------------------------------------------

    def defers(self, plan: ModelPlan) -> bool:
        """Return whether a planned model is on demand; then it is known from now on, and not loaded."""
        policy = read_load_policy(plan.config, self._settings.default)
        if not policy.is_on_demand:
            return False
        self._add(plan, policy)
        if plan.agents is not None:
            plan.agents.load_failed()
        plan.entry.release()
        return True

    def stays_cold(self, plan: ModelPlan) -> bool:
        """Return whether a planned model is on demand and not served; then it is known. The caller releases the plan.

        For loads that no client has asked for.
        """
        policy, key = read_load_policy(plan.config, self._settings.default), plan.entry.key
        if not policy.is_on_demand:
            with self._changed:
                if key in self._residency.models:
                    self._pinning.add(key)
            return False
        if self._catalog.is_served(key):
            return False
        self._add(plan, policy)
        return True

    def register(self, key: str) -> bool:
        """Return whether a model is on demand and not served; then it is known from now on, and not loaded.

        Where models are loaded at start, the load itself asks `stays_cold`: files that are far away are opened once.
        Raises InferError if its configuration cannot be used, which the index shows.
        """
        if not self._settings.default.is_on_demand:
            return False
        try:
            entry = self._catalog.stores.find(key)
        except (InferError, OSError):
            return False  # the load reports it
        try:
            if not self._wanted.says_on_demand(entry) or self._catalog.is_served(key):
                return False  # a model that is to stay is known until that load has ended
            return self.defers(self._catalog.plan(entry))
        except Exception as error:
            self._catalog.note_failure(key, reason_of(error))
            raise
        finally:
            entry.release()

    def _add(self, plan: ModelPlan, policy: LoadPolicy) -> None:
        key = plan.entry.key
        file_bytes = sum(directory_bytes(plan.entry.version_dirs[number]) for number in plan.versions)
        with self._changed:
            gpus = gpu_budgets_of(plan.config, self._meter.devices.budgets)
            self._residency.add(key, policy, file_bytes, member_names(plan.config), gpus)
            self._residency.models[key].has_new_files = self._residency.is_loading(key)
            self._table.forget_sizes(key)  # its files may be other ones
            self._known.know(key, plan.versions, plan.config)
        self._catalog.note_cold(key, plan.versions)
        self._start_sweeper()

    def withdraw(self, key: str, *, stays: bool = False, failure: InferError | None = None) -> None:
        """Note that requests load a model no more; those that are held get the `failure`.

        `stays`: it is pinned now, and what is loaded of it stays and answers the requests that are held.
        """
        with self._changed:
            if key not in self._residency.models:
                return
            self._residency.remove(key)
            (self._table.pin_sizes if stays else self._table.forget_sizes)(key)
            self._known.forget(key)
            self._line.notify()
        self._catalog.end_on_demand(key)
        self.on_settled(key, None if stays else failure or withdrawn(key))

    def stay_withdrawn(self, key: str) -> None:
        """Withdraw a model again after its unload: a load that was ending beside it may have noted it once more."""
        if not self._catalog.is_served(key):
            self.withdraw(key)

    # --- on the loop ------------------------------------------------------------------------------------------------

    def find(self, name: str) -> str | None:
        """Return the key of the model on demand that a client means by a name; None if there is not exactly one."""
        if name in self._residency.models:
            return name
        return self._known.find(name)

    def ask(self, key: str, *, is_urgent: bool = False) -> Ask | LoadRefusal:
        """Note a request that has not found a model in the table; begin the load if none is in progress.

        `is_urgent`: a running model waits for the answer. Raises KeyError if the model is not on demand any more.
        """
        with self._changed:
            is_ready = self._residency.models[key].phase is ResidencePhase.LOADED
            if is_ready and not self._catalog.is_served(key):
                self._note_gone(key)
                is_ready = False
            if not is_ready and self._stop.is_set():
                return LoadRefusal(_EXITING, 0.0)  # nothing would end its wait
            found = self._residency.ask(key, self._clock(), is_urgent=is_urgent)
            if found is Ask.BEGIN or (found is Ask.HELD and is_urgent and key not in self._loading):
                self._begin_load(key)
            elif is_urgent:
                self._line.notify_all()  # its load may wait for room
            return found

    def versions_of(self, key: str) -> Sequence[int]:
        """Return the versions that a load of a model brings."""
        return self._known.versions_of(key)

    def is_decoupled(self, key: str) -> bool:
        """Return whether a model is decoupled, as far as its configuration or an earlier load says it."""
        return self._known.is_decoupled(key)

    def is_answerable(self, key: str) -> bool:
        """Return whether a request for a model is answered or held."""
        return self._residency.is_answerable(key, self._clock())

    def release(self, key: str) -> None:
        """Note that the requests that were held for a model are submitted: from now on it may be evicted."""
        with self._changed:
            self._residency.release(key)
            self._line.notify()

    # --- loads ------------------------------------------------------------------------------------------------------

    def _begin_load(self, key: str) -> None:
        """Begin a load; the lock is held."""
        is_urgent = self._residency.models[key].is_urgent
        if key in self._urgent or self._stop.is_set():
            return
        if is_urgent:
            self._urgent.add(key)
        self._threads.begin(key, is_urgent=is_urgent)

    def _load(self, key: str) -> None:
        with self._changed:
            self._urgent.discard(key)
            if key in self._loading:
                return
            model = self._residency.models.get(key)
            is_wanted = self._residency.is_loading(key)
            if is_wanted:
                self._loading.add(key)
        if not is_wanted:
            # A command or an ensemble has brought it before this thread began: the requests look again.
            self.on_settled(key, None)
            return
        failure: InferError | None = None
        try:
            try:
                is_wanted = self._await_room(key)
            finally:
                with self._changed:
                    self._line.notify()  # another load may be the first one now
            if is_wanted:
                self._load_now(key)
        except InferError as error:
            failure = error
        except BaseException as error:
            report(f"loading model '{key}' on demand", error)
            failure = internal(cause_of(error))
        with self._changed:
            self._loading.discard(key)
            now = self._residency.models.get(key)
            if now is None or (failure is not None and key in self._pinning):
                return  # it was withdrawn, or is being loaded to stay: that ends the wait of its requests
            if self._residency.is_loading(key) and (failure is None or now is not model):
                # It was evicted, or withdrawn and known again, and asked for before this thread had ended, which kept
                # the next one out.
                self._begin_load(key)
        if failure is not None:
            failure = self._note_failure(key, failure) if now is model else None
        self.on_settled(key, failure)  # where another load has begun, the requests look again

    def _note_failure(self, key: str, failure: InferError) -> InferError:
        self.failure_count += 1
        error = not_loaded(key, failure)
        with self._changed:
            if key in self._residency.models:
                self._residency.failed(key, error.message, self._clock())
                for each in self._residency.cold_family(key):
                    self._table.forget_sizes(each)  # the next load is measured again
            self._line.notify()
        return error

    def _await_room(self, key: str) -> bool:
        """Wait until a model may be loaded; evict others for it. Raises InferError if there will be no room.

        Return False if it is not to be loaded any more: a command or an ensemble has brought it meanwhile.
        """
        deadline_s = self._clock() + self._settings.hold_s
        while True:
            with self._changed:
                self._wanted.check(key)
                if not self._residency.is_loading(key):
                    return False
                now_s = self._clock()
                room = self._look_for_room(key, now_s)
                if not room.is_admitted and not room.victims and not room.refusal:
                    self._wait_for_room(key, deadline_s - now_s)
            self._evictions.start()
            if room.refusal:
                self._catalog.note_failure(key, room.refusal)
                raise unavailable(room.refusal)
            if room.is_admitted:
                return True

    def _look_for_room(self, key: str, now_s: float) -> Room:
        """Return whether there is room; begin the evictions for it; the lock is held."""
        was_stuck, waited_for = self._residency.is_stuck, self._residency.waits_for(key)
        room = self._residency.room(key, self._measured.uses, now_s)
        for group in room.victims:
            self._begin_eviction(group)
        is_stuck = self._residency.is_stuck
        is_other = room.is_admitted or is_stuck != was_stuck or waited_for != self._residency.waits_for(key)
        if is_other or (is_stuck and key in self._residency.first()):
            self._line.notify()  # for those behind it
        return room

    def _wait_for_room(self, key: str, left_s: float) -> None:
        """Wait until something may have changed; the lock is held. Raises InferError if no time is left."""
        if left_s <= 0:
            limits = {each: self._settings.budgets[each] for each in sorted(self._residency.waits_for(key))}
            taken, need = self._residency.taken(), self._residency.estimate(key)
            raise unavailable(no_room(limits, taken, need, self._settings.hold_s))
        self._line.wait(key, left_s)

    def _load_now(self, key: str) -> None:
        with self._changed:
            model = self._residency.models.get(key)
            is_urgent = model is not None and model.is_urgent
        with self._turns.turn(is_urgent=is_urgent):
            with self._changed:
                self._wanted.check(key)
            self._measured.load_measured(lambda: [key], partial(self._wanted.load, key), protected=key)
        self.load_count += 1
        with self._changed:
            model = self._residency.models.get(key)
            reason = self._residency.refusal_after_load(key)
            for group in () if reason else self._residency.excess(self._measured.uses, self._clock()):
                self._begin_eviction(group)  # it took more than expected
            warning = "" if model is None else self._reloads.note_load(model.evicted_s, self._clock())
        self._evictions.start()
        if warning:
            _log.warning("%s", warning)
        if reason:
            with self._meter.disturb():
                self._controller.unload(key, {})
            self._note_left(key)
            self._catalog.note_failure(key, reason)
            raise unavailable(reason)

    def load_by_command(self, name: str, load: Callable[[], None]) -> None:
        """Load or update the models of a name now, because of a command or of changed files. Raises InferError."""
        failure: InferError | None = None
        try:
            self._measured.load_by_command(name, load)
        except InferError as error:
            failure = error
            raise
        finally:
            for key in self._catalog.known_as(name):
                self._end_pinning(key, failure)

    def _end_pinning(self, key: str, failure: InferError | None) -> None:
        """Note the end of a load that pins a model: if it has failed, the requests that are held get its reason."""
        with self._changed:
            if key not in self._pinning:
                return
            self._pinning.discard(key)
            if self._catalog.is_served(key):
                if self._residency.is_loading(key):
                    self._begin_load(key)  # its thread has left this to the load that has ended here
                return
        self.withdraw(key, failure=None if failure is None else not_loaded(key, failure))

    # --- evictions --------------------------------------------------------------------------------------------------

    def _begin_eviction(self, group: Sequence[str]) -> None:
        """Begin to unload models, ensembles before their members; the lock is held.

        The caller starts the thread without the lock: a start waits for the new thread.
        """
        for key in group:
            self._residency.begin_eviction(key)
        self._evictions.add(group)

    def _evict(self, group: Sequence[str]) -> None:
        for key in group:
            with self._changed:
                model = self._residency.models.get(key)
                sizes = {} if model is None else model.charged
            _log.info("unloading '%s', which is on demand and was not used lately%s", key, freed_text(sizes))
            try:
                with self._meter.disturb():
                    self._controller.evict(key, partial(self._wanted.may_leave, key))
            except BaseException as error:
                report(f"unloading model '{key}', which is on demand", error)
            self.eviction_count += 1
        for key in group:
            self._note_left(key)

    def _note_left(self, key: str) -> None:
        """Note that a model is unloaded, and load it again if a request waits for that."""
        with self._changed:
            versions = self._known.versions_of(key)
            is_known = key in self._residency.models
        if is_known:
            self._catalog.note_cold(key, versions)
        with self._changed:
            if not self._catalog.is_served(key):  # a load by a command may have come between
                self._note_gone(key)
            self._line.notify()

    def _note_gone(self, key: str) -> None:
        """Note that nothing of a model is loaded any more; the lock is held."""
        self._table.leave_sizes(key)
        if key in self._residency.models and self._residency.evicted(key, self._clock()):
            self._begin_load(key)

    # --- the sweep --------------------------------------------------------------------------------------------------

    def _start_sweeper(self) -> None:
        with self._changed:
            if self._sweeper is None and not self._stop.is_set():
                self._sweeper = threading.Thread(target=self._run_sweeper, name="on-demand-sweep", daemon=True)
                self._sweeper.start()
                self._threads.start()

    def _run_sweeper(self) -> None:
        keep_running("the sweep of models on demand", self._sweep_until_stop, self._stop.wait)

    def _sweep_until_stop(self) -> None:
        while not self._stop.wait(_SWEEP_S):
            self.sweep()

    def sweep(self) -> None:
        """Unload idle models, and what is too much since models have grown; called about once a second."""
        with self._changed:
            now_s = self._clock()
            for key in self._residency.of_phase(ResidencePhase.LOADED):
                if not self._catalog.is_served(key) and not self._residency.models[key].is_protected:
                    self._note_gone(key)
            uses = self._measured.uses()
            workers = self._measured.workers
        sizes = {key: workers_bytes(process_ids) for key, process_ids in workers.items() if process_ids}
        self._meter.return_freed()  # it is no growth of the models
        readings = self._measured.read_devices()
        with self._changed:
            uses = {key: use for key, use in uses.items() if self._is_loaded(key)}
            self._measured.note_growth(uses, sizes, readings, now_s)
            for group in self._residency.idle(uses, now_s):
                if all(self._residency.models[key].phase is ResidencePhase.LOADED for key in group):
                    self._begin_eviction(group)
            for group in self._residency.excess(lambda: uses, now_s):
                self._begin_eviction(group)
        self._evictions.start()

    def _is_loaded(self, key: str) -> bool:
        model = self._residency.models.get(key)
        return model is not None and model.phase is ResidencePhase.LOADED

    # --- the end, and what there is to know -------------------------------------------------------------------------

    def abandon(self) -> None:
        """Load and evict no more; loads that wait for room end, and those that wait for a thread or an eviction."""
        with self._changed:
            self._stop.set()
            models = self._residency.models.items()
            ending = [
                key
                for key, model in models
                if (model.phase is ResidencePhase.LOADING and key not in self._loading)
                or (model.phase is ResidencePhase.EVICTING and model.is_asked)
            ]
            self._line.notify_all()
        self._threads.end()
        for key in ending:
            self.on_settled(key, unavailable(_EXITING))

    def sizes(self) -> list[ModelSize]:
        """Return the sizes of the loaded models on demand."""
        with self._changed:
            models = self._residency.models.items()
            return [ModelSize(key, model.charged) for key, model in models if model.phase is ResidencePhase.LOADED]

    def counts(self) -> Mapping[str, int]:
        """Return the number of models in each phase, by its name."""
        with self._changed:
            return {phase.name.lower(): self._residency.count(phase) for phase in ResidencePhase}

    @property
    def budgets(self) -> Amounts:
        """The budgets of this process; 0 for none."""
        return self._settings.budgets

    @property
    def used(self) -> Amounts:
        """What is taken of each budget, with what no model explains."""
        with self._changed:
            return self._residency.taken()

    @property
    def reload_count(self) -> int:
        """Loads soon after an eviction."""
        return self._reloads.count
