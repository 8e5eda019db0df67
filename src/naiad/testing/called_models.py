"""The models that a tested model can call: functions of the test in place of models."""

import asyncio
import json
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from naiad.worker.api import pb_utils
from naiad.worker.api.failure import ErrorCode, TritonError, TritonModelException, not_ready
from naiad.worker.api.iteration import Arrivals, ResponseIterator, Waiter
from naiad.worker.api.request import InferenceRequest, set_caller
from naiad.worker.api.response import InferenceResponse

if TYPE_CHECKING:
    import numpy as np

Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"
FakeModel: TypeAlias = Callable[[dict[str, Array]], Mapping[str, Array] | Iterator[Mapping[str, Array]]]
"""Maps inputs to outputs by name; a generator stands for a decoupled model. Raises ModelError to respond with an
error."""


class ModelError(Exception):
    """The model responded to a request with an error; the text is its message.

    A function that stands for a called model raises it to respond with an error.
    """


class CalledModels:
    """The models that can be called while they are open, of all `PythonModel`s of the process together."""

    def __init__(self, models: Mapping[str, FakeModel]) -> None:
        """Raises ValueError for a name in use by another open model of the test."""
        twice = sorted(models.keys() & _known.keys())
        if twice:
            raise ValueError(f"models: '{twice[0]}' is in use by another open PythonModel")
        self._names = list(models)
        _known.update(models)
        set_caller(_SERVER)

    def close(self) -> None:
        """Remove the models."""
        for name in self._names:
            _known.pop(name, None)
            _unloaded.discard(name)
        self._names = []
        if not _known:
            set_caller(None)


_known: dict[str, FakeModel] = {}
_unloaded: set[str] = set()


class _Server:
    """Replaces the worker's connection to the server."""

    def exec(self, request: InferenceRequest, decoupled: bool, execution_timeout: int) -> Any:
        """Return the response, or an iterator of responses."""
        try:
            returned = _call(request)
        except _RejectedError as error:
            response = InferenceResponse([], TritonError(str(error), error.code))
            return _iterator(request, iter([response])) if decoupled else response
        if isinstance(returned, Mapping):
            response = _answer(request, returned)
            return _iterator(request, iter([response])) if decoupled else response
        if not decoupled:
            return InferenceResponse([], TritonError(_NEEDS_DECOUPLED % request.model_name, ErrorCode.INVALID_ARG))
        return _iterator(request, _responses(request, returned))

    def async_exec(self, request: InferenceRequest, decoupled: bool, execution_timeout: int) -> asyncio.Future[Any]:
        """Return an awaitable of them."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        future.set_result(self.exec(request, decoupled, execution_timeout))
        return future

    def command(self, notes: Mapping[str, Any], parts: Sequence[bytes] = ()) -> str:
        """Load, unload or look up one of the models. Raises TritonModelException for an unknown one."""
        name, command = notes["model"], notes["command"]
        if command == "load":
            if name not in _known:
                raise TritonModelException(f"failed to load '{name}', failed to poll from model repository")
            _unloaded.discard(name)
        elif command == "unload":
            _unloaded.add(name)
        return json.dumps({"ready": name in _known and name not in _unloaded})


_SERVER = _Server()
_NEEDS_DECOUPLED = (
    "Model %s is using the decoupled. The current BLS request call doesn't support models using the decoupled "
    "transaction policy. Please use 'decoupled=True' argument to the 'exec' or 'async_exec' calls for decoupled "
    "models.'"
)


class _RejectedError(Exception):
    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


def _call(request: InferenceRequest) -> Mapping[str, Array] | Iterator[Mapping[str, Array]]:
    name = request.model_name
    model = _known.get(name)
    if model is None or name in _unloaded:
        reason = f"Request for unknown model: '{name}' is not found; add it to PythonModel(models=...)"
        raise _RejectedError(ErrorCode.NOT_FOUND, not_ready(name, reason))
    try:
        return model({tensor.name(): tensor.as_numpy() for tensor in request.inputs()})
    except ModelError as error:
        raise _RejectedError(ErrorCode.INTERNAL, str(error)) from None


def _answer(request: InferenceRequest, outputs: Mapping[str, Array]) -> InferenceResponse:
    wanted = request.requested_output_names() or outputs.keys()
    missing = sorted(wanted - outputs.keys())
    if missing:
        message = f"unexpected inference output '{missing[0]}' for model '{request.model_name}'"
        return InferenceResponse([], TritonError(message, ErrorCode.INVALID_ARG))
    return InferenceResponse([pb_utils.Tensor(name, array) for name, array in outputs.items() if name in wanted])


def _responses(
    request: InferenceRequest, returned: Iterator[Mapping[str, Array]]
) -> Generator[InferenceResponse, None, None]:
    try:
        for outputs in returned:
            yield _answer(request, outputs)
    except ModelError as error:
        yield InferenceResponse([], TritonError(str(error)))
    else:
        yield InferenceResponse([])  # the end of the responses, which comes without outputs


def _iterator(request: InferenceRequest, responses: Iterator[InferenceResponse]) -> ResponseIterator:
    arrivals = Arrivals()
    return ResponseIterator(_Pulled(request, responses, arrivals), 0, arrivals)


class _Pulled:
    """Makes responses on demand."""

    def __init__(self, request: InferenceRequest, responses: Iterator[InferenceResponse], arrivals: Arrivals) -> None:
        self._name = request.model_name
        self._responses = responses
        self._arrivals = arrivals
        self._next = next(responses, None)

    def wait(self, waiter: Waiter) -> None:
        """Make sure that there is a response."""
        self.start_reading()

    def start_reading(self) -> None:
        """Make sure that there is a response."""
        # One response is always made in advance, because each carries whether it is the last.
        response, self._next = self._next, next(self._responses, None)
        self._arrivals.take(response, self._next is None)

    def taken(self, number: int, count: int) -> None:
        """Do nothing: no producer waits."""

    def cancel(self, number: int, *, is_listening: bool = False) -> None:
        """End the responses, as a model does that respects its cancellation."""
        self._responses = iter(())
        self._next = None
        message = f"the request to model '{self._name}' ended: its caller has cancelled it"
        self._arrivals.take(InferenceResponse([], TritonError(message, ErrorCode.CANCELLED)), True)

    def abandon(self, number: int) -> None:
        """End the responses."""
        self._responses = iter(())
