"""The client for scripts and notebooks: plain calls, with arrays, dictionaries and pandas frames in and out.

The calls run on a thread of their own, so that they work where an event loop runs already, as in a notebook.
"""

import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError
from typing import Any, Protocol, TypeVar, overload

from naiad.client.client import Client, InferResult
from naiad.client.connecting import ClientClosedError, NotConnectedError
from naiad.client.data_frames import is_frame, to_frame, to_inputs
from naiad.client.loop_thread import LoopClient
from naiad.client.replicas.replica_calls import RetryCounts
from naiad.client.replicas.replica_set import ReplicaState
from naiad.config.tensors.features import Features, read_features
from naiad.core.errors import InferError
from naiad.core.limits.retry_budget import DEFAULT_SHARE
from naiad.core.model import ModelMetadata
from naiad.core.parameters import NO_PARAMETERS, ParameterValue
from naiad.core.tensor import Array

_FIRST_DELAY_S, _MAX_DELAY_S = 0.05, 1.0
_MAX_MODELS = 256

_T = TypeVar("_T")


class DataFrameLike(Protocol):
    """A pandas DataFrame, which need not be installed."""

    @property
    def columns(self) -> Any:
        """The names of the columns."""

    @property
    def index(self) -> Any:
        """The labels of the rows."""


_Frame = TypeVar("_Frame", bound=DataFrameLike)
Rows = Array | Mapping[str, Any] | Sequence[Any]
"""One array for the only input, arrays or columns by name, or a list of records."""


class SyncClient(LoopClient):
    """A client of one server, or of several with the same models, for any thread.

        with naiad.client.connect("localhost:8000") as client:
            labels = client.infer("cancer", frame)

    Calls raise InferError, as `Client` does. A request that was not sent, because there was no connection, is
    sent again for up to `retry_s`.
    """

    def __init__(
        self,
        url: str | Sequence[str],
        *,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = 60.0,
        retry_s: float = 10.0,
        resolve: bool = False,
        retry_share: float = DEFAULT_SHARE,
        retry_begun: bool = False,
    ) -> None:
        """Make a client for an address of `Client`, or `HOST:PORT` for HTTP; for several as in `Client`.

        No connection is opened yet. Raises InferError(INVALID_ARG) for a wrong address or header.
        """
        given = [each.strip() for each in (url.split(",") if isinstance(url, str) else url)]
        addresses = [each if "://" in each else f"http://{each}" for each in given]
        self._client = Client(
            addresses,
            headers=headers,
            timeout_s=timeout_s,
            resolve=resolve,
            retry_share=retry_share,
            retry_begun=retry_begun,
        )
        super().__init__(", ".join(addresses), self._client.close)
        self._retry_s = retry_s
        self._models: dict[tuple[str, str], tuple[ModelMetadata, Features, frozenset[str]]] = {}

    @overload
    def infer(
        self,
        model: str,
        rows: _Frame,
        *,
        version: str = "",
        outputs: Iterable[str] = (),
        parameters: Mapping[str, ParameterValue] = NO_PARAMETERS,
        timeout_s: float | None = None,
    ) -> _Frame: ...

    @overload
    def infer(
        self,
        model: str,
        rows: Rows,
        *,
        version: str = "",
        outputs: Iterable[str] = (),
        parameters: Mapping[str, ParameterValue] = NO_PARAMETERS,
        timeout_s: float | None = None,
    ) -> InferResult: ...

    def infer(
        self,
        model: str,
        rows: Any,
        *,
        version: str = "",
        outputs: Iterable[str] = (),
        parameters: Mapping[str, ParameterValue] = NO_PARAMETERS,
        timeout_s: float | None = None,
    ) -> Any:
        """Execute a model: a frame for a frame, with its index, otherwise arrays by output.

        Columns reach the model by the names of its inputs or of the features that it was trained on; numbers are
        converted to the datatypes of the inputs. Raises InferError.
        """
        chosen = tuple(outputs)
        known = self._model(model, version)
        try:
            inputs = to_inputs(rows, *known)
            result = self._run(
                lambda: self._client.infer(
                    model, inputs, version=version, outputs=chosen, parameters=parameters, timeout_s=timeout_s
                )
            )
        except InferError:
            # The model may have changed since: the next call reads its inputs again.
            self._models.pop((model, version), None)
            raise
        return to_frame(result, rows) if is_frame(rows) else result

    def is_ready(self, model: str = "", version: str = "") -> bool:
        """Return whether the server, or a model, is ready."""
        if not model:
            return self._run(self._client.is_ready)
        return self._run(lambda: self._client.is_model_ready(model, version))

    def metadata(self, model: str, version: str = "") -> ModelMetadata:
        """Return inputs, outputs and versions of a model."""
        return self._run(lambda: self._client.model_metadata(model, version))

    @property
    def retries(self) -> RetryCounts:
        """How many calls were made and sent again; zeros for a client of one server."""
        return self._client.retries

    @property
    def replicas(self) -> list[ReplicaState]:
        """The servers of a client of several: which are away, and how many calls each got."""
        return self._client.replicas

    def _model(self, model: str, version: str) -> tuple[ModelMetadata, Features, frozenset[str]]:
        known = self._models.get((model, version))
        if known is None:
            metadata = self.metadata(model, version)
            config = self._run(lambda: self._client.model_config(model, version))
            optional = frozenset(each.name for each in config.input if each.optional)
            known = (metadata, read_features(config), optional)
            if len(self._models) >= _MAX_MODELS:
                self._models.clear()
            self._models[(model, version)] = known
        return known

    def _run(self, call: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        """Return the result of a call; call again while there is no connection."""
        deadline_s, delay_s = time.monotonic() + self._retry_s, _FIRST_DELAY_S
        while True:
            if not self._loop_thread.is_open:
                raise ClientClosedError
            work = call()
            try:
                return self._loop_thread.run(work)
            except NotConnectedError:
                if time.monotonic() + delay_s >= deadline_s:
                    raise
            except CancelledError:  # another thread has closed the client
                raise ClientClosedError(has_begun=True) from None
            except RuntimeError:  # as above, before the call could begin
                work.close()
                if self._loop_thread.is_open:
                    raise
                raise ClientClosedError from None
            time.sleep(delay_s)
            delay_s = min(2 * delay_s, _MAX_DELAY_S)


def connect(
    url: str | Sequence[str],
    *,
    headers: Mapping[str, str] | None = None,
    timeout_s: float | None = 60.0,
    retry_s: float = 10.0,
    resolve: bool = False,
    retry_share: float = DEFAULT_SHARE,
    retry_begun: bool = False,
) -> SyncClient:
    """Return a client with plain calls; see `SyncClient`."""
    return SyncClient(
        url,
        headers=headers,
        timeout_s=timeout_s,
        retry_s=retry_s,
        resolve=resolve,
        retry_share=retry_share,
        retry_begun=retry_begun,
    )
