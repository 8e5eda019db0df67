#!/usr/bin/env python3
"""Draw the panels of a dashboard from a running Prometheus as one picture, without Grafana. Needs matplotlib.

deploy/grafana/draw.py http://127.0.0.1:9090 dashboards/model.json model.png [MINUTES [model=add_sub ...]]
The last arguments are values of the dashboard's variables; without them a variable selects everything.
"""

import json
import re
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
from matplotlib.ticker import EngFormatter, PercentFormatter

STEP_S = 2
COLUMNS = 3
PANEL_INCHES = (4.6, 2.4)
MAX_LEGENDS = 8
_FORMATTERS = {
    "s": EngFormatter("s"),
    "bytes": EngFormatter("B"),
    "reqps": EngFormatter("/s"),
    "ops": EngFormatter("/s"),
    "percentunit": PercentFormatter(1.0),
}


def read_series(url: str, expr: str, minutes: float, variables: Mapping[str, str]) -> list[Any]:
    """Return the series of a query over the last minutes."""
    expr = re.sub(r"\$(\w+)", lambda name: variables.get(name[1], ".*"), expr.replace("$__rate_interval", "20s"))
    now = time.time()
    parameters = {"query": expr, "start": now - 60 * minutes, "end": now, "step": STEP_S}
    with urllib.request.urlopen(f"{url}/api/v1/query_range?{urllib.parse.urlencode(parameters)}") as response:
        return list(json.load(response)["data"]["result"])


def fill(legend: str, labels: dict[str, str]) -> str:
    """Return a legend with the values of its labels."""
    return re.sub(r"{{(\w+)}}", lambda name: labels.get(name[1], ""), legend)


def draw_panel(axes: Any, panel: dict[str, Any], url: str, minutes: float, variables: Mapping[str, str]) -> None:
    """Draw a line for each series of a panel. The legend has the first series that are not zero all the time."""
    axes.set_title(panel["title"], fontsize=10, loc="left")
    shown_count = 0
    for target in panel["targets"]:
        for series in read_series(url, target["expr"], minutes, variables):
            times, texts = zip(*series["values"], strict=True)
            values = [float(text) for text in texts]
            legend = fill(target["legendFormat"], series["metric"]) if any(value > 0 for value in values) else ""
            shown_count += bool(legend)
            label = legend if legend and shown_count <= MAX_LEGENDS else None
            axes.plot([t - times[0] for t in times], values, linewidth=1.2, label=label)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(_FORMATTERS.get(panel["fieldConfig"]["defaults"]["unit"], EngFormatter()))
    axes.tick_params(labelsize=7)
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[1]:
        axes.legend(fontsize=6, loc="upper right", framealpha=0.6)


def main(url: str, dashboard: str, picture: str, minutes: str = "3", *values: str) -> None:
    """Draw all time series of a dashboard. `values` are of its variables, NAME=VALUE."""
    variables = dict(value.split("=", 1) for value in values)
    panels = [p for p in json.loads(Path(dashboard).read_text())["panels"] if p["type"] == "timeseries"]
    rows = -(-len(panels) // COLUMNS)
    figure, grid = plt.subplots(
        rows, COLUMNS, figsize=(PANEL_INCHES[0] * COLUMNS, PANEL_INCHES[1] * rows), squeeze=False
    )
    for axes, panel in zip(grid.flat, panels, strict=False):
        draw_panel(axes, panel, url, float(minutes), variables)
    for axes in list(grid.flat)[len(panels) :]:
        axes.axis("off")
    figure.tight_layout()
    figure.savefig(picture, dpi=80)


if __name__ == "__main__":
    main(*sys.argv[1:])
