"""Cached responses in Redis, shared by servers. An unreachable Redis is a miss, a count and one line in the log."""

import asyncio
import json
import logging
import math
import struct
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from naiad.core.datatype import DataType
from naiad.core.errors import invalid_argument
from naiad.core.tensor import Buffer, TensorSpec
from naiad.engine.cache.response_store import CacheCounts, CachedResponse, Share
from naiad.telemetry.last_resort import report

_log = logging.getLogger(__name__)

_LENGTH = struct.Struct("<I")
_QUEUE_LIMIT = 4096
"""Operations that wait for Redis; beyond, a lookup is a miss and a response is not stored."""
_BATCH_LIMIT = 256
_RETRY_S = 1.0
"""Pause between two PINGs to a Redis that failed."""
_REJECTION_LOG_S = 60.0
"""Shortest time between two log lines about rejected commands: a full Redis alternates between both results."""
_PREFIX = b"naiad:response:"

Found = Callable[[CachedResponse | None], object]
Operation = tuple[bytes, Found | None, CachedResponse | None]
"""Key, and the callback of a lookup or the response to store."""


class RedisStore:
    """Sends lookups and responses to Redis in pipelines, one pipeline at a time. Called on the event loop."""

    is_shared = True

    def __init__(self, settings: Mapping[str, str]) -> None:
        """`settings`: host, port, and optionally user, password, db, ttl (seconds), timeout_ms, tls.

        Raises InferError(INVALID_ARG) for invalid settings or without the `redis` package.
        """
        self._client, self._ttl_s, self._address = _connect(settings)
        self._waiting: deque[Operation] = deque()
        self._task: asyncio.Task[None] | None = None
        """Runs while operations wait, and while Redis is away."""
        self._failure_count = 0
        self._is_away = False
        self._rejection_log_s = -math.inf

    def get(self, key: bytes) -> CachedResponse | None:
        """Return None: nothing is stored in this process."""
        return None

    def fetch(self, key: bytes, found: Found) -> bool:
        """Begin a lookup; False while Redis is away or the queue is full."""
        if self._is_away:
            self._failure_count += 1
            return False
        return self._enqueue((key, found, None))

    def put(self, key: bytes, response: CachedResponse, share: Share | None = None) -> None:
        """Store a response unless Redis is away or the queue is full. Redis itself limits its size."""
        if not self._is_away:
            self._enqueue((key, None, response))

    def _enqueue(self, operation: Operation) -> bool:
        if len(self._waiting) >= _QUEUE_LIMIT:
            self._failure_count += 1
            return False
        self._waiting.append(operation)
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        return True

    def counts(self) -> CacheCounts:
        """Return the number of failed operations; Redis itself reports what it holds."""
        return CacheCounts(failure_count=self._failure_count)

    async def close(self) -> None:
        """Drop the waiting operations and close the connection."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self._client.aclose()

    # --- task -------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            while self._waiting:
                batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), _BATCH_LIMIT))]
                await self._execute(batch)
                if self._is_away:
                    await self._reconnect()
        finally:
            self._task = None

    async def _execute(self, batch: Sequence[Operation]) -> None:
        try:
            pipeline = self._client.pipeline(transaction=False)
            for key, found, response in batch:
                if found is not None:
                    pipeline.get(_PREFIX + key)
                elif response is not None:
                    pipeline.set(_PREFIX + key, encode(response), ex=self._ttl_s or None)
            # A full Redis rejects SET and still answers GET.
            results: Sequence[Any] = await pipeline.execute(raise_on_error=False)
        except BaseException as error:  # the client raises errors of several families, and none may end the task
            if isinstance(error, asyncio.CancelledError):
                raise
            _log.warning("Redis at %s cannot be reached, responses are not cached: %s", self._address, error)
            self._is_away = True
            batch = [*batch, *self._waiting]
            self._waiting.clear()
            self._failure_count += len(batch)
            results = [None] * len(batch)
        self._log_rejections([result for result in results if isinstance(result, Exception)])
        for (_, found, _), result in zip(batch, results, strict=True):
            if found is not None:
                _call(found, result)

    async def _reconnect(self) -> None:
        """Return once Redis answers. Until then every lookup is a miss, so no request waits."""
        while self._is_away:
            await asyncio.sleep(_RETRY_S)
            try:
                await self._client.ping()
            except Exception as error:  # as above
                _log.debug("Redis at %s does not answer PING: %s", self._address, error)
            else:
                self._is_away = False
                _log.info("Redis at %s answers again", self._address)

    def _log_rejections(self, rejections: Sequence[Exception]) -> None:
        self._failure_count += len(rejections)
        now_s = time.monotonic()
        if rejections and now_s >= self._rejection_log_s:
            self._rejection_log_s = now_s + _REJECTION_LOG_S
            _log.warning("Redis at %s rejects commands of the response cache: %s", self._address, rejections[0])


def _call(found: Found, result: Any) -> None:
    response = None
    try:
        response = decode(result)
    except BaseException as error:
        report("decoding a response from Redis", error)
    try:
        found(response)
    except BaseException as error:
        # An error of one request must not affect other requests of the same pipeline.
        report("processing a lookup's result from Redis", error)


def _connect(settings: Mapping[str, str]) -> tuple[Any, int, str]:
    try:
        import redis.asyncio as redis
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff
    except ImportError:
        raise invalid_argument("--cache-config redis needs the 'redis' package: pip install 'naiad[redis]'") from None
    known = {"host", "port", "user", "password", "db", "ttl", "timeout_ms", "tls"}
    unknown = sorted(settings.keys() - known)
    if unknown:
        raise invalid_argument(
            f"--cache-config redis: unknown setting '{unknown[0]}'; known are {', '.join(sorted(known))}"
        )
    if "host" not in settings or "port" not in settings:
        raise invalid_argument("--cache-config redis needs 'host' and 'port', as in redis,host=localhost")
    numbers = {name: _number(settings, name, default) for name, default in _NUMBERS.items()}
    if not numbers["timeout_ms"]:
        raise invalid_argument("--cache-config redis: timeout_ms is 0, expected at least 1")
    timeout_s = numbers["timeout_ms"] / 1000
    client = redis.Redis(
        host=settings["host"],
        port=numbers["port"],
        db=numbers["db"],
        username=settings.get("user"),
        password=settings.get("password"),
        ssl=_truth(settings, "tls"),
        socket_timeout=timeout_s,
        socket_connect_timeout=timeout_s,
        # Since release 6 the default is three retries with pauses that grow to seconds, and requests would wait for
        # them. One immediate retry covers a connection that Redis has closed meanwhile.
        retry=Retry(NoBackoff(), 1, supported_errors=(redis.ConnectionError,)),
    )
    return client, numbers["ttl"], f"{settings['host']}:{numbers['port']}"


_NUMBERS = {"port": 6379, "db": 0, "ttl": 0, "timeout_ms": 500}


def _number(settings: Mapping[str, str], name: str, default: int) -> int:
    text = settings.get(name, str(default))
    if not (text.isascii() and text.isdigit()):
        raise invalid_argument(f"--cache-config redis: {name} is '{text}', expected a number")
    return int(text)


def _truth(settings: Mapping[str, str], name: str) -> bool:
    text = settings.get(name, "false").lower()
    if text not in _TRUTHS:
        raise invalid_argument(f"--cache-config redis: {name} is '{text}', expected true or false")
    return _TRUTHS[text]


_TRUTHS = {"1": True, "true": True, "on": True, "0": False, "false": False, "off": False}


def encode(response: CachedResponse) -> bytes:
    """Return a response as bytes: JSON with names, datatypes, shapes, sizes and parameters, then the data."""
    specs = [
        (spec.name, spec.datatype.value, list(spec.shape), len(data))
        for spec, data in zip(response.outputs, response.data, strict=True)
    ]
    head = json.dumps([specs, dict(response.parameters)]).encode()
    return b"".join([_LENGTH.pack(len(head)), head, *response.data])


def decode(data: bytes | Exception | None) -> CachedResponse | None:
    """Return the response of `encode`; None for a missing value, an error, or an invalid response."""
    if data is None or isinstance(data, Exception):
        return None
    try:
        (length,) = _LENGTH.unpack_from(data)
        at = _LENGTH.size + length
        outputs: list[TensorSpec] = []
        parts: list[Buffer] = []
        specs, parameters = json.loads(data[_LENGTH.size : at])
        for name, datatype, shape, size in specs:
            outputs.append(TensorSpec(name, DataType(datatype), tuple(shape)))
            parts.append(data[at : at + size])
            at += size
        kept = CachedResponse(tuple(outputs), parts, dict(parameters))
    except (struct.error, ValueError, TypeError, RecursionError):
        _log.warning("Redis has an invalid response under a key of this server")
        return None
    return kept if at == len(data) else None
