"""What a worker is started with: environment variables, and the arguments of the model's `initialize`."""

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

from naiad.backend.api import InstanceSpec, ModelContext
from naiad.backend.cores import is_charged_for_waiting
from naiad.backend.onnx import telemetry as onnx_telemetry
from naiad.backend.python.settings import WorkerSettings, node_count, rank_count
from naiad.config.forms.json_form import config_to_json
from naiad.options.host_policy import policy_name
from naiad.worker.busy_polling import NEVER_AWAKE

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


class WorkerSource(Protocol):
    """The code that the workers of a model execute."""

    def notes(self, context: ModelContext) -> dict[str, Any]:
        """Return the notes that a worker needs before it loads the model."""

    def args(self, context: ModelContext, spec: InstanceSpec) -> Mapping[str, str]:
        """Return arguments of `initialize` that extend or replace the usual ones."""


def instance_args(context: ModelContext, spec: InstanceSpec) -> dict[str, str]:
    """Return the arguments of `initialize`: strings only, as Triton."""
    return {
        "model_config": config_to_json(context.config).decode(),
        "model_instance_kind": spec.kind.removeprefix("KIND_"),
        "model_instance_name": spec.name,
        "model_instance_device_id": str(spec.device_id),
        "model_repository": str(context.model_dir),
        "model_version": str(context.version),
        "model_name": context.name,
    }


def rank_args(
    context: ModelContext, source: WorkerSource, spec: InstanceSpec, settings: WorkerSettings, rank: int = 0
) -> dict[str, str]:
    """Return the arguments of `initialize` in a rank. The GPU of local rank r is the r-th after the instance's."""
    if settings.has_ranks and spec.kind == "KIND_GPU":
        spec = replace(spec, device_id=spec.device_id + rank % settings.local_rank_count)
    args = {**instance_args(context, spec), **source.args(context, spec)}
    if settings.has_ranks:
        args |= {"rank": str(rank), "world_size": str(settings.tensor_parallel_size)}
    return args


def worker_environment(context: ModelContext, host_policy: str = "") -> dict[str, str]:
    """Return the environment of a worker: threads times workers do not exceed the cores, unless configured
    otherwise.
    """
    environment = dict(os.environ)
    if is_charged_for_waiting():
        environment[NEVER_AWAKE] = "1"
    onnx_telemetry.turn_off(environment)
    if not any(name in environment for name in _THREAD_VARIABLES):
        threads = thread_count(context, context.host_policies.get(host_policy))
        environment.update(dict.fromkeys(_THREAD_VARIABLES, str(threads)))
    return environment


def thread_count(context: ModelContext, cores: frozenset[int] | None) -> int:
    """Return the thread limit of each worker on these cores; None for no limit."""
    policies = context.host_policies
    workers = sum(
        group.count
        for group in context.config.instance_group
        for device in group.gpus or (0,)
        if policies.get(policy_name(group, device)) == cores
    )
    usable = min(context.usable_cores, len(cores)) if cores else context.usable_cores
    return max(1, usable // (max(1, workers) * rank_count(context) // node_count(context)))
