"""From a document with Model Analyzer's keys to settings."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from naiad.tools.analyze.goal import Bound, Goal
from naiad.tools.analyze.settings.analysis_settings import (
    AnalysisSettings,
    Bounds,
    ModelSettings,
    OptunaSettings,
    SearchMode,
    ServerSettings,
)
from naiad.tools.analyze.settings.keys import KEYS, MODEL_KEYS, PARAMETER_KEYS
from naiad.tools.analyze.settings.values import (
    SettingsError,
    constraints,
    flag,
    known,
    mapping,
    milliseconds,
    number,
    numbers,
    objectives,
    seconds,
    text,
    texts,
    whole,
)

_KINDS: dict[str, Callable[[Any, str], Any]] = {
    "text": text,
    "whole": whole,
    "number": number,
    "flag": flag,
    "list": texts,
    "numbers": numbers,
}
_DEFAULT_FIELDS = ("perf_throughput", "perf_latency_p99")
_MODES = [mode.value for mode in SearchMode]


def read_file(path: Path) -> dict[str, Any]:
    """Return the keys of a YAML file. Raises SettingsError."""
    try:
        import yaml
    except ModuleNotFoundError:
        raise SettingsError("YAML files need PyYAML; pip install 'naiad[analyze]'") from None
    try:
        document = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} cannot be read: {error}") from None
    except yaml.YAMLError as error:
        raise SettingsError(f"{path} is not YAML: {error}") from None
    return dict(mapping(document, str(path)))


def read_settings(document: Mapping[str, Any]) -> AnalysisSettings:
    """Return the settings of a document with Model Analyzer's keys. Raises SettingsError."""
    for key in document:
        known(key, list(KEYS), "the configuration")
    values = {key: document[key] for key in document if document[key] is not None}
    goal = _goal(values, Goal())
    mode = SearchMode(known(values.get("run_config_search_mode", "predict"), _MODES, "run_config_search_mode"))
    rates = _searched_rates(values, mode)
    models = [_model(name, own, values, goal, rates) for name, own in _profile_models(values).items()]
    return AnalysisSettings(
        models=models,
        server=_server(values),
        mode=mode,
        bounds=_bounds(values),
        optuna=OptunaSettings(
            _value(values, "min_percentage_of_search_space"),
            _value(values, "max_percentage_of_search_space"),
            _value(values, "optuna_min_trials"),
            _value(values, "optuna_max_trials"),
            _value(values, "optuna_early_exit_threshold"),
        ),
        is_search_disabled=_flag(values, "run_config_search_disable"),
        are_models_concurrent=_flag(values, "run_config_profile_models_concurrently_enable"),
        composing_models=texts(values.get("bls_composing_models", ()), "bls_composing_models"),
        cpu_only_models=_cpu_only_models(values),
        seconds=seconds(values.get("duration_seconds", 5.0), "duration_seconds"),
        output_repository=text(values.get("output_model_repository_path", ""), "output_model_repository_path"),
        overwrites_output=_flag(values, "override_output_model_repository"),
        export_folder=text(values.get("export_path", "."), "export_path"),
        checkpoint_folder=text(values.get("checkpoint_directory", ""), "checkpoint_directory"),
        top_configs=_value(values, "num_configs_per_model"),
        inference_fields=_fields(values),
        writes_summary=not _flag(values, "skip_summary_reports"),
        notes=[f"{key} has no effect: {KEYS[key].help}" for key in values if not KEYS[key].has_effect],
    )


def _value(values: Mapping[str, Any], key: str) -> Any:
    return _KINDS[KEYS[key].kind](values[key], key) if key in values else KEYS[key].default


def _flag(values: Mapping[str, Any], key: str) -> bool:
    return flag(values.get(key, False), key)


def _fields(values: Mapping[str, Any]) -> tuple[str, ...]:
    if "inference_output_fields" not in values:
        return _DEFAULT_FIELDS
    named = texts(values["inference_output_fields"], "inference_output_fields")
    return tuple(name for name in named if name.startswith(("perf_", "cpu_", "gpu_")))


def _bounds(values: Mapping[str, Any]) -> Bounds:
    return Bounds(
        _pair(values, "model_batch_size"),
        _pair(values, "instance_count"),
        _pair(values, "concurrency"),
        _value(values, "run_config_search_max_binary_search_steps"),
    )


def _pair(values: Mapping[str, Any], name: str) -> tuple[int, int]:
    keys = [f"run_config_search_{end}_{name}" for end in ("min", "max")]
    low, high = (whole(_value(values, key), key, 1) for key in keys)
    if high < low:
        raise SettingsError(f"{keys[1]} is {high}, below {keys[0]} of {low}")
    return low, high


_RATE_SEARCH = (
    "request_rate_search_enable",
    "run_config_search_min_request_rate",
    "run_config_search_max_request_rate",
)
_CONCURRENCIES = ("concurrency", "run_config_search_min_concurrency", "run_config_search_max_concurrency")


def _searched_rates(values: Mapping[str, Any], mode: SearchMode) -> tuple[int, ...]:
    """Return the rates of a search over requests/s; none for a search over requests outstanding.

    Model Analyzer: a bound of the rate switches the search on, and a concurrency contradicts it.
    """
    low, high = _pair(values, "request_rate")
    asked = next((key for key in _RATE_SEARCH if values.get(key)), "")
    if not asked:
        return ()
    contrary = next((key for key in _CONCURRENCIES if key in values), "")
    if contrary:
        raise SettingsError(f"{asked} and {contrary} exclude each other; leave one of them out")
    if mode is not SearchMode.BRUTE:
        raise SettingsError(
            f"{asked} needs run_config_search_mode brute, and it is {mode.value}; list the rates in request_rate"
        )
    rates = [low]
    while 2 * rates[-1] <= high:
        rates.append(2 * rates[-1])
    return tuple(rates)


def _cpu_only_models(values: Mapping[str, Any]) -> frozenset[str]:
    own = {
        name: flag(each.get("cpu_only", False), f"profile_models.{name}.cpu_only")
        for name, each in _profile_models(values).items()
    }
    members = texts(values.get("cpu_only_composing_models", ()), "cpu_only_composing_models")
    return frozenset(name for name, is_cpu_only in own.items() if is_cpu_only).union(members)


def _goal(values: Mapping[str, Any], default: Goal, where: str = "") -> Goal:
    """Return the goal that the keys of a model, or of the whole file, change."""
    limits = dict(default.constraints)
    if "constraints" in values:
        limits |= constraints(values["constraints"], f"{where}constraints")
    if "latency_budget" in values:
        limits["perf_latency_p99"] = Bound(maximum=milliseconds(values["latency_budget"], "latency_budget"))
    if "min_throughput" in values:
        limits["perf_throughput"] = Bound(minimum=number(values["min_throughput"], "min_throughput"))
    wanted = objectives(values["objectives"], f"{where}objectives") if "objectives" in values else default.objectives
    if not wanted:
        raise SettingsError(f"{where}objectives is empty; use a metric, for example perf_throughput")
    weight = number(values.get("weighting", default.weighting), f"{where}weighting")
    return replace(default, objectives=wanted, constraints=limits, weighting=weight)


def _profile_models(values: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the settings of each model that is listed."""
    listed = values.get("profile_models")
    if not listed:
        raise SettingsError("profile_models is missing; name the models to analyse")
    named: dict[str, Any] = {}
    if isinstance(listed, Mapping):
        named = dict(listed)
    elif isinstance(listed, list):
        for each in listed:
            named |= each if isinstance(each, Mapping) else {text(each, "profile_models"): None}
    else:
        named = dict.fromkeys(texts(listed, "profile_models"))
    return {name: mapping(own, f"profile_models.{name}") for name, own in named.items()}


def _model(
    name: str, own: Mapping[str, Any], values: Mapping[str, Any], goal: Goal, rates: tuple[int, ...]
) -> ModelSettings:
    where = f"profile_models.{name}."
    for key in own:
        known(key, MODEL_KEYS, where.rstrip("."))
    parameters = {key: values[key] for key in PARAMETER_KEYS if key in values}
    for key, value in mapping(own.get("parameters"), f"{where}parameters").items():
        parameters[known(key, PARAMETER_KEYS, f"{where}parameters")] = value
    perf_flags = dict(mapping(values.get("perf_analyzer_flags"), "perf_analyzer_flags"))
    perf_flags |= mapping(own.get("perf_analyzer_flags"), f"{where}perf_analyzer_flags")
    return ModelSettings(
        name,
        _goal(own, goal, where),
        mapping(own.get("model_config_parameters"), f"{where}model_config_parameters"),
        numbers(parameters.get("batch_sizes", 1), f"{where}batch_sizes"),
        _loads(parameters, "concurrency", where),
        tuple(float(each) for each in _loads(parameters, "request_rate", where) or rates),
        perf_flags,
    )


def _loads(parameters: Mapping[str, Any], key: str, where: str) -> tuple[int, ...]:
    value = parameters.get(key)
    return numbers(value, f"{where}{key}") if value else ()


def _server(values: Mapping[str, Any]) -> ServerSettings:
    modes = ("local", "remote", "c_api", "docker")
    mode = known(values.get("triton_launch_mode", "local"), modes, "triton_launch_mode")
    if mode in ("c_api", "docker"):
        raise SettingsError(f"triton_launch_mode is {mode}; use local, which starts naiad, or remote")
    protocol = known(values.get("client_protocol", "grpc"), ("grpc", "http"), "client_protocol")
    repository = text(values.get("model_repository", ""), "model_repository")
    if mode == "local" and not repository:
        raise SettingsError("model_repository is missing; name the repository, or use triton_launch_mode remote")
    default = ServerSettings()
    return ServerSettings(
        repository,
        mode == "remote",
        protocol == "grpc",
        text(values.get("triton_http_endpoint", default.http_endpoint), "triton_http_endpoint"),
        text(values.get("triton_grpc_endpoint", default.grpc_endpoint), "triton_grpc_endpoint"),
        text(values.get("triton_metrics_url", default.metrics_url), "triton_metrics_url"),
        mapping(values.get("triton_server_flags"), "triton_server_flags"),
        {name: str(value) for name, value in mapping(values.get("triton_server_environment"), "environment").items()},
    )
