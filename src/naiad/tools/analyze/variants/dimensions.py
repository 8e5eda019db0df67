"""What is searched without a word of the user: the fields of a configuration that decide throughput and latency."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from naiad.config.backends import PLATFORM_BACKENDS, canonical_name
from naiad.config.model_config_pb2 import ModelConfig, ModelInstanceGroup
from naiad.config.naiad_parameters import SWITCH
from naiad.tools.analyze.space import Dimension

MAX_BATCH_SIZE = "max_batch_size"
INSTANCE_COUNT = "instance_group.count"
INSTANCE_KIND = "instance_group.kind"
DELAY = "dynamic_batching.max_queue_delay_microseconds"
"""None switches the dynamic batcher off."""
PREFERRED = "dynamic_batching.preferred_batch_size"
ADAPTIVE = f"parameters.{SWITCH}"
CACHE = "response_cache.enable"
DELAYS_US = (0, 100, 500)
_LARGEST_BATCH = 128
_MAX_INSTANCES = 64

THREADS: Mapping[str, str] = {
    "onnxruntime": "intra_op_thread_count",
    "openvino": "INFERENCE_NUM_THREADS",
    "pytorch": "INTRA_OP_THREAD_COUNT",
    "litert": "num_threads",
    "huggingface": "num_threads",
    "trees": "nthread",
    "sklearn": "n_jobs",
}
"""Backend to the parameter of its threads. TensorFlow's threads belong to the process; the first model sets them."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Where the server runs."""

    cores: int
    gpus: int = 0


def default_dimensions(
    config: ModelConfig,
    machine: Machine,
    *,
    batch_sizes: tuple[int, int] = (1, _LARGEST_BATCH),
    instances: tuple[int, int] | None = None,
    is_cpu_only: bool = False,
    tries_cache: bool = False,
    preferred: Sequence[Sequence[int]] = (),
) -> tuple[Dimension, ...]:
    """Return the dimensions of a model; `config` is complete, as the server returns it.

    An ensemble has none of its own: its members are searched. `batch_sizes` are the least and the largest
    max_batch_size, with doubles between; `instances` the least and the largest count, with all between (the bounds of
    Model Analyzer), None for doubles up to the number of cores. `is_cpu_only` moves instances that are elsewhere to
    CPUs. `tries_cache` adds the response cache, which shortens requests that repeat only; `preferred` adds lists
    of preferred batch sizes.
    """
    if config.HasField("ensemble_scheduling"):
        return ()
    name = config.name
    found = _batching(config, batch_sizes, preferred)
    counts = _doubled(1, min(machine.cores, _MAX_INSTANCES))
    found.append(
        Dimension(name, INSTANCE_COUNT, tuple(range(instances[0], instances[1] + 1)) if instances else counts)
    )
    if is_cpu_only:
        if any(group.kind != ModelInstanceGroup.KIND_CPU for group in config.instance_group):
            found.append(Dimension(name, INSTANCE_KIND, ("KIND_CPU",)))
    elif machine.gpus and _is_on_either(config):
        found.append(Dimension(name, INSTANCE_KIND, ("KIND_CPU", "KIND_GPU")))
    threads = THREADS.get(backend_of(config), "")
    if threads and machine.cores > 1:
        found.append(Dimension(name, f"parameters.{threads}", tuple(str(each) for each in counts)))
    if tries_cache and not config.HasField("sequence_batching") and not config.model_transaction_policy.decoupled:
        found.append(Dimension(name, CACHE, (False, True)))
    return tuple(found)


def backend_of(config: ModelConfig) -> str:
    """Return the backend, also of a configuration that names a platform only."""
    return canonical_name(config.backend or PLATFORM_BACKENDS.get(config.platform, ""))


def _batching(
    config: ModelConfig, batch_sizes: tuple[int, int], preferred: Sequence[Sequence[int]]
) -> list[Dimension]:
    if config.max_batch_size <= 0:
        return []
    name = config.name
    found = [Dimension(name, MAX_BATCH_SIZE, _doubled(*batch_sizes))]
    if config.HasField("sequence_batching"):
        return found
    found.append(Dimension(name, DELAY, (None, *DELAYS_US)))
    found.append(Dimension(name, ADAPTIVE, ("false", "true")))
    if preferred:
        found.append(Dimension(name, PREFERRED, tuple(list(sizes) for sizes in preferred)))
    return found


def _doubled(first: int, last: int) -> tuple[int, ...]:
    """Return `first`, its doubles and `last`."""
    values = [max(1, first)]
    while 2 * values[-1] <= last:
        values.append(2 * values[-1])
    return tuple(values) if values[-1] >= last else (*values, last)


def _is_on_either(config: ModelConfig) -> bool:
    return backend_of(config) in ("onnxruntime", "pytorch", "python", "huggingface")
