"""Panels, rows and variables of a Grafana dashboard, and their JSON."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

GRID_WIDTH = 24
SCHEMA_VERSION = 39
"""Schema of Grafana 10.4 and newer; later versions migrate it when they open the dashboard."""
_DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True)
class Query:
    """A PromQL expression and the name of its series in the legend."""

    expr: str
    legend: str = ""


@dataclass(frozen=True)
class Panel:
    """A panel; `unit` is one of Grafana's names (`s`, `bytes`, `reqps`, `percentunit`, `short`)."""

    title: str
    queries: Sequence[Query]
    unit: str = "short"
    description: str = ""
    kind: Literal["timeseries", "stat"] = "timeseries"
    width: int = 8
    height: int = 7
    is_stacked: bool = False

    def to_json(self, number: int, x: int, y: int) -> dict[str, Any]:
        """Return the panel at a place of the grid."""
        return {
            "id": number,
            "type": self.kind,
            "title": self.title,
            "description": self.description,
            "datasource": _DATASOURCE,
            "gridPos": {"h": self.height, "w": self.width, "x": x, "y": y},
            "fieldConfig": {"defaults": {"unit": self.unit, "min": 0, "custom": self._drawing()}, "overrides": []},
            "options": self._options(),
            "targets": [
                {"refId": chr(ord("A") + index), "expr": query.expr, "legendFormat": query.legend, "range": True}
                for index, query in enumerate(self.queries)
            ],
        }

    def _drawing(self) -> dict[str, Any]:
        if self.kind == "stat":
            return {}
        mode = "normal" if self.is_stacked else "none"
        return {"fillOpacity": 30 if self.is_stacked else 5, "stacking": {"mode": mode, "group": "A"}}

    def _options(self) -> dict[str, Any]:
        if self.kind == "stat":
            return {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}, "colorMode": "value"}
        return {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }


@dataclass(frozen=True)
class Row:
    """A heading and the panels below it, which fill the grid from left to right."""

    title: str
    panels: Sequence[Panel]


@dataclass(frozen=True)
class Variable:
    """A choice of label values at the top of a dashboard; all values are selected at first."""

    name: str
    values: str
    """A query of Grafana's Prometheus data source: `label_values(METRIC, LABEL)`."""

    def to_json(self) -> dict[str, Any]:
        """Return the variable; its values are read when the dashboard opens."""
        return {
            "type": "query",
            "name": self.name,
            "label": self.name.capitalize(),
            "datasource": _DATASOURCE,
            "query": self.values,
            "refresh": 2,
            "sort": 1,
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "current": {"text": ["All"], "value": ["$__all"]},
        }


@dataclass(frozen=True)
class Dashboard:
    """A dashboard; `uid` is its permanent identifier in links."""

    uid: str
    title: str
    description: str
    variables: Sequence[Variable]
    rows: Sequence[Row]

    def to_json(self) -> dict[str, Any]:
        """Return the dashboard as Grafana imports and provisions it."""
        datasource = {"type": "datasource", "name": "datasource", "label": "Data source", "query": "prometheus"}
        return {
            "uid": self.uid,
            "title": self.title,
            "description": self.description,
            "tags": ["naiad"],
            "schemaVersion": SCHEMA_VERSION,
            "version": 1,
            "editable": True,
            "graphTooltip": 1,
            "refresh": "10s",
            "time": {"from": "now-30m", "to": "now"},
            "annotations": {"list": []},
            "templating": {"list": [datasource, *(variable.to_json() for variable in self.variables)]},
            "panels": self._panels(),
        }

    def _panels(self) -> list[dict[str, Any]]:
        panels: list[dict[str, Any]] = []
        y = 0
        for row in self.rows:
            place = {"h": 1, "w": GRID_WIDTH, "x": 0, "y": y}
            heading = {"id": len(panels) + 1, "type": "row", "title": row.title, "collapsed": False, "panels": []}
            panels.append({**heading, "gridPos": place})
            x, y = 0, y + 1
            line_height = 0
            for panel in row.panels:
                if x + panel.width > GRID_WIDTH:
                    x, y, line_height = 0, y + line_height, 0
                panels.append(panel.to_json(len(panels) + 1, x, y))
                x, line_height = x + panel.width, max(line_height, panel.height)
            y += line_height
        return panels
