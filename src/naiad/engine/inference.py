"""The engine: the only entry point of inference. Frontends submit requests and query models here."""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from naiad.config.model_config_pb2 import ModelConfig
from naiad.config.rollout.declaration import NAMES
from naiad.config.rollout.guard import RolloutCounts
from naiad.config.rollout.state import RolloutState, changed, ended, no_rollout, not_ready, undeclared
from naiad.config.rollout.status import RolloutStatus
from naiad.core.datatype import BY_CONFIG_NUMBER
from naiad.core.errors import InferError, excerpt, invalid_argument, unavailable
from naiad.core.model import IndexEntry, ModelKey, ModelMetadata, ModelState, ServerMetadata, name_of, version_number
from naiad.core.ports import Loop
from naiad.core.request import InferRequest
from naiad.core.request_limits import RequestLimits
from naiad.core.slices import Slices, finish
from naiad.core.tensor import TensorSpec
from naiad.core.version import __version__
from naiad.engine.missing import (
    bad_version,
    is_version,
    missing_version,
    removed_model,
    rows_named,
    still_loading,
    suggestion,
    unknown_name,
)
from naiad.engine.rollout.changes import RolloutChanges
from naiad.engine.rollout.model import RolloutModel
from naiad.engine.rollout.rollouts import Rollouts
from naiad.engine.serving.served import Served, explain
from naiad.engine.transforms.device_headers import DeviceHeaders
from naiad.engine.transforms.shared_memory import SharedMemoryTensors
from naiad.memory.regions import SharedMemory
from naiad.options.trace import TraceOptions
from naiad.repository.control.triggers import RepositoryControl
from naiad.repository.rollout_records import RolloutRecords
from naiad.repository.stores.store import Store
from naiad.telemetry.metrics.metrics import Registry
from naiad.telemetry.statistics.model import ModelStatistics
from naiad.telemetry.statistics.version import Explanation, VersionStatistics
from naiad.telemetry.trace.tracer import Changes, Trace, Tracer, unknown_model

if TYPE_CHECKING:
    from naiad.telemetry.traffic import Recorder

_log = logging.getLogger(__name__)

EXTENSIONS = (
    "classification",
    "sequence",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    "system_shared_memory",
    "cuda_shared_memory",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
)
"""The extensions of this server, by their KServe names."""

Rows = dict[str, dict[str, Served]]
"""Key or name of a model to its versions."""


class Engine:
    """Routes requests to served model versions and answers queries about them.

    `publish` replaces the table of ready versions as a whole, so a look-up on the loop needs no lock.
    """

    def __init__(self, *, server_id: str, metrics: Registry, shared_memory: SharedMemory | None = None) -> None:
        self._server_id = server_id
        self._metrics = metrics
        self.shared_memory = shared_memory or SharedMemory()
        """The registered regions of clients."""
        self._device_headers = DeviceHeaders()
        self._repository: RepositoryControl[Served] | None = None
        self._models: Rows = {}
        """Every model once, by its key."""
        self._table: Rows = {}
        """The same, and with namespaces also by the names of only one model."""
        self._known: Mapping[str, Mapping[int, Served]] = {}
        """The ready versions of the table."""
        self._table_lock = threading.Lock()
        """Held for microseconds: loading threads and the loop replace the table."""
        self.rollouts = Rollouts()
        self.rollout_changes: RolloutChanges
        """Set by `keep_rollouts`."""
        self._tracer: Tracer | None = None
        self._begin_trace: Callable[[InferRequest], Trace | None] | None = None
        """None without tracing, which then has no cost."""
        self.recorder: Recorder | None = None
        """Records requests; set before the frontends start. None: nothing is recorded."""
        self._ready_to_serve = False
        self.is_draining = False
        self.suggests_models = True
        """Whether the error of an unknown model may name a similar one: every client may read the index."""

    def attach(self, repository: RepositoryControl[Served]) -> None:
        """Connect the repository; called once, before the frontends start."""
        self._repository = repository

    def keep_rollouts(self, records: RolloutRecords, loop: Loop) -> None:
        """Connect the records of rollouts; called once, before models are loaded."""
        self.rollouts.bind(loop)
        self.rollout_changes = RolloutChanges(self, records, loop)

    def publish(self, ready: Mapping[str, Mapping[int, Served]], name: str) -> None:
        """Replace the set of ready versions: model name to version to served model.

        Only the versions of the model `name` have changed.
        """
        with self._table_lock:
            self._known = ready
            if not ready.get(name):
                self.rollouts.forget(name)
            self._replace_row(name)

    def _replace_row(self, name: str) -> None:
        # Copied, which takes microseconds: the loop may be reading the table.
        table = dict(self._models)
        versions = self._known.get(name)
        if versions:
            table[name] = self.rollouts.row(name, versions)
        else:
            table.pop(name, None)
        self._models = table
        # A server has namespaces for all its models or for none.
        self._table = with_unique_names(table, self._known) if isinstance(name, ModelKey) else table

    def set_started(self) -> None:
        """Mark the end of the start: from now on the models decide readiness."""
        self._ready_to_serve = True

    # --- inference ------------------------------------------------------------------------------------------------

    def submit(self, request: InferRequest, served: Served | None = None) -> None:
        """Submit a request; the response arrives through `request.on_response` on the loop.

        `served` is the version, if the caller has looked it up in the same callback of the loop. Raises InferError if
        the request is rejected; then `on_response` is not called.
        """
        header = request.header
        if served is None:
            served = self.served(header.model_name, header.model_version)
        # The tracer comes second: it finds the parents of traces by their callbacks.
        recording = None if self.recorder is None else self.recorder.begin(request)
        trace = None if self._begin_trace is None else self._begin_trace(request)
        try:
            if header.is_plain:
                served.submit(request)
            else:
                self._submit_exchanged(request, served)
        except InferError as error:
            if trace is not None:
                trace.drop()
            if recording is not None:
                recording.end(request, error)
            raise

    def _submit_exchanged(self, request: InferRequest, served: Served) -> None:
        """Submit a request with tensors in shared memory or with classified outputs."""
        # Triton: the error of a missing region precedes that of a wrong shape.
        exchange = SharedMemoryTensors(request, served, self.shared_memory, self._device_headers)
        try:
            served.submit(request)
        except InferError:
            exchange.release()
            raise

    def cancel(self, request: InferRequest) -> bool:
        """Cancel a submitted request: drop it if queued, mark it if executing.

        Called on the loop. A dropped request gets the response CANCELLED before this returns True.
        """
        served: Served | None = request.model
        return served is not None and served.cancel(request)

    def served(self, name: str, version: str = "") -> Served:
        """Return the ready version. Raises InferError with Triton's texts without one."""
        row = self._table.get(name)
        found = row.get(version) if row is not None else None
        if found is None:
            version = version_number(version)
            found = row.get(version) if row is not None else None
            if found is None:
                raise self._missing(name, version)
        return found

    def is_decoupled(self, name: str, version: str = "") -> bool:
        """Return whether a model is decoupled. Raises NOT_FOUND for an unknown model."""
        return self.served(name, version).is_decoupled

    def request_limits(self, name: str, version: str = "") -> RequestLimits:
        """Return the limits of a request for a model. Raises NOT_FOUND for an unknown model."""
        config = self.served(name, version).config
        return RequestLimits(name, len(config.input), len(config.output))

    def knows(self, name: str) -> bool:
        """Return whether the server has a model of that name, ready or not."""
        return name in self._table or bool(self._rows_named(name))

    def _missing(self, name: str, version: str) -> InferError:
        """Return the error of a look-up that has found nothing."""
        rows = self._rows_named(name)
        if not self._ready_to_serve and (not rows or any(row.state is ModelState.LOADING for row in rows)):
            return still_loading(name)
        if not rows and self._repository is not None and self._repository.catalog.is_removed(name):
            return removed_model(name, version)
        if not rows:
            has_namespaces = self._repository is not None and self._repository.catalog.namespaces is not None
            hint = suggestion(name, self._table) if self.suggests_models else ""
            return unknown_name(name, hint, has_namespaces=has_namespaces)
        state = self.rollouts.state(rows[0].name)
        refused = self.rollouts.refusal(rows[0].name) if version in ("", "-1", *NAMES) else ""
        return missing_version(name, version, rows, {} if state is None else state.names, refused)

    # --- health ---------------------------------------------------------------------------------------------------

    def is_live(self) -> bool:
        """Return whether the server responds; true even while it drains."""
        return True

    def is_ready(self) -> bool:
        """Return whether the server is ready for traffic."""
        if not self._ready_to_serve or self.is_draining or self._repository is None:
            return False
        ill = [name for name, row in self._models.items() if "" not in row or row[""].health]
        return self._repository.catalog.is_ready(ill)

    def is_model_ready(self, name: str, version: str = "") -> bool:
        """Return whether a model version is ready; an unknown model or version is not (Triton).

        Raises InferError(INVALID_ARG) for an invalid version number and for an ambiguous name.
        """
        row = self._table.get(name)
        served = row.get(version) if row is not None else None
        if served is not None:
            # Triton: one instance that reports not ready is enough.
            return not served.health and all(instance.says_ready for instance in served.instances)
        if version not in ("", "-1", *NAMES) and not is_version(version):
            raise bad_version(version)
        self._rows_named(name)  # may raise
        return False

    @property
    def in_flight_count(self) -> int:
        """Requests queued or executing, over all models."""
        return sum(served.in_flight_count for served in self._all_served())

    def in_flight_versions(self) -> list[tuple[str, str, int]]:
        """Return the name, version and number of requests of every model that has queued or executing ones."""
        found = [(name_of(served.name), served.version, served.in_flight_count) for served in self._all_served()]
        return [each for each in found if each[2]]

    def check_models(self, now_ns: int) -> None:
        """Let every model fail hung executions; called about once a second."""
        for served in self._all_served():
            served.check(now_ns)

    def abort(self, reason: str) -> None:
        """Fail all queued and executing requests with UNAVAILABLE: the server exits. On the loop."""
        # Ensembles first: otherwise failures in their members would be reported as the members' failures.
        for served in sorted(self._all_served(), key=lambda served: bool(served.instances)):
            served.abort(reason)

    def _all_served(self) -> list[Served]:
        return [served for row in self._models.values() for version, served in row.items() if version.isdigit()]

    def close_to_new_sequences(self) -> None:
        """Continue live sequences, and reject new ones, before the server stops."""
        for served in self._all_served():
            served.close_to_new_sequences()

    @property
    def live_sequence_count(self) -> int:
        """Live sequences, over all models."""
        return sum(served.live_sequence_count for served in self._all_served())

    # --- what there is to know ------------------------------------------------------------------------------------

    def server_metadata(self) -> ServerMetadata:
        """Return name, version and extensions of this server."""
        return ServerMetadata(self._server_id, __version__, EXTENSIONS)

    def model_config(self, name: str, version: str = "") -> ModelConfig:
        """Return the complete configuration of a ready model. Raises InferError if it is not ready."""
        return self.served(name, version).config

    def model_metadata(self, name: str, version: str = "") -> ModelMetadata:
        """Return names, datatypes and shapes of a ready model. Raises InferError if it is not ready."""
        # Read once: a loading thread may replace the table between two reads.
        row = self._table.get(name, {})
        served = row.get(version)
        if served is None:
            raise self._missing(name, version)
        config = served.config
        if version in ("", "-1"):
            versions = [str(v) for v in sorted(int(v) for v in row if v.isdigit())]
        else:
            versions = [served.version]
        batch = (-1,) if config.max_batch_size > 0 else ()
        inputs, outputs = (
            [TensorSpec(t.name, BY_CONFIG_NUMBER[t.data_type], (*batch, *t.dims)) for t in tensors]
            for tensors in (config.input, config.output)
        )
        return ModelMetadata(name, versions, config.platform or config.backend, inputs, outputs)

    def statistics(self, name: str = "", version: str = "") -> Sequence[VersionStatistics]:
        """Return statistics of one version, of all versions of a model, or of all models (no name).

        Raises InferError(INVALID_ARG) for a name that is ambiguous or not ready, with Triton's texts.
        """
        return finish(self.statistics_in_slices(name, version))

    def statistics_in_slices(self, name: str = "", version: str = "") -> Slices[Sequence[VersionStatistics]]:
        """Do what `statistics` does, but yield about every millisecond; raises at once, before the first slice."""
        return _snapshots(self._counted(name, version))

    def _counted(self, name: str, version: str) -> Sequence[ModelStatistics]:
        named = self._table.get(name)
        if not name:
            rows = [row for _, row in sorted(self._models.items())]
        elif named is not None:
            rows = [named]
        else:
            self._rows_named(name)
            raise invalid_argument(f"requested model '{excerpt(name)}' is not available")
        if version not in ("", "-1"):
            if version not in rows[0]:
                raise invalid_argument(f"requested model version is not available for model '{excerpt(name)}'")
            return [rows[0][version].statistics]
        return [row[v].statistics for row in rows for v in sorted((v for v in row if v.isdigit()), key=int)]

    def explanation(self, name: str, version: str = "") -> Explanation:
        """Return how requests of a ready model are scheduled. Raises InferError if it is not ready."""
        served = self.served(name, version)
        explanation = explain(served)
        if isinstance(served, RolloutModel):
            return replace(explanation, rules=[served.rule, *explanation.rules])
        return explanation

    def repository_index(self, ready_only: bool = False) -> Sequence[IndexEntry]:
        """Return the rows of the versions with a load or an attempt of one; with `ready_only` the ready ones."""
        return [] if self._repository is None else self._rows(self._repository.catalog.index(ready_only), ready_only)

    def _rows_named(self, name: str) -> Sequence[IndexEntry]:
        """Return the rows for a name of a client. Raises INVALID_ARG for an ambiguous one."""
        if self._repository is None:
            return []
        return rows_named([self._current_row(row) for row in self._repository.catalog.rows_named(name)], name)

    def survey_repository(self, ready_only: bool = False) -> Sequence[IndexEntry]:
        """Return the repository index including models that were never loaded.

        Reads the repository: not for the event loop. Raises InferError.
        """
        return [] if self._repository is None else self._rows(self._repository.catalog.survey(ready_only), ready_only)

    def _rows(self, found: Sequence[IndexEntry], ready_only: bool) -> Sequence[IndexEntry]:
        rows = [self._current_row(row) for row in found]
        return [row for row in rows if row.state is ModelState.READY] if ready_only else rows

    def _current_row(self, row: IndexEntry) -> IndexEntry:
        """Return the current row of the index; a version with workers that died too often is no longer ready."""
        served = self._table.get(row.name, {}).get(row.version) if row.version else None
        reason = served.lost_reason if served is not None and row.state is ModelState.READY else ""
        return replace(row, state=ModelState.UNAVAILABLE, reason=reason) if reason else row

    def metrics_text(self) -> bytes:
        """Return the Prometheus exposition."""
        return self._metrics.render()

    def metrics_in_slices(self) -> Slices[Sequence[bytes]]:
        """Return the parts of `metrics_text`; yields about every millisecond."""
        return self._metrics.render_in_slices()

    # --- tracing --------------------------------------------------------------------------------------------------

    def trace(self, tracer: Tracer) -> None:
        """Enable tracing; called once, before the frontends start."""
        self._tracer = tracer
        self._begin_trace = tracer.begin if tracer.is_on else None

    def trace_settings(self, model: str = "") -> TraceOptions:
        """Return the trace settings of a model, or of the server. Raises InferError for an unknown model."""
        return self._known_tracer(model).options_of(model)

    def change_trace_settings(self, model: str, changes: Changes) -> None:
        """Change the trace settings of a model, or of the server with "". Raises InferError, without any change."""
        tracer = self._known_tracer(model)
        tracer.change(model, changes)
        self._begin_trace = tracer.begin if tracer.is_on else None

    def _known_tracer(self, model: str) -> Tracer:
        if model and model not in self._table:
            raise unknown_model(model)
        if self._tracer is None:
            raise unavailable("Server not ready")
        return self._tracer

    # --- control --------------------------------------------------------------------------------------------------

    def load_model(self, name: str, parameters: Mapping[str, object], *, is_owner: bool = True) -> None:
        """Load or reload a model. Blocks: not for the event loop. Raises InferError.

        Without `is_owner` a configuration in `parameters` may change only what `config.override` lists.
        """
        self._control().load_model(name, parameters, is_owner=is_owner)

    def unload_model(
        self, name: str, parameters: Mapping[str, object], on_withdrawn: Callable[[], object] | None = None
    ) -> None:
        """Unload a model. Blocks: not for the event loop. Raises InferError.

        `on_withdrawn` is called, on the same thread, once it accepts no more requests.
        """
        self._control().unload_model(name, parameters, on_withdrawn)

    def load_from(self, store: Store, name: str) -> None:
        """Register a repository and load one of its models. Blocks: not for the event loop. Raises InferError."""
        self._control().load_from(store, name)

    def unload_from(self, store: Store, name: str) -> None:
        """Unload a model of a registered repository. Blocks: not for the event loop. Raises InferError."""
        self._control().unload_from(store, name)

    # --- rollouts -------------------------------------------------------------------------------------------------

    def rollout_key(self, name: str) -> str:
        """Return the key of a model, for the methods about its rollout. Raises InferError without such a model."""
        row = self._table.get(name)
        if row is not None:
            return name if name in self._models else next(key for key, own in self._models.items() if own is row)
        if self.is_starting or self._repository is None:
            raise self._missing(name, "")
        # A model that failed to load may need another version, or one that is allowed again.
        rows = self._rows_named(name)
        if rows:
            return rows[0].name
        if not self.rollout_changes.has_record(name):
            raise self._missing(name, "")
        return name

    def is_loaded(self, key: str) -> bool:
        """Return whether a version of a model is ready."""
        return key in self._known

    @property
    def is_starting(self) -> bool:
        """Whether the models of the start still load."""
        return not self._ready_to_serve

    def changed_rollout(self, name: str, change: Mapping[str, object] | None) -> RolloutState:
        """Return the state of a model's rollout after a change, None to end it, without applying it.

        Raises InferError for a wrong change, and for an undeclared rollout in modes without commands of clients.
        """
        key = self.rollout_key(name)
        state = self.rollouts.state(key)
        if state is None and not self.is_loaded(key):
            raise self._missing(name, "")
        if (state is None or not state.base) and not (self._repository is None or self._repository.takes_commands):
            raise undeclared(name)
        if change is None:
            if state is None or state.rollout is None:
                raise no_rollout(name)
            return ended(state)
        return changed(state, change, self._known.get(key, {}), name)

    def missing_versions(self, key: str, state: RolloutState) -> frozenset[int]:
        """Return the versions that a state needs and that are not ready."""
        return state.needed.difference(self._known.get(key, {}))

    def rollout_status(self, name: str) -> RolloutStatus:
        """Return the rollout of a ready model. Raises InferError without one."""
        key = self.rollout_key(name)
        state = self.rollouts.state(key)
        if state is None:
            raise no_rollout(name)
        counts = self.rollout_counts().get(key) or RolloutCounts(state.era)
        age_s = (time.monotonic_ns() - self.rollouts.began_ns(key)) / 1e9
        return RolloutStatus(name_of(key), state, counts, age_s, self.rollout_changes.where(key))

    def rollout_counts(self) -> Mapping[str, RolloutCounts]:
        """Return the counts of every rollout, by the keys of the models."""
        return self.rollouts.counts()

    def report_rollback(self, key: str, state: RolloutState, reason: str, text: str) -> None:
        """Count and log a rollback of `state` that this process has begun."""
        self.rollouts.note_rollback(key, reason)
        rollout = state.rollout
        what = "the rollout" if rollout is None or rollout.canary is None else f"canary version {rollout.canary}"
        _log.warning("model '%s': %s was rolled back (%s): %s", key, what, reason, text)

    def apply_rollout(self, key: str, state: RolloutState, *, is_stored: bool = False) -> None:
        """Set the state of a rollout between two requests; on the loop. Raises InferError as `Rollouts.put`."""
        with self._table_lock:
            self.rollouts.put(key, state, is_stored=is_stored)
            if key in self._known:
                self._replace_row(key)

    def broadcast_rollout(
        self,
        key: str,
        state: RolloutState,
        on_done: Callable[[InferError | None], object],
        *,
        is_stored: bool = False,
    ) -> None:
        """Set the state of a rollout in all processes of the server; on the loop. `is_stored`: by its record.

        `on_done` is called on the loop, with the error if it failed.
        """
        self.carry_out_rollout(key, state, on_done, is_stored=is_stored)

    def carry_out_rollout(
        self, key: str, state: RolloutState, on_done: Callable[[InferError | None], object], *, is_stored: bool
    ) -> None:
        """Set the state of a rollout in this process; what it needs and is not ready is loaded first.

        The versions that serve stay as they are meanwhile. A process that starts loads them with the model.
        """
        missing = self.missing_versions(key, state)
        if not missing or (self.is_starting and not self.is_loaded(key)):
            try:
                self.apply_rollout(key, state, is_stored=is_stored)
            except InferError as error:
                on_done(error)
            else:
                on_done(None)
            return
        if self._repository is None:
            on_done(not_ready(key, missing, self._known.get(key, {})))
            return

        def load() -> None:
            with self.rollouts.intending(key, state, self._known.get(key, {})):
                self._control().load_beside(key)

        self.rollout_changes.load(key, state, load, on_done)

    def _control(self) -> RepositoryControl[Served]:
        if self._repository is None or self.is_draining:
            raise unavailable("Server not ready")
        return self._repository

    def broadcast_load(self, name: str, parameters: Mapping[str, object]) -> None:
        """Load or reload a model in all processes of the server; blocks. Raises InferError."""
        self.load_model(name, parameters)

    def broadcast_unload(
        self, name: str, parameters: Mapping[str, object], on_withdrawn: Callable[[], object]
    ) -> None:
        """Unload a model in all processes of the server; blocks. Raises InferError."""
        self.unload_model(name, parameters, on_withdrawn)


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


_SLICE_VERSIONS = 16
"""Versions that are counted in about a millisecond."""


def _snapshots(counted: Sequence[ModelStatistics]) -> Slices[Sequence[VersionStatistics]]:
    found: list[VersionStatistics] = []
    for statistics in counted:
        found.append(statistics.snapshot())
        if len(found) % _SLICE_VERSIONS == 0:
            yield
    return found
