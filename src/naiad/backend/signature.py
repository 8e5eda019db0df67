"""The signature of a model: which tensors it has, whether a configuration agrees, and what it leaves to be filled in.

Independent of frameworks: a backend reads a `ModelSignature` from its model. Messages are Triton's, followed by what
to change.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from naiad.backend.api import ModelContext
from naiad.backend.tensor_layout import shape_text
from naiad.config.execution_tensors import batch_inputs, server_inputs, server_outputs
from naiad.config.model_config_pb2 import BatchInput, ModelConfig, ModelInput, ModelOutput
from naiad.config.tensors.features import Features, write_features
from naiad.config.tensors.padding import read_padding
from naiad.core.datatype import BY_CONFIG_NUMBER, DataType
from naiad.core.errors import InferError, invalid_argument, unsupported
from naiad.core.tensor import Shape

DEFAULT_MAX_BATCH_SIZE = 4
"""Triton: max_batch_size of a model that can batch, unless --backend-config=default-max-batch-size is given."""
DEFAULT_MAX_BATCH_SIZE_SETTING = "default-max-batch-size"


@dataclass(frozen=True, slots=True)
class TensorSignature:
    """One input or output of a model, batch dimension included."""

    name: str
    datatype: DataType | None
    """None when the protocol has none for the model's type."""
    dims: tuple[int | str | None, ...] | None
    """Sizes, names of free dimensions, None for free dimensions without a name. Empty for a scalar.

    None when the model does not give the rank.
    """
    type_name: str = ""
    """The type as the framework writes it, for messages: `seq(tensor(float))`."""
    shape: Shape = field(init=False, repr=False, compare=False)
    """The dimensions with -1 for those that are free, and for 0, which a configuration cannot express.

    The checks of a load ask for it six times for each tensor.
    """

    def __post_init__(self) -> None:
        shape = tuple(dim if isinstance(dim, int) and dim > 0 else -1 for dim in self.dims or ())
        object.__setattr__(self, "shape", shape)


@dataclass(frozen=True, slots=True)
class ModelSignature:
    """The inputs and outputs of a model by name."""

    framework: str
    """Name of the framework, for messages."""
    inputs: Mapping[str, TensorSignature]
    outputs: Mapping[str, TensorSignature]
    optional_inputs: Mapping[str, TensorSignature] = field(default_factory=dict)
    """Inputs with a default."""
    may_lack_ranks: bool = False
    """An output without dimensions may also have a rank that the framework does not report."""
    max_rows: int | None = None
    """The most rows of a batch, where the model limits them."""
    features: Features | None = None
    """Names and categories of columns that the model file has."""
    shares_rows: bool = True
    """False if free first dimensions are no batch dimension, as `batch_trial` has found."""

    @property
    def is_batching(self) -> bool:
        """Whether every input and output has a free first dimension, and a trial did not show that it is no batch."""
        tensors = [*self.inputs.values(), *self.outputs.values()]
        return bool(tensors) and self.shares_rows and all(tensor.shape[:1] == (-1,) for tensor in tensors)


def plain_tensors_hint(tensor: TensorSignature) -> str:
    """Return what to do about a tensor whose type the protocol does not have."""
    if tensor.type_name.startswith("seq("):
        return (
            "export the model with plain tensors. A scikit-learn classifier with several targets has one tensor for "
            "each: save the estimator itself, as model.skops or model.joblib, and serve it with the backend sklearn"
        )
    return "export the model with plain tensors"


class SignatureCheck:
    """Holds a configuration against a model. Messages begin as Triton's do and end with what to change."""

    def __init__(self, config: ModelConfig, signature: ModelSignature, *, strict: bool = False) -> None:
        """`strict`: a free dimension in the configuration does not fit a fixed one in the model (Triton's rule)."""
        self._config = config
        self._model = f"model '{config.name}'"
        self._signature = signature
        self._strict = strict

    def check(self) -> None:
        """Raise InferError(INVALID_ARG or UNSUPPORTED) for the first thing that does not fit."""
        self._check_batch_inputs()
        self._check_inputs()
        allowed_outputs = self._signature.outputs
        scattered = {name for batch_output in self._config.batch_output for name in batch_output.target_name}
        for output in self._config.output:
            if output.name not in allowed_outputs:
                raise self._unexpected("output", output.name, allowed_outputs)
            found = allowed_outputs[output.name]
            if output.name in scattered:
                # Triton: what is cut by an input's shape need not have the shape that clients see.
                self._check_datatype("output", output, found)
            else:
                self._check_tensor("output", output, found)

    def _check_inputs(self) -> None:
        required = self._signature.inputs
        allowed = {**required, **self._signature.optional_inputs}
        configured = {tensor.name for tensor in self._config.input}
        configured |= batch_inputs(self._config)
        missing = [name for name in required if name not in configured]
        # Triton: the counts are compared before the names.
        if not len(required) <= len(configured) <= len(allowed):
            extra = [name for name in configured if name not in allowed]
            raise self._wrong_count(
                len(configured), len(allowed if extra else required), missing=missing, extra=extra
            )
        for tensor in self._config.input:
            if tensor.name not in allowed:
                raise self._unexpected("input", tensor.name, allowed)
        if missing:
            raise self._wrong_count(len(configured), len(required), missing=missing)
        for tensor in self._config.input:
            if tensor.optional and tensor.name in required:
                raise invalid_argument(
                    f"unable to load {self._model}, input '{tensor.name}' is 'optional' in the model configuration, "
                    "but the model has no default (an initializer) for it; remove 'optional', or give it one"
                )
            self._check_tensor("input", tensor, allowed[tensor.name])

    def _wrong_count(
        self, configured_count: int, model_count: int, *, missing: Sequence[str], extra: Sequence[str] = ()
    ) -> InferError:
        remedies = [f"add {_names(missing)} to 'input'"] if missing else []
        remedies += [f"remove {_names(sorted(extra))} from 'input'"] if extra else []
        return invalid_argument(
            f"unable to load {self._model}, configuration expects {configured_count} inputs, model provides "
            f"{model_count}: {' and '.join(remedies)}, or leave out 'input' and 'output' to have them filled in"
        )

    def _unexpected(self, kind: str, name: str, allowed: Mapping[str, TensorSignature]) -> InferError:
        return invalid_argument(
            f"unexpected inference {kind} '{name}', allowed {kind}s are: {', '.join(allowed)}; correct the "
            f"configuration of {self._model}"
        )

    def _check_batch_inputs(self) -> None:
        allowed = {**self._signature.inputs, **self._signature.optional_inputs}
        for batch_input in self._config.batch_input:
            is_table = batch_input.kind == BatchInput.BATCH_ITEM_SHAPE
            for name in batch_input.target_name:
                if name not in allowed:
                    raise self._unexpected("input", name, allowed)
                found = allowed[name]
                self._check_datatype("input", ModelInput(name=name, data_type=batch_input.data_type), found)
                fits = found.shape[:1] == (-1,) and len(found.shape) == (2 if is_table else 1)
                if not fits:
                    raise invalid_argument(
                        f"unable to load {self._model}, batch input '{name}' of kind "
                        f"{BatchInput.Kind.Name(batch_input.kind)} needs an input of the model with shape "
                        f"{'[-1,-1]' if is_table else '[-1]'}, but the model provides {shape_text(found.shape)}"
                    )

    def _check_ragged(self, name: str, found: TensorSignature) -> None:
        if found.shape != (-1,):
            raise invalid_argument(
                f"unable to load {self._model}, configuration expects model provides input with shape [-1] for "
                f"ragged input '{name}', model provides {shape_text(found.shape)}; a ragged batch arrives as the "
                "elements of all its requests in one dimension: export the model so, or remove 'allow_ragged_batch'"
            )

    def _check_tensor(self, kind: str, tensor: ModelInput | ModelOutput, found: TensorSignature) -> None:
        self._check_datatype(kind, tensor, found)
        if isinstance(tensor, ModelInput) and tensor.allow_ragged_batch and self._config.max_batch_size > 0:
            self._check_ragged(tensor.name, found)
        elif found.dims:
            self._check_shape(tensor, found)
        elif found.dims is not None and (kind == "input" or not self._signature.may_lack_ranks):
            self._check_scalar(tensor)

    def _check_datatype(self, kind: str, tensor: ModelInput | ModelOutput, found: TensorSignature) -> None:
        datatype = found.datatype
        if datatype is None:
            raise unsupported(
                f"unable to load {self._model}, {kind} '{tensor.name}' is a {found.type_name} in the model, which "
                f"the protocol cannot carry; {plain_tensors_hint(found)}"
            )
        if datatype.config_number != tensor.data_type:
            given = BY_CONFIG_NUMBER[tensor.data_type].config_name
            raise invalid_argument(
                f"unable to load {self._model}, unexpected datatype {given} for {kind} '{tensor.name}', "
                f"expecting {datatype.config_name}; write data_type: {datatype.config_name}"
            )

    def _check_scalar(self, tensor: ModelInput | ModelOutput) -> None:
        explicit = tuple(tensor.reshape.shape) if tensor.HasField("reshape") else tuple(tensor.dims)
        if any(dim != 1 for dim in explicit):
            raise invalid_argument(
                f"unable to load {self._model}, scalar tensor '{tensor.name}', should only provide 1 in the model "
                "configuration when the model doesn't support batching. Model configuration provided: "
                f"{shape_text(explicit)}.; write dims: [1]"
            )

    def _check_shape(self, tensor: ModelInput | ModelOutput, found: TensorSignature) -> None:
        explicit = tuple(tensor.reshape.shape) if tensor.HasField("reshape") else tuple(tensor.dims)
        batching = self._config.max_batch_size > 0
        configured = (-1, *explicit) if batching else explicit
        opening = f"{self._model}, tensor '{tensor.name}':"
        if batching:
            self._check_batch_dim(opening, found)
        if len(configured) != len(found.shape):
            raise self._wrong_shape(opening, found, explicit, configured)
        for axis, (given, wanted) in enumerate(zip(configured, found.shape, strict=True)):
            if given == wanted or wanted < 0 or (given < 0 and (not self._strict or (axis == 0 and batching))):
                continue
            detail = f": axis {axis} is {wanted} in the model and {given} in the configuration"
            raise self._wrong_shape(opening, found, explicit, configured, detail)

    def _wrong_shape(
        self, opening: str, found: TensorSignature, explicit: Shape, configured: Shape, detail: str = ""
    ) -> InferError:
        # Triton: the same words for another number of dimensions and for other sizes.
        return invalid_argument(
            f"{opening} the model expects {len(found.shape)} dimensions (shape {shape_text(found.shape)}) but the "
            f"model configuration specifies {len(configured)} dimensions ({self._origin(explicit, configured)})"
            f"{detail}; {self._two_fixes(found)}"
        )

    def _check_batch_dim(self, opening: str, found: TensorSignature) -> None:
        first = found.shape[:1]
        if first == (-1,) or (first == (1,) and self._config.max_batch_size == 1 and not self._strict):
            return
        padding = read_padding(self._config)
        if padding is not None and first == padding.rows:
            # Every batch is filled up to the size that the model has built in.
            return
        raise invalid_argument(
            f"{opening} for the model to support batching the shape should have at least 1 dimension and the first "
            f"dimension must be -1; but shape expected by the model is {shape_text(found.shape)}, while the "
            f"configuration has max_batch_size: {self._config.max_batch_size}. Set max_batch_size: 0 and write the "
            "full shape in 'dims', or export the model with a free first dimension"
        )

    def _origin(self, explicit: Shape, configured: Shape) -> str:
        if self._config.max_batch_size <= 0:
            return f"shape {shape_text(explicit)}"
        return (
            "an initial batch dimension because max_batch_size > 0 followed by the explicit tensor shape, making "
            f"complete shape {shape_text(configured)}"
        )

    def _two_fixes(self, found: TensorSignature) -> str:
        dims = found.shape[1:] if self._config.max_batch_size > 0 else found.shape
        shown = shape_text(dims) if dims else "[1] reshape { shape: [] }"
        return f"write dims: {shown} in config.pbtxt, or export the model with the shape that the configuration has"


def _names(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


def default_max_batch_size(backend_config: Mapping[str, str], default: int = DEFAULT_MAX_BATCH_SIZE) -> int:
    """Return the `max_batch_size` of models that can batch, from `--backend-config=default-max-batch-size`.

    `default` applies without that setting. Raises InferError(INVALID_ARG).
    """
    text = backend_config.get(DEFAULT_MAX_BATCH_SIZE_SETTING, str(default))
    if not text.isdecimal():
        raise invalid_argument(
            f"--backend-config default-max-batch-size is '{text}', expected a number that is not negative"
        )
    return int(text)


def is_complete(config: ModelConfig) -> bool:
    """Whether there is nothing to complete. Triton: a model with inputs and outputs is left alone altogether."""
    return bool(config.input) and bool(config.output)


def completed(
    context: ModelContext, read: Callable[[], ModelSignature], default_batch_size: int = DEFAULT_MAX_BATCH_SIZE
) -> ModelConfig:
    """Return the configuration of a model with what its signature adds; `read` is called if something is missing.

    `default_batch_size` applies without `--backend-config=default-max-batch-size`. Raises InferError.
    """
    if is_complete(context.config):
        return context.config
    batch_size = default_max_batch_size(context.backend_config, default_batch_size)
    return complete(context.config, read(), batch_size)


def complete(config: ModelConfig, signature: ModelSignature, batch_size: int) -> ModelConfig:
    """Return a copy of `config` with inputs, outputs and batching filled in; `batch_size` if the model can batch.

    A model batches when every input and output has a free first dimension, which 'dims' then leave out. What the
    configuration already says of a tensor stays. Raises InferError when max_batch_size contradicts the model.
    """
    completed = ModelConfig()
    completed.CopyFrom(config)
    _complete_batching(completed, signature, batch_size)
    batching = completed.max_batch_size > 0
    added, kept = server_inputs(config) | batch_inputs(config), server_outputs(config)
    inputs = [tensor for tensor in signature.inputs.values() if tensor.name not in added]
    _complete_tensors(completed.input, inputs, "input", signature.framework, batching=batching)
    if not completed.output:
        outputs = [tensor for tensor in signature.outputs.values() if tensor.name not in kept]
        _complete_tensors(completed.output, outputs, "output", signature.framework, batching=batching)
    write_features(completed, signature.features)
    return completed


def _complete_batching(config: ModelConfig, signature: ModelSignature, batch_size: int) -> None:
    if signature.is_batching:
        if config.max_batch_size == 0:
            config.max_batch_size = batch_size if signature.max_rows is None else min(batch_size, signature.max_rows)
        if config.max_batch_size > 1 and config.WhichOneof("scheduling_choice") is None:
            config.dynamic_batching.SetInParent()
        return
    tensors = [*signature.inputs.values(), *signature.outputs.values()]
    fixed = next((tensor for tensor in tensors if tensor.dims is not None and tensor.shape[:1] != (-1,)), None)
    if fixed is None:
        return
    # Of a model with one row built in, batches have exactly one.
    has_single_rows = all(tensor.shape[:1] in ((1,), (-1,)) for tensor in tensors)
    if config.max_batch_size > 1 or (config.max_batch_size == 1 and not has_single_rows):
        raise invalid_argument(
            f"autofill failed for model '{config.name}': model does not support batching while non-zero "
            f"max_batch_size is specified: tensor '{fixed.name}' has shape {shape_text(fixed.shape)} in the model "
            f"and the configuration has max_batch_size: {config.max_batch_size}. Set max_batch_size: 0, or export "
            "the model with a free first dimension"
        )


def _complete_tensors(
    field: Any, tensors: Iterable[TensorSignature], kind: str, framework: str, *, batching: bool
) -> None:
    configured: dict[str, ModelInput | ModelOutput] = {tensor.name: tensor for tensor in field}
    for found in tensors:
        tensor = configured.get(found.name) or field.add(name=found.name)
        datatype = found.datatype
        if datatype is None:
            raise unsupported(
                f"{kind} '{found.name}' of the {framework} model is a {found.type_name}, which the protocol cannot "
                f"carry; {plain_tensors_hint(found)}"
            )
        if not tensor.data_type:
            tensor.data_type = datatype.config_number
        if not tensor.dims:
            if found.dims is None:
                raise invalid_argument(
                    f"autofill failed: the {framework} model does not give the rank of {kind} '{found.name}'; write "
                    "its 'dims' in config.pbtxt"
                )
            is_ragged = isinstance(tensor, ModelInput) and tensor.allow_ragged_batch
            dims = found.shape[1:] if batching and not is_ragged else found.shape
            tensor.dims.extend(dims or (1,))
            if not dims and batching:
                # Triton: 'dims' must not be empty. A scalar without a batch dimension needs no reshape.
                tensor.reshape.SetInParent()
