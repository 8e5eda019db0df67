"""The profile of each model of the winner, for the file beside its configuration."""

from collections.abc import Mapping, Sequence

from naiad.config.model_config_pb2 import ModelConfig
from naiad.config.model_profile import ModelProfile
from naiad.tools.analyze.point_measurement import Measured, Ranking
from naiad.tools.analyze.simulation.fit import fit
from naiad.tools.measure.result import ServerFigures

_MEMORY = "cpu_used_ram"


def learned_profiles(ranking: Ranking, configs: Mapping[str, ModelConfig], cores: float) -> dict[str, ModelProfile]:
    """Return the profiles of the models that the winner executes, from all measurements.

    `configs` are the complete configurations of the repository, of all models and members. Without a winner, or
    without statistics of the server, there are none.
    """
    if ranking.winner is None:
        return {}
    winner = ranking.winner.measured
    try:
        fitted = fit(ranking.measurements, configs, cores)
        system, _ = fitted.system(winner.point)
    except ValueError:  # No measurement has statistics of the server.
        return {}
    memory_mb = max(
        (metrics[_MEMORY].value for metrics in winner.metrics.values() if _MEMORY in metrics), default=0.0
    )
    sources = {each.model: each.source_model or each.model for each in winner.point.variants}
    found: dict[str, ModelProfile] = {}
    for name, served in system.models.items():
        fixed_us, row_us = served.cost.fixed_ns / 1e3, served.cost.row_ns / 1e3
        sizes = [rows for each in ranking.measurements for rows in _batch_rows(each, sources.get(name, name))]
        warm = sorted({1, *(max(1, round(rows)) for rows in _batch_rows(winner, sources.get(name, name)))})
        if fixed_us + row_us > 0 and sizes:
            largest = max(1, round(max(sizes)))
            found[name] = ModelProfile(
                round(fixed_us, 3), round(row_us, 3), largest, round(memory_mb, 1), tuple(warm)
            )
    return found


def _batch_rows(measured: Measured, model: str) -> list[float]:
    """Return the mean batch of a model in each row of a measurement."""
    figures = [row.server for row in measured.rows.values() if row.server is not None]
    return [
        each.inference_count / each.execution_count
        for each in _all(figures)
        if each.model == model and each.execution_count
    ]


def _all(figures: Sequence[ServerFigures]) -> list[ServerFigures]:
    return [each for top in figures for each in (top, *_all(top.composing))]
