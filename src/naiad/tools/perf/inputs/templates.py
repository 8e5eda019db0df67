"""The requests that a run sends to a model, made once from all sources, and what their responses must equal."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.datatype import DataType
from naiad.core.errors import InferError
from naiad.core.model import ModelMetadata
from naiad.core.parameters import ParameterValue
from naiad.core.request import RequestHeader
from naiad.core.tensor import Array, Buffer, TensorSpec, to_array, to_buffer
from naiad.tools.perf.inputs.data_files import SUFFIXES, read_directory, read_image, read_numpy
from naiad.tools.perf.inputs.generated import random_stream, zero_stream
from naiad.tools.perf.inputs.json_data import read_json
from naiad.tools.perf.inputs.memory_blocks import OutputSlots, with_memory
from naiad.tools.perf.inputs.request_signature import InputStep, Signature, Stream, read_signature
from naiad.tools.perf.inputs.response_check import DeclaredOutputs, declared_outputs
from naiad.tools.perf.perf_exchange import Body, RequestTemplate
from naiad.tools.perf.perf_plan import Mode, ModelLoad, Protocol, ServerTarget
from naiad.tools.values.conversion import is_float
from naiad.tools.values.tensor import InputError, ModelTensor

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
    declared: DeclaredOutputs | None = None
    """What each response must have; None for responses that are not checked."""

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

    def check_answer(self, index: int, body: Body, *, is_whole: bool) -> str:
        """Return "" if responses are such as the model declares, otherwise what is wrong."""
        if self.declared is None:
            return ""
        requested = [output.name for output in self.templates[index].header.outputs]
        return self.declared.check(requested, body, is_whole=is_whole, has_data=self.outputs is None)

    def validate(self, index: int, slot: int, body: Body) -> str:
        """Return "" if a response has the expected outputs of its template, otherwise the first difference."""
        expected = self.templates[index].expected
        outputs = self.outputs
        if outputs is not None and expected:
            body = [(specs, outputs.fill(slot, specs, data)) for specs, data in body]
        return validate(expected, body, self.tolerance)


def prepare_inputs(
    plan: ModelLoad,
    metadata: ModelMetadata,
    config: ModelConfig | None,
    service: ServerTarget | None = None,
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
    is_decoupled = config is None or config.model_transaction_policy.decoupled
    declared = declared_outputs(signature, plan.batch_size, (plan.name, metadata.name), is_decoupled=is_decoupled)
    return TemplateSet(templates, ranges, offsets_ns, sizes, plan.inputs.validation_tolerance, declared=declared)


def _output_bytes(tensor: ModelTensor, plan: ModelLoad) -> int:
    if tensor.datatype is DataType.BYTES or -1 in tensor.dims:
        return plan.inputs.output_bytes * plan.batch_size
    rows = plan.batch_size if tensor.is_batched else 1
    return max(1, math.prod(tensor.dims) * tensor.datatype.item_bytes * rows)


def is_reserved(parameter: str) -> bool:
    """Return whether the protocol uses the name of a parameter itself."""
    return parameter in _RESERVED_PARAMETERS or parameter.startswith("triton_")


def waits_for_empty_final(service: ServerTarget | None) -> bool:
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


def _timestamp_ms(step: InputStep) -> float:
    return step.timestamp_ms or 0.0


def _rows(stream: Stream, plan: ModelLoad, signature: Signature) -> Iterable[Sequence[InputStep]]:
    """Yield the samples of each request."""
    size = plan.batch_size
    if signature.has_sequences:
        # Steps of a sequence follow each other: a batch repeats a step.
        return ([step] * size for step in stream)
    count = len(stream)
    return ([stream[(start + row) % count] for row in range(size)] for start in range(0, count, size))


def _template(
    plan: ModelLoad, signature: Signature, rows: Sequence[InputStep], service: ServerTarget | None
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
    samples: Sequence[Mapping[str, Array]], kind: str, rows: Sequence[InputStep], signature: Signature
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


# --- sources ------------------------------------------------------------------------------------------------------


def read_sources(plan: ModelLoad, signature: Signature) -> list[Stream]:
    """Return the samples of all sources: one stream, or several if a data file has streams. Raises InputError."""
    streams: list[Stream] = []
    are_streams = False
    for source in plan.inputs.sources:
        more, has_streams = _read(source, plan, signature)
        streams += more
        are_streams |= has_streams
    if not streams:
        raise InputError("expected a source of inputs: random, zero, or a path")
    return streams if are_streams else [[step for stream in streams for step in stream]]


def _read(source: str, plan: ModelLoad, signature: Signature) -> tuple[list[Stream], bool]:
    if source == "random":
        return [random_stream(signature, plan.inputs, plan.batch_size)], False
    if source == "zero":
        return [zero_stream(signature, plan.batch_size)], False
    path = Path(source)
    if not path.exists():
        raise InputError(f"--input-data {source}: expected random, zero, or a path that exists")
    if path.suffix == ".json":
        return read_json(path, signature)
    if path.is_dir():
        return [read_directory(path, signature, plan.inputs)], False
    if path.suffix in (".npy", ".npz"):
        return [read_numpy(path, signature)], False
    if path.suffix.lower() in SUFFIXES:
        return [[read_image(path, signature, plan.inputs)]], False
    raise InputError(
        f"--input-data {source}: expected random, zero, a directory, or a .json, .npy, .npz or picture file "
        f"({', '.join(SUFFIXES)})"
    )


# --- validation ---------------------------------------------------------------------------------------------------

_SHOWN_CHARACTERS = 60


def validate(expected: Mapping[str, Array], body: Body, tolerance: float = 0.0) -> str:
    """Return "" if the responses have all expected outputs, otherwise the first difference.

    An output of several responses is compared in the first one that has it. With a tolerance floating-point values
    may differ by that share of the expected value; without one all bytes are equal.
    """
    outputs: dict[str, tuple[TensorSpec, Buffer]] = {}
    for specs, data in body:
        for spec, content in zip(specs, data, strict=True):
            outputs.setdefault(spec.name, (spec, content))
    for name, wanted in expected.items():
        if name not in outputs:
            return f"output '{name}': missing in the response; it has {', '.join(map(repr, outputs)) or 'none'}"
        difference = _difference(wanted, *outputs[name], tolerance)
        if difference:
            return f"output '{name}'{difference}"
    return ""


def _difference(expected: Array, spec: TensorSpec, data: Buffer, tolerance: float) -> str:
    if spec.shape != expected.shape:
        return f": expected shape {list(expected.shape)}, got {list(spec.shape)}"
    if spec.datatype.numpy == expected.dtype and bytes(data) == bytes(to_buffer(expected)):
        return ""
    try:
        got = to_array(spec, data)
    except InferError as error:
        return f": {error.message}"
    if got.dtype != expected.dtype:
        return f": expected values of {expected.dtype}, got {spec.datatype.value}"
    different = np.flatnonzero(_differs(expected, got, tolerance if is_float(spec.datatype) else 0.0))
    if not different.size:
        return ""
    index = tuple(int(part) for part in np.unravel_index(different[0], expected.shape))
    return f"{list(index)}: expected {_shown(expected[index])}, got {_shown(got[index])}"


def _differs(expected: Array, got: Array, tolerance: float) -> Array:
    if tolerance:
        wide, found = expected.astype(np.float64), got.astype(np.float64)
        return np.asarray(~np.isclose(found, wide, rtol=tolerance, atol=0.0, equal_nan=True))
    if expected.dtype == np.object_:
        return np.asarray(expected != got, bool)
    size = expected.dtype.itemsize
    pairs = (np.ascontiguousarray(each).reshape(-1).view(np.uint8).reshape(-1, size) for each in (expected, got))
    return np.asarray(np.not_equal(*pairs).any(axis=1))


def _shown(value: object) -> str:
    return (repr(value) if isinstance(value, bytes) else str(value))[:_SHOWN_CHARACTERS]
