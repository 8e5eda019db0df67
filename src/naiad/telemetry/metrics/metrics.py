"""All metrics of a server process, as one Prometheus exposition."""

import platform
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from naiad.core.slices import Slices, finish
from naiad.core.version import __version__
from naiad.options.network.endpoints import DEFAULT_QUANTILES, MetricsOptions, parse_quantiles
from naiad.telemetry.metrics import model_metrics as model_metrics
from naiad.telemetry.metrics.exposition import Kind, Row, format_opening, format_rows, series_names
from naiad.telemetry.metrics.gpus import GPU_FAMILIES
from naiad.telemetry.metrics.model_metrics import ModelFamily, ModelMetricSource, Scrape
from naiad.telemetry.process_resources import CpuMeter, read_memory, read_process
from naiad.telemetry.statistics.model_statistics import ModelStatistics

_SLICE_MODELS = 8
"""Number of models rendered in about a millisecond."""
_OWN_FAMILIES = frozenset(
    (
        *("nv_cpu_utilization", "nv_cpu_memory_total_bytes", "nv_cpu_memory_used_bytes", "naiad_build_info"),
        *("process_resident_memory_bytes", "process_open_fds", "process_threads", *GPU_FAMILIES),
        *("nv_pinned_memory_pool_total_bytes", "nv_pinned_memory_pool_used_bytes"),
    )
)


class Registry:
    """The metrics of a server: of its models, its process and its machine, and of other modules.

    Thread-safe. `render` reads snapshots and calls the registered functions, which must be quick.
    """

    def __init__(self, options: MetricsOptions | None = None) -> None:
        """`options.settings` are from --metrics-config. Raises ValueError for invalid quantiles."""
        options = options or MetricsOptions()
        settings = options.settings
        self._lock = threading.Lock()
        self._models: dict[tuple[str, str, str], ModelMetricSource] = {}
        self._callbacks: dict[str, Callable[[], str]] = {}
        self._renders: list[Callable[[], Iterable[str]]] = []
        self._cpu = CpuMeter() if options.allow_cpu else None
        self._machine_parts: list[str] = []
        self._machine_due_ns = 0
        self._interval_ns = int(options.interval_ms * 1e6)
        self._keeps_samples = settings.get("summary_latencies") == "true"
        quantiles = parse_quantiles(settings.get("summary_quantiles", DEFAULT_QUANTILES))
        self._model_families: list[ModelFamily] = [*model_metrics.COUNTERS, *model_metrics.CACHE_COUNTERS]
        if settings.get("counter_latencies") != "false":
            self._model_families += model_metrics.LATENCY_COUNTERS
        self._model_families += (*model_metrics.CANCELLATIONS, *model_metrics.GAUGES, *model_metrics.BATCHING)
        if settings.get("histogram_latencies") == "true":
            self._model_families += model_metrics.TRITON_HISTOGRAMS
        if settings.get("histogram_latencies") != "false":
            self._model_families += model_metrics.HISTOGRAMS
        if self._keeps_samples:
            self._model_families += model_metrics.summaries(quantiles)

    # --- models ---------------------------------------------------------------------------------------------------

    def add_model(self, source: ModelMetricSource) -> None:
        """Show a model version from now on; it replaces one with the same name and version."""
        if self._keeps_samples:
            source.statistics.keep_samples()
        with self._lock:
            self._models[_key(source.statistics)] = source

    def remove_model(self, statistics: ModelStatistics) -> None:
        """Stop showing a model version; does nothing if another has replaced it."""
        key = _key(statistics)
        with self._lock:
            source = self._models.get(key)
            if source is not None and source.statistics is statistics:
                del self._models[key]

    # --- metrics of other modules --------------------------------------------------------------------------------

    def add_callback(self, name: str, kind: Kind, help_text: str, read: Callable[[], float]) -> None:
        """Show the value of `read` at each scrape. Raises ValueError if the name is in use."""
        self.add_family(name, kind, help_text, lambda: [({}, read())])

    def add_family(self, name: str, kind: Kind, help_text: str, read: Callable[[], Iterable[Row]]) -> None:
        """Show the rows of `read` at each scrape, or nothing while there are none.

        Raises ValueError if the name is in use.
        """
        with self._lock:
            if self.has_family(name):
                raise ValueError(f"metric '{name}' exists already")
            self._callbacks[name] = lambda: format_rows(name, kind, help_text, read())

    def add_families(self, render: Callable[[], Iterable[str]]) -> None:
        """Show the families of `render` at each scrape; their names must not be in `has_family`."""
        with self._lock:
            self._renders.append(render)

    def has_family(self, name: str) -> bool:
        """Return whether that is the name of one of the server's own families, or of one of their series."""
        own = {series for family in self._model_families for series in series_names(family.name, family.kind)}
        return name in own or name in _OWN_FAMILIES or name in self._callbacks

    # --- the exposition -------------------------------------------------------------------------------------------

    def render(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return b"".join(finish(self.render_in_slices()))

    def render_in_slices(self) -> Slices[Sequence[bytes]]:
        """Return the parts of the result of `render`, and yield about every millisecond until they are ready.

        The values of one model version are from one moment; values of several versions are not.
        """
        with self._lock:
            sources = [self._models[key] for key in sorted(self._models)]
            callbacks = list(self._callbacks.values())
            renders = list(self._renders)
        shown: list[list[bytes]] = [[] for _ in self._model_families]
        for start in range(0, len(sources), _SLICE_MODELS):
            scrapes = [
                Scrape(source, source.statistics.snapshot(), source.statistics.samples())
                for source in sources[start : start + _SLICE_MODELS]
            ]
            for parts, family in zip(shown, self._model_families, strict=True):
                lines = [text for scrape in scrapes if (text := family.lines(scrape))]
                if lines and not parts:
                    parts.append(_encoded("\n".join(format_opening(family.name, family.kind, family.help))))
                if lines:
                    parts.append(_encoded("\n".join(lines)))
            yield
        rendered = [part for parts in shown for part in parts]
        for render in callbacks:
            if text := render():
                rendered.append(_encoded(text))
            yield
        for render_all in renders:
            rendered += [_encoded(text) for text in render_all() if text]
            yield
        return [*rendered, *map(_encoded, (*self._machine(), *_process()))]

    def _machine(self) -> list[str]:
        """Return the machine's metrics, measured again if the last time is --metrics-interval-ms ago."""
        now_ns = time.monotonic_ns()
        if self._cpu is not None and now_ns >= self._machine_due_ns:
            self._machine_due_ns = now_ns + self._interval_ns
            self._machine_parts = _measured(self._cpu)
        return self._machine_parts


def _key(statistics: ModelStatistics) -> tuple[str, str, str]:
    return statistics.model, statistics.version, statistics.namespace


def _encoded(text: str) -> bytes:
    return f"{text}\n".encode()


def _measured(cpu: CpuMeter) -> list[str]:
    parts = []
    utilization = cpu.read()
    if utilization is not None:
        parts.append(_gauge("nv_cpu_utilization", "CPU utilization rate [0.0 - 1.0]", utilization))
    memory = read_memory()
    if memory is not None:
        parts.append(_gauge("nv_cpu_memory_total_bytes", "CPU total memory (RAM), in bytes", memory.total_bytes))
        parts.append(_gauge("nv_cpu_memory_used_bytes", "CPU used memory (RAM), in bytes", memory.used_bytes))
    return parts


def _process() -> list[str]:
    info = {"version": __version__, "python": platform.python_version()}
    parts = [
        # Triton's pool; naiad uses no such memory, so the value is 0.
        _gauge("nv_pinned_memory_pool_total_bytes", "Pinned memory pool total memory size, in bytes", 0),
        _gauge("nv_pinned_memory_pool_used_bytes", "Pinned memory pool used memory size, in bytes", 0),
        format_rows("naiad_build_info", "gauge", "Version of the server; always 1", [(info, 1)]),
    ]
    usage = read_process()
    if usage is not None:
        parts.append(_gauge("process_resident_memory_bytes", "Resident memory of the server", usage.resident_bytes))
        parts.append(_gauge("process_open_fds", "File descriptors that the server has open", usage.open_fds))
        parts.append(_gauge("process_threads", "Threads of the server", usage.threads))
    return parts


def _gauge(name: str, help_text: str, value: float) -> str:
    return format_rows(name, "gauge", help_text, [({}, value)])
