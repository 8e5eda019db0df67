"""The custom metrics of tested models: in memory of the test, visible to the test alone."""

from collections.abc import Mapping, Sequence

from naiad.backend.custom_metrics import CustomMetrics
from naiad.core.errors import InferError
from naiad.worker.api.failure import TritonModelException
from naiad.worker.api.metrics import set_metric_server


class TestedMetrics:
    """The metrics shared by all open models of the process; each model opens and closes them."""

    __test__ = False
    """Not collected by pytest."""

    def __init__(self) -> None:
        self._open_count = 0
        self._server: _Server | None = None

    def open(self) -> None:
        """Count an opened model."""
        self._open_count += 1
        if self._server is None:
            self._server = _Server()
            set_metric_server(self._server)

    def close(self) -> None:
        """Count a closed model; the last one removes the metrics."""
        self._open_count -= 1
        if not self._open_count and self._server is not None:
            set_metric_server(None)
            self._server.close()
            self._server = None

    def values(self) -> dict[str, float]:
        """Return the value of each series, by its name and labels in the form of `/metrics`."""
        text = "\n".join(self._server.metrics.render()) if self._server is not None else ""
        lines = [line.rpartition(" ") for line in text.split("\n") if line and not line.startswith("#")]
        return {series: float(value) for series, _, value in lines}


class _Server:
    """Replaces the worker's connection to the server."""

    def __init__(self) -> None:
        self.metrics = CustomMetrics()
        self._holder = self.metrics.holder()
        self.cells = self.metrics.cells

    def new_family(self, name: str, description: str, kind: str) -> int:
        try:
            return self._holder.new_family(name, description, kind)
        except InferError as error:
            raise TritonModelException(error.message) from None

    def new_metric(
        self, family: int, labels: Mapping[str, str], buckets: Sequence[float] | None
    ) -> tuple[int, Sequence[float]]:
        try:
            return self._holder.new_metric(family, labels, buckets)
        except InferError as error:
            raise TritonModelException(error.message) from None

    def release_family(self, family: int) -> None:
        self._holder.release_family(family)

    def close(self) -> None:
        self._holder.close()
        self.metrics.close()


METRICS = TestedMetrics()
