"""A client whose calls return futures: many requests of one thread are in flight at the same time."""

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from types import TracebackType
from typing import Any, TypeVar

from naiad.bind.client.client_session import Arguments, ModelSession, SessionOptions
from naiad.bind.client.exceptions import PyTritonClientClosedError, PyTritonClientQueueFullError
from naiad.bind.client.inference_calls import InferenceCalls
from naiad.bind.model_config.triton_model_config import TritonModelConfig
from naiad.client.loop_thread import LoopClient
from naiad.core.tensor import Array

_T = TypeVar("_T")


class FuturesModelClient(InferenceCalls[Future[dict[str, Array]]], LoopClient):
    """A client of one model, whose calls return futures of the outputs by name.

    At most `max_workers` requests are in flight, and `max_queue_size` more wait.
    """

    def __init__(  # noqa: PLR0913 - PyTriton's arguments
        self,
        url: str,
        model_name: str,
        model_version: str | None = None,
        *,
        max_workers: int = 128,
        max_queue_size: int = 128,
        non_blocking: bool = False,
        init_timeout_s: float | None = None,
        inference_timeout_s: float | None = None,
        access_token: str | None = None,
    ) -> None:
        """Make a client; see `ModelClient`.

        When `max_queue_size` requests wait, a call blocks up to `inference_timeout_s`, with `non_blocking` not at
        all, and then raises PyTritonClientQueueFullError.
        """
        options = SessionOptions(
            url, model_name, model_version, init_timeout_s, inference_timeout_s, access_token=access_token
        )
        self._session = ModelSession(options)
        LoopClient.__init__(self, model_name, self._session.close)
        self._is_blocking = not non_blocking
        self._places = threading.BoundedSemaphore(max_workers + max_queue_size)
        self._workers = asyncio.Semaphore(max_workers)
        self._open: set[Future[Any]] = set()
        self._is_closed = False

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the client; without an exception the requests in flight end first."""
        self.close(wait=kind is None)

    def close(self, wait: bool = True) -> None:
        """Close the client: with `wait` after the requests in flight, otherwise they are cancelled."""
        self._is_closed = True
        if not self._loop_thread.is_open:
            return
        if wait:
            concurrent.futures.wait(list(self._open))
        super().close()

    def wait_for_model(self, timeout_s: float) -> "Future[None]":
        """Return a future that is done when the model is ready."""
        return self._submit(self._session.wait_for_model(timeout_s))

    def model_config(self) -> Future[TritonModelConfig]:
        """Return a future of the configuration of the model."""
        return self._submit(self._session.config())

    def _infer(self, arguments: Arguments) -> "Future[dict[str, Array]]":
        return self._submit(self._session.infer(arguments))

    def _submit(self, work: Coroutine[Any, Any, _T]) -> "Future[_T]":
        if self._is_closed:
            work.close()
            raise PyTritonClientClosedError("FuturesModelClient is closed")
        timeout_s = self._session.inference_timeout_s if self._is_blocking else None
        if not self._places.acquire(blocking=self._is_blocking, timeout=timeout_s):
            work.close()
            raise PyTritonClientQueueFullError(
                "Queue is full; wait for results, or raise max_workers or max_queue_size"
            )
        future = self._loop_thread.submit(self._in_turn(work))
        self._open.add(future)
        future.add_done_callback(self._end)
        return future

    async def _in_turn(self, work: Coroutine[Any, Any, _T]) -> _T:
        try:
            async with self._workers:
                return await work
        finally:
            work.close()  # a future that is cancelled before its turn

    def _end(self, future: "Future[Any]") -> None:
        self._open.discard(future)
        self._places.release()
