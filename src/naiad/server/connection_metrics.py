"""How many connections are open, as metrics."""

from collections.abc import Sequence

from naiad.server.endpoint import Service
from naiad.telemetry.exposition import format_family, format_labels
from naiad.telemetry.metrics import Registry

_NAME = "naiad_connections"


def show_connections(registry: Registry, endpoints: Sequence[Service]) -> None:
    """Add the gauge of open connections: a row for each port, under the prefix of its flags."""

    def render() -> str:
        rows = [
            f"{_NAME}{format_labels({'port': endpoint.flag})} {endpoint.connections.connection_count}"
            for endpoint in endpoints
        ]
        return format_family(_NAME, "gauge", "Open connections", rows)

    registry.add_rendered(_NAME, render)
