"""What there is to know about a server and its models."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from naiad.config.model_config_pb2 import ModelConfig
from naiad.config.rollout.rollout_declaration import NAMES
from naiad.core.datatype import BY_CONFIG_NUMBER
from naiad.core.errors import excerpt, invalid_argument
from naiad.core.model import IndexEntry, ModelMetadata, ModelState, ServerMetadata
from naiad.core.slices import Slices, finish
from naiad.core.tensor import TensorSpec
from naiad.core.version import __version__
from naiad.engine.lookup.missing import bad_version, is_version
from naiad.engine.lookup.model_table import ModelTable
from naiad.engine.phase import ServerPhase
from naiad.engine.processes import Processes
from naiad.engine.rollout.rollout_model import RolloutModel
from naiad.engine.serving.served import Served, explain
from naiad.telemetry.metrics.metrics import Registry
from naiad.telemetry.statistics.model_statistics import ModelStatistics
from naiad.telemetry.statistics.version_statistics import Explanation, VersionStatistics

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


class Views:
    """Health, metadata, configuration, statistics, index and metrics."""

    def __init__(
        self, server_id: str, phase: ServerPhase, models: ModelTable, metrics: Registry, processes: Processes
    ) -> None:
        self._server_id = server_id
        self._phase = phase
        self._models = models
        self._metrics = metrics
        self._processes = processes

    def of_this_process(self) -> "Views":
        """Return the views of this process alone."""
        return Views(self._server_id, self._phase, self._models, self._metrics, Processes())

    # --- health ---------------------------------------------------------------------------------------------------

    def is_live(self) -> bool:
        """Return whether the server responds; true even while it drains."""
        return True

    def is_ready(self) -> bool:
        """Return whether the server is ready for traffic."""
        return self._processes.is_ready(self._is_ready())

    def _is_ready(self) -> bool:
        catalog = self._models.catalog
        if self._phase.is_starting or self._phase.is_draining or catalog is None:
            return False
        ill = [name for name, row in self._models.rows.items() if "" not in row or row[""].health]
        return catalog.is_ready(ill)

    def is_model_ready(self, name: str, version: str = "") -> bool:
        """Return whether a model version is ready; an unknown model or version is not (Triton).

        Raises InferError(INVALID_ARG) for an invalid version number and for an ambiguous name.
        """
        return self._processes.is_model_ready(self._is_model_ready(name, version))

    def _is_model_ready(self, name: str, version: str) -> bool:
        row = self._models.named.get(name)
        served = row.get(version) if row is not None else None
        if served is not None:
            # Triton: one instance that reports not ready is enough.
            return not served.health and all(instance.says_ready for instance in served.instances)
        if version not in ("", "-1", *NAMES) and not is_version(version):
            raise bad_version(version)
        if row is None and self._models.held is not None and self._models.held.is_answerable(name):
            return True  # a request for it is answered: it loads the model
        self._models.index_rows(name)  # may raise
        return False

    # --- server and models ----------------------------------------------------------------------------------------

    def server_metadata(self) -> ServerMetadata:
        """Return name, version and extensions of this server."""
        return ServerMetadata(self._server_id, __version__, EXTENSIONS)

    def model_config(self, name: str, version: str = "") -> ModelConfig:
        """Return the complete configuration of a ready model. Raises InferError if it is not ready."""
        return self._models.served(name, version).config

    def model_metadata(self, name: str, version: str = "") -> ModelMetadata:
        """Return names, datatypes and shapes of a ready model. Raises InferError if it is not ready."""
        # Read once: a loading thread may replace the table between two reads.
        row = self._models.named.get(name, {})
        served = row.get(version)
        if served is None:
            raise self._models.missing(name, version)
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

    def explanation(self, name: str, version: str = "") -> Explanation:
        """Return how requests of a ready model are scheduled. Raises InferError if it is not ready."""
        served = self._models.served(name, version)
        explanation = explain(served)
        if isinstance(served, RolloutModel):
            return replace(explanation, rules=[served.rule, *explanation.rules])
        return explanation

    # --- statistics -----------------------------------------------------------------------------------------------

    def statistics(self, name: str = "", version: str = "") -> Sequence[VersionStatistics]:
        """Return statistics of one version, of all versions of a model, or of all models (no name).

        Raises InferError(INVALID_ARG) for a name that is ambiguous or not ready, with Triton's texts.
        """
        return finish(self.statistics_in_slices(name, version))

    def statistics_in_slices(self, name: str = "", version: str = "") -> Slices[Sequence[VersionStatistics]]:
        """Do what `statistics` does, but yield about every millisecond; raises at once, before the first slice."""
        return self._processes.statistics(_snapshots(self._counted(name, version)))

    def _counted(self, name: str, version: str) -> Sequence[ModelStatistics]:
        named = self._models.named.get(name)
        if not name:
            loaded = {key: _counts_of(row) for key, row in self._models.rows.items()}
            return [each for _, counts in sorted({**self._models.left, **loaded}.items()) for each in counts]
        counts = self._counts_of_cold(name) if named is None else _counts_of(named)
        if version not in ("", "-1"):
            if named is not None and version in named:
                return [named[version].statistics]
            counts = [each for each in counts if each.version == version]
            if not counts:
                raise invalid_argument(f"requested model version is not available for model '{excerpt(name)}'")
        return counts

    def _counts_of_cold(self, name: str) -> Sequence[ModelStatistics]:
        """Return the counts of a model on demand that is not loaded; they begin again when it is loaded."""
        held = self._models.held
        if held is not None and held.knows(name):
            return self._models.left.get(name) or held.new_counts(name)
        self._models.index_rows(name)
        raise invalid_argument(f"requested model '{excerpt(name)}' is not available")

    # --- the index ------------------------------------------------------------------------------------------------

    def repository_index(self, ready_only: bool = False) -> Sequence[IndexEntry]:
        """Return the rows of the versions with a load or an attempt of one; with `ready_only` the ready ones."""
        return self._models.index(ready_only)

    def survey_repository(self, ready_only: bool = False) -> Sequence[IndexEntry]:
        """Return the repository index including models that were never loaded.

        Reads the repository: not for the event loop. Raises InferError.
        """
        rows = self._processes.index(lambda: self._models.survey(ready_only))
        return [row for row in rows if row.state is ModelState.READY] if ready_only else rows

    # --- metrics --------------------------------------------------------------------------------------------------

    def metrics_text(self) -> bytes:
        """Return the Prometheus exposition."""
        return self._metrics.render()

    def metrics_in_slices(self) -> Slices[Sequence[bytes]]:
        """Return the parts of `metrics_text`; yields about every millisecond."""
        return self._metrics.render_in_slices()


def _counts_of(row: Mapping[str, Served]) -> Sequence[ModelStatistics]:
    return [row[version].statistics for version in sorted((each for each in row if each.isdigit()), key=int)]


_SLICE_VERSIONS = 16
"""Versions that are counted in about a millisecond."""


def _snapshots(counted: Sequence[ModelStatistics]) -> Slices[Sequence[VersionStatistics]]:
    found: list[VersionStatistics] = []
    for statistics in counted:
        found.append(statistics.snapshot())
        if len(found) % _SLICE_VERSIONS == 0:
            yield
    return found
