"""The budget of a load: what a configuration asks for is added up and compared before anything is allocated.

It holds for the configurations of owners too: a number that is mistaken by a factor of a thousand ends the server as
surely as a hostile one. The limits are generous, and the error names the flag of each.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from naiad.config.changes.override import THREADS
from naiad.config.forms.pbtxt.lexer import map_path
from naiad.config.model_config_pb2 import DataType as ConfigDataType
from naiad.config.model_config_pb2 import ModelConfig
from naiad.config.naiad_parameters import TENSOR_PARALLEL
from naiad.config.tensors.padding import PAD_BATCH, PAD_PREFIX, PaddingTextError, read_padding
from naiad.core.datatype import BY_CONFIG_NUMBER
from naiad.core.errors import InferError, invalid_argument
from naiad.options.load_limits import LoadLimitOptions

_MIN_ITEM_BYTES = 4
"""Of a string, whose length is in front of it."""
_REQUEST_BYTES = 64
"""Of a row of a warm-up sample, besides its tensors."""
_FIXED_ROWS = "SKIP_OV_DYNAMIC_BATCHSIZE"
"""OpenVINO: every execution has max_batch_size rows."""


_Row = tuple[str, int, int, str, str]
"""The fields of a Demand."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What one field asks for."""

    field: str
    number: int
    limit: int
    noun: str
    flag: str

    @property
    def text(self) -> str:
        """The part of the error about this field."""
        return (
            f"{self.field} asks for {self.number} {self.noun}, the limit is {self.limit}; lower it, or start the "
            f"server with --{self.flag}={self.number}"
        )


class LoadBudget:
    """Compares configurations with the limits."""

    def __init__(self, limits: LoadLimitOptions) -> None:
        """`limits` have numbers in place of 0."""
        self.limits = limits

    def check(self, config: ModelConfig, *, version_count: int = 1, has_processes: bool = False) -> None:
        """Raise InferError(INVALID_ARG) that names every field beyond a limit.

        The configuration may be incomplete: what a backend still completes is checked again. `has_processes`: its
        instances are worker processes.
        """
        error = self.excess(config, version_count=version_count, has_processes=has_processes)
        if error is not None:
            raise error

    def excess(
        self, config: ModelConfig, *, version_count: int = 1, has_processes: bool = False
    ) -> InferError | None:
        """Return the error of a configuration beyond a limit; None within the budget."""
        demands = [*self._counts(config, version_count, has_processes=has_processes), *self._bytes(config)]
        # Only what is beyond its limit becomes an object: this runs twice for each of a thousand models at a start.
        beyond = [Demand(*demand).text for demand in demands if demand[1] > demand[2]]
        return invalid_argument(f"model '{config.name}': {'; '.join(beyond)}") if beyond else None

    # --- counts -----------------------------------------------------------------------------------------------------

    def _counts(self, config: ModelConfig, version_count: int, *, has_processes: bool) -> Iterator[_Row]:
        limits = self.limits
        field, count = _instances(config)
        total = count * version_count
        yield field, total, limits.max_instances, "instances", "max-load-instances"
        if has_processes:
            processes = total * _whole(config, TENSOR_PARALLEL, 1)
            yield field, processes, limits.max_processes, "worker processes", "max-load-processes"
        for key in THREADS if config.parameters else ():
            threads = _whole(config, key, 0) * max(1, total)
            yield map_path("parameters", key), threads, limits.max_threads, "threads", "max-load-threads"
        steps = len(config.ensemble_scheduling.step)
        yield "ensemble_scheduling.step", steps, limits.max_ensemble_steps, "steps", "max-load-ensemble-steps"
        buckets = sum(len(each.histogram_options.buckets) for each in config.model_metrics.metric_control)
        field = "model_metrics.metric_control"
        yield field, buckets, limits.max_buckets, "histogram buckets", "max-load-histogram-buckets"
        runs = sum(sample.count or 1 for sample in config.model_warmup if sample.batch_size)
        yield "model_warmup", runs, limits.max_warm_ups, "warm-up executions", "max-load-warmups"
        if config.HasField("sequence_batching"):
            field, slots = _slots(config)
            yield field, slots * max(1, total), limits.max_sequences, "sequences", "max-load-sequences"

    # --- bytes ------------------------------------------------------------------------------------------------------

    def _bytes(self, config: ModelConfig) -> Iterator[_Row]:
        sizes = [*_warm_up_bytes(config), *_state_bytes(config), *_padded_bytes(config)]
        total = sum(size for _, size in sizes)
        if sizes:
            field = max(sizes, key=lambda size: size[1])[0]
            yield field, total, self.limits.max_bytes, "bytes", "max-load-bytes"


def _instances(config: ModelConfig) -> tuple[str, int]:
    """Return the field with the largest number of instances, and the number of all.

    A group without a count, or with one below 1, has at least one instance.
    """
    counts = [max(1, group.count) * max(1, len(group.gpus)) for group in config.instance_group]
    if not counts:
        return "instance_group", 0
    return f"instance_group[{counts.index(max(counts))}].count", sum(counts)


def _slots(config: ModelConfig) -> tuple[str, int]:
    oldest = config.sequence_batching.oldest
    if oldest.max_candidate_sequences > 0:
        return "sequence_batching.oldest.max_candidate_sequences", oldest.max_candidate_sequences
    return "max_batch_size", max(1, config.max_batch_size)


def _whole(config: ModelConfig, key: str, default: int) -> int:
    """Return a parameter that is a whole number; a wrong text is a matter of the backend."""
    text = config.parameters[key].string_value.strip() if key in config.parameters else ""
    return int(text[:20]) if text.isascii() and text.isdecimal() else default


def _tensor_bytes(data_type: int, dims: Sequence[int]) -> int:
    """Return the size of a tensor; of variable dimensions only what is sure."""
    if data_type == ConfigDataType.TYPE_INVALID:
        return 0
    datatype = BY_CONFIG_NUMBER[data_type]
    return math.prod(max(1, size) for size in dims) * (datatype.item_bytes or _MIN_ITEM_BYTES)


def _warm_up_bytes(config: ModelConfig) -> Iterator[tuple[str, int]]:
    for index, sample in enumerate(config.model_warmup):
        rows = sample.batch_size
        yield f"model_warmup[{index}].batch_size", rows * _REQUEST_BYTES
        for name in sorted(sample.inputs):
            entry = sample.inputs[name]
            size = _tensor_bytes(entry.data_type, entry.dims) * rows
            yield f"{map_path(f'model_warmup[{index}].inputs', name)}.dims", size


def _state_bytes(config: ModelConfig) -> Iterator[tuple[str, int]]:
    for index, state in enumerate(config.sequence_batching.state):
        path = f"sequence_batching.state[{index}]"
        yield f"{path}.dims", _tensor_bytes(state.data_type, state.dims)
        for position, initial in enumerate(state.initial_state):
            yield f"{path}.initial_state[{position}].dims", _tensor_bytes(initial.data_type, initial.dims)


def _padded_bytes(config: ModelConfig) -> Iterator[tuple[str, int]]:
    """Yield what one execution of a single short row may be padded to."""
    parameters = config.parameters
    if _FIXED_ROWS in parameters and parameters[_FIXED_ROWS].string_value == "YES":
        for index, tensor in enumerate(config.input):
            size = _tensor_bytes(tensor.data_type, tensor.dims) * max(1, config.max_batch_size)
            yield f"max_batch_size (input[{index}])", size
    if not any(key == PAD_BATCH or key.startswith(PAD_PREFIX) for key in parameters):
        return
    try:
        padding = read_padding(config)
    except PaddingTextError:
        return  # reported with the configuration
    if padding is None:
        return
    rows = padding.rows[-1] if padding.rows else 1
    for tensor in config.input:
        padded = padding.inputs.get(tensor.name)
        if padded is None:
            yield map_path("parameters", PAD_BATCH), _tensor_bytes(tensor.data_type, tensor.dims) * rows
            continue
        length = padded.buckets[-1] if padded.buckets else padded.multiple_of
        dims = [length if size < 0 else size for size in tensor.dims]
        yield map_path("parameters", PAD_PREFIX + tensor.name), _tensor_bytes(tensor.data_type, dims) * rows
