"""The client: one object for a server, whichever protocol its address names."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncGenerator, Awaitable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

import numpy as np

from naiad.client.connecting import Connector, ServerAddress, default_tls, parse_address
from naiad.client.live_events import LiveEvent
from naiad.client.notebook import StatisticsRows, outputs_html
from naiad.client.replicas.replica_calls import Calls, ReplicaCalls, RetryCounts
from naiad.client.replicas.replica_set import ReplicaState
from naiad.client.replicas.resolution import MAX_ADDRESSES, check_name, resolve_name
from naiad.client.transport.grpc import NO_HEADERS, GrpcCalls
from naiad.client.transport.http1 import Http1Pool
from naiad.client.transport.http2 import Http2Pool
from naiad.client.transport.rest import RestCalls
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.datatype import MASKED, conversion_hint, from_numpy
from naiad.core.errors import ErrorCode, InferError, excerpt, invalid_argument, unsupported
from naiad.core.limits.retry_budget import DEFAULT_SHARE, RetryBudget
from naiad.core.model import IndexEntry, ModelMetadata, ServerMetadata
from naiad.core.parameters import NO_PARAMETERS, Parameters, ParameterValue
from naiad.core.request import RequestedOutput, RequestHeader
from naiad.core.response import InferResponse
from naiad.core.tensor import Array, Buffer, TensorSpec, has_masked, to_array, to_buffer
from naiad.wire.header_fields import check_field
from naiad.wire.http1_client import Http1ClientLimits
from naiad.wire.http2.connection_limits import INT32_MAX, Http2Limits

_T = TypeVar("_T")


class InferResult(Mapping[str, Array]):
    """The outputs of a response by name, as arrays: `result["OUTPUT0"]`.

    An array is a view on the received bytes, and read-only; BYTES become an object array of `bytes`. Each look-up
    makes a new array. An output in shared memory is not part of the response and raises InferError.
    """

    def __init__(self, request_id: str, response: InferResponse, fields: Iterable[tuple[bytes, bytes]] = ()) -> None:
        """`fields` are header fields of the response with lower-case names."""
        header = response.header
        self.id = request_id
        """The request id that the server has returned; "" for none."""
        self.model_name = header.model_name
        self.model_version = header.model_version
        self.parameters: Parameters = response.parameters
        self.specs: Sequence[TensorSpec] = header.outputs
        """Name, datatype and shape of each output."""
        self._fields = fields
        self._tensors: dict[str, tuple[TensorSpec, Buffer]] = {
            spec.name: (spec, data) for spec, data in zip(header.outputs, response.data, strict=True)
        }

    @property
    def headers(self) -> Mapping[str, str]:
        """Header fields of the response by lower-case name; over gRPC with the trailing metadata."""
        return {name.decode("latin-1"): value.decode("latin-1") for name, value in self._fields}

    def __getitem__(self, name: str) -> Array:
        """Return an output. Raises KeyError, and InferError when the data does not fit its shape."""
        return to_array(*self._tensors[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __repr__(self) -> str:
        outputs = ", ".join(f"{spec.name} {spec.datatype.value}{list(spec.shape)}" for spec in self.specs)
        return f"InferResult({self.model_name} {self.model_version}: {outputs})"

    def _repr_html_(self) -> str:
        note = f"request id {self.id}" if self.id else ""
        return outputs_html(f"{self.model_name} {self.model_version}", self.specs, self, note)


_CONNECT_S, _CONNECT_SOON_S = 10.0, 2.0
"""To open a connection: to the only server, and to one of several, where another one may get the call."""


class Client:
    """A client of one server, or of several with the same models, for one event loop.

        async with Client("grpc://localhost:8001") as client:
            result = await client.infer("add", {"A": a, "B": b})

    Calls may run concurrently: over gRPC they share a connection, over HTTP each takes one of the pool. All of them
    raise InferError with the server's code and message, ConnectionFailedError when there is no connection, and
    InferError(DEADLINE_EXCEEDED) after `timeout_s`.
    """

    def __init__(  # noqa: PLR0913 - options of the connections, keyword-only
        self,
        url: str | Sequence[str],
        *,
        headers: Mapping[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
        max_connections: int = 64,
        max_response_bytes: int = INT32_MAX,
        connect_timeout_s: float | None = None,
        timeout_s: float | None = None,
        resolve: bool = False,
        retry_share: float = DEFAULT_SHARE,
        retry_begun: bool = False,
    ) -> None:
        """Make a client for `http://`, `https://`, `grpc://`, `grpcs://`, `http+unix://` or `grpc+unix://`.

        `headers` (metadata over gRPC) are sent with each call, an API key for example. `tls` replaces the default
        context, which trusts the system's certificates; its ALPN protocols are set. `timeout_s` is the default for
        all calls; None for no limit. No connection is opened yet. `connect_timeout_s` is 10 for one server, and 2 for
        each of several.

        Several addresses, in a list or separated by commas, are servers with the same models; with `resolve` all
        addresses of one name are. A call that one server has not begun is sent to another one: at most
        `retry_share` of the calls, and ten each second. With `retry_begun` a request whose connection broke is sent
        again as well; then the models may execute it twice.

        Raises InferError(INVALID_ARG) for a wrong address or header.
        """
        addresses = parse_addresses(url)
        self._url = ", ".join(each.url for each in addresses)
        self._timeout_s = timeout_s
        self._headers = dict(headers or {})
        _check_headers(self._headers)
        is_one = len(addresses) == 1 and not resolve
        if not 0 <= retry_share <= 1:
            raise invalid_argument(f"retry_share is {retry_share:g}; expected a part of the calls, from 0 to 1")
        context = default_tls(addresses[0], tls)
        limit_s = connect_timeout_s or (_CONNECT_S if is_one else _CONNECT_SOON_S)

        def open_calls(address: ServerAddress) -> Calls:
            connector = Connector(address, context, limit_s)
            if address.is_grpc:
                limits = Http2Limits(message_bytes=max_response_bytes)
                return GrpcCalls(Http2Pool(connector, max_connections, limits), address, self._headers)
            pool = Http1Pool(connector, max_connections, Http1ClientLimits(body_bytes=max_response_bytes))
            return RestCalls(pool, address.authority, self._headers)

        self._calls: Calls | ReplicaCalls
        if is_one:
            self._calls = open_calls(addresses[0])
        else:
            name = check_name(addresses) if resolve else None
            self._calls = ReplicaCalls(
                () if name else addresses,
                open_calls,
                RetryBudget(retry_share),
                retries_begun=retry_begun,
                resolve=partial(resolve_name, name, limit_s) if name else None,
            )

    async def __aenter__(self) -> Self:
        """Return the client; connections are opened by calls."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close all connections."""
        self.close()

    def close(self) -> None:
        """Close all connections; calls in progress fail."""
        self._calls.close()

    @property
    def retries(self) -> RetryCounts:
        """How many calls were made and sent again; zeros for a client of one server."""
        return self._calls.counts if isinstance(self._calls, ReplicaCalls) else RetryCounts()

    @property
    def replicas(self) -> list[ReplicaState]:
        """The servers of a client of several: which are away, and how many calls each got."""
        return self._calls.states if isinstance(self._calls, ReplicaCalls) else []

    @property
    def _one(self) -> Calls:
        """The calls to the only server. Raises InferError(UNSUPPORTED) if there are several."""
        if isinstance(self._calls, ReplicaCalls):
            raise unsupported(
                f"this call is for one server, and the client has several ({self._url}); use one address"
            )
        return self._calls

    async def infer(  # noqa: PLR0913 - the fields of the protocol's request, keyword-only
        self,
        model: str,
        inputs: Mapping[str, Array],
        *,
        version: str = "",
        outputs: Iterable[str | RequestedOutput] = (),
        request_id: str = "",
        parameters: Mapping[str, ParameterValue] = NO_PARAMETERS,
        priority: int = 0,
        sequence_id: int | str = 0,
        sequence_start: bool = False,
        sequence_end: bool = False,
        headers: Mapping[str, str] = NO_HEADERS,
        timeout_s: float | None = None,
    ) -> InferResult:
        """Execute a model with arrays by input name and return its outputs.

        Shapes include the batch dimension. Arrays of strings (object, `S`, `U`) are BYTES; bfloat16 is that of
        ml_dtypes. Without `outputs` the model returns all of them. `version` of "" is the newest that is ready.
        `headers` (metadata over gRPC) are sent in addition to the headers of the client.

        Raises InferError, with INVALID_ARG for an array that has no datatype in the protocol.
        """
        specs, data = encode_tensors(inputs)
        header = RequestHeader(
            model_name=model,
            model_version=version,
            inputs=specs,
            outputs=_requested(outputs),
            parameters=parameters,
            priority=priority,
            sequence_id=sequence_id,
            sequence_start=sequence_start,
            sequence_end=sequence_end,
            binary_output_default=True,
        )
        _check_headers(headers)
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        call = self._calls.infer(header, request_id, data, timeout_s, headers)
        return InferResult(*await self._within(timeout_s, call))

    async def infer_stream(
        self,
        model: str,
        inputs: Mapping[str, Array],
        *,
        version: str = "",
        outputs: Iterable[str | RequestedOutput] = (),
        request_id: str = "",
        parameters: Mapping[str, ParameterValue] = NO_PARAMETERS,
        headers: Mapping[str, str] = NO_HEADERS,
        timeout_s: float | None = None,
    ) -> AsyncGenerator[InferResult, None]:
        """Execute a decoupled model and yield its responses as they arrive; gRPC only.

        The arguments are the same as for `infer`, but `timeout_s` is the limit for each response. Leaving the
        iterator cancels the request (`contextlib.aclosing` does it at once). Raises InferError as `infer` does, with
        UNKNOWN for an error of the model, because streams carry no code.
        """
        specs, data = encode_tensors(inputs)
        header = RequestHeader(
            model_name=model,
            model_version=version,
            inputs=specs,
            outputs=_requested(outputs),
            parameters=parameters,
        )
        _check_headers(headers)
        async with contextlib.aclosing(self._calls.infer_stream(header, request_id, data, headers)) as responses:
            while True:
                try:
                    response = await self._within(timeout_s, anext(responses))
                except StopAsyncIteration:
                    return
                yield InferResult(*response)

    async def is_live(self, *, timeout_s: float | None = None) -> bool:
        """Return whether the server responds."""
        return await self._within(timeout_s, self._calls.is_live())

    async def is_ready(self, *, timeout_s: float | None = None) -> bool:
        """Return whether the server is ready."""
        return await self._within(timeout_s, self._calls.is_ready())

    async def is_model_ready(self, model: str, version: str = "", *, timeout_s: float | None = None) -> bool:
        """Return whether a model can execute requests; False for a model that does not exist."""
        return await self._within(timeout_s, self._calls.is_model_ready(model, version))

    async def server_metadata(self, *, timeout_s: float | None = None) -> ServerMetadata:
        """Return name, version and extensions of the server."""
        return await self._within(timeout_s, self._calls.server_metadata())

    async def model_metadata(self, model: str, version: str = "", *, timeout_s: float | None = None) -> ModelMetadata:
        """Return inputs, outputs and versions of a model."""
        return await self._within(timeout_s, self._calls.model_metadata(model, version))

    async def model_config(self, model: str, version: str = "", *, timeout_s: float | None = None) -> ModelConfig:
        """Return the complete configuration of a model, including defaults, as a `ModelConfig` message."""
        return await self._within(timeout_s, self._calls.model_config(model, version))

    async def statistics(
        self, model: str = "", version: str = "", *, timeout_s: float | None = None
    ) -> list[dict[str, Any]]:
        """Return counts and durations, a row per version; of all models without a name."""
        return StatisticsRows(await self._within(timeout_s, self._one.statistics(model, version)))

    async def explain(self, model: str, version: str = "", *, timeout_s: float | None = None) -> dict[str, Any]:
        """Return how requests of a model are scheduled and why the last batches were released; naiad, HTTP only."""
        return await self._within(timeout_s, self._one.explain(model, version))

    def live(
        self, model: str = "", version: str = "", *, interval_ms: int = 1000, log: bool = False
    ) -> AsyncGenerator[LiveEvent, None]:
        """Yield the events of the server's live stream until it ends; naiad, HTTP only. `LiveView` merges them.

        `model` adds details of one model, `log` the lines of the log. The time limit does not apply.
        """
        query = {"interval_ms": str(interval_ms)}
        if model:
            query |= {"model": model} | ({"version": version} if version else {})
        return self._one.live(query | ({"log": "true"} if log else {}))

    async def rollout(self, model: str, *, timeout_s: float | None = None) -> dict[str, Any]:
        """Return the rollout of a model with requests, errors and latencies of its versions; naiad, HTTP only."""
        return await self._within(timeout_s, self._one.rollout(model))

    async def change_rollout(
        self, model: str, fields: Mapping[str, Any], *, timeout_s: float | None = None
    ) -> dict[str, Any]:
        """Change the rollout of a model and return it: fields of the declaration, or `action` or `to`; HTTP only."""
        return await self._within(timeout_s, self._one.change_rollout(model, fields))

    async def end_rollout(self, model: str, *, timeout_s: float | None = None) -> dict[str, Any]:
        """End the rollout of a model and return what is left of it; HTTP only.

        Its newest version serves requests without a version.
        """
        return await self._within(timeout_s, self._one.end_rollout(model))

    async def repository_index(self, *, only_ready: bool = False, timeout_s: float | None = None) -> list[IndexEntry]:
        """Return models, versions and states of the repository."""
        return await self._within(timeout_s, self._one.repository_index(only_ready=only_ready))

    async def load(
        self,
        model: str,
        *,
        config: str = "",
        files: Mapping[str, bytes] | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Load or reload a model; `config` is JSON that replaces `config.pbtxt`, `files` replace the repository's."""
        await self._within(timeout_s, self._one.load(model, config, files or {}))

    async def unload(self, model: str, *, unload_dependents: bool = False, timeout_s: float | None = None) -> None:
        """Unload a model, and with `unload_dependents` the models that an ensemble has brought."""
        await self._within(timeout_s, self._one.unload(model, unload_dependents=unload_dependents))

    async def register_system_shared_memory(
        self, name: str, key: str, byte_size: int, *, offset: int = 0, timeout_s: float | None = None
    ) -> None:
        """Register a part of the POSIX shared-memory object `key` as the region `name`."""
        await self._within(timeout_s, self._one.register_system(name, key, offset, byte_size))

    async def register_cuda_shared_memory(
        self, name: str, raw_handle: bytes, device_id: int, byte_size: int, *, timeout_s: float | None = None
    ) -> None:
        """Register the GPU allocation behind a `cudaIpcMemHandle_t` as the region `name`."""
        await self._within(timeout_s, self._one.register_cuda(name, raw_handle, device_id, byte_size))

    async def unregister_system_shared_memory(self, name: str, *, timeout_s: float | None = None) -> None:
        """Unregister a system region. Raises InferError(INVALID_ARG) for an empty name."""
        await self._within(timeout_s, self._one.unregister_system(_region_name(name)))

    async def unregister_cuda_shared_memory(self, name: str, *, timeout_s: float | None = None) -> None:
        """Unregister a CUDA region. Raises InferError(INVALID_ARG) for an empty name."""
        await self._within(timeout_s, self._one.unregister_cuda(_region_name(name)))

    async def _within(self, timeout_s: float | None, call: Awaitable[_T]) -> _T:
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        try:
            async with asyncio.timeout(limit_s):
                return await call
        except TimeoutError:
            raise InferError(
                ErrorCode.DEADLINE_EXCEEDED, f"no response from {self._url} within {limit_s:g} s"
            ) from None


def parse_addresses(url: str | Sequence[str]) -> Sequence[ServerAddress]:
    """Return the addresses of a client, each once. Raises InferError(INVALID_ARG)."""
    texts = [each.strip() for each in url.split(",")] if isinstance(url, str) else list(url)
    found = [parse_address(each) for each in dict.fromkeys(texts) if each] or [parse_address("")]
    if len(found) > MAX_ADDRESSES:
        raise invalid_argument(f"a client has at most {MAX_ADDRESSES} addresses, not {len(found)}")
    if len({(each.is_grpc, each.uses_tls) for each in found}) > 1:
        raise invalid_argument(
            f"the addresses {excerpt(', '.join(each.url for each in found))} differ in protocol or TLS; use one "
            "scheme for all"
        )
    return found


def _check_headers(headers: Mapping[str, str]) -> None:
    for name, value in headers.items():
        try:
            check_field(name, value)
        except ValueError as error:
            raise invalid_argument(str(error)) from None


def _requested(outputs: Iterable[str | RequestedOutput]) -> list[RequestedOutput]:
    return [RequestedOutput(each, binary=True) if isinstance(each, str) else each for each in outputs]


def _region_name(name: str) -> str:
    if not name:
        raise invalid_argument("an empty region name would unregister the regions of every client; name a region")
    return name


def _check_texts(name: str, array: Array) -> None:
    """Raise InferError(INVALID_ARG) for missing values, which would be sent as the texts "nan", "<NA>", "None"."""
    for each in array.ravel().tolist():
        if type(each) is not str and type(each) is not bytes and is_missing(each):
            raise invalid_argument(
                f"input '{excerpt(name)}' has missing values ({each!r}), which texts lack; replace them, for example "
                "with pandas' fillna('')"
            )


def is_missing(value: Any) -> bool:
    """Return whether a value is None, NaN, or what pandas has instead of a value."""
    return value is None or type(value).__name__ in ("NAType", "NaTType") or bool(np.any(value != value))


def encode_tensors(inputs: Mapping[str, Array]) -> tuple[Sequence[TensorSpec], Sequence[Buffer]]:
    """Return arrays as tensors of a request. Raises InferError(INVALID_ARG) for a dtype without a datatype."""
    specs: list[TensorSpec] = []
    data: list[Buffer] = []
    for name, value in inputs.items():
        if has_masked(value):
            raise invalid_argument(f"input '{excerpt(name)}' {MASKED}")
        array = np.asarray(value)
        datatype = from_numpy(array.dtype)
        if datatype is None:
            raise invalid_argument(
                f"input '{excerpt(name)}' has dtype {array.dtype}, which the protocol does not have: "
                f"{conversion_hint(array.dtype)}"
            )
        if array.dtype.kind in "OT":
            _check_texts(name, array)
        specs.append(TensorSpec(name, datatype, array.shape))
        data.append(to_buffer(array))
    return specs, data
