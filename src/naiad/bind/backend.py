"""The backend of bound models: instances execute callables of this process.

- A model has as many instances as it was bound with callables; each calls its own, on its own thread.
- Coroutines and asynchronous generators run on an event loop that the instance starts for them (`AsyncExecutor`).
- The responses of a decoupled model come from generators, which run on that loop as well: several take turns.
"""

import contextlib
import inspect
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from naiad.backend.api import Backend, Instance, InstanceSpec, Model, ModelContext
from naiad.backend.tensor_layout import as_input
from naiad.bind.callable_context import RunningModel, TritonContext, running
from naiad.bind.callable_loop import AsyncExecutor
from naiad.bind.exceptions import PyTritonUnrecoverableError
from naiad.bind.model_config.triton_model_config import TritonModelConfig
from naiad.bind.request import Request
from naiad.bind.responses import ModelResponseEncoder
from naiad.core.batch import Batch
from naiad.core.datatype import BY_CONFIG_NUMBER, DataType
from naiad.core.errors import ErrorCode, InferError, cause_of, internal, invalid_argument
from naiad.core.request import InferRequest, RequestHeader
from naiad.core.response import LATE, InferResponse, ResponseHeader
from naiad.core.tensor import Shape

NAME = "naiad_bind"
_MAX_LAYOUTS = 1024
"""Request headers that an instance remembers."""

InferCallable = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class BoundModel:
    """One version of a model with its callables."""

    config: TritonModelConfig
    callables: Sequence[InferCallable]
    """One for each instance."""
    is_strict: bool = False


class BindBackend(Backend):
    """Finds the callables of models by name and version."""

    name: ClassVar[str] = NAME

    def __init__(self, context: TritonContext, on_unrecoverable: Callable[[str], object]) -> None:
        """`on_unrecoverable` is called with the reason when a callable raises PyTritonUnrecoverableError."""
        self._context = context
        self._on_unrecoverable = on_unrecoverable
        self._bound: dict[tuple[str, int], BoundModel] = {}

    def add(self, bound: BoundModel) -> None:
        """Add a version of a model, which can be loaded from now on."""
        self._bound[bound.config.model_name, bound.config.model_version] = bound
        for each in bound.callables:
            self._context.model_configs[each] = bound.config

    def remove(self, name: str, version: int) -> None:
        """Forget a version."""
        self._bound.pop((name, version), None)

    def load(self, context: ModelContext) -> Model:
        """Return the model. Raises InferError(INVALID_ARG) if no callable is bound to the version."""
        bound = self._bound.get((context.name, context.version))
        if bound is None:
            known = ", ".join(f"{name} version {version}" for name, version in self._bound) or "none"
            raise invalid_argument(
                f"model '{context.name}' version {context.version}: no function is bound to it; bound are: {known}"
            )
        return _Model(context, bound, RunningModel(self._context, bound.config), self._on_unrecoverable)


class _Model(Model):
    def __init__(
        self, context: ModelContext, bound: BoundModel, running_model: RunningModel, on_unrecoverable: Any
    ) -> None:
        self.context = context
        self.bound = bound
        self.running = running_model
        self.on_unrecoverable = on_unrecoverable

    def create_instance(self, spec: InstanceSpec) -> Instance:
        """Create an instance for one of the callables. Raises InferError(INVALID_ARG) if there are too few."""
        callables = self.bound.callables
        if spec.index >= len(callables):
            raise invalid_argument(
                f"model '{self.context.name}': the configuration has more than {len(callables)} instances, expected "
                "one for each bound function; bind a list of functions"
            )
        return BoundInstance(self, callables[spec.index], spec.name)


class BoundInstance(Instance):
    """Calls one function with the requests of a batch."""

    def __init__(self, model: _Model, infer: InferCallable, name: str) -> None:
        self._name = model.context.name
        self._infer = infer
        self._running = model.running
        self._on_unrecoverable = model.on_unrecoverable
        self._layouts = _RequestLayouts(model.context)
        self._encoder = ModelResponseEncoder(model.bound.config, is_strict=model.bound.is_strict)
        self._error_header = ResponseHeader(self._name, str(model.context.version), ())
        self._executor = AsyncExecutor(name)

    def execute(self, batch: Batch) -> Sequence[InferResponse]:
        """Execute `batch`; see `Instance.execute`. An exception of the callable fails all of its requests."""
        batch.compute_start_ns = time.monotonic_ns()
        if batch.emit is not None:
            # The loop, also for functions that are not asynchronous: they would keep other requests waiting.
            self._executor.submit(self._stream(batch, batch.emit), len(batch.requests))
            batch.compute_end_ns = time.monotonic_ns()
            return ()
        try:
            result = self._call(batch.requests)
            if not isinstance(result, list):
                if inspect.isawaitable(result) or inspect.isasyncgen(result):
                    return self._execute_async(batch, result)
                result = _only(result, self._name)
            batch.compute_end_ns = time.monotonic_ns()
            return self._encoder.encode_all(batch.requests, result)
        except BaseException as error:
            raise self._failure(error) from error

    def close(self) -> None:
        """End the event loop, if there is one."""
        self._executor.close()

    def _call(self, requests: Sequence[InferRequest]) -> Any:
        token = running.set(self._running)
        try:
            return self._infer([self._layouts.read(request) for request in requests])
        finally:
            running.reset(token)

    # --- coroutines ---------------------------------------------------------------------------------------------

    def _execute_async(self, batch: Batch, result: Any) -> Sequence[InferResponse]:
        """Execute a coroutine; other batches can execute meanwhile, unless this one has to end first."""
        late, requests = batch.late, batch.requests
        if late is None:
            responses: Sequence[InferResponse] = self._executor.run(self._responses(requests, result))
            batch.compute_end_ns = time.monotonic_ns()
            return responses
        late.open(requests, self)
        batch.left_open = requests
        self._executor.submit(self._respond_late(requests, result, late.emit), len(requests))
        batch.compute_end_ns = time.monotonic_ns()
        return [LATE] * len(requests)

    async def _responses(self, requests: Sequence[InferRequest], result: Any) -> list[InferResponse]:
        running.set(self._running)  # a task has a context of its own
        if inspect.isasyncgen(result):
            result = _only_one([each async for each in result], self._name)
        else:
            result = await result
        return self._encoder.encode_all(requests, result)

    async def _respond_late(self, requests: Sequence[InferRequest], result: Any, emit: Any) -> None:
        try:
            responses = await self._responses(requests, result)
        except BaseException as error:
            failure = self._failure(error)
            responses = [InferResponse(self._error_header, error=failure) for _ in requests]
        for request, response in zip(requests, responses, strict=True):
            emit(request, response)

    # --- decoupled models -----------------------------------------------------------------------------------------

    async def _stream(self, batch: Batch, emit: Any) -> None:
        """Send every value that the generator of a batch yields, and the final responses."""
        requests = batch.requests
        try:
            running.set(self._running)
            results = self._infer([self._layouts.read(request) for request in requests])
            async with contextlib.aclosing(_values(results)) as values:
                async for each in values:
                    responses = self._encoder.encode_all(requests, each)
                    for request, response in zip(requests, responses, strict=True):
                        response.final = False
                        if not request.cancelled:
                            emit(request, response)
                    if not await self._executor.may_continue(requests):
                        break
            finals = [InferResponse(self._error_header, empty_final=True) for _ in requests]
        except BaseException as error:
            failure = self._failure(error)
            finals = [InferResponse(self._error_header, error=failure) for _ in requests]
        for request, final in zip(requests, finals, strict=True):
            emit(request, final)

    # --- failures ----------------------------------------------------------------------------------------------

    def _failure(self, error: BaseException) -> InferError:
        """Return the error for clients: type and text; file and line go to the log."""
        if isinstance(error, InferError):
            return error
        text = f"executing model '{self._name}' failed: {cause_of(error)}"
        try:
            if isinstance(error, PyTritonUnrecoverableError):
                self._on_unrecoverable(text)
            detail = f"at {_place_of(error)}\n{''.join(traceback.format_exception(error))}"
        except BaseException as other:  # no memory for it, for example: the client gets its error all the same
            detail = f"its traceback cannot be shown: {cause_of(other)}"
        return InferError(ErrorCode.INTERNAL, text, detail=detail)


def _place_of(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "an unknown place"


def _only(result: Any, model: str) -> Any:
    """Return the only value of a generator; anything else as it is."""
    return _only_one(list(result), model) if inspect.isgenerator(result) else result


def _only_one(values: Sequence[Any], model: str) -> Any:
    if len(values) != 1:
        raise internal(
            f"the generator of model '{model}' yielded {len(values)} times, expected once; bind it with "
            "ModelConfig(decoupled=True) to send several responses"
        )
    return values[0]


async def _values(results: Any) -> Any:
    """Yield what a decoupled callable returns: the values of a generator, of a coroutine, or the value itself."""
    if inspect.isasyncgen(results):
        try:
            async for each in results:
                yield each
        finally:
            await results.aclose()
    elif inspect.isgenerator(results):
        try:
            for each in results:
                yield each
        finally:
            results.close()
    else:
        yield await results if inspect.isawaitable(results) else results


class _RequestLayouts:
    """Reads requests as mappings of arrays, in the order of the configuration."""

    def __init__(self, context: ModelContext) -> None:
        self._positions = {tensor.name: index for index, tensor in enumerate(context.config.input)}
        self._datatypes = {tensor.name: BY_CONFIG_NUMBER[tensor.data_type] for tensor in context.config.input}
        self._all_outputs = [output.name for output in context.config.output]
        self._layouts: dict[RequestHeader, tuple[list[tuple[str, int, Any, Shape]], dict[str, Any], list[str]]] = {}

    def read(self, request: InferRequest) -> Request:
        """Return a request with views on its data. Raises InferError(INVALID_ARG) for wrong BYTES."""
        layout = self._layouts.get(request.header)
        if layout is None:
            if len(self._layouts) >= _MAX_LAYOUTS:
                self._layouts.clear()
            layout = self._layouts[request.header] = self._layout(request.header)
        inputs, parameters, outputs = layout
        data = request.data
        arrays = {
            name: as_input(name, None, shape, data[position])
            if dtype is None
            else np.ndarray(shape, dtype, data[position])
            for name, position, dtype, shape in inputs
        }
        return Request(arrays, dict(parameters), None, outputs)

    def _layout(self, header: RequestHeader) -> tuple[list[tuple[str, int, Any, Shape]], dict[str, Any], list[str]]:
        found = sorted(
            (self._positions[spec.name], spec.name, position, spec.shape)
            for position, spec in enumerate(header.inputs)
            if spec.name in self._positions
        )
        inputs = [
            (name, position, None if (kind := self._datatypes[name]) is DataType.BYTES else kind.numpy, shape)
            for _, name, position, shape in found
        ]
        outputs = [output.name for output in header.outputs] or self._all_outputs
        return inputs, dict(header.parameters), outputs
