"""What all clients share: the calls for one model on one server, for one event loop."""

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from naiad.bind.client.call_inputs import check_arguments, checked_values, named_inputs
from naiad.bind.client.exceptions import (
    PyTritonClientClosedError,
    PyTritonClientError,
    PyTritonClientInferenceServerError,
    PyTritonClientInvalidUrlError,
    PyTritonClientModelUnavailableError,
    PyTritonClientTimeoutError,
    PyTritonClientValueError,
)
from naiad.bind.model_config.generator import from_message
from naiad.bind.model_config.triton_model_config import TritonModelConfig
from naiad.client import Client
from naiad.client.client import InferResult
from naiad.client.connecting import ClientClosedError, ConnectionFailedError
from naiad.core.errors import ErrorCode, InferError
from naiad.core.parameters import ParameterValue
from naiad.core.tensor import Array
from naiad.options.network.access_options import GRPC_HEADER_PREFIX

DEFAULT_INIT_TIMEOUT_S = 300.0
DEFAULT_INFERENCE_TIMEOUT_S = 60.0
_POLL_S = 0.05
_LONGEST_POLL_S = 1.0
_PROBE_S = 10.0
_ACCESS_HEADER = "triton-access-token"


@dataclass(frozen=True)
class SessionOptions:
    """The arguments of a client."""

    url: str
    model_name: str
    model_version: str | None = None
    init_timeout_s: float | None = None
    inference_timeout_s: float | None = None
    model_config: TritonModelConfig | None = None
    ensure_model_is_ready: bool = True
    access_token: str | None = None


@dataclass(frozen=True)
class Arguments:
    """The arguments of one inference call."""

    by_position: Sequence[Array]
    by_name: Mapping[str, Array]
    parameters: Mapping[str, ParameterValue] | None
    headers: Mapping[str, ParameterValue] | None
    is_sample: bool

    def __post_init__(self) -> None:
        """Raise PyTritonClientValueError for inputs by position and by name, or wrong parameters."""
        check_arguments(self.by_position, self.by_name)
        checked_values(self.parameters)
        checked_values(self.headers)


class ModelSession:
    """Calls for one model. Its coroutines raise the exceptions of `naiad.bind.client`."""

    def __init__(self, options: SessionOptions) -> None:
        """Open no connection yet. Raises PyTritonClientInvalidUrlError."""
        self.options = options
        self.init_timeout_s = DEFAULT_INIT_TIMEOUT_S if options.init_timeout_s is None else options.init_timeout_s
        given_s = options.inference_timeout_s
        self.inference_timeout_s = DEFAULT_INFERENCE_TIMEOUT_S if given_s is None else given_s
        self.url = _url_of(options.url)
        self.is_grpc = self.url.startswith("grpc")
        headers = {}
        if options.access_token is not None:
            headers[(GRPC_HEADER_PREFIX if self.is_grpc else "") + _ACCESS_HEADER] = options.access_token
        try:
            self._client = Client(self.url, headers=headers)
        except InferError as error:
            raise PyTritonClientInvalidUrlError(f"Invalid url {options.url}: {error.message}") from None
        self._model = options.model_name
        self._version = options.model_version or ""
        self._config = options.model_config
        self._is_ready = not options.ensure_model_is_ready
        self._is_closed = False
        self._request_ids = itertools.count()

    def copied(self) -> SessionOptions:
        """Return the options of another client that need not ask the server for the configuration again."""
        known = self._config is not None
        return replace(self.options, model_config=self._config, ensure_model_is_ready=not known)

    def close(self) -> None:
        """Close all connections; calls in progress fail."""
        self._is_closed = True
        self._client.close()

    # --- readiness --------------------------------------------------------------------------------------------------

    async def wait_for_server(self, timeout_s: float) -> None:
        """Wait until the server is ready. Raises PyTritonClientTimeoutError."""
        deadline_s = time.monotonic() + timeout_s
        for pause_s in _pauses():
            self._check_open()
            with contextlib.suppress(InferError):
                if await self._client.is_ready(timeout_s=_left(deadline_s)):
                    return
            await self._pause(pause_s, deadline_s, f"server {self.url}", timeout_s)

    async def wait_for_model(self, timeout_s: float) -> None:
        """Wait until server and model are ready. Raises PyTritonClientTimeoutError."""
        deadline_s = time.monotonic() + timeout_s
        await self.wait_for_server(timeout_s)
        what = f"model {self._model}/{self._version or '<latest>'}"
        for pause_s in _pauses():
            self._check_open()
            with contextlib.suppress(InferError):
                if await self._client.is_model_ready(self._model, self._version, timeout_s=_left(deadline_s)):
                    self._is_ready = True
                    return
            await self._pause(pause_s, deadline_s, what, timeout_s)

    async def _pause(self, pause_s: float, deadline_s: float, what: str, timeout_s: float) -> None:
        if time.monotonic() >= deadline_s:
            raise PyTritonClientTimeoutError(f"Waiting for {what} to be ready timed out after {timeout_s:g} s.")
        await asyncio.sleep(min(pause_s, max(0.0, deadline_s - time.monotonic())))

    async def config(self) -> TritonModelConfig:
        """Return the configuration of the model; waits for the model when it is first asked for."""
        self._check_open()
        if not self._is_ready:
            await self.wait_for_model(self.init_timeout_s)
        if self._config is None:
            with _errors(self.init_timeout_s):
                try:
                    message = await self._client.model_config(
                        self._model, self._version, timeout_s=self.init_timeout_s
                    )
                except InferError as error:
                    if error.code is ErrorCode.NOT_FOUND:
                        raise PyTritonClientModelUnavailableError(
                            f"model {self._model} is unavailable on {self.url}: {error.message}"
                        ) from None
                    raise
            self._config = from_message(message, int(self._version or 1))
        return self._config

    async def load(self, config: str = "", files: Mapping[str, bytes] | None = None) -> None:
        """Load the model; `config` is JSON that replaces its configuration."""
        with _errors(self.init_timeout_s):
            await self._client.load(self._model, config=config, files=files, timeout_s=self.init_timeout_s)

    async def unload(self) -> None:
        """Unload the model."""
        with _errors(self.init_timeout_s):
            await self._client.unload(self._model, timeout_s=self.init_timeout_s)

    # --- inference --------------------------------------------------------------------------------------------------

    async def infer(self, arguments: Arguments) -> dict[str, Array]:
        """Return the outputs of the only response."""
        config = await self.config()
        if config.decoupled:
            raise PyTritonClientInferenceServerError(
                "Model config is decoupled. Use DecoupledModelClient or AsyncioDecoupledModelClient instead."
            )
        with _errors(self.inference_timeout_s):
            result = await self._client.infer(
                self._model,
                self._inputs(config, arguments),
                version=self._version,
                outputs=[spec.name for spec in config.outputs],
                request_id=str(next(self._request_ids)),
                parameters=checked_values(arguments.parameters),
                headers=_texts(arguments.headers),
                timeout_s=self.inference_timeout_s,
            )
            return _outputs(result, config, arguments)

    async def stream(self, arguments: Arguments) -> AsyncGenerator[dict[str, Array], None]:
        """Yield the outputs of each response of a decoupled model."""
        config = await self.config()
        if not config.decoupled:
            raise PyTritonClientInferenceServerError(
                "Model config is coupled. Use ModelClient or AsyncioModelClient instead."
            )
        with _errors(self.inference_timeout_s):
            results = self._client.infer_stream(
                self._model,
                self._inputs(config, arguments),
                version=self._version,
                outputs=[spec.name for spec in config.outputs],
                request_id=str(next(self._request_ids)),
                parameters=checked_values(arguments.parameters),
                headers=_texts(arguments.headers),
                timeout_s=self.inference_timeout_s,
            )
            async with contextlib.aclosing(results):
                async for result in results:
                    yield _outputs(result, config, arguments)

    def check_streams(self, client: str) -> None:
        """Raise PyTritonClientValueError unless the URL is one for gRPC, which alone has streams."""
        if not self.is_grpc:
            raise PyTritonClientValueError(f"{client} is only supported for grpc protocol: use grpc://host:8001")

    def _inputs(self, config: TritonModelConfig, arguments: Arguments) -> dict[str, Array]:
        self._check_open()
        return named_inputs(config, arguments.by_position, arguments.by_name, is_sample=arguments.is_sample)

    def _check_open(self) -> None:
        if self._is_closed:
            raise PyTritonClientClosedError("ModelClient is closed")


def _url_of(url: object) -> str:
    if not isinstance(url, str) or not url:
        raise PyTritonClientInvalidUrlError(
            f"Invalid url {url!r}, expected text such as localhost or grpc://host:8001"
        )
    return url if "://" in url else f"http://{url}"


def _texts(headers: Mapping[str, ParameterValue] | None) -> dict[str, str]:
    return {name: str(value) for name, value in (headers or {}).items()}


def _outputs(result: InferResult, config: TritonModelConfig, arguments: Arguments) -> dict[str, Array]:
    outputs = dict(result)
    return {name: array[0] for name, array in outputs.items()} if arguments.is_sample and config.batching else outputs


def _pauses() -> Iterator[float]:
    pause_s = _POLL_S
    while True:
        yield pause_s
        pause_s = min(_LONGEST_POLL_S, pause_s * 1.5)


def _left(deadline_s: float) -> float:
    return max(0.01, min(_PROBE_S, deadline_s - time.monotonic()))


@contextlib.contextmanager
def _errors(timeout_s: float) -> Iterator[None]:
    """Translate the errors of connection and server into the exceptions of the clients."""
    try:
        yield
    except PyTritonClientError:
        raise
    except ClientClosedError:
        raise PyTritonClientClosedError("ModelClient is closed") from None
    except ConnectionFailedError as error:
        raise PyTritonClientTimeoutError(f"no connection to the server: {error.message}") from error
    except InferError as error:
        if error.code is ErrorCode.DEADLINE_EXCEEDED:
            raise PyTritonClientTimeoutError(
                f"Timeout occurred during inference request. Timeout: {timeout_s:g} s. Message: {error.message}"
            ) from error
        raise PyTritonClientInferenceServerError(
            f"Error occurred during inference request. Message: {error.message}"
        ) from error
