"""The identity backend: every INPUTn comes back as OUTPUTn, after a delay if wanted. For tests and studies.

Parameters, as Triton's backend of this name has them: `execute_delay_ms` for every execution,
`instance_wise_delay_multiplier` (instance i sleeps i times the delay times this number, at least once the delay),
`creation_delay_sec` for loading.
"""

import math
import time
from collections.abc import Sequence
from typing import ClassVar

from naiad.backend.api import Backend, Instance, InstanceSpec, Model, ModelContext
from naiad.backend.tensor_layout import TensorConfig, shape_text
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.batch import Batch
from naiad.core.errors import invalid_argument
from naiad.core.request import InferRequest, RequestHeader
from naiad.core.response import InferResponse, ResponseHeader
from naiad.core.tensor import Buffer, TensorSpec

MAX_ECHOES = 512
"""Request headers that an instance remembers."""
_LENGTH_BYTES = 4


class IdentityBackend(Backend):
    """Models without a model file."""

    name: ClassVar[str] = "identity"

    def load(self, context: ModelContext) -> Model:
        """Check the pairs of inputs and outputs. Raises InferError(INVALID_ARG)."""
        pairs = pair_tensors(context.config)
        delay_s = _parameter(context.config, "creation_delay_sec")
        execute_delay_ms = _parameter(context.config, "execute_delay_ms")
        multiplier = _parameter(context.config, "instance_wise_delay_multiplier")
        if delay_s:
            context.stop.wait(delay_s)
        return IdentityModel(context, pairs, execute_delay_ms / 1000, multiplier)


class IdentityModel(Model):
    """Which input comes back as which output, and how late."""

    def __init__(self, context: ModelContext, pairs: dict[str, str], delay_s: float, multiplier: float) -> None:
        self.name = context.name
        self.version = str(context.version)
        self.is_batching = context.config.max_batch_size > 0
        inputs = {tensor.name: TensorConfig(tensor) for tensor in context.config.input}
        outputs = {tensor.name: TensorConfig(tensor) for tensor in context.config.output}
        self.pairs = [(inputs[name], outputs[partner]) for name, partner in pairs.items()]
        self._delay_s = delay_s
        self._multiplier = multiplier

    def create_instance(self, spec: InstanceSpec) -> Instance:
        """Create an instance with its own delay."""
        if not self._delay_s:
            return IdentityInstance(self)
        return DelayedIdentityInstance(self, self._delay_s * max(1.0, self._multiplier * spec.index))


class _Echo:
    """What a request with a certain header is answered with."""

    __slots__ = ("header", "positions", "zero_bytes")

    def __init__(self, model: IdentityModel, header: RequestHeader) -> None:
        wanted = {output.name for output in header.outputs}
        positions = {spec.name: position for position, spec in enumerate(header.inputs)}
        rows = header.inputs[0].shape[:1] if model.is_batching and header.inputs else (1,) * model.is_batching
        self.positions: list[int] = []
        """Of the input of each output; -1 for one that is missing."""
        self.zero_bytes: dict[int, int] = {}
        """Place among the outputs to the size of the zeros that answer it."""
        outputs: list[TensorSpec] = []
        for source, output in model.pairs:
            if wanted and output.name not in wanted:
                continue
            position = positions.get(source.name, -1)
            if position < 0:
                # Triton: an optional input that is missing is answered with zeros, and free dimensions are 1.
                tail = tuple(max(1, dim) for dim in source.model_dims)
            else:
                shape = header.inputs[position].shape
                tail = source.to_model(shape[1:] if model.is_batching else shape)
            # The two have one shape where the model is, so the reshape of the output fits.
            spec = TensorSpec(output.name, output.datatype, (*rows, *(output.to_client(tail) or ())))
            if position < 0:
                # A string without characters is its length, four bytes of zeros.
                self.zero_bytes[len(outputs)] = math.prod(spec.shape) * (spec.datatype.item_bytes or _LENGTH_BYTES)
            self.positions.append(position)
            outputs.append(spec)
        self.header = ResponseHeader(model.name, model.version, outputs)

    def data(self, received: Sequence[Buffer]) -> list[Buffer]:
        """Return the data of the outputs for the data of the inputs."""
        made = [received[position] if position >= 0 else b"" for position in self.positions]
        for place, size in self.zero_bytes.items():
            made[place] = bytes(size)
        return made


class IdentityInstance(Instance):
    """Answers with the received buffers themselves."""

    runs_on_any_thread: ClassVar[bool] = True

    def __init__(self, model: IdentityModel) -> None:
        self._model = model
        self._echoes: dict[RequestHeader, _Echo] = {}

    def execute(self, batch: Batch) -> Sequence[InferResponse]:
        """Hand every input back."""
        batch.compute_start_ns = batch.compute_end_ns = time.monotonic_ns()
        return [self._answer(request) for request in batch.requests]

    def _answer(self, request: InferRequest) -> InferResponse:
        header = request.header
        echo = self._echoes.get(header)
        if echo is None:
            if len(self._echoes) >= MAX_ECHOES:
                self._echoes.clear()
            echo = self._echoes[header] = _Echo(self._model, header)
        data = request.data
        if echo.zero_bytes:
            return InferResponse(echo.header, echo.data(data))
        return InferResponse(echo.header, [data[position] for position in echo.positions])


class DelayedIdentityInstance(IdentityInstance):
    """Sleeps once per batch first."""

    runs_on_any_thread: ClassVar[bool] = False

    def __init__(self, model: IdentityModel, delay_s: float) -> None:
        super().__init__(model)
        self._delay_s = delay_s

    def execute(self, batch: Batch) -> Sequence[InferResponse]:
        """Hand every input back, late."""
        batch.compute_start_ns = time.monotonic_ns()
        time.sleep(self._delay_s)
        responses = [self._answer(request) for request in batch.requests]
        batch.compute_end_ns = time.monotonic_ns()
        return responses


def pair_tensors(config: ModelConfig) -> dict[str, str]:
    """Return input name to output name: INPUTn to OUTPUTn, or the only input to the only output.

    Raises InferError(INVALID_ARG) when a tensor has no partner, or one of another datatype or shape. Shapes are those
    that the model sees, after `reshape`.
    """
    outputs = {output.name: output for output in config.output}
    alone = len(config.input) == 1 and len(config.output) == 1
    pairs: dict[str, str] = {}
    for tensor in config.input:
        name = config.output[0].name if alone else tensor.name.replace("INPUT", "OUTPUT", 1)
        partner = outputs.pop(name, None)
        if partner is None:
            raise invalid_argument(
                f"model '{config.name}': the identity backend returns input '{tensor.name}' as output '{name}', "
                "which the model configuration does not have; call inputs INPUT0, ... and outputs OUTPUT0, ..."
            )
        _check_pair(config.name, TensorConfig(tensor), TensorConfig(partner))
        pairs[tensor.name] = name
    if outputs:
        raise invalid_argument(f"model '{config.name}': no input belongs to output '{next(iter(outputs))}'")
    return pairs


def _check_pair(model: str, source: TensorConfig, output: TensorConfig) -> None:
    fix = f"model '{model}': input '{source.name}' comes back as output '{output.name}'"
    if source.datatype is not output.datatype:
        raise invalid_argument(
            f"expected input and output datatype to match, got {source.datatype.config_name} and "
            f"{output.datatype.config_name}; {fix}, so give both one data_type"
        )
    if source.model_dims != output.model_dims:
        shapes = f"{shape_text(source.model_dims)} and {shape_text(output.model_dims)}"
        raise invalid_argument(
            f"expected input and output shape to match, got {shapes}; "
            f"{fix}, so give both one shape (that of 'reshape', where there is one)"
        )


def _parameter(config: ModelConfig, name: str) -> float:
    """Return a non-negative number, 0 when the parameter is absent. Raises InferError(INVALID_ARG)."""
    if name not in config.parameters:
        return 0.0
    text = config.parameters[name].string_value
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9:
        raise invalid_argument(
            f"model '{config.name}': parameter '{name}' is '{text}', expected a number that is not negative"
        )
    return value
