"""The model of a job: its inputs and outputs, and how many rows and requests it takes at once."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from naiad.config.model_config_pb2 import ModelConfig
from naiad.config.tensors.features import Features, read_features
from naiad.core.errors import invalid_argument, unsupported
from naiad.core.model import ModelMetadata
from naiad.protocol.generate import pictures_of
from naiad.protocol.pictures import PictureReader
from naiad.tools.predict.prediction_job import PredictJob
from naiad.tools.values.tensor import ModelTensor, model_tensor

DEFAULT_ROWS = 8192
"""The max_batch_size of a model without one, in a run of its own; `_REQUEST_BYTES` bound the rows of a request."""
_REQUEST_BYTES = 2 << 20
_LEAST_ROWS = 8
_UNKNOWN_SIZE_ROWS = 64
"""Where an input has free dimensions."""
_FEW_ROWS = 8
_REQUESTS_PER_INSTANCE = 2
"""One executes, the next one waits, so that no instance is idle."""
_MAX_REQUESTS = 64
_ENSEMBLE_REQUESTS = 8


@dataclass(frozen=True, slots=True)
class RowSignature:
    """What the rows of a job are for."""

    model: str
    inputs: Mapping[str, ModelTensor]
    outputs: Mapping[str, ModelTensor]
    """Those that the job writes."""
    max_rows: int
    """Of a request."""
    concurrency: int
    """Requests at the same time."""
    may_share_batches: bool
    """Whether requests that are outstanding together may fail together."""
    features: Features = field(default_factory=Features)
    """The columns that the model was trained on, as far as it says so."""
    pictures: PictureReader | None = None
    """Of the input whose values are pictures: names of files, or their contents."""

    @property
    def required(self) -> list[ModelTensor]:
        """The inputs that each row needs."""
        return [tensor for tensor in self.inputs.values() if not tensor.is_optional]


def read_signature(job: PredictJob, metadata: ModelMetadata, config: ModelConfig) -> RowSignature:
    """Return the signature. Raises InferError for a model that a batch prediction cannot use, or wrong names."""
    _check_kind(job.model, config)
    is_batching = config.max_batch_size > 0
    hints = {each.name: each for each in config.input}
    inputs = {
        each.name: model_tensor(each, hints.get(each.name), is_batching=is_batching) for each in metadata.inputs
    }
    features = read_features(config)
    if features.null_is_nan:
        inputs = {name: replace(tensor, null_is_nan=True) for name, tensor in inputs.items()}
    outputs = {each.name: model_tensor(each, None, is_batching=is_batching) for each in metadata.outputs}
    if not outputs:
        raise invalid_argument(f"model '{job.model}' has no outputs in its metadata: its rows would be empty")
    _check_names("output", job.outputs, outputs, job.model)
    _check_names("input", job.columns.values(), inputs, job.model)
    if job.rows_per_request > max(1, config.max_batch_size):
        limit = f"max_batch_size {config.max_batch_size}" if is_batching else "no batch dimension; use 1"
        raise invalid_argument(f"rows_per_request is {job.rows_per_request}: model '{job.model}' has {limit}")
    return RowSignature(
        job.model,
        inputs,
        {name: outputs[name] for name in job.outputs or outputs},
        job.rows_per_request or _rows_per_request(config, list(inputs.values())),
        job.concurrency or _default_concurrency(config),
        config.HasField("dynamic_batching") or config.HasField("ensemble_scheduling"),
        features,
        pictures_of(config),
    )


def changed_tensor(signature: RowSignature, metadata: ModelMetadata) -> str:
    """Return how a tensor of a job differs from what the model has now; "" if none does."""
    for kind, used, known in (
        ("input", signature.inputs, metadata.inputs),
        ("output", signature.outputs, metadata.outputs),
    ):
        specs = {each.name: each for each in known}
        for name, tensor in used.items():
            spec = specs.get(name)
            if spec is None:
                return f"{kind} '{name}' is gone"
            before = (tensor.datatype, (-1, *tensor.dims) if tensor.is_batched else tensor.dims)
            if (spec.datatype, spec.shape) != before:
                texts = [
                    f"{datatype.value} {list(shape)}" for datatype, shape in (before, (spec.datatype, spec.shape))
                ]
                return f"{kind} '{name}' was {texts[0]} and is {texts[1]}"
        if added := [name for name in specs if name not in used and kind == "input"]:
            return f"input '{added[0]}' is new"
    return ""


def _rows_per_request(config: ModelConfig, inputs: Sequence[ModelTensor]) -> int:
    """Return the configured batch, or what is fast and fits the memory for a model without a configuration."""
    if config.max_batch_size != DEFAULT_ROWS:
        return max(1, config.max_batch_size)
    if any(dim < 0 for tensor in inputs for dim in tensor.dims):
        return _UNKNOWN_SIZE_ROWS
    row_bytes = sum(math.prod(tensor.dims) * max(1, tensor.datatype.item_bytes) for tensor in inputs)
    rows = max(_LEAST_ROWS, min(DEFAULT_ROWS, _REQUEST_BYTES // max(1, row_bytes)))
    return 1 << (rows.bit_length() - 1)


def size_hint(job: PredictJob, signature: RowSignature) -> str:
    """Return the hint about requests of few rows, which the model's configuration causes; empty for others."""
    if job.rows_per_request or not 1 < signature.max_rows < _FEW_ROWS:
        return ""
    return (
        f"requests have {signature.max_rows} rows, the max_batch_size of model '{job.model}'; a larger one in its "
        "config.pbtxt is usually several times as fast"
    )


def _check_kind(model: str, config: ModelConfig) -> None:
    if config.HasField("sequence_batching"):
        raise unsupported(
            f"model '{model}' has sequence_batching: its result depends on earlier requests, and rows of files are "
            "independent; use naiad.client with a sequence_id"
        )
    if config.model_transaction_policy.decoupled:
        raise unsupported(
            f"model '{model}' is decoupled: it may return any number of responses, and the output has one row for "
            "each row of the input; use naiad.client or tritonclient's stream"
        )


def _check_names(kind: str, names: Iterable[str], known: Mapping[str, object], model: str) -> None:
    for name in names:
        if name not in known:
            raise invalid_argument(
                f"model '{model}' has no {kind} '{name}'; it has {', '.join(map(repr, known)) or 'none'}"
            )


def _default_concurrency(config: ModelConfig) -> int:
    if config.HasField("ensemble_scheduling"):
        return _ENSEMBLE_REQUESTS
    instances = sum(max(1, group.count) * max(1, len(group.gpus)) for group in config.instance_group)
    return min(_MAX_REQUESTS, _REQUESTS_PER_INSTANCE * max(1, instances))
