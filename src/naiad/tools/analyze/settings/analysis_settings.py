"""What an analysis is asked for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from naiad.tools.analyze.goal import Goal


class SearchMode(Enum):
    """How variants are chosen. `predict` is naiad's own; the rest have Model Analyzer's meaning."""

    PREDICT = "predict"
    BRUTE = "brute"
    QUICK = "quick"
    OPTUNA = "optuna"


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """A model to analyse."""

    name: str
    goal: Goal
    config_parameters: Mapping[str, Any] = field(default_factory=dict)
    """Manual search: fields of the configuration, each a value or a list of values; {} for the default search."""
    batch_sizes: tuple[int, ...] = (1,)
    concurrencies: tuple[int, ...] = ()
    """Empty: found by the search."""
    request_rates: tuple[float, ...] = ()
    perf_flags: Mapping[str, Any] = field(default_factory=dict)
    """Flags of `naiad perf`, by name without the dashes in front; mostly for the input data."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits of a search without manual lists."""

    batch_size: tuple[int, int] = (1, 128)
    instances: tuple[int, int] = (1, 5)
    concurrency: tuple[int, int] = (1, 1024)
    binary_search_steps: int = 5


@dataclass(frozen=True, slots=True)
class OptunaSettings:
    """The budget of the mode `optuna`."""

    min_percentage: float = 5.0
    max_percentage: float = 10.0
    min_trials: int = 20
    max_trials: int = 200
    early_exit_threshold: int = 10


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """The server whose models are analysed."""

    repository: str = ""
    """A server is started for it, unless `is_remote`."""
    is_remote: bool = False
    is_grpc: bool = True
    http_endpoint: str = "localhost:8000"
    grpc_endpoint: str = "localhost:8001"
    metrics_url: str = "http://localhost:8002/metrics"
    flags: Mapping[str, Any] = field(default_factory=dict)
    """Flags of the server that is started."""
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AnalysisSettings:
    """A whole analysis."""

    models: Sequence[ModelSettings]
    server: ServerSettings
    mode: SearchMode = SearchMode.PREDICT
    bounds: Bounds = field(default_factory=Bounds)
    optuna: OptunaSettings = field(default_factory=OptunaSettings)
    is_search_disabled: bool = False
    """Only what the user lists is measured."""
    are_models_concurrent: bool = False
    """All models are under load at once."""
    composing_models: Sequence[str] = ()
    cpu_only_models: frozenset[str] = frozenset()
    """Models under load and members whose variants run on CPUs."""
    seconds: float = 5.0
    """Of a measurement."""
    output_repository: str = ""
    overwrites_output: bool = False
    export_folder: str = "."
    checkpoint_folder: str = ""
    """"": beside the reports."""
    top_configs: int = 3
    inference_fields: Sequence[str] = ("perf_throughput", "perf_latency_p99")
    writes_summary: bool = True
    is_applied: bool = False
    """A running server keeps the configuration of the winner."""
    capacity_per_s: float = 0.0
    """Requests/s for which a machine is asked; 0 for no question."""
    time_limit_s: float = 0.0
    """For all models together; 0 for none."""
    notes: Sequence[str] = ()
    """Keys that were accepted and have no effect, for the user."""
