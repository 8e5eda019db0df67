"""The requests that a run sends to a model: made once, sent many times."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.datatype import DataType
from naiad.core.model import ModelMetadata
from naiad.core.parameters import ParameterValue
from naiad.core.request import RequestHeader
from naiad.core.tensor import Array, TensorSpec, to_buffer
from naiad.perf.exchange import RequestTemplate
from naiad.perf.inputs.output_slots import OutputSlots, with_memory
from naiad.perf.inputs.signature import InputError, ModelTensor, Signature, read_signature
from naiad.perf.inputs.sources import read_sources
from naiad.perf.inputs.step import Step, Stream
from naiad.perf.inputs.validation import Body, validate
from naiad.perf.plan import Mode, ModelPlan, Protocol, Service

_RESERVED_PARAMETERS = ("sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "binary_data_output")


@dataclass(frozen=True, slots=True)
class TemplateSet:
    """The templates of a model. An exchange names one by its index in `templates`."""

    templates: Sequence[RequestTemplate]
    streams: Sequence[range]
    """Indexes of templates: one stream for plain data, one for each sequence of data files."""
    offsets_ns: tuple[int, ...] = ()
    """Moments of a fixed schedule from the start, a template each and ascending; empty for data without."""
    output_bytes: Mapping[str, int] = field(default_factory=dict)
    """What each output of a request takes in shared memory."""
    tolerance: float = 0.0
    """Of validation."""
    outputs: OutputSlots | None = None
    """Outputs in shared memory."""

    @property
    def has_slots(self) -> bool:
        """Whether a request depends on its slot, so that each slot has prepared requests of its own."""
        return self.outputs is not None and bool(self.outputs.byte_size)

    def variant(self, index: int, slot: int) -> RequestTemplate:
        """Return a template as the request in a slot sends it: with the places of its outputs in shared memory."""
        template = self.templates[index]
        if self.outputs is None or not self.outputs.byte_size:
            return template
        header = template.header
        return replace(template, header=with_memory(header, header.shared_memory, self.outputs.requested(slot)))

    def validate(self, index: int, slot: int, body: Body) -> str:
        """Return "" if a response has the expected outputs of its template, otherwise the first difference."""
        expected = self.templates[index].expected
        outputs = self.outputs
        if outputs is not None and expected:
            body = [(specs, outputs.fill(slot, specs, data)) for specs, data in body]
        return validate(expected, body, self.tolerance)

    def index_of(self, request: int, process: int = 0, processes: int = 1) -> int:
        """Return the template of a process's request number `request`: in turn, over all processes together."""
        return (process + request * processes) % len(self.templates)

    def index_in_stream(self, sequence: int, position: int) -> int:
        """Return the template at a position of sequence number `sequence`; sequences take the streams in turn."""
        stream = self.streams[sequence % len(self.streams)]
        return stream[position % len(stream)]


def prepare_inputs(
    plan: ModelPlan,
    metadata: ModelMetadata,
    config: ModelConfig | None,
    service: Service | None = None,
    *,
    is_only_model: bool = True,
) -> TemplateSet:
    """Return the requests of a plan for a model.

    `config` is None for a server without the configuration extension. Unless `is_only_model` the settings, which the
    models of a run share, may name inputs of other models. Reads files. For the same plan and seed the
    result is the same in each process. Raises InputError.
    """
    _check_parameters(plan.inputs.parameters)
    signature = read_signature(plan, metadata, config, is_only_model=is_only_model)
    streams = read_sources(plan, signature)
    offsets_ns: tuple[int, ...] = ()
    if plan.batch_size == 1 and len(streams) == 1 and all(step.timestamp_ms is not None for step in streams[0]):
        streams = [sorted(streams[0], key=_timestamp_ms)]
        offsets_ns = tuple(round(_timestamp_ms(step) * 1e6) for step in streams[0])
    templates: list[RequestTemplate] = []
    ranges: list[range] = []
    for stream in streams:
        start = len(templates)
        templates += [_template(plan, signature, rows, service) for rows in _rows(stream, plan, signature)]
        ranges.append(range(start, len(templates)))
    sizes = {tensor.name: _output_bytes(tensor, plan) for tensor in signature.outputs.values()}
    return TemplateSet(templates, ranges, offsets_ns, sizes, plan.inputs.validation_tolerance)


def _output_bytes(tensor: ModelTensor, plan: ModelPlan) -> int:
    if tensor.datatype is DataType.BYTES or -1 in tensor.dims:
        return plan.inputs.output_bytes * plan.batch_size
    rows = plan.batch_size if tensor.is_batched else 1
    return max(1, math.prod(tensor.dims) * tensor.datatype.item_bytes * rows)


def is_reserved(parameter: str) -> bool:
    """Return whether the protocol uses the name of a parameter itself."""
    return parameter in _RESERVED_PARAMETERS or parameter.startswith("triton_")


def waits_for_empty_final(service: Service | None) -> bool:
    """Return whether requests ask for an empty final response: on streams, for decoupled models."""
    return service is not None and service.protocol is Protocol.GRPC and service.mode is Mode.STREAM


def _check_parameters(parameters: Mapping[str, ParameterValue]) -> None:
    """Check that no request parameter has a name that the protocol uses itself. Raises InputError."""
    for name in parameters:
        if is_reserved(name):
            raise InputError(
                f"--request-parameter {name}: the name is reserved by the protocol; names other than "
                f"{', '.join(_RESERVED_PARAMETERS)} and triton_* are free"
            )


def _timestamp_ms(step: Step) -> float:
    return step.timestamp_ms or 0.0


def _rows(stream: Stream, plan: ModelPlan, signature: Signature) -> Iterable[Sequence[Step]]:
    """Yield the samples of each request."""
    size = plan.batch_size
    if signature.has_sequences:
        # Steps of a sequence follow each other: a batch repeats a step.
        return ([step] * size for step in stream)
    count = len(stream)
    return ([stream[(start + row) % count] for row in range(size)] for start in range(0, count, size))


def _template(
    plan: ModelPlan, signature: Signature, rows: Sequence[Step], service: Service | None
) -> RequestTemplate:
    arrays = _joined([row.tensors for row in rows], "input", rows, signature)
    header = RequestHeader(
        model_name=plan.name,
        model_version=plan.version,
        inputs=[TensorSpec(name, signature.inputs[name].datatype, array.shape) for name, array in arrays.items()],
        parameters=plan.inputs.parameters,
        binary_output_default=service is None or service.has_binary_outputs,
        wants_empty_final=waits_for_empty_final(service),
    )
    # As bytes, so that a template can be sent to another generator process.
    data = [bytes(to_buffer(array)) for array in arrays.values()]
    expected = _joined([row.expected for row in rows], "output", rows, signature)
    return RequestTemplate(header, data, expected, rows[0].source)


def _joined(
    samples: Sequence[Mapping[str, Array]], kind: str, rows: Sequence[Step], signature: Signature
) -> dict[str, Array]:
    """Join the tensors of samples to a request's. Raises InputError for samples that do not fit together."""
    first = samples[0]
    joined: dict[str, Array] = {}
    for name, array in first.items():
        tensor = (signature.inputs if kind == "input" else signature.outputs)[name]
        if not tensor.is_batched:
            joined[name] = array
            continue
        for sample, row in zip(samples, rows, strict=True):
            if sample.keys() != first.keys() or sample[name].shape != array.shape:
                raise InputError(
                    f"{rows[0].source} and {row.source} cannot be in one batch: {kind} '{name}' has shape "
                    f"{list(array.shape)} and {_shape_of(sample, name)}; use batch size 1, or equal shapes"
                )
        joined[name] = np.stack([sample[name] for sample in samples])
    return joined


def _shape_of(sample: Mapping[str, Array], name: str) -> str:
    return str(list(sample[name].shape)) if name in sample else "is missing"
