"""Model Analyzer's YAML becomes settings; an unknown key is an error with a suggestion."""

from pathlib import Path
from typing import Any

import pytest

from naiad.tools.analyze.goal import Bound
from naiad.tools.analyze.settings.analysis_settings import SearchMode
from naiad.tools.analyze.settings.settings_reader import read_file, read_settings
from naiad.tools.analyze.settings.values import SettingsError

EXAMPLE = """
model_repository: /models
run_config_search_mode: brute
run_config_search_max_instance_count: 3
batch_sizes: 1,2,4
concurrency: {start: 2, stop: 8, step: 2}
objectives: [perf_throughput]
constraints:
  perf_latency_p99: {max: 20}
perf_analyzer_flags: {percentile: 95}
perf_analyzer_timeout: 900
profile_models:
  resnet:
    objectives: {perf_latency_p99: 3, perf_throughput: 1}
    cpu_only: true
    parameters: {concurrency: [4, 8]}
    model_config_parameters:
      max_batch_size: [4, 8]
      dynamic_batching: {max_queue_delay_microseconds: [100, 200]}
    perf_analyzer_flags: {input-data: zero}
  bert:
"""

RATES = {"request_rate_search_enable": True, "run_config_search_mode": "brute"}


def settings(**values: Any) -> Any:
    return read_settings({"model_repository": "/models", "profile_models": ["resnet"], **values})


def test_example_file(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(EXAMPLE)
    found = read_settings(read_file(file))
    resnet, bert = found.models
    assert found.mode is SearchMode.BRUTE
    assert found.bounds.instances == (1, 3)
    assert resnet.concurrencies == (4, 8)
    assert bert.concurrencies == (2, 4, 6, 8)
    assert resnet.batch_sizes == (1, 2, 4)
    assert resnet.goal.objectives == {"perf_latency_p99": 3.0, "perf_throughput": 1.0}
    assert resnet.goal.constraints == {"perf_latency_p99": Bound(maximum=20.0)}
    assert bert.goal.objectives == {"perf_throughput": 1.0}
    assert found.cpu_only_models == {"resnet"}
    assert resnet.perf_flags == {"percentile": 95, "input-data": "zero"}
    assert resnet.config_parameters["max_batch_size"] == [4, 8]
    assert found.notes == ["perf_analyzer_timeout has no effect: the load generator is part of naiad"]


@pytest.mark.parametrize(
    "models",
    ["resnet,bert", ["resnet", "bert"], [{"resnet": {"cpu_only": True}}, "bert"], {"resnet": None, "bert": {}}],
)
def test_models_have_four_forms(models: object) -> None:
    assert [model.name for model in settings(profile_models=models).models] == ["resnet", "bert"]


def test_shorthands_are_constraints() -> None:
    goal = settings(latency_budget="20ms", min_throughput=300).models[0].goal
    assert goal.constraints == {"perf_latency_p99": Bound(maximum=20.0), "perf_throughput": Bound(minimum=300.0)}
    assert settings(latency_budget="0.5s").models[0].goal.constraints["perf_latency_p99"] == Bound(maximum=500.0)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (RATES, tuple(16.0 * 2**power for power in range(10))),
        ({"run_config_search_mode": "brute", "run_config_search_max_request_rate": 50}, (16.0, 32.0)),
        ({**RATES, "run_config_search_min_request_rate": 100, "run_config_search_max_request_rate": 100}, (100.0,)),
        ({**RATES, "request_rate": [10, 20]}, (10.0, 20.0)),
        ({}, ()),
    ],
)
def test_rates_are_doubled_between_bounds(values: dict[str, Any], expected: tuple[float, ...]) -> None:
    assert settings(**values).models[0].request_rates == expected


def test_composing_models_are_cpu_only() -> None:
    found = settings(profile_models={"a": {"cpu_only": True}, "b": None}, cpu_only_composing_models=["c"])
    assert found.cpu_only_models == {"a", "c"}


def test_remote_server_needs_no_repository() -> None:
    found = read_settings({"profile_models": "m", "triton_launch_mode": "remote", "triton_grpc_endpoint": "h:1"})
    assert found.server.is_remote
    assert found.server.grpc_endpoint == "h:1"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"concurency": 1}, "did you mean concurrency?"),
        ({"batch_sizes": 0}, "batch_sizes is 0; use a whole number of 1 or more"),
        ({"batch_sizes": {"start": 4, "stop": 1}}, "stops at 1, before its start of 4"),
        ({"concurrency": [1, "x"]}, "'x'"),
        ({"objectives": ["perf_thruput"]}, "perf_throughput"),
        ({"objectives": {}}, "objectives is empty"),
        ({"constraints": {"perf_latency_p99": {"maximum": 3}}}, "unknown name 'maximum'"),
        ({"constraints": {"perf_latency_p99": {}}}, "has no limit"),
        ({"latency_budget": "soon"}, "use a time, for example 20ms"),
        ({"run_config_search_mode": "quik"}, "did you mean quick?"),
        ({"run_config_search_min_instance_count": 4, "run_config_search_max_instance_count": 2}, "is 2, below"),
        ({"profile_models": {"m": {"cpuonly": True}}}, "did you mean cpu_only?"),
        ({"request_rate_search_enable": True}, "needs run_config_search_mode brute, and it is predict"),
        ({**RATES, "concurrency": 4}, "request_rate_search_enable and concurrency exclude each other"),
        ({**RATES, "run_config_search_min_request_rate": 9000}, "run_config_search_max_request_rate is 8192, below"),
        ({"profile_models": []}, "profile_models is missing"),
        ({"triton_launch_mode": "docker"}, "use local, which starts naiad, or remote"),
        ({"model_repository": None}, "model_repository is missing"),
    ],
)
def test_wrong_values_name_key_and_fix(values: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError) as failure:
        settings(**values)
    assert words in str(failure.value)


def test_broken_yaml_names_the_file(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("a: [")
    with pytest.raises(SettingsError, match=r"config\.yaml is not YAML"):
        read_file(file)
