"""What inference callables return: a value, a coroutine or a generator; and how to change each of them alike."""

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from naiad.bind.callable_context import get_model_config
from naiad.bind.exceptions import PyTritonValidationError
from naiad.bind.request import Request
from naiad.core.datatype import MASKED
from naiad.core.tensor import Array, has_masked

Inputs: TypeAlias = Mapping[str, Array] | Request
Outputs: TypeAlias = dict[str, Array]

_PLAIN = frozenset({dict, list, tuple})


def then(result: Any, finish: Callable[[Any], Any]) -> Any:
    """Return `result` changed by `finish`: each value of a generator, a coroutine's value, or the value itself."""
    if type(result) in _PLAIN:
        return finish(result)
    if inspect.isgenerator(result):
        return (finish(each) for each in result)
    if inspect.isasyncgen(result):
        return _each(result, finish)
    if inspect.isawaitable(result):
        return _later(result, finish)
    return finish(result)


async def _each(results: Any, finish: Callable[[Any], Any]) -> AsyncIterator[Any]:
    try:
        async for each in results:
            yield finish(each)
    finally:
        await results.aclose()


async def _later(result: Awaitable[Any], finish: Callable[[Any], Any]) -> Any:
    return finish(await result)


def gathered(results: Sequence[Any], finish: Callable[[list[Any]], Any], decorator: str) -> Any:
    """Return `finish` of several results, as a coroutine if any of them is one.

    Raises PyTritonValidationError for generators, whose responses cannot be put together.
    """
    if any(inspect.isgenerator(each) or inspect.isasyncgen(each) for each in results):
        raise PyTritonValidationError(
            f"{decorator} cannot put the responses of several generators together; use @batch alone"
        )
    if any(inspect.isawaitable(each) for each in results):
        return _all(results, finish)
    return finish(list(results))


async def _all(results: Sequence[Any], finish: Callable[[list[Any]], Any]) -> Any:
    return finish([await each if inspect.isawaitable(each) else each for each in results])


def convert_output(
    outputs: Any, wrapped: Any = None, instance: object = None, model_config: Any = None
) -> Mapping[str, Array]:
    """Return outputs by name; a list or tuple has them in the order of the configuration.

    Raises PyTritonValidationError for another type or another number of outputs.
    """
    if isinstance(outputs, Mapping):
        return outputs
    if not isinstance(outputs, list | tuple):
        raise PyTritonValidationError(
            f"the function returned {type(outputs).__name__}, expected a dictionary of arrays, or a list of arrays "
            "in the order of the outputs"
        )
    config = model_config or get_model_config(wrapped, instance)
    if len(outputs) != len(config.outputs):
        raise PyTritonValidationError(
            f"the function returned {len(outputs)} outputs, expected {len(config.outputs)}: "
            f"{', '.join(spec.name for spec in config.outputs)}"
        )
    return {spec.name: output for spec, output in zip(config.outputs, outputs, strict=True)}


# --- batches --------------------------------------------------------------------------------------------------------


def get_inference_request_batch_size(request: Inputs) -> int:
    """Return the rows of a request: the first dimension of its first input."""
    arrays = request.views() if isinstance(request, Request) else request
    return int(next(iter(arrays.values())).shape[0])


def concatenated(requests: Sequence[Inputs]) -> dict[str, Array]:
    """Return the inputs of all requests, one below the other, as writable arrays.

    Raises PyTritonValidationError if the requests do not have the same inputs.
    """
    if len(requests) == 1:
        return dict(requests[0])
    views = [request.views() if isinstance(request, Request) else request for request in requests]
    first = views[0]
    for other in views[1:]:
        if first.keys() != other.keys():
            raise PyTritonValidationError(
                "Cannot batch requests with different set of inputs keys: "
                f"{', '.join(first)} and {', '.join(other)}; put @group_by_keys, or @fill_optionals, above @batch"
            )
    return {name: np.concatenate([each[name] for each in views]) for name in first}


def wrong_array(value: object) -> str:
    """Return what keeps an output from being a tensor; empty for arrays, also of a subclass."""
    if not isinstance(value, np.ndarray):
        hint = ": use its to_numpy()" if hasattr(value, "to_numpy") else ""
        return f"is of type {type(value).__name__}, expected a numpy array{hint}"
    return MASKED if has_masked(value) else ""


def split(outputs: Mapping[str, Array], rows: Sequence[int]) -> list[Outputs]:
    """Return the outputs of each request, cut by its `rows`. Raises ValueError if an output has other rows."""
    total = sum(rows)
    for name, array in outputs.items():
        if type(array) is not np.ndarray:
            problem = wrong_array(array)
            if problem:
                raise ValueError(f"output '{name}' {problem}")
    wrong = {name: array.shape for name, array in outputs.items() if array.shape[:1] != (total,)}
    if wrong:
        raise ValueError(
            "Received output tensors with different batch sizes: "
            f"{', '.join(f'{name}: {shape}' for name, shape in wrong.items())}. Expected batch size: {total}. "
        )
    if len(rows) == 1:
        return [dict(outputs)]
    parts: list[Outputs] = []
    start = 0
    for count in rows:
        parts.append({name: array[start : start + count] for name, array in outputs.items()})
        start += count
    return parts
