"""The ticker of all live streams of a process: it asks once, and every stream takes what is new to its client.

It runs only while there are streams. All work that grows with the number of models is cut in pieces of about a
millisecond, and what several streams send is encoded once.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from naiad.core.errors import InferError, Rejection, unavailable
from naiad.core.model import IndexEntry
from naiad.engine.engine import Engine
from naiad.frontend.context import HttpContext
from naiad.frontend.dashboard.live_models import model_rows, ready_index, shown_name
from naiad.frontend.dashboard.live_request import LiveRequest
from naiad.frontend.dashboard.live_stream import EncodedVersion, LiveStream, Rights, owner_of
from naiad.frontend.long_work.slice_runner import in_pieces
from naiad.frontend.long_work.thread_pool import RunInThread, run_at_once
from naiad.protocol.json.management import live
from naiad.telemetry.last_resort import begin_task
from naiad.telemetry.live.live_answer import LiveAnswer, LiveQuery, VersionKey
from naiad.telemetry.statistics.live_counts import NOTHING

_log = logging.getLogger(__name__)

MAX_STREAMS = 64
"""Limit of open streams of a process."""
_TOGETHER_S = 0.05
"""Samples that are due within this time are taken together."""
_LONGEST_WAIT_S = 5.0
"""The ticker looks at least this often, for heartbeats."""
_SURVEY_WAIT_S = 1.0
_SURVEY_AGE_S = 60.0
"""Models that appear in a repository without a load are found after this time."""
_SLOW_S = 60.0
"""A client that takes nothing for this long is given up."""
_SLICE_VERSIONS = 32

AskLive = Callable[[LiveQuery], Awaitable[LiveAnswer]]
"""Returns the answer of all processes of the server. Raises InferError."""


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What does not change while a server runs."""

    process_count: int = 1
    core_count: int = 1
    model_control_mode: str = "none"


class LiveFeed:
    """The open live streams of a process. Used on the event loop."""

    def __init__(
        self,
        engine: Engine,
        facts: ServerFacts | None = None,
        ask: AskLive | None = None,
        run_in_thread: RunInThread = run_at_once,
        max_streams: int = MAX_STREAMS,
    ) -> None:
        """`ask` asks all processes of the server. `run_in_thread` reads the index of the repository."""
        self._engine = engine
        self._facts = facts or ServerFacts()
        self._ask = ask or self._ask_this_process
        self._run_in_thread = run_in_thread
        self._max_streams = max_streams
        self._streams: dict[LiveStream, float] = {}
        """The streams, with the loop's time since which each is slow; 0 for one that is not."""
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_running = False
        """Whether the ticker runs; at most one does, also when the last stream ends and another begins at once."""
        self._encoded: dict[VersionKey, EncodedVersion] = {}
        self._own_index: Sequence[IndexEntry] | None = None
        self._index: Sequence[IndexEntry] = ()
        self._surveyed_s = 0.0
        self._has_new_index = False
        self._survey: asyncio.Future[None] | None = None
        self._models: dict[bool, bytes] = {}
        """The event `models` for clients with and without access to the repository."""
        self._rollouts: object = None

    @property
    def stream_count(self) -> int:
        """Number of open streams."""
        return len(self._streams)

    def open(self, context: HttpContext, request: LiveRequest, read_rights: Callable[[HttpContext], Rights]) -> None:
        """Begin a stream. Raises InferError(UNAVAILABLE) if there are too many, or the server shuts down.

        If all streams are taken, a client with fewer than others gets one of theirs: no client can keep all.
        """
        if self._engine.phase.is_draining:
            raise unavailable("Server exiting")
        if len(self._streams) >= self._max_streams:
            self._make_room(owner_of(context))
        stream = LiveStream(context, request, read_rights)
        stream.begin(self._drop)
        self._streams[stream] = 0.0
        if not self._is_running:
            self._is_running = True
            begin_task("the live streams", self._run(), self._tasks)
        self._changed.set()

    def _make_room(self, owner: str) -> None:
        """End a stream of the client that has most. Raises InferError(UNAVAILABLE) if `owner` has its share."""
        counts = Counter(stream.owner for stream in self._streams)
        [(richest, most)] = counts.most_common(1)
        if counts[owner] + 1 >= most:
            raise unavailable(
                f"{self._max_streams} live streams are open, which is the maximum, and {counts[owner]} of them belong"
                " to this client (its API key or its address); close a page",
                Rejection.OVERLOAD,
            )
        oldest = next(stream for stream in self._streams if stream.owner == richest)
        self._drop(oldest)
        oldest.end("all live streams were taken, most of them by this client, and another client needed one")

    def close(self, reason: str) -> None:
        """End all streams."""
        for stream in list(self._streams):
            stream.end(reason)
        self._streams.clear()
        self._changed.set()

    def _drop(self, stream: LiveStream) -> None:
        self._streams.pop(stream, None)
        self._changed.set()

    # --- the ticker -------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        """Serve the streams until the last one ends."""
        loop = asyncio.get_running_loop()
        try:
            while self._streams:
                now_s = loop.time()
                due = [stream for stream in self._streams if stream.due_s <= now_s + _TOGETHER_S]
                if due:
                    await self._tick(due)
                for stream in list(self._streams):
                    stream.beat(loop.time())
                await self._wait()
        except Exception:
            # Streams without a ticker would stay silent; their clients connect again.
            self.close("the server could not read its state; its log has the reason")
            raise
        finally:
            self._is_running = False
            self._encoded.clear()
            self._own_index = None

    async def _wait(self) -> None:
        """Wait until a sample is due, or a stream begins."""
        if not self._streams:
            return
        self._changed.clear()
        due_s = min(stream.due_s for stream in self._streams) - asyncio.get_running_loop().time()
        if due_s > 0:
            try:
                await asyncio.wait_for(self._changed.wait(), min(due_s, _LONGEST_WAIT_S))
            except TimeoutError:
                return

    async def _tick(self, due: Sequence[LiveStream]) -> None:
        """Take a sample for the streams that are due."""
        loop = asyncio.get_running_loop()
        for stream in due:
            stream.due_s = max(stream.due_s, loop.time()) + stream.request.interval_s
        try:
            answer = await self._ask(self._query())
            await self._read_models()
            await self._encode(answer)
        except InferError as error:
            _log.debug("no sample for the live streams: %s", error.message)
            return
        server = self._server_values(is_ready=answer.is_ready)
        time_ms = time.time_ns() // 1_000_000
        for stream in due:
            if stream in self._streams:
                self._serve(stream, server, answer, time_ms)
                await asyncio.sleep(0)

    def _serve(self, stream: LiveStream, server: dict[str, Any], answer: LiveAnswer, time_ms: int) -> None:
        now_s = asyncio.get_running_loop().time()
        if stream.is_slow:
            slow_since_s = self._streams[stream] = self._streams[stream] or now_s
            if now_s - slow_since_s > _SLOW_S:
                self._drop(stream)
                stream.end("the stream was not read")
            return
        self._streams[stream] = 0.0
        if not stream.check_rights():
            self._drop(stream)
            stream.end("this client may no longer read statistics")
            return
        stream.send_state(server, self._models)
        stream.send_sample(answer, time_ms, self._encoded)
        stream.note_sent(now_s)

    def _query(self) -> LiveQuery:
        streams = self._streams
        names = (stream.detail_name for stream in streams)
        return LiveQuery(
            frozenset(name for name in names if name is not None),
            any(stream.wants_log for stream in streams),
            lease_s=5.0 + 2 * max((stream.request.interval_s for stream in streams), default=0.0),
        )

    async def _ask_this_process(self, query: LiveQuery) -> LiveAnswer:
        return await in_pieces(self._engine.live.answer(query))

    # --- what the streams share -------------------------------------------------------------------------------------

    def _server_values(self, *, is_ready: bool) -> dict[str, Any]:
        metadata, facts = self._engine.views.server_metadata(), self._facts
        return {
            "name": live.printable(metadata.name),
            "version": metadata.version,
            "extensions": list(metadata.extensions),
            "started_ms": self._engine.phase.started_ms,
            "process_count": facts.process_count,
            "core_count": facts.core_count,
            "model_control_mode": facts.model_control_mode,
            "ready": is_ready,
        }

    async def _encode(self, answer: LiveAnswer) -> None:
        """Encode the versions whose counters have changed; those that did not change keep their text."""
        before, after = self._encoded, dict[VersionKey, EncodedVersion]()
        new_count = 0
        for key, versions in self._engine.models.rows.items():
            for version in versions:
                if not version.isdigit():
                    continue
                row, known = answer.rows.get((key, version), NOTHING), before.get((key, version))
                if known is None or known.row != row:
                    name = f"{shown_name(self._engine, key)}/{version}"
                    known = EncodedVersion(name, row, live.encode_version(row))
                    new_count += 1
                    if new_count % _SLICE_VERSIONS == 0:
                        await asyncio.sleep(0)
                after[key, version] = known
        self._encoded = after

    async def _read_models(self) -> None:
        """Bring the event `models` up to date."""
        now_s = asyncio.get_running_loop().time()
        own = self._engine.views.repository_index()
        if self._survey is None and (own != self._own_index or now_s - self._surveyed_s > _SURVEY_AGE_S):
            self._own_index, self._surveyed_s = own, now_s
            self._survey = self._begin_survey()
        if self._survey is not None:
            await asyncio.wait([self._survey], timeout=_SURVEY_WAIT_S)
            if self._survey.done():
                self._survey = None
        rollouts = self._engine.rollouts.states()
        if self._has_new_index or rollouts != self._rollouts or not self._models:
            self._has_new_index, self._rollouts = False, rollouts
            index = self._index or own
            self._models = {
                is_complete: live.encode_models(*await in_pieces(model_rows(self._engine, rows)))
                for is_complete, rows in ((True, index), (False, ready_index(index)))
            }

    def _begin_survey(self) -> "asyncio.Future[None]":
        """Read the index of the repository on a thread."""
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(index: Sequence[IndexEntry]) -> None:
            self._index, self._has_new_index = index, True
            ended.set_result(None)

        def failed(error: Exception) -> None:
            _log.debug("the live streams show no models that were never loaded: %s", error)
            self._index, self._has_new_index = (), True
            ended.set_result(None)

        self._run_in_thread(self._engine.views.survey_repository, done, failed)
        return ended
