"""An engine of vLLM on an event loop of its own, and its generations: one for each request, all at a time.

Three threads: that of the instance takes requests, the loop runs the engine, and one sends the responses, so that a
client that does not read its stream never stops the engine.
"""

import asyncio
import contextlib
import logging
import queue
import threading
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from naiad.backend.framework import reason
from naiad.backend.vllm.engine_library import EngineLibrary, lora_request
from naiad.backend.vllm.engine_request import EngineRequest, sampling_params
from naiad.backend.vllm.engine_tensors import EngineResponses
from naiad.core.errors import InferError, excerpt, internal, invalid_argument, unavailable
from naiad.core.request import InferRequest
from naiad.core.response import InferResponse
from naiad.worker.last_resort import start_thread

_log = logging.getLogger(__name__)

_POLL_S = 0.01
"""Interval at which cancelled requests are looked for, while there are requests."""
_HEALTH_S = 0.5
_LAST_ERRORS_S = 2.0
"""How long the requests of a dead engine have to fail by themselves."""
Emit = Callable[[InferRequest, InferResponse], None]


class EngineDeathError(Exception):
    """The engine has died: the worker process exits, and the server starts another one."""


class AsyncEngine:
    """One engine. `generate` and `close` are called by the thread of the instance."""

    def __init__(
        self,
        library: EngineLibrary,
        arguments: Any,
        responses: EngineResponses,
        adapters: Mapping[str, str],
        name: str,
    ) -> None:
        """Start the engine and wait for it. `arguments` are vLLM's; `name` is the model's. Raises InferError."""
        self._library = library
        self._arguments = arguments
        self._responses = responses
        self._adapters = {each: (number, path) for number, (each, path) in enumerate(adapters.items(), start=1)}
        self._name = name
        self._engine: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._open: dict[str, tuple[InferRequest, asyncio.Task[None]]] = {}
        self._looks: asyncio.Task[None] | None = None
        self._closing: asyncio.Event | None = None
        self._sent: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._sender = start_thread(f"responses of {name}", self._send_all)
        self._started: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"vllm:{name}", daemon=True)
        self._thread.start()
        error = self._started.get()
        if error is not None:
            self._sent.put(None)
            raise internal(f"vLLM {library.version} cannot start its engine: {reason(error)}") from error

    @property
    def is_dead(self) -> bool:
        """Whether the engine executes no requests any more."""
        return bool(getattr(self._engine, "errored", False))

    def generate(self, request: InferRequest, asked: EngineRequest, emit: Emit) -> None:
        """Begin to generate; the responses are emitted by another thread. Raises InferError for what vLLM refuses."""
        params = sampling_params(self._library, asked)
        if self._loop is None:
            raise internal(f"the engine of model '{self._name}' is closed")
        self._loop.call_soon_threadsafe(self._begin, request, asked, params, emit)

    def close(self) -> None:
        """End the engine; requests that are open are cancelled."""
        loop, closing = self._loop, self._closing
        if loop is not None and closing is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(closing.set)
        self._thread.join()
        self._sent.put(None)
        self._sender.join()

    # --- the loop ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            asyncio.run(self._live())
        except BaseException as error:
            if self._engine is None:
                self._started.put(error)
                return
            _log.exception("the loop of vLLM has failed")
            self._sent.put(self._exit)

    async def _live(self) -> None:
        # On this loop: the engine starts tasks. What it raises, SystemExit too, is the reason of the failed load.
        self._engine = self._library.AsyncLLM.from_engine_args(self._arguments)
        self._loop, self._closing = asyncio.get_running_loop(), asyncio.Event()
        self._started.put(None)
        while not self._closing.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), _HEALTH_S)
            if self.is_dead:
                await self._end_dead()
                return
        tasks = [task for _, task in self._open.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._engine.shutdown()

    async def _end_dead(self) -> None:
        _log.error("the engine of model '%s' has died; the worker exits, and another one starts", self._name)
        tasks = [task for _, task in self._open.values()]
        if tasks:
            await asyncio.wait(tasks, timeout=_LAST_ERRORS_S)
        self._sent.put(self._exit)

    def _exit(self) -> None:
        raise EngineDeathError(f"the engine of model '{self._name}' has died")

    # --- one request ------------------------------------------------------------------------------------------------

    def _begin(self, request: InferRequest, asked: EngineRequest, params: Any, emit: Emit) -> None:
        name = uuid.uuid4().hex
        task = asyncio.ensure_future(self._generate(name, request, asked, params, emit))
        self._open[name] = (request, task)
        if self._looks is None or self._looks.done():
            self._looks = asyncio.ensure_future(self._look_for_cancelled())

    async def _generate(
        self, name: str, request: InferRequest, asked: EngineRequest, params: Any, emit: Emit
    ) -> None:
        try:
            final = await self._stream(name, request, asked, params, emit)
        except asyncio.CancelledError:
            final = InferResponse(self._responses.empty, final=True, empty_final=True)
        except InferError as error:
            final = InferResponse(self._responses.empty, error=error)
        except Exception as error:  # vLLM's own classes
            final = InferResponse(self._responses.empty, error=self._error_of(error))
        finally:
            del self._open[name]
        if request.cancelled:  # in any case: an aborted generation may have a last output
            final = InferResponse(self._responses.empty, final=True, empty_final=True)
        self._emit(emit, request, final)

    async def _stream(
        self, name: str, request: InferRequest, asked: EngineRequest, params: Any, emit: Emit
    ) -> InferResponse:
        """Emit all responses but the last one, which is returned."""
        options = {}
        if asked.lora_name:
            number, path = self._adapters[asked.lora_name]
            options["lora_request"] = lora_request(asked.lora_name, number, path)
        prompt, prompt_tokens, last = asked.prompt if asked.repeats_prompt else "", 0, None
        async with contextlib.aclosing(self._engine.generate(asked.prompt, params, name, **options)) as outputs:
            async for found in outputs:
                # Later ones of a stream may leave it out.
                prompt_tokens = len(found.prompt_token_ids or ()) or prompt_tokens
                if any(each.finish_reason == "abort" for each in found.outputs):
                    raise unavailable(f"vLLM has aborted the request to model '{self._name}'; send it again")
                header, data = self._responses.encode(asked, found, prompt, prompt_tokens)
                if last is not None:
                    self._emit(emit, request, last)
                last = InferResponse(header, data, final=False)
                if asked.streams and not found.finished:
                    self._emit(emit, request, last)
                    last = None
        if last is None:
            raise internal(f"vLLM has ended a generation of model '{self._name}' without a last output")
        last.final = True
        return last

    def _error_of(self, error: BaseException) -> InferError:
        cause = error.__cause__ or error
        if isinstance(cause, (ValueError, TypeError)) or any(
            kind.__name__ == "VLLMClientError" for kind in type(cause).__mro__
        ):
            return invalid_argument(f"vLLM: {excerpt(str(cause))}")
        if self.is_dead:
            return unavailable(f"the engine of model '{self._name}' has died: {reason(cause)}; another one starts")
        return internal(f"vLLM failed for model '{self._name}': {reason(cause)}")

    async def _look_for_cancelled(self) -> None:
        """Abort requests whose clients have left, until none is open."""
        while self._open:
            await asyncio.sleep(_POLL_S)
            for name, (request, task) in list(self._open.items()):
                if request.cancelled and not task.done():
                    with contextlib.suppress(Exception):  # a dead engine aborts nothing; the task ends anyway
                        await self._engine.abort(name)
                    task.cancel()

    # --- responses --------------------------------------------------------------------------------------------------

    def _emit(self, emit: Emit, request: InferRequest, response: InferResponse) -> None:
        self._sent.put(lambda: emit(request, response))

    def _send_all(self) -> None:
        while (send := self._sent.get()) is not None:
            try:
                send()
            except EngineDeathError:
                raise
            except Exception:
                _log.exception("a response of model '%s' was not sent", self._name)
