"""Models of a repository in this process: requests without sockets and encoding, and what a run reads about them."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import InferError
from naiad.core.model import ModelMetadata, ServerMetadata
from naiad.core.request import InferRequest, RequestHeader
from naiad.core.response import InferResponse
from naiad.core.tensor import Buffer
from naiad.core.version import __version__
from naiad.protocol.json.client import decode_statistics
from naiad.protocol.json.management.control import encode_statistics
from naiad.server.embedded import EmbeddedServer
from naiad.tools.perf.perf_exchange import Prepared, RequestTemplate, SentRequest
from naiad.tools.perf.perf_plan import ServerTarget
from naiad.tools.perf.targets.ending import CONNECTION, TIMEOUT, TargetDeadlines, count_response, fail, finish

_CLOSED = "the target is closed"


class PreparedInput:
    """A template as the engine takes it; its header is shared by all requests outside sequences."""

    __slots__ = ("data", "header")

    def __init__(self, header: RequestHeader, data: Sequence[Buffer]) -> None:
        self.header = header
        self.data = data

    def header_of(self, exchange: SentRequest) -> RequestHeader:
        """Return the header with the place of `exchange` in its sequence."""
        if not exchange.sequence_id:
            return self.header
        header = self.header.in_sequence(exchange.sequence_id, is_first=exchange.sequence_start)
        header.sequence_end = exchange.sequence_end
        return header


class InProcessTarget:
    """Models of a repository, which `open` loads."""

    def __init__(self, service: ServerTarget, models: Sequence[str] = ()) -> None:
        """Use the named models of the repository `service.url`, or all of them."""
        self.server = EmbeddedServer(service.url, models)
        """Metadata, configuration and statistics of the models."""
        self._outstanding: dict[SentRequest, InferRequest] = {}
        self._sending: SentRequest | None = None
        self._is_open = False
        self._deadlines = TargetDeadlines(service.request_timeout_s, self._expire)

    async def open(self, connections: int) -> None:
        """Load the models, unless they are loaded. Raises InferError if the repository or a model cannot be."""
        self._loop = asyncio.get_running_loop()
        if not self._is_open:
            await self.server.start()
            self._is_open = True
            self._deadlines.start()

    def prepare(self, template: RequestTemplate) -> PreparedInput:
        """Keep a template; nothing is encoded."""
        return PreparedInput(template.header, template.data)

    def send(self, prepared: Prepared, exchange: SentRequest) -> None:
        """Submit a request to its model."""
        # hot: bench/micro_perf.py
        assert isinstance(prepared, PreparedInput)
        now_ns = exchange.start_ns = time.monotonic_ns()
        if not self._is_open:
            self._loop.call_soon(fail, exchange, CONNECTION, _CLOSED)
            return
        request = InferRequest(
            prepared.header_of(exchange),
            prepared.data,
            self._responded,
            id=exchange.request_id,
            arrival_ns=now_ns,
            context=exchange,
        )
        self._outstanding[exchange] = request
        self._sending = exchange
        exchange.sent_ns = time.monotonic_ns()
        try:
            self.server.submit(request)
        except InferError as error:
            del self._outstanding[exchange]
            self._loop.call_soon(fail, exchange, error.code.name.lower(), error.message)
        self._sending = None

    async def close(self) -> None:
        """Unload the models; outstanding requests fail as `connection`."""
        self._deadlines.stop()
        if self._is_open:
            self._is_open = False
            for exchange in list(self._outstanding):
                self._give_up(exchange, CONNECTION, _CLOSED)
            await self.server.close()
        await asyncio.sleep(0)  # Requests that fail at once do so in the next turn of the loop.

    def _responded(self, request: InferRequest, response: InferResponse) -> None:
        exchange = request.context
        assert isinstance(exchange, SentRequest)
        if self._sending is exchange:  # `on_end` is not called from within `send`.
            self._loop.call_soon(self._take, exchange, response, time.monotonic_ns())
        else:
            self._take(exchange, response, time.monotonic_ns())

    def _take(self, exchange: SentRequest, response: InferResponse, now_ns: int) -> None:
        if exchange not in self._outstanding:
            return  # It has expired.
        if response.error is not None:
            exchange.failure = exchange.failure or response.error.code.name.lower()
            exchange.failure_message = exchange.failure_message or response.error.message
        elif not response.empty_final:
            count_response(exchange, now_ns)
            if exchange.keeps(sum(map(len, response.data))):
                body = (response.header.outputs, [bytes(each) for each in response.data])
                exchange.body = [*(exchange.body or ()), body]
        if response.final:
            del self._outstanding[exchange]
            finish(exchange, now_ns)

    def _expire(self, before_ns: int, message: str) -> None:
        for exchange in [each for each in self._outstanding if each.start_ns < before_ns]:
            self._give_up(exchange, TIMEOUT, message)

    def _give_up(self, exchange: SentRequest, kind: str, message: str) -> None:
        request = self._outstanding.pop(exchange, None)
        if request is not None:
            self.server.cancel(request)
            fail(exchange, kind, message)


class EmbeddedClient:
    """Reads metadata, configuration and statistics of an embedded server. Raises InferError as a client does."""

    def __init__(self, server: EmbeddedServer) -> None:
        self._server = server

    async def server_metadata(self) -> ServerMetadata:
        """Return name and version."""
        return ServerMetadata("naiad", __version__, ())

    async def model_metadata(self, model: str, version: str = "") -> ModelMetadata:
        """Return inputs, outputs and versions of a model."""
        return self._server.model_metadata(model, version)

    async def model_config(self, model: str, version: str = "") -> ModelConfig:
        """Return the complete configuration of a model."""
        return self._server.model_config(model, version)

    async def statistics(self, *, timeout_s: float | None = None) -> list[dict[str, Any]]:
        """Return counts and durations, a row per version."""
        return decode_statistics(encode_statistics(self._server.statistics()))

    def close(self) -> None:
        """The models belong to the target."""
