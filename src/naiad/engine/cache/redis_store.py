"""Cached responses in Redis, shared by servers. A Redis that is away is a miss, a count and one line in the log."""

import json
import logging
import math
import queue
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from naiad.core.datatype import DataType
from naiad.core.errors import invalid_argument
from naiad.core.ports import Loop
from naiad.core.tensor import Buffer, TensorSpec
from naiad.engine.cache.store import CacheCounts, CachedResponse, Share

_log = logging.getLogger(__name__)

_LENGTH = struct.Struct("<I")
_QUEUE_LIMIT = 4096
"""Questions and answers that wait for Redis; beyond, a question is a miss and an answer is not kept."""
_BATCH_LIMIT = 256
_RETRY_S = 1.0
"""How long Redis is left alone after it failed."""
_REFUSAL_LINE_S = 60.0
"""What Redis refuses is told no more often: one that is full refuses and takes by turns."""
_PREFIX = b"naiad:response:"

Found = Callable[[CachedResponse | None], object]
Question = tuple[bytes, Found | None, CachedResponse | None]
"""Key, and whom to tell what is kept under it, or else what to keep."""
_IS_BACK: Question = (b"", None, None)
"""Whether Redis answers again: asked instead of questions of requests, which would wait for one that hangs."""


class RedisStore:
    """Asks Redis from one thread, many questions at a time."""

    is_shared = True

    def __init__(self, settings: Mapping[str, str], loop: Loop) -> None:
        """`settings`: host, port, and as wished user, password, db, ttl (seconds), timeout_ms, tls.

        Raises InferError(INVALID_ARG) for settings that cannot be taken or without the `redis` package.
        """
        self._loop = loop
        self._client, self._ttl_s, self._address = _connect(settings)
        self._questions: queue.Queue[Question | None] = queue.Queue(_QUEUE_LIMIT)
        self._failure_count = 0
        self._is_away = False
        self._try_again_s = math.inf
        """When to ask whether it is back; never while it is there, or being asked."""
        self._refusal_line_s = -math.inf
        self._thread = threading.Thread(target=self._run, name="redis", daemon=True)
        self._thread.start()

    def get(self, key: bytes) -> CachedResponse | None:
        """Nothing is kept in this process."""
        return None

    def fetch(self, key: bytes, found: Found) -> bool:
        """Ask Redis; False while it is away or has too much to do."""
        if self._is_away:
            self._failure_count += 1
            self._look_for_it()
            return False
        return self._hand_over((key, found, None))

    def put(self, key: bytes, response: CachedResponse, share: Share | None = None) -> None:
        """Keep a response, unless Redis is away or has too much to do. How much it holds is Redis's own setting."""
        if self._is_away:
            self._look_for_it()
        else:
            self._hand_over((key, None, response))

    def _look_for_it(self) -> None:
        """Have the thread ask whether Redis is back, if it is time to. No request waits for that."""
        due_s = self._try_again_s
        if time.monotonic() < due_s:
            return
        self._try_again_s = math.inf
        if not self._hand_over(_IS_BACK):
            self._try_again_s = due_s

    def _hand_over(self, question: Question) -> bool:
        try:
            self._questions.put_nowait(question)
        except queue.Full:
            self._failure_count += 1
            return False
        return True

    def counts(self) -> CacheCounts:
        """Return how often Redis could not be asked; what it holds, it tells itself."""
        return CacheCounts(failure_count=self._failure_count)

    def close(self) -> None:
        """Let the thread end after what it has been handed."""
        self._questions.put(None)
        self._thread.join(5.0)
        self._client.close()

    # --- its thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            first = self._questions.get()
            if first is None:
                return
            batch = [first]
            while len(batch) < _BATCH_LIMIT:
                try:
                    following = self._questions.get_nowait()
                except queue.Empty:
                    break
                if following is None:
                    self._serve(batch)
                    return
                batch.append(following)
            self._serve(batch)

    def _serve(self, batch: Sequence[Question]) -> None:
        if self._is_away:
            # What came before that was known waits no longer for it: its model is asked at once.
            self._miss([question for question in batch if question is not _IS_BACK])
            if _IS_BACK in batch:
                self._look()
            return
        try:
            pipeline = self._client.pipeline(transaction=False)
            for key, found, response in batch:
                if found is not None:
                    pipeline.get(_PREFIX + key)
                elif response is not None:
                    pipeline.set(_PREFIX + key, encode(response), ex=self._ttl_s or None)
            # One that is full refuses to keep, and answers all the same.
            results: Sequence[Any] = pipeline.execute(raise_on_error=False)
        except Exception as error:  # the client raises errors of several families, and none may stop the thread
            self._failed(error, batch)
            return
        self._tell_refusals([result for result in results if isinstance(result, Exception)])
        answers = [(found, decode(r)) for (_, found, _), r in zip(batch, results, strict=True) if found is not None]
        if answers:
            self._loop.call_soon_threadsafe(_tell, answers)

    def _look(self) -> None:
        try:
            self._client.ping()
        except Exception:  # as above; the log has told that it is away
            self._try_again_s = time.monotonic() + _RETRY_S
        else:
            self._is_away = False
            _log.info("Redis at %s answers again", self._address)

    def _failed(self, error: Exception, batch: Sequence[Question]) -> None:
        _log.warning("Redis at %s cannot be asked, responses are not cached: %s", self._address, error)
        self._is_away = True
        self._try_again_s = time.monotonic() + _RETRY_S
        self._miss(batch)

    def _tell_refusals(self, refusals: Sequence[Exception]) -> None:
        self._failure_count += len(refusals)
        now_s = time.monotonic()
        if refusals and now_s >= self._refusal_line_s:
            self._refusal_line_s = now_s + _REFUSAL_LINE_S
            _log.warning("Redis at %s refuses to keep or to give responses: %s", self._address, refusals[0])

    def _miss(self, batch: Sequence[Question]) -> None:
        self._failure_count += len(batch)
        answers: list[tuple[Found, CachedResponse | None]] = [(found, None) for _, found, _ in batch if found]
        if answers:
            self._loop.call_soon_threadsafe(_tell, answers)


def _tell(answers: Sequence[tuple[Found, CachedResponse | None]]) -> None:
    for found, response in answers:
        try:
            found(response)
        except Exception:
            # One broken exchange must not keep those from their answers whose questions went with it.
            _log.exception("passing on what Redis has said failed")


def _connect(settings: Mapping[str, str]) -> tuple[Any, int, str]:
    try:
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry
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
        # From release 6 on the client tries again by itself, three times with pauses that grow to seconds, and
        # requests wait for it. Once, at once, is for a connection that Redis has closed meanwhile.
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
    """Return the response of `encode`; None for nothing, for a refusal, or for what is no response."""
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
        _log.warning("Redis holds something that is no response under a key of this server")
        return None
    return kept if at == len(data) else None
