"""Decorators of inference callables, with PyTriton's names and order rules.

A decorated function takes the requests of a batch as its last positional argument, or, below `@batch` and `@sample`,
the inputs as keyword arguments. All decorators work on functions, methods and callable objects; `@batch`, `@sample`,
`@triton_context`, `@first_value`, `@fill_optionals` and `@pad_batch` also on coroutine functions and generators.
"""

import functools
from bisect import bisect_left
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from naiad.bind.callable_context import (
    ModelConfigDict,
    TritonContext,
    get_model_config,
    get_triton_context,
)
from naiad.bind.exceptions import PyTritonBadParameterError, PyTritonRuntimeError, PyTritonValidationError
from naiad.bind.grouping import ConstantPadder, PadFunction, group_rows, merged
from naiad.bind.model_config.tensor import datatype_of
from naiad.bind.model_config.triton_model_config import TensorSpec, TritonModelConfig
from naiad.bind.results import (
    concatenated,
    convert_output,
    gathered,
    get_inference_request_batch_size,
    split,
    then,
)
from naiad.core.datatype import DataType, from_numpy
from naiad.core.tensor import Array

__all__ = [
    "ConstantPadder",
    "ModelConfigDict",
    "TritonContext",
    "batch",
    "convert_output",
    "fill_optionals",
    "first_value",
    "get_inference_request_batch_size",
    "get_model_config",
    "get_triton_context",
    "group_by_keys",
    "group_by_values",
    "pad_batch",
    "sample",
    "triton_context",
]

InferFunction: TypeAlias = Callable[..., Any]
Decorator: TypeAlias = Callable[[InferFunction], InferFunction]

_CONTEXT = "triton_context"
_SPECIAL_KEYS = (_CONTEXT, "__triton_context__")
"""Keyword arguments that are no inputs."""
_IS_BATCHED = "__naiad_is_batched__"


def sample(infer: InferFunction) -> InferFunction:
    """Pass the inputs of the only request as keyword arguments: for models with `batching=False`.

    The function returns a dictionary of outputs, or a list of them in the order of the configuration. Raises
    PyTritonValidationError for a batch of several requests.
    """

    @functools.wraps(infer)
    def call(*args: Any, **kwargs: Any) -> Any:
        *rest, requests = args
        if len(requests) != 1:
            raise PyTritonValidationError(
                f"@sample got a batch of {len(requests)} requests; use @batch, or ModelConfig(batching=False)"
            )
        result = infer(*rest, **kwargs, **requests[0])
        return then(result, lambda outputs: [convert_output(outputs, infer)])

    return call


def batch(infer: InferFunction) -> InferFunction:
    """Pass the inputs of all requests, one below the other, as keyword arguments, and cut the outputs apart again.

    The function returns a dictionary of outputs, or a list of them in the order of the configuration. Raises
    PyTritonValidationError if the requests have different inputs, ValueError for outputs with other rows.
    """

    @functools.wraps(infer)
    def call(*args: Any, **kwargs: Any) -> Any:
        *rest, requests = args
        rows = [get_inference_request_batch_size(request) for request in requests]
        result = infer(*rest, **kwargs, **concatenated(requests))
        return then(result, lambda outputs: split(convert_output(outputs, infer), rows))

    setattr(call, _IS_BATCHED, True)
    return call


def group_by_keys(infer: InferFunction) -> InferFunction:
    """Call the function once for each set of inputs that requests have; above `@batch`."""

    @functools.wraps(infer)
    def call(*args: Any, **kwargs: Any) -> Any:
        *rest, requests = args
        groups: dict[tuple[str, ...], list[int]] = {}
        for index, request in enumerate(requests):
            groups.setdefault(tuple(sorted(request)), []).append(index)
        if len(groups) == 1:
            return infer(*rest, requests, **kwargs)
        results = [infer(*rest, [requests[index] for index in group], **kwargs) for group in groups.values()]

        def in_order(results: Sequence[Any]) -> list[Any]:
            by_index = {
                index: outputs
                for group, result in zip(groups.values(), results, strict=True)
                for index, outputs in zip(group, result, strict=True)
            }
            return [by_index[index] for index in range(len(requests))]

        return gathered(results, in_order, "@group_by_keys")

    return call


def group_by_values(*keys: str, pad_fn: PadFunction | None = None) -> Decorator:
    """Call the function once for each combination of values that the inputs `keys` have; below `@batch`.

    `pad_fn` makes the outputs of the groups fit together, see `ConstantPadder`. Raises PyTritonRuntimeError above
    `@batch`, ValueError for outputs that do not fit together.
    """

    def decorate(infer: InferFunction) -> InferFunction:
        if _is_batched(infer):
            raise PyTritonRuntimeError("The @group_by_values decorator must be used after the @batch decorator.")

        @functools.wraps(infer)
        def call(*args: Any, **kwargs: Any) -> Any:
            inputs, special = _separated(kwargs)
            rows = get_inference_request_batch_size(inputs)
            groups = group_rows(inputs, keys, rows)
            results = [
                infer(*args, **{name: array[group] for name, array in inputs.items()}, **special) for group in groups
            ]

            def in_order(results: Sequence[Any]) -> dict[str, Array]:
                return merged([convert_output(each, infer) for each in results], groups, rows, pad_fn)

            return gathered(results, in_order, "@group_by_values")

        return call

    return decorate


def _is_batched(infer: InferFunction) -> bool:
    wrapped: object = infer
    while wrapped is not None and not getattr(wrapped, _IS_BATCHED, False):
        wrapped = getattr(wrapped, "__wrapped__", None)
    return wrapped is not None


def _separated(kwargs: Mapping[str, Any]) -> tuple[dict[str, Array], dict[str, Any]]:
    inputs = {name: value for name, value in kwargs.items() if name not in _SPECIAL_KEYS}
    return inputs, {name: value for name, value in kwargs.items() if name in _SPECIAL_KEYS}


# --- default values -------------------------------------------------------------------------------------------------


def fill_optionals(**defaults: Array) -> Decorator:
    """Give requests the inputs that they lack: numpy arrays without batch dimension; first of the decorators.

    Raises PyTritonBadParameterError for defaults that do not fit the inputs of the model.
    """

    def decorate(infer: InferFunction) -> InferFunction:
        verified: list[tuple[TritonModelConfig, dict[str, Array]]] = []

        @functools.wraps(infer)
        def call(*args: Any, **kwargs: Any) -> Any:
            *_, requests = args
            config = get_model_config(infer)
            if not verified or verified[0][0] is not config:
                verified[:] = [(config, _checked_defaults(config, defaults))]
            for request in requests:
                _fill(request, verified[0][1], is_batching=config.batching)
            return infer(*args, **kwargs)

        return call

    return decorate


def _fill(request: MutableMapping[str, Array], defaults: Mapping[str, Array], *, is_batching: bool) -> None:
    missing = [name for name in defaults if name not in request]
    rows = get_inference_request_batch_size(request) if is_batching and missing else 0
    for name in missing:
        value = defaults[name]
        request[name] = np.tile(value, (rows, *[1] * value.ndim)) if is_batching else value.copy()


def _checked_defaults(config: TritonModelConfig, defaults: Mapping[str, Array]) -> dict[str, Array]:
    """Return the defaults as requests have their inputs. Raises PyTritonBadParameterError."""
    specs = {spec.name: spec for spec in config.inputs}
    return {name: _checked_default(name, value, specs) for name, value in defaults.items()}


def _checked_default(name: str, value: Any, specs: Mapping[str, TensorSpec]) -> Array:
    opening = f"@fill_optionals: input '{name}'"
    spec = specs.get(name)
    if spec is None:
        raise PyTritonBadParameterError(f"{opening} is no input of the model, which has {', '.join(specs)}")
    if not isinstance(value, np.ndarray):
        raise PyTritonBadParameterError(f"{opening} has default {value!r}, expected a numpy array")
    datatype = datatype_of(spec.dtype, opening)
    if from_numpy(value.dtype) is not datatype:
        raise PyTritonBadParameterError(f"{opening} has a default of dtype {value.dtype}, expected {spec.dtype}")
    fits = len(value.shape) == len(spec.shape) and all(
        expected in (-1, size) for size, expected in zip(value.shape, spec.shape, strict=True)
    )
    if not fits:
        raise PyTritonBadParameterError(
            f"{opening} has a default of shape {value.shape}, expected {tuple(spec.shape)} without batch dimension"
        )
    if datatype is not DataType.BYTES:
        return value
    encoded: Array = np.char.encode(value, "utf-8") if value.dtype.kind in "UT" else value
    return encoded.astype(np.object_)


# --- values and rows ------------------------------------------------------------------------------------------------


def triton_context(infer: InferFunction) -> InferFunction:
    """Pass the `TritonContext` of the model as the keyword argument `triton_context`."""

    @functools.wraps(infer)
    def call(*args: Any, **kwargs: Any) -> Any:
        kwargs[_CONTEXT] = get_triton_context(infer)
        return infer(*args, **kwargs)

    return call


def pad_batch(infer: InferFunction) -> InferFunction:
    """Repeat the last row up to the next preferred or the maximum batch size; below `@batch`.

    Outputs with the padded number of rows are cut to the original one.
    """

    @functools.wraps(infer)
    def call(*args: Any, **kwargs: Any) -> Any:
        inputs, special = _separated(kwargs)
        rows = get_inference_request_batch_size(inputs)
        target = _padded_rows(get_model_config(infer), rows)
        if target > rows:
            repeats = np.ones(rows, dtype=np.int64)
            repeats[-1] = target - rows + 1
            inputs = {name: np.repeat(array, repeats, axis=0) for name, array in inputs.items()}
        result = infer(*args, **inputs, **special)

        def cut(outputs: Any) -> dict[str, Array]:
            named = convert_output(outputs, infer)
            return {name: array[:rows] if array.shape[:1] == (target,) else array for name, array in named.items()}

        return then(result, cut)

    return call


def _padded_rows(config: TritonModelConfig, rows: int) -> int:
    preferred = () if config.batcher is None else config.batcher.preferred_batch_size or ()
    sizes = sorted({*preferred, config.max_batch_size})
    index = bisect_left(sizes, rows)
    return sizes[index] if index < len(sizes) else rows


def first_value(*keys: str, squeeze_single_values: bool = True, strict: bool = True) -> Decorator:
    """Replace the inputs `keys` by their value in the first row: a scalar if that has one element.

    Below `@batch`, or for a function that takes requests. `strict`: all rows must have the same value. Raises
    PyTritonRuntimeError if they do not, and for a model without batching.
    """
    forbidden = [key for key in keys if key in _SPECIAL_KEYS]
    if forbidden:
        raise PyTritonBadParameterError(f"@first_value: {', '.join(forbidden)} is no input; name inputs of the model")

    def replace(request: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        for name in keys:
            if name in request:
                request[name] = _first(name, request[name], squeeze=squeeze_single_values, strict=strict)
        return request

    def decorate(infer: InferFunction) -> InferFunction:
        @functools.wraps(infer)
        def call(*args: Any, **kwargs: Any) -> Any:
            if not get_model_config(infer).batching:
                raise PyTritonRuntimeError(
                    "The @first_value decorator can only be used with models that support batching."
                )
            if any(name not in _SPECIAL_KEYS for name in kwargs):
                return infer(*args, **replace(kwargs))
            *rest, requests = args
            return infer(*rest, [replace(request) for request in requests], **kwargs)

        return call

    return decorate


def _first(name: str, values: Array, *, squeeze: bool, strict: bool) -> Any:
    first = values[0]
    if strict and not np.array_equal(
        values, np.broadcast_to(values[:1], values.shape), equal_nan=values.dtype.kind in "fc"
    ):
        raise PyTritonRuntimeError(
            f"The values on the {name!r} input are not equal. Send equal values, group requests with "
            f"@group_by_values({name!r}), or disable strict mode in @first_value. The values are {values!r}."
        )
    if squeeze and not np.isscalar(first) and isinstance(first, np.ndarray) and first.size == 1:
        return first.reshape(())[()]
    return first
