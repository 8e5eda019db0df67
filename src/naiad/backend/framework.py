"""What the adapters of frameworks share: model files, parameters, thread counts, scalars."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from naiad.backend.api import ModelContext
from naiad.backend.signature import ModelSignature, SignatureCheck
from naiad.config.execution_tensors import execution_config
from naiad.config.model_config_pb2 import ModelConfig, ModelInstanceGroup
from naiad.core.errors import InferError, excerpt, invalid_argument
from naiad.core.tensor import Array, Shape

# --- model files ----------------------------------------------------------------------------------------------------


def find_model_file(context: ModelContext, filenames: Sequence[str]) -> Path:
    """Return `default_model_filename`, or the first of `filenames` that is in the version directory.

    The result may be a directory: a SavedModel is one. Raises InferError(INVALID_ARG) when there is none.
    """
    wanted = [context.config.default_model_filename] if context.config.default_model_filename else filenames
    for name in wanted:
        path = context.version_dir / name
        if path.exists():
            return path
    alternatives = f" (or {', '.join(wanted[1:])})" if len(wanted) > 1 else ""
    raise invalid_argument(
        f"model '{context.name}' version {context.version}: there is no file {context.version_dir / wanted[0]}"
        f"{alternatives}; put the model there, or name another one with 'default_model_filename'"
    )


class ModelFile:
    """The file or directory of a model version, which errors name."""

    def __init__(self, context: ModelContext, path: Path) -> None:
        self.path = path
        self.opening = f"model '{context.name}' version {context.version}:"

    def error(self, problem: str, kind: Callable[[str], InferError] = invalid_argument) -> InferError:
        """Return an error that names model and file."""
        return kind(f"{self.opening} {self.path} {problem}")


def reason(error: BaseException) -> str:
    """Return the type and, in one line, the text of a framework's exception."""
    return f"{type(error).__name__}: {excerpt(' '.join(str(error).split()))}"


# --- parameters -----------------------------------------------------------------------------------------------------

_FLAGS: Mapping[str, bool] = {"true": True, "1": True, "on": True, "false": False, "0": False, "off": False}


class Parameters:
    """The `parameters` of one configuration, over the `--backend-config` settings of its backend.

    Every method raises InferError(INVALID_ARG) with the model, the parameter, its value and what is expected.
    """

    def __init__(self, config: ModelConfig, settings: Mapping[str, str] | None = None) -> None:
        """`settings` apply where the configuration has no parameter of that name."""
        self._model = config.name
        own = {name: parameter.string_value for name, parameter in config.parameters.items()}
        self._texts = {**(settings or {}), **own}

    def __contains__(self, name: str) -> bool:
        """Whether the configuration or the settings have the parameter."""
        return name in self._texts

    def text(self, name: str, default: str = "") -> str:
        """Return a parameter as it is written."""
        return self._texts.get(name, default)

    def with_prefix(self, prefix: str) -> dict[str, str]:
        """Return the parameters whose names begin with `prefix`, without it."""
        return {name[len(prefix) :]: text for name, text in self._texts.items() if name.startswith(prefix)}

    def flag(self, name: str, *, default: bool = False) -> bool:
        """Return a truth value: true, 1, on, false, 0 or off."""
        text = self._texts.get(name)
        if text is None:
            return default
        value = _FLAGS.get(text.strip().lower())
        if value is None:
            raise self.error(name, "true or false")
        return value

    def count(self, name: str, default: int = 0, *, maximum: int = 4096) -> int:
        """Return a whole number from 0 to `maximum`."""
        text = self._texts.get(name)
        if text is None:
            return default
        if not (text.isascii() and text.isdecimal() and int(text[:20]) <= maximum):
            raise self.error(name, f"a whole number from 0 to {maximum}")
        return int(text)

    def number(self, name: str, default: float) -> float:
        """Return a finite number."""
        text = self._texts.get(name)
        if text is None:
            return default
        try:
            value = float(text)
        except ValueError:
            raise self.error(name, "a number") from None
        if value != value or abs(value) == float("inf"):
            raise self.error(name, "a finite number")
        return value

    def choice(self, name: str, choices: Sequence[str], default: str = "") -> str:
        """Return one of `choices`, compared without case, or the default."""
        text = self._texts.get(name)
        if text is None:
            return default
        for known in choices:
            if known.lower() == text.strip().lower():
                return known
        raise self.error(name, f"one of {', '.join(choices)}")

    def error(self, name: str, expected: str) -> InferError:
        """Return the error for a parameter with a wrong value."""
        text = self._texts.get(name, "")[:200]
        return invalid_argument(f"model '{self._model}': parameter '{name}' is '{text}', expected {expected}")


def may_unpickle(context: ModelContext) -> bool:
    """Whether the server allows pickles, which execute code. A model must not allow itself: no parameter does."""
    return context.backend_config.get("allow-pickle", "").lower() in ("true", "1", "on")


def first_gpu(config: ModelConfig) -> int:
    """Return the first GPU that the configuration names, otherwise 0."""
    return next((gpu for group in config.instance_group for gpu in group.gpus), 0)


def cpu_instance_count(config: ModelConfig) -> int:
    """Return the number of instances on the CPU, at least 1."""
    groups = config.instance_group
    return max(1, sum(group.count for group in groups if group.kind != ModelInstanceGroup.KIND_GPU))


def threads_per_instance(context: ModelContext, parameters: Parameters, name: str) -> int:
    """Return the parameter `name`; without it, or at 0, an equal share of the usable cores, at least 1.

    Raises InferError(INVALID_ARG) for a parameter that is no count.
    """
    wanted = parameters.count(name)
    return wanted or max(1, context.usable_cores // cpu_instance_count(context.config))


# --- scalars --------------------------------------------------------------------------------------------------------


class Scalars:
    """The scalar inputs and outputs of a model that does not batch.

    They have no dimensions in the model; a configuration writes them as `dims: [1]`.
    """

    def __init__(self, config: ModelConfig, signature: ModelSignature) -> None:
        """Raise InferError(INVALID_ARG) for a scalar in a model that batches: a batch has one value per row."""
        scalars = [tensor.name for tensor in signature.inputs.values() if tensor.dims == ()]
        if scalars and config.max_batch_size > 0:
            raise invalid_argument(
                f"model '{config.name}': input '{scalars[0]}' is a scalar in the model, which has one value for all "
                "rows of a batch; set max_batch_size: 0, or export the model with one value per row"
            )
        self._inputs = scalars
        self._outputs: Mapping[str, Shape] = {
            output.name: tuple(output.dims)
            for output in config.output
            if not config.max_batch_size and not output.HasField("reshape") and math.prod(output.dims) == 1
        }

    @property
    def has_inputs(self) -> bool:
        """Whether an input is a scalar."""
        return bool(self._inputs)

    def to_model(self, inputs: dict[str, Array]) -> None:
        """Remove the dimensions of scalar inputs, in place."""
        for name in self._inputs:
            inputs[name] = inputs[name].reshape(())

    def to_client(self, name: str, array: Array) -> Array:
        """Return an output; a scalar gets the dimensions of the configuration."""
        return array.reshape(self._outputs[name]) if array.ndim == 0 and name in self._outputs else array


def check_signature(context: ModelContext, signature: ModelSignature) -> Scalars:
    """Hold the configuration against the signature of a model, and return its scalars. Raises InferError."""
    config = execution_config(context.config)
    SignatureCheck(config, signature).check()
    return Scalars(config, signature)
