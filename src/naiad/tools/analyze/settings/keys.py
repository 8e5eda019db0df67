"""The keys of Model Analyzer's file, which are also flags of its commands: `batch_sizes` is `--batch-sizes`."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Key:
    """A key: its form, its letter as a flag, and what it means."""

    kind: str
    """`text`, `whole`, `number`, `flag`, `list`, `numbers` or `mapping`; a mapping is not a flag."""
    help: str
    letter: str = ""
    has_effect: bool = True
    default: Any = None


def _idle(kind: str, why: str, letter: str = "") -> Key:
    return Key(kind, why, letter, has_effect=False)


_ONE_SERVER = "variants are applied to one running server"
_IN_PROCESS = "the load generator is part of naiad"

KEYS: dict[str, Key] = {
    "config_file": Key("text", "YAML file with these keys", "f"),
    "model_repository": Key("text", "model repository", "m"),
    "profile_models": Key("mapping", "models to analyse, with settings of each"),
    "checkpoint_directory": Key("text", "folder of the measurements, to go on after an interruption", "s"),
    "export_path": Key("text", "folder of the reports", "e"),
    "output_model_repository_path": Key("text", "repository for the configurations that were found"),
    "override_output_model_repository": Key("flag", "replace what is in that repository"),
    "duration_seconds": Key("number", "length of a measurement", "d"),
    "objectives": Key("mapping", "metrics with weights"),
    "constraints": Key("mapping", "limits of metrics"),
    "weighting": Key("number", "weight of a model among several"),
    "latency_budget": Key("text", "limit of the p99 latency, in ms or such as 20ms"),
    "min_throughput": Key("number", "limit of the throughput"),
    "batch_sizes": Key("numbers", "rows in a request", "b"),
    "concurrency": Key("numbers", "requests outstanding", "c"),
    "request_rate": Key("numbers", "requests/s"),
    "run_config_search_mode": Key("text", "predict (default), brute, quick or optuna"),
    "run_config_search_disable": Key("flag", "measure only what is listed"),
    "run_config_search_min_concurrency": Key("whole", "", default=1),
    "run_config_search_max_concurrency": Key("whole", "", default=1024),
    "run_config_search_min_request_rate": Key("whole", "", default=16),
    "run_config_search_max_request_rate": Key("whole", "", default=8192),
    "run_config_search_min_instance_count": Key("whole", "", default=1),
    "run_config_search_max_instance_count": Key("whole", "", default=5),
    "run_config_search_min_model_batch_size": Key("whole", "", default=1),
    "run_config_search_max_model_batch_size": Key("whole", "", default=128),
    "run_config_search_max_binary_search_steps": Key("whole", "", default=5),
    "run_config_profile_models_concurrently_enable": Key("flag", "all models are under load at once"),
    "request_rate_search_enable": Key("flag", "the loads are requests/s, doubled between the bounds; mode brute"),
    "min_percentage_of_search_space": Key("number", "", default=5.0),
    "max_percentage_of_search_space": Key("number", "", default=10.0),
    "optuna_min_trials": Key("whole", "", default=20),
    "optuna_max_trials": Key("whole", "", default=200),
    "optuna_early_exit_threshold": Key("whole", "", default=10),
    "use_concurrency_formula": _idle(
        "flag",
        "the mode optuna always tries a concurrency of 2 x batch size x instances, then sweeps that of the best",
    ),
    "bls_composing_models": Key("list", "models that a BLS model calls"),
    "ensemble_composing_models": Key("list", "members of the ensemble; found by themselves"),
    "cpu_only_composing_models": Key("list", "members whose variants run on CPUs"),
    "client_protocol": Key("text", "grpc (default) or http"),
    "triton_launch_mode": Key("text", "local (default) starts a server, remote uses a running one"),
    "triton_http_endpoint": Key("text", "of a running server"),
    "triton_grpc_endpoint": Key("text", "of a running server"),
    "triton_metrics_url": Key("text", "of a running server"),
    "triton_server_flags": Key("mapping", "flags of the server that is started"),
    "triton_server_environment": Key("mapping", "its environment"),
    "perf_analyzer_flags": Key("mapping", "flags of naiad perf"),
    "num_configs_per_model": Key("whole", "configurations in the report", default=3),
    "num_top_model_configs": _idle("whole", "the report has all models"),
    "inference_output_fields": Key("list", "columns of the CSV"),
    "skip_summary_reports": Key("flag", "write no HTML"),
    "skip_detailed_reports": _idle("flag", "the report has the details"),
    "collect_cpu_metrics": _idle("flag", "CPU and memory are always measured"),
    "reload_model_disable": _idle("flag", _ONE_SERVER),
    "concurrency_sweep_disable": _idle("flag", "the search chooses the loads"),
    "early_exit_enable": _idle("flag", "a search always ends when more load brings nothing"),
    "monitoring_interval": _idle("number", "metrics are read with each measurement", "i"),
    "client_max_retries": _idle("whole", _ONE_SERVER, "r"),
    "perf_analyzer_timeout": _idle("whole", _IN_PROCESS),
    "perf_analyzer_cpu_util": _idle("number", _IN_PROCESS),
    "perf_analyzer_path": _idle("text", _IN_PROCESS),
    "perf_analyzer_max_auto_adjusts": _idle("whole", _IN_PROCESS),
    "perf_output": _idle("flag", _IN_PROCESS),
    "perf_output_path": _idle("text", _IN_PROCESS),
    "genai_perf_flags": _idle("mapping", _IN_PROCESS),
    "model_type": _idle("text", "all models are measured alike"),
    "gpus": _idle("list", "all GPUs of the server are measured"),
    "always_report_gpu_metrics": _idle("flag", "GPU metrics are reported where there are any"),
    "dcgm_disable": _idle("flag", "DCGM is not used"),
    "filename_model_inference": _idle("text", "file names are fixed"),
    "filename_model_gpu": _idle("text", "file names are fixed"),
    "filename_server_only": _idle("text", "file names are fixed"),
    "gpu_output_fields": _idle("list", "the columns are fixed"),
    "server_output_fields": _idle("list", "the columns are fixed"),
    "triton_server_path": _idle("text", "naiad is started"),
    "triton_output_path": _idle("text", "the log is shown when the server fails"),
    "triton_install_path": _idle("text", "naiad is started"),
    "triton_docker_image": _idle("text", "no container is started"),
    "triton_docker_mounts": _idle("list", "no container is started"),
    "triton_docker_labels": _idle("mapping", "no container is started"),
    "triton_docker_args": _idle("mapping", "no container is started"),
    "triton_docker_shm_size": _idle("text", "no container is started"),
    "plots": _idle("mapping", "the charts are fixed"),
    "report_model_configs": _idle("mapping", "the report has all configurations"),
    "output_formats": _idle("list", "the report is HTML, and PDF where Chromium is installed"),
}

MODEL_KEYS = (
    "objectives",
    "constraints",
    "weighting",
    "parameters",
    "model_config_parameters",
    "cpu_only",
    "perf_analyzer_flags",
    "triton_server_flags",
    "triton_server_environment",
)
"""Keys of a model in `profile_models`."""
PARAMETER_KEYS = ("batch_sizes", "concurrency", "request_rate")
