"""The settings of a Python model's workers, from its configuration and `--backend-config=python,...`.

And what a worker is started with: environment variables, and the arguments of the model's `initialize`.
"""

import abc
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from naiad.backend.api import InstanceSpec, ModelContext
from naiad.backend.cores import is_charged_for_waiting
from naiad.backend.onnx import telemetry as onnx_telemetry
from naiad.backend.workers.conversation.tensor_rules import STRICT_PARAMETER
from naiad.backend.workers.process.execution_environment import Interpreter, find_interpreter
from naiad.config.forms.json_form import config_to_json
from naiad.config.naiad_parameters import TENSOR_PARALLEL
from naiad.core.errors import invalid_argument
from naiad.options.execution_limits import EXECUTE_TIMEOUT
from naiad.options.host_policy import policy_name
from naiad.worker.busy_polling import NEVER_AWAKE

_IGNORED = frozenset({"shm-default-byte-size", "shm-growth-byte-size", "shm-region-prefix-name", "thread-pool-size"})
"""Triton's settings without effect here: memory is not reserved, and there is no thread pool."""
_GENERAL = frozenset({"default-max-batch-size", "min-compute-capability", "backend-directory"})
"""Settings of all backends, which the server merges with this one's."""

_STRICT = "strict-outputs"
_MOST_RANKS = 64
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """The settings of a model's workers."""

    interpreter: Interpreter
    """The interpreter."""
    start_timeout_s: float
    """`stub-timeout-seconds`: from the start of the process to its first message."""
    initialize_timeout_s: float
    """Parameter `initialize_timeout_s`: for importing model.py, auto_complete_config and initialize."""
    finalize_timeout_s: float
    """Parameter `finalize_timeout_s`: for finalize, before the worker is terminated."""
    execute_timeout_s: float
    """Parameter `execute_timeout_s`: for one batch, 0 for no limit; a slower worker is killed."""
    hang_timeout_s: float
    """`--execute-timeout-secs`, without the parameter: for a batch without progress, 0 for no limit."""
    stacks_after_s: float
    """Parameter `stacks_after_s`: the worker's stacks are logged if a batch executes for longer; 0 for no limit."""
    restart_limit: int
    """Parameter `restart_limit`: number of deaths within `restart_window_s` after which requests are rejected."""
    restart_window_s: float
    """Parameter `restart_window_s`."""
    restart_interval_s: float
    """Parameter `restart_interval_s`: longest time between a death and the next start, also while rejecting."""
    restart_wait_s: float
    """Parameter `restart_wait_s`: maximum time that requests wait for a restarting worker."""
    has_strict_outputs: bool
    """Parameter `strict_outputs`, or `strict-outputs` for all models: outputs must match the configuration."""
    transport_bytes: int
    """`transport-max-byte-size`: limit of the shared memory between the server and one worker."""
    tensor_parallel_size: int = 1
    """Parameter `tensor_parallel_size`: number of worker processes, the ranks, of each instance."""
    torch_distributed: str = ""
    """Parameter `torch_distributed`: `gloo` or `nccl`, which the workers initialize before the model; or empty."""
    nnodes: int = 1
    """Parameter `nnodes`: number of machines with ranks of each instance."""
    rendezvous: tuple[str, int] = ("", 0)
    """Parameter `rendezvous`: host and port of node 0 where other nodes join."""
    rendezvous_timeout_s: float = 600.0
    """Parameter `rendezvous_timeout_s`: for all nodes to join."""

    @property
    def local_rank_count(self) -> int:
        """Number of ranks on each machine."""
        return self.tensor_parallel_size // self.nnodes

    @property
    def has_ranks(self) -> bool:
        """Whether instances are groups of ranks."""
        return self.tensor_parallel_size > 1 or bool(self.torch_distributed)


def read_settings(
    context: ModelContext, flags: Mapping[str, str] | None = None, needs: Sequence[str] = ()
) -> WorkerSettings:
    """Return the settings of a model's workers. Raises InferError(INVALID_ARG) for an invalid value.

    `flags` come from `--backend-config=python,...`, by default the `backend_config` of the context. `needs` are
    packages that an environment from a requirements file gets too.
    """
    backend = context.backend_config if flags is None else flags
    parameters = {key: value.string_value for key, value in context.config.parameters.items()}
    if parameters.get("FORCE_CPU_ONLY_INPUT_TENSORS", "yes") not in ("yes", "no"):
        raise invalid_argument(
            f"model '{context.name}': parameter 'FORCE_CPU_ONLY_INPUT_TENSORS' is "
            f"'{parameters['FORCE_CPU_ONLY_INPUT_TENSORS']}'; use 'yes' or 'no'"
        )
    known = _IGNORED | _GENERAL | {"stub-timeout-seconds", "transport-max-byte-size", "wheels-dir", _STRICT}
    for name in backend.keys() - known:
        raise invalid_argument(
            f"--backend-config=python,{name} is not known; known are {', '.join(sorted(known - _GENERAL))}"
        )
    read_flag = _Reader(backend, "--backend-config=python,{name}={value}")
    read = _Reader(parameters, f"model '{context.name}': parameter '{{name}}' is '{{value}}'")
    wheels_dir = backend.get("wheels-dir", "")
    return WorkerSettings(
        interpreter=find_interpreter(
            context.name, parameters, context.model_dir, wheels_dir, needs, stop=context.stop
        ),
        start_timeout_s=read_flag("stub-timeout-seconds", 30.0, float),
        transport_bytes=int(read_flag("transport-max-byte-size", 4 << 30, int)),
        initialize_timeout_s=read("initialize_timeout_s", 1800.0, float),
        finalize_timeout_s=read("finalize_timeout_s", 30.0, float),
        execute_timeout_s=read(EXECUTE_TIMEOUT, 0.0, float),
        hang_timeout_s=0.0 if parameters.get(EXECUTE_TIMEOUT) else context.execute_timeout_s,
        stacks_after_s=read("stacks_after_s", 0.0, float),
        restart_limit=int(read("restart_limit", 5, int)),
        restart_window_s=read("restart_window_s", 60.0, float),
        restart_interval_s=read("restart_interval_s", 30.0, float),
        restart_wait_s=read("restart_wait_s", 30.0, float),
        has_strict_outputs=_read_strict(context.name, parameters, backend),
        tensor_parallel_size=rank_count(context),
        torch_distributed=_read_torch(context.name, parameters),
        nnodes=node_count(context),
        rendezvous=_read_rendezvous(context),
        rendezvous_timeout_s=read("rendezvous_timeout_s", 600.0, float),
    )


def rank_count(context: ModelContext) -> int:
    """Return the number of worker processes of each instance. Raises InferError(INVALID_ARG)."""
    if TENSOR_PARALLEL not in context.config.parameters:
        return 1
    text = context.config.parameters[TENSOR_PARALLEL].string_value
    if not (text.isdecimal() and 1 <= int(text[:9]) <= _MOST_RANKS):
        raise invalid_argument(
            f"model '{context.name}': parameter '{TENSOR_PARALLEL}' is '{text}'; use a number of ranks from 1 to "
            f"{_MOST_RANKS}"
        )
    if int(text) > 1 and context.config.model_transaction_policy.decoupled:
        raise invalid_argument(
            f"model '{context.name}': parameter '{TENSOR_PARALLEL}' needs a model that is not decoupled: all ranks "
            "must have finished a batch before the next"
        )
    return int(text)


def node_count(context: ModelContext) -> int:
    """Return the number of machines with ranks of each instance. Raises InferError(INVALID_ARG)."""
    text = context.config.parameters["nnodes"].string_value if "nnodes" in context.config.parameters else "1"
    ranks = rank_count(context)
    if not (text.isdecimal() and 1 <= int(text[:9]) <= ranks and ranks % int(text) == 0):
        raise invalid_argument(
            f"model '{context.name}': parameter 'nnodes' is '{text}', and '{TENSOR_PARALLEL}' is {ranks}; use a "
            "number of nodes that divides the number of ranks: each node has equally many"
        )
    return int(text)


def _read_rendezvous(context: ModelContext) -> tuple[str, int]:
    """Return host and port, empty with one node. Raises InferError(INVALID_ARG)."""
    text = context.config.parameters["rendezvous"].string_value if "rendezvous" in context.config.parameters else ""
    opening = f"model '{context.name}': parameter 'rendezvous' is '{text}'"
    if node_count(context) == 1:
        if text:
            raise invalid_argument(f"{opening}, and 'nnodes' is 1; set the number of machines")
        return "", 0
    host, _, port = text.rpartition(":")
    if not (host and port.isdecimal() and 0 < int(port[:6]) < 65536):
        raise invalid_argument(f"{opening}; use HOST:PORT of node 0, which all nodes reach")
    if sum(group.count * max(1, len(group.gpus)) for group in context.config.instance_group) > 1:
        raise invalid_argument(f"{opening}; use one instance (instance_group): nodes join one group")
    return host.strip("[]"), int(port)


def _read_torch(model: str, parameters: Mapping[str, str]) -> str:
    text = parameters.get("torch_distributed", "")
    if text not in ("", "gloo", "nccl"):
        raise invalid_argument(f"model '{model}': parameter 'torch_distributed' is '{text}'; use 'gloo' or 'nccl'")
    return text


def _read_strict(model: str, parameters: Mapping[str, str], backend: Mapping[str, str]) -> bool:
    where, text = f"--backend-config=python,{_STRICT}", backend.get(_STRICT, "false")
    if STRICT_PARAMETER in parameters:
        where, text = f"model '{model}': parameter '{STRICT_PARAMETER}'", parameters[STRICT_PARAMETER]
    if text.lower() not in ("true", "false"):
        raise invalid_argument(f"{where} is '{text}'; use 'true' or 'false'")
    return text.lower() == "true"


class _Reader:
    def __init__(self, values: Mapping[str, str], wording: str) -> None:
        self._values = values
        self._wording = wording

    def __call__(self, name: str, default: float, parse: Callable[[str], float]) -> float:
        text = self._values.get(name, "")
        if not text:
            return default
        try:
            value = parse(text)
            if value >= 0:
                return value
        except ValueError:
            pass
        raise invalid_argument(self._wording.format(name=name, value=text) + "; use a number that is not negative")


# --- the start of a worker ------------------------------------------------------------------------------------------


class WorkerSource(abc.ABC):
    """The code that the workers of a model execute."""

    @abc.abstractmethod
    def notes(self, context: ModelContext) -> dict[str, Any]:
        """Return the notes that a worker needs before it loads the model."""

    def args(self, context: ModelContext, spec: InstanceSpec) -> Mapping[str, str]:
        """Return arguments of `initialize` that extend or replace the usual ones, Triton's."""
        return {}


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
