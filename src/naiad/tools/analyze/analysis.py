"""A whole analysis: for each model its variants, a search on a live server, reports, and the configuration found."""

import json
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from naiad.backend.cores import usable_cores
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.version import __version__
from naiad.tools.analyze.goal import Goal
from naiad.tools.analyze.live import (
    AnalyzedServer,
    Configurations,
    LiveInstrument,
    OwnServer,
    RunningServer,
    journal_path,
)
from naiad.tools.analyze.live.analyzed_server import make_client
from naiad.tools.analyze.live.instrument import LOAD_TIMEOUT_S
from naiad.tools.analyze.point_measurement import Ranking
from naiad.tools.analyze.report.analyze_page import report, write_pdf
from naiad.tools.analyze.report.analyze_tables import write_tables
from naiad.tools.analyze.search import SearchCheckpoint, SearchProgress, SearchSettings, fingerprint, search, within
from naiad.tools.analyze.search.goal_score import misses
from naiad.tools.analyze.settings.analysis_settings import AnalysisSettings, ModelSettings, SearchMode, ServerSettings
from naiad.tools.analyze.settings.values import SettingsError
from naiad.tools.analyze.simulation import LearnedPredictor
from naiad.tools.analyze.simulations import Simulations
from naiad.tools.analyze.space import Dimension, Space, Variant, settings_text
from naiad.tools.analyze.variants import (
    Machine,
    RefusedError,
    Variants,
    combinations,
    default_dimensions,
    fit_ensembles,
    listed,
    manual_settings,
    member_names,
)
from naiad.tools.analyze.winner import check_output, differences, write_winner
from naiad.tools.analyze.winner_profiles import learned_profiles
from naiad.tools.perf.perf_plan import InputSettings, ModelLoad, Protocol, ServerTarget
from naiad.tools.values.tensor import InputError

Inputs = Mapping[str, InputSettings]
"""By model: where the tensors of its requests come from."""
Progress = Callable[[str, SearchProgress], None]
"""Gets the names of the models, and where their search stands."""

_MEASURED_BY_HAND = SearchMode.BRUTE
"""The mode that measures everything that is listed."""


@dataclass(frozen=True, slots=True)
class Analysis:
    """The result for models that were under load together."""

    models: tuple[str, ...]
    ranking: Ranking
    refused: Sequence[str] = ()
    """Combinations that were left out, and why."""
    written: Sequence[Path] = ()
    differences: Mapping[str, str] = field(default_factory=dict)
    """By model: what the winner changes in `config.pbtxt`, as a unified diff."""
    is_applied: bool = False
    """The running server has the configuration of the winner."""
    capacity: str = ""
    """The machine for the rate that was asked about, in a sentence."""


async def analyze(settings: AnalysisSettings, inputs: Inputs, progress: Progress | None = None) -> list[Analysis]:
    """Analyse the models of the settings one after the other, or all at once, and write the reports.

    The server has its old configurations afterwards. An interrupt ends the list with its model, and nothing is
    applied. Of several models, those for which no requests can be made are skipped, with the reason in their ranking.
    Raises SettingsError, InputError, InferError, ServerLostError and OSError.
    """
    for name in [*(model.name for model in settings.models), *settings.composing_models]:
        check_output(settings, name)
    groups = [settings.models] if settings.are_models_concurrent else [[model] for model in settings.models]
    found: list[Analysis] = []
    end_s = time.monotonic() + settings.time_limit_s
    for index, group in enumerate(groups):
        async with _instrument(settings, group, inputs) as instrument:
            # Models that need less than their share leave time to the models after them.
            limit_s = (end_s - time.monotonic()) / (len(groups) - index) if settings.time_limit_s else 0.0
            searched = replace(settings, time_limit_s=limit_s)
            try:
                analysis = await _search(searched, group, instrument, inputs, progress)
            except InputError as error:
                if len(groups) == 1:
                    raise
                skipped = Ranking(None, (), None, (), reason=f"Not analysed: {error}.")
                analysis = Analysis(tuple(model.name for model in group), skipped)
            service = instrument.server.service
        if analysis.ranking.is_interrupted:
            return [*found, analysis]
        if settings.is_applied and settings.server.is_remote and recommended(analysis.ranking):
            sources = [*analysis.models, *settings.composing_models]
            await _apply(service, sources, recommended(analysis.ranking))
            analysis = replace(analysis, is_applied=True)
        found.append(analysis)
    return found


def recommended(ranking: Ranking) -> Sequence[Variant]:
    """Return the variants of the winner; none where it was not compared with the configuration of the repository."""
    return ranking.winner.measured.point.variants if ranking.is_compared and ranking.winner is not None else ()


async def _apply(service: ServerTarget, models: Sequence[str], variants: Sequence[Variant]) -> None:
    """Load variants of the models and their members to stay, and ensembles with the batch that fits them."""
    async with make_client(service, LOAD_TIMEOUT_S) as client:
        configurations = Configurations(client, service.url, None)
        await configurations.read(models)
        await configurations.apply(variants)


@asynccontextmanager
async def _instrument(
    settings: AnalysisSettings, group: Sequence[ModelSettings], inputs: Inputs
) -> AsyncIterator[LiveInstrument]:
    server = make_server(settings.server)
    plans = [ModelLoad(model.name, inputs=inputs.get(model.name, InputSettings())) for model in group]
    journal = journal_path(Path.cwd(), server.service.url) if settings.server.is_remote else None
    async with LiveInstrument(server, plans, varied=settings.composing_models, journal=journal) as instrument:
        yield instrument


def make_server(settings: ServerSettings) -> AnalyzedServer:
    """Return the running server that the settings name, or one that will be started for the repository."""
    transport = Protocol.GRPC if settings.is_grpc else Protocol.HTTP
    if not settings.is_remote:
        flags = [f"--{name}={value}" for name, value in settings.flags.items()]
        return OwnServer([settings.repository], flags, transport, settings.environment)
    endpoint = settings.grpc_endpoint if settings.is_grpc else settings.http_endpoint
    url = endpoint if "://" in endpoint else f"{transport.value}://{endpoint}"
    return RunningServer(ServerTarget(url, transport), settings.metrics_url)


async def _search(
    settings: AnalysisSettings,
    group: Sequence[ModelSettings],
    instrument: LiveInstrument,
    inputs: Inputs,
    progress: Progress | None,
) -> Analysis:
    names = tuple(model.name for model in group)
    space, refused = _space(settings, group, instrument.configs)
    goals = {model.name: model.goal for model in group}
    mode = _mode(settings, group)
    folder = Path(settings.export_folder)
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint_folder = Path(settings.checkpoint_folder or folder)
    checkpoint_folder.mkdir(parents=True, exist_ok=True)
    mark = _fingerprint(settings, instrument.configs, [inputs[name] for name in names if name in inputs])
    with (
        SearchCheckpoint(checkpoint_folder / f"{'+'.join(names)}.measurements.jsonl", mark) as checkpoint,
        Simulations(int(usable_cores())) as simulations,
    ):
        predictor = (
            LearnedPredictor(instrument.configs, usable_cores(), simulate_all=simulations)
            if mode is SearchMode.PREDICT
            else None
        )
        ranking = await search(
            mode.value,
            space,
            goals,
            instrument,
            _search_settings(settings, instrument.configs),
            predictor=predictor,
            checkpoint=checkpoint,
            progress=(lambda where: progress("+".join(names), where)) if progress else None,
        )
    winner = fit_ensembles(instrument.configs, recommended(ranking))
    written = _write(settings, names, ranking, goals, instrument.configs)
    if settings.output_repository and winner:
        profiles = learned_profiles(ranking, instrument.configs, usable_cores())
        written += write_winner(settings, winner, instrument.configs, profiles)
    limit = goals[names[0]].constraints.get("perf_latency_p99")
    return Analysis(
        names,
        ranking,
        refused,
        written,
        differences(settings, winner, instrument.configs),
        capacity=_capacity_text(predictor, ranking, settings.capacity_per_s, (limit and limit.maximum) or 0.0),
    )


def _fingerprint(
    settings: AnalysisSettings, configs: Mapping[str, ModelConfig], inputs: Sequence[InputSettings]
) -> str:
    """Return what a measurement depends on: it is not made again as long as this is the same."""
    facts = [
        __version__,
        *(config.SerializeToString(deterministic=True).hex() for config in configs.values()),
        *map(repr, inputs),
    ]
    models = [Path(settings.server.repository) / name for name in configs] if settings.server.repository else []
    data = [Path(source) for each in inputs for source in each.sources]
    return fingerprint([path for path in (*models, *data) if path.exists()], facts)


def _capacity_text(predictor: LearnedPredictor | None, ranking: Ranking, rate_per_s: float, limit_ms: float) -> str:
    """Return which machine serves a rate with the configuration of the winner, from the fitted costs."""
    if not rate_per_s or ranking.winner is None:
        return ""
    if predictor is None or not limit_ms:
        return "Capacity needs the search mode predict and a latency budget."
    predictor.fit([each for each in ranking.measurements if not each.error])
    found = predictor.capacity(ranking.winner.measured.point, rate_per_s, limit_ms * 1e3)
    if found is None:
        return f"No number of machines serves {rate_per_s:g} requests/s within {limit_ms:g} ms by prediction."
    return (
        f"By prediction, {rate_per_s:g} requests/s within p99 {limit_ms:g} ms need: machines {found.machines}, "
        f"cores of each {found.cores}, server processes {found.processes}; "
        f"expected p99 {found.expected_us / 1e3:.3g} ms."
    )


def _mode(settings: AnalysisSettings, group: Sequence[ModelSettings]) -> SearchMode:
    """Manual lists are measured in full, as by Model Analyzer, unless another mode is asked for."""
    is_manual = any(model.config_parameters for model in group) or settings.is_search_disabled
    return _MEASURED_BY_HAND if is_manual and settings.mode is SearchMode.PREDICT else settings.mode


def _space(
    settings: AnalysisSettings, group: Sequence[ModelSettings], configs: Mapping[str, ModelConfig]
) -> tuple[Space, list[str]]:
    """Return what is searched, and the combinations that are left out."""
    manual = {model.name: model.config_parameters for model in group if model.config_parameters}
    dimensions: list[Dimension] = []
    variants: dict[str, Sequence[Variant]] = {}
    refused: list[str] = []
    for name, config in configs.items():
        if name in manual:
            found = listed(config, manual_settings(manual[name]))
        else:
            own = () if settings.is_search_disabled else _own_dimensions(config, settings)
            dimensions += own
            found = combinations(config, own)
        if found.variants or not member_names(config):
            variants[name] = found.all
        refused += _reasons(found)
    return (
        Space(
            tuple(model.name for model in group),
            tuple(dimensions),
            group[0].concurrencies,
            group[0].request_rates,
            group[0].batch_sizes,
            variants,
        ),
        refused,
    )


def _reasons(variants: Variants) -> list[str]:
    return [f"{settings_text(settings)}: {reason}" for settings, reason in variants.refused]


def _own_dimensions(config: ModelConfig, settings: AnalysisSettings) -> list[Dimension]:
    """Return what is searched of a model without lists by the user."""
    is_cpu_only = config.name in settings.cpu_only_models
    return _bounded(default_dimensions(config, Machine(usable_cores()), is_cpu_only=is_cpu_only), settings)


def _bounded(dimensions: Sequence[Dimension], settings: AnalysisSettings) -> list[Dimension]:
    """Keep the values within the bounds of the settings."""
    limits = {"max_batch_size": settings.bounds.batch_size, "instance_group.count": settings.bounds.instances}
    kept: list[Dimension] = []
    for each in dimensions:
        low, high = limits.get(each.field, (None, None))
        values = tuple(value for value in each.values if low is None or high is None or low <= int(value) <= high)
        if values:
            kept.append(Dimension(each.model, each.field, values))
    return kept


def _search_settings(settings: AnalysisSettings, configs: Mapping[str, ModelConfig]) -> SearchSettings:
    low, high = settings.bounds.concurrency
    optuna = settings.optuna
    searched = SearchSettings(
        seconds=settings.seconds,
        top=settings.top_configs,
        min_concurrency=low,
        max_concurrency=high,
        binary_search_steps=settings.bounds.binary_search_steps,
        optuna_min_percent=optuna.min_percentage,
        optuna_max_percent=optuna.max_percentage,
        optuna_min_trials=optuna.min_trials,
        optuna_max_trials=optuna.max_trials,
        optuna_early_exit=optuna.early_exit_threshold,
        configured={name: _configured(config) for name, config in configs.items()},
    )
    return within(searched, settings.time_limit_s) if settings.time_limit_s else searched


def _configured(config: ModelConfig) -> dict[str, object]:
    """Return the values that the configuration has for the fields that are searched."""
    counts = sum(group.count for group in config.instance_group) or 1
    batching = config.dynamic_batching if config.HasField("dynamic_batching") else None
    return {
        "max_batch_size": config.max_batch_size,
        "instance_group.count": counts,
        "dynamic_batching.max_queue_delay_microseconds": batching and batching.max_queue_delay_microseconds,
        **{f"parameters.{name}": value.string_value for name, value in config.parameters.items()},
    }


def _write(
    settings: AnalysisSettings,
    names: tuple[str, ...],
    ranking: Ranking,
    goals: Mapping[str, Goal],
    configs: Mapping[str, ModelConfig],
) -> list[Path]:
    folder = Path(settings.export_folder)
    written = write_tables(
        ranking,
        folder / "results" / "+".join(names),
        settings.inference_fields,
        accepts=lambda measured: not measured.error and not misses(goals, measured),
        configured={name: _configured(config) for name, config in configs.items()},
    )
    if settings.writes_summary:
        html = folder / f"{'+'.join(names)}.html"
        limit = goals[names[0]].constraints.get("perf_latency_p99")
        facts = [("measurements", str(len(ranking.measurements))), ("naiad", __version__)]
        page = report(ranking, f"Analysis of {', '.join(names)}", facts, (limit and limit.maximum) or 0.0)
        page.write(html)
        written.append(html)
        if write_pdf(html, html.with_suffix(".pdf")):
            written.append(html.with_suffix(".pdf"))
    return written


def restored_url(journal: Path) -> str:
    """Return the server that a journal file belongs to. Raises SettingsError."""
    try:
        return str(json.loads(journal.read_text())["url"])
    except (OSError, ValueError, KeyError) as error:
        raise SettingsError(f"--restore {journal} is no journal of an analysis: {error}") from None


__all__ = ["Analysis", "RefusedError", "analyze", "make_server", "restored_url", "write_winner"]
