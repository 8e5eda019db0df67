"""Admission: check a request against the model's configuration, in Triton's order and with its messages.

All checks of a header run once and are kept in `RequestHeader.admission`; only the sizes of the data remain per
request.
"""

import math
from collections.abc import Collection, Sequence
from itertools import islice

from naiad.config.model_config_pb2 import ModelConfig
from naiad.config.tensors.padding import read_padding
from naiad.core.datatype import BY_CONFIG_NUMBER, DataType
from naiad.core.errors import InferError, excerpt, invalid_argument, request_prefix, unavailable
from naiad.core.request import InferRequest, RequestHeader
from naiad.core.slices import SLICE_BYTES, Slices, finish
from naiad.core.tensor import Buffer, Shape, TensorSpec, count_bytes_elements

_ANY_SIZE = -1
CONFIGURED_BATCH_SIZE = "max_batch_size in config.pbtxt: raise it there, or send smaller batches"
BARE_BATCH_SIZE = "--max-batch-size, which bare model files have: start naiad serve with a larger one"
"""Such models execute larger requests in parts; the error is for those that cannot be split."""
_MOST_NAMES = 8
"""Maximum number of tensor names in an error."""


class Admission:
    """The facts that a model version derived from an accepted header; shared by all requests with that header."""

    __slots__ = ("batch_size", "data_sizes", "rules", "shape_key", "strings")

    def __init__(
        self,
        rules: "AdmissionRules",
        batch_size: int,
        shape_key: object,
        data_sizes: Sequence[int],
        strings: Sequence[int],
    ) -> None:
        self.rules = rules
        """Identifies the version without a reference, which would keep unloaded versions in memory."""
        self.batch_size = batch_size
        self.shape_key = shape_key
        self.data_sizes = tuple(data_sizes)
        """Expected bytes of each input's data; -1 for BYTES, which are checked by element count."""
        self.strings = tuple(strings)
        """Positions of the BYTES inputs."""


class LargeAdmission(Admission):
    """Of a header with more rows than a batch may have, whose requests are executed in parts."""

    __slots__ = ()


class _Expected:
    """One configured input, compared with a request's tensor."""

    __slots__ = ("datatype", "dims", "name", "optional", "ragged")

    def __init__(self, name: str, datatype: DataType, dims: Shape, *, optional: bool, ragged: bool) -> None:
        self.name = name
        self.datatype = datatype
        self.dims = dims
        self.optional = optional
        self.ragged = ragged


class AdmissionRules:
    """The rules of one model version, from its configuration."""

    def __init__(
        self, config: ModelConfig, batch_size_origin: str = CONFIGURED_BATCH_SIZE, *, max_rows: int = 0
    ) -> None:
        """`batch_size_origin`: for errors, where max_batch_size comes from and how to change it.

        `max_rows`: of requests that are executed in parts, if larger than max_batch_size.
        """
        self._model_name = config.name
        self._batch_size_origin = batch_size_origin
        self._max_batch_size = config.max_batch_size
        self._max_rows = max(max_rows, config.max_batch_size) if config.max_batch_size > 0 else 0
        self._inputs: dict[str, _Expected] = {}
        for tensor in config.input:
            self._inputs[tensor.name] = _Expected(
                tensor.name,
                BY_CONFIG_NUMBER[tensor.data_type],
                tuple(tensor.dims),
                optional=tensor.optional,
                ragged=tensor.allow_ragged_batch,
            )
        padding = read_padding(config)
        self._padded = {} if padding is None else padding.inputs
        self._outputs = frozenset(output.name for output in config.output)
        self._required = [name for name, expected in self._inputs.items() if not expected.optional]

    def admit(self, request: InferRequest) -> Admission:
        """Check the header of a request, and note the result in it. Raises InferError with Triton's text."""
        header = request.header
        try:
            admission = header.admission = self._admit(header)
        except InferError as error:
            # Triton: other code rejects names that the model does not have, without the prefix.
            opening = "" if error.message.startswith("unexpected inference ") else request_prefix(request.id)
            raise error.with_message(opening + error.message) from None
        if header.origin is not None:
            header.origin.admission = admission
        return admission

    def _admit(self, header: RequestHeader) -> Admission:
        self._check_outputs(header)
        self._check_input_set(header)
        batch_size = self._check_batch(header) if self._max_batch_size > 0 else 1
        for spec in header.inputs:
            self._check_input(spec)
        sizes = [_ANY_SIZE if s.datatype is DataType.BYTES else s.byte_size for s in header.inputs]
        strings = [i for i, s in enumerate(header.inputs) if s.datatype is DataType.BYTES]
        kind = LargeAdmission if batch_size > max(1, self._max_batch_size) else Admission
        return kind(self, batch_size, self._shape_key(header), sizes, strings)

    def _check_outputs(self, header: RequestHeader) -> None:
        seen: set[str] = set()
        for output in header.outputs:
            if output.name in seen:
                raise invalid_argument(f"output '{excerpt(output.name)}' already exists in request")
            seen.add(output.name)
            if output.name not in self._outputs:
                raise self._unexpected("output", output.name, sorted(self._outputs))

    def _check_input_set(self, header: RequestHeader) -> None:
        names = [spec.name for spec in header.inputs]
        for position, name in enumerate(names):
            if name in names[:position]:
                raise invalid_argument(f"input '{excerpt(name)}' already exists in request")
        missing = [name for name in self._required if name not in names]
        if missing or len(names) > len(self._inputs):
            raise self._wrong_count(names, missing)
        for name in names:
            if name not in self._inputs:
                raise self._unexpected("input", name, self._inputs)

    def _unexpected(self, kind: str, name: str, known: Collection[str]) -> InferError:
        # Triton: the text before the semicolon.
        names = ", ".join(f"'{each}'" for each in islice(known, _MOST_NAMES))
        more = ", ..." if len(known) > _MOST_NAMES else ""
        known_names = f"its {kind}s are {names}{more}; send one of these names" if known else f"it has no {kind}s"
        return invalid_argument(
            f"unexpected inference {kind} '{excerpt(name)}' for model '{self._model_name}'; {known_names}"
        )

    def _wrong_count(self, names: Sequence[str], missing: Sequence[str]) -> InferError:
        unknown = [name for name in names if name not in self._inputs]
        if unknown and len(names) == len(self._inputs):
            return self._unexpected("input", unknown[0], self._inputs)
        low, high = len(self._required), len(self._inputs)
        if low == high:
            opening = f"expected {high} inputs but got {len(names)} inputs for model '{self._model_name}'."
        else:
            opening = (
                f"expected number of inputs between {low} and {high} but got {len(names)} inputs "
                f"for model '{self._model_name}'."
            )
        got = ",".join([f"'{excerpt(name)}'" for name in names[:_MOST_NAMES]] + ["..."] * (len(names) > _MOST_NAMES))
        lacking = ",".join(f"'{name}'" for name in missing)
        tail = f" Got input(s) [{got}]"
        if missing:
            tail += f", but missing required input(s) [{lacking}]. Please provide all required input(s)."
        else:
            tail += "."
        return invalid_argument(opening + tail)

    def _check_batch(self, header: RequestHeader) -> int:
        batch_size = 0
        for position, spec in enumerate(header.inputs):
            if not spec.shape:
                raise invalid_argument(
                    f"input '{excerpt(spec.name)}' has no shape but model requires batch dimension for "
                    f"'{self._model_name}'"
                )
            if position == 0:
                batch_size = spec.shape[0]
            elif spec.shape[0] != batch_size:
                raise invalid_argument(
                    f"input '{excerpt(spec.name)}' batch size does not match other inputs for '{self._model_name}'; "
                    f"the first dimension is the batch: {spec.shape[0]} here, {batch_size} before"
                )
        if not 0 <= batch_size <= self._max_rows:
            raise self.too_many_rows(batch_size)
        return batch_size

    def too_many_rows(self, batch_size: int) -> InferError:
        """Return the error for a request with more rows than a batch may have."""
        return invalid_argument(
            f"inference request batch-size must be <= {self._max_batch_size} for '{self._model_name}', got "
            f"{batch_size}; the limit comes from {self._batch_size_origin}"
        )

    def _check_input(self, spec: TensorSpec) -> None:
        expected = self._inputs[spec.name]
        if spec.datatype is not expected.datatype:
            raise invalid_argument(
                f"inference input '{excerpt(spec.name)}' data-type is '{spec.datatype.value}', "
                f"but model '{self._model_name}' expects '{expected.datatype.value}'; convert the tensor to it"
            )
        dims = spec.shape[1:] if self._max_batch_size > 0 else spec.shape
        if any(dim < 0 for dim in spec.shape):
            raise invalid_argument(
                f"All input dimensions should be specified for input '{excerpt(spec.name)}' for model "
                f"'{self._model_name}', got {_text(spec.shape)}"
            )
        if len(dims) != len(expected.dims) or any(
            want not in (-1, got) for want, got in zip(expected.dims, dims, strict=True)
        ):
            raise self._wrong_shape(spec, expected)

    def _wrong_shape(self, spec: TensorSpec, expected: _Expected) -> InferError:
        full = (-1, *expected.dims) if self._max_batch_size > 0 else expected.dims
        note = ""
        if self._max_batch_size > 0:
            note = (
                "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be "
                "prepended to each input shape. If you want to specify the full shape including the batch dim in "
                "your input dims config, try setting max_batch_size to zero. See the model configuration docs "
                "for more info on max_batch_size. "
            )
        return invalid_argument(
            f"unexpected shape for input '{excerpt(spec.name)}' for model '{self._model_name}'. "
            f"Expected {_text(full)}, got {_text(spec.shape)}. {note}Send the expected shape; -1 is any size."
        )

    def _shape_key(self, header: RequestHeader) -> object:
        batching = self._max_batch_size > 0
        key: list[tuple[str, Shape | None]] = []
        for spec in header.inputs:
            if self._inputs[spec.name].ragged:
                key.append((spec.name, None))
            elif spec.name in self._padded:
                key.append((spec.name, self._padded[spec.name].padded(spec.shape[1:])))
            else:
                key.append((spec.name, spec.shape[1:] if batching else spec.shape))
        return tuple(sorted(key, key=lambda item: item[0]))

    def check_sizes(self, request: InferRequest, admission: Admission) -> None:
        """Check the data of a request if its sizes differ from the header's, or if it has strings.

        Raises InferError(INVALID_ARG) with Triton's message.
        """
        counts = request.element_counts
        sizes = zip(request.header.inputs, request.data, admission.data_sizes, strict=True)
        for position, (spec, data, size) in enumerate(sizes):
            if size == _ANY_SIZE:
                self._check_strings(request, spec, data, -1 if counts is None else counts[position])
            elif len(data) != size:
                raise invalid_argument(
                    f"{request_prefix(request.id)}input byte size mismatch for input '{excerpt(spec.name)}' for "
                    f"model '{self._model_name}'. Expected {size}, got {len(data)}; send all {spec.element_count} "
                    f"elements of its shape as {spec.datatype.value}"
                )

    def _check_strings(self, request: InferRequest, spec: TensorSpec, data: Buffer, count: int) -> None:
        expected = math.prod(spec.shape)
        where = _where(spec, self._model_name)
        if count < 0:
            try:
                count = finish(count_bytes_elements(data, where))
            except InferError as error:
                raise invalid_argument(f"{request_prefix(request.id)}{error.message}") from None
        if count > expected:
            raise invalid_argument(
                f"{request_prefix(request.id)}unexpected number of string elements {count} {where}, expecting "
                f"{expected}"
            )
        if count < expected:
            raise invalid_argument(
                f"{request_prefix(request.id)}expected {expected} string elements {where}, got {count}"
            )


def count_elements(header: RequestHeader, request_id: str, data: Sequence[Buffer]) -> Slices[Sequence[int] | None]:
    """Count the elements of large BYTES inputs in slices, so that admission need not count them at once.

    Raises InferError(INVALID_ARG) as admission does.
    """
    counts = [-1] * len(data)
    for position, (spec, content) in enumerate(zip(header.inputs, data, strict=True)):
        if spec.datatype is DataType.BYTES and len(content) > SLICE_BYTES:
            try:
                counts[position] = yield from count_bytes_elements(content, _where(spec, header.model_name))
            except InferError as error:
                raise invalid_argument(f"{request_prefix(request_id)}{error.message}") from None
    return counts


def _where(spec: TensorSpec, model_name: str) -> str:
    return f"for inference input '{excerpt(spec.name)}' for model '{model_name}'"


def stopped(request_id: str) -> InferError:
    """Return Triton's error for a request to a model that stops."""
    return unavailable(
        f"{request_prefix(request_id)}Server is stopping, scheduler for model has stopped accepting new inference "
        "requests"
    )


def _text(shape: Shape) -> str:
    return "[" + ",".join(str(dim) for dim in shape) + "]"
