"""The generator of one process: sends loads to a target on the event loop of the caller."""

import asyncio
import contextlib
import gc
import resource
import time
from array import array
from itertools import accumulate

from naiad.client import ConnectionFailedError
from naiad.tools.perf.generator.loops import ClosedLoop, LoadLoop, OpenLoop, PeriodicLoop
from naiad.tools.perf.generator.next_request import Requests
from naiad.tools.perf.generator.setup import MeasuredChunk, Setup
from naiad.tools.perf.perf_exchange import CONNECTION, TIMEOUT, UNANSWERED, WRONG_ANSWER, Body, SentRequest, Target
from naiad.tools.perf.perf_plan import Concurrency, Load, PeriodicConcurrency
from naiad.tools.perf.records import KeptRequest, Records, Unended

_POLL_S = 0.005
_RECONNECT_S = 2.0
"""A stop waits for so long for new connections; they are opened further after it."""
_MAX_CONNECTIONS = 1024
_OTHER_FILES = 256


class LocalGenerator:
    """Sends one load after another.

    The loop creates no coroutine, future or cyclic object for a request: reference counts free what it makes. The
    objects of the run itself are frozen, so that a full garbage collection, milliseconds in which nothing is sent,
    has nearly nothing to look at.
    """

    def __init__(self, setup: Setup, target: Target) -> None:
        """Raises InferError(INVALID_ARG) for settings that are wrong."""
        self._setup = setup
        self._target = target
        self._requests = Requests(setup, target.prepare)
        self._loop: LoadLoop | None = None
        self._records = Records()
        self._is_recording = False
        self._is_giving_up = False
        """The connections are closed under requests that wait for a response."""
        self._keeping = Keeping(setup.parts) if setup.keeps_bodies else None
        self._connections = 0
        self._growth: asyncio.Task[None] | None = None
        """Opens connections while requests are sent."""

    async def open(self, connections: int) -> None:
        """Connect for a number of outstanding requests, more than before. Raises ConnectionFailedError."""
        self._connections = max(1, -(-connections // self._setup.parts), self._connections)
        _allow_files(max(self._connections, _MAX_CONNECTIONS) + _OTHER_FILES)
        await self._target.open(self._connections)
        gc.collect()
        gc.freeze()

    async def start(self, load: Load, limit: int | None = None, begin_ns: int = 0) -> None:
        """Begin to send; at most `limit` requests. The offsets of an open loop count from `begin_ns`, default now.

        Raises InferError(INVALID_ARG) for a load with more sequences than ids.
        """
        assert self._loop is None, "the load before has not been stopped"
        setup = self._setup
        self._requests.check(load, setup.parts)
        if limit is not None:
            limit = len(range(setup.part, limit, setup.parts))
        self._records = Records()
        self._is_recording = True
        if self._keeping:
            self._keeping.clear()
        if isinstance(load, Concurrency):
            self._loop = ClosedLoop(load, setup, limit, self._target, self._requests, self._record)
        elif isinstance(load, PeriodicConcurrency):
            self._loop = PeriodicLoop(load, self._target, self._requests, self._record)
        else:
            begin_ns = begin_ns or time.monotonic_ns()
            self._loop = OpenLoop(load, setup, limit, self._target, self._requests, self._record, begin_ns)
        self._loop.start()

    async def take(self) -> list[MeasuredChunk]:
        """Return what was measured since the last call."""
        loop = self._loop
        assert loop is not None, "no load has been started"
        records, self._records = self._records, Records()
        late_ns = array("q")
        if isinstance(loop, OpenLoop):
            late_ns, loop.late_ns = loop.late_ns, late_ns
            self._grow(loop.outstanding)
        chunk = MeasuredChunk(
            records,
            late_ns,
            at_ns=time.monotonic_ns(),
            cpu_ns=time.thread_time_ns(),
            sent=loop.sent,
            outstanding=loop.outstanding,
            unsent=loop.unsent,
            is_finished=loop.is_finished,
        )
        return [chunk]

    async def stop(self, drain_s: float) -> list[MeasuredChunk]:
        """Send no more, wait for the outstanding requests, end the sequences, and return the rest.

        Requests without a response after `drain_s` are given up with their connections.
        """
        loop = self._loop
        assert loop is not None, "no load has been started"
        loop.stop(time.monotonic_ns())
        chunks = await self.take()
        deadline_ns = time.monotonic_ns() + int(drain_s * 1e9)
        while not loop.is_finished and time.monotonic_ns() < deadline_ns:
            await asyncio.sleep(_POLL_S)
        await self._end_sequences(deadline_ns)
        if not loop.is_finished:
            self._is_giving_up = True
            await self._disconnect()
            self._is_giving_up = False
            self._growth = asyncio.get_running_loop().create_task(self._connect())
            await asyncio.wait((self._growth,), timeout=_RECONNECT_S)
        self._is_recording = False
        chunks[-1].unended = _unended(self._records)
        self._loop = None
        return chunks

    async def close(self) -> None:
        """Close the target."""
        self._is_recording = False
        if self._loop is not None:
            self._loop.stop(time.monotonic_ns())
        await self._disconnect()
        gc.unfreeze()

    async def _disconnect(self) -> None:
        growth, self._growth = self._growth, None
        if growth is not None:
            growth.cancel()
            await asyncio.wait((growth,), timeout=_RECONNECT_S)
        await self._target.close()

    def _record(self, exchange: SentRequest) -> None:
        if exchange.body is not None and not exchange.failure:
            self._validate(exchange, exchange.body)
        elif not exchange.responses and not exchange.failure:
            self._check_empty(exchange)
        elif self._is_giving_up and exchange.failure == CONNECTION:
            exchange.failure = UNANSWERED
        is_sequence_served = exchange.sequence_id != 0 and self._requests.ended(exchange)
        if self._is_recording:
            self._records.add(exchange, is_sequence_served=is_sequence_served)
            if self._keeping:
                self._keeping.keep(exchange, self._records)

    def _check_empty(self, exchange: SentRequest) -> None:
        """Fail a request that ended without a response, of a model that owes one to each request."""
        declared = self._setup.models[exchange.model_index].inputs.declared
        if declared is not None and not declared.is_decoupled:
            exchange.failure, exchange.failure_message = WRONG_ANSWER, "the response has no outputs"

    def _validate(self, exchange: SentRequest, body: Body) -> None:
        inputs = self._setup.models[exchange.model_index].inputs
        wrong = inputs.check_answer(exchange.template_index, body, is_whole=len(body) == exchange.responses)
        if wrong:
            exchange.failure, exchange.failure_message = WRONG_ANSWER, wrong
            return
        exchange.right_answers.add(exchange.body_bytes)
        difference = inputs.validate(exchange.template_index, exchange.slot, body)
        if difference:
            exchange.failure = "validation"
            exchange.failure_message = f"{inputs.templates[exchange.template_index].source}: {difference}"

    async def _end_sequences(self, deadline_ns: int) -> None:
        outstanding: set[SentRequest] = set()

        def ended(exchange: SentRequest) -> None:
            self._requests.ended(exchange)
            outstanding.discard(exchange)

        for exchange, prepared in list(self._requests.endings(ended)):
            outstanding.add(exchange)
            self._target.send(prepared, exchange)
        while outstanding and time.monotonic_ns() < deadline_ns:
            await asyncio.sleep(_POLL_S)

    def _grow(self, outstanding: int) -> None:
        """Open more connections when the requests outstanding of an open loop need them."""
        wanted = min(2 * outstanding, _MAX_CONNECTIONS)
        is_growing = self._growth is not None and not self._growth.done()
        if outstanding > self._connections and wanted > self._connections and not is_growing:
            self._connections = wanted
            self._growth = asyncio.get_running_loop().create_task(self._connect())

    async def _connect(self) -> None:
        # Without a connection requests fail, and the failures are in the records.
        with contextlib.suppress(ConnectionFailedError):
            await self._target.open(self._connections)


def _unended(records: Records) -> Unended:
    """Return the requests that ended after their load was stopped, by a response or because they were given up."""
    unended = Unended()
    kinds = ["", *(each.kind for each in records.failures)]
    for place, number in enumerate(records.failure):
        if kinds[number] in ("", TIMEOUT, UNANSWERED):
            age_ns = records.end_ns[place] - records.intended_ns[place]
            unended.add(records.model[place], age_ns, is_answered=not number)
    return unended


def _allow_files(wanted: int) -> None:
    """Raise the limit of open files, of which a connection is one, as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # Too few show as failed connections.
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


# --- requests that are kept for the profile export ----------------------------------------------------------------

MAX_KEPT_BYTES = 256 * 1024 * 1024
"""Of a load, over all processes; requests after it are counted only."""
_REQUEST_BYTES, _RESPONSE_BYTES, _OUTPUT_BYTES = 400, 150, 350
"""What the objects take beside the data of tensors."""


class Keeping:
    """Keeps the requests of one generator process."""

    def __init__(self, processes: int) -> None:
        self._limit = MAX_KEPT_BYTES // processes
        self._size = 0

    def clear(self) -> None:
        """Begin with a new load."""
        self._size = 0

    def keep(self, exchange: SentRequest, records: Records) -> None:
        """Add a request without failure to `records`, or count it when the memory is full."""
        if exchange.failure or not exchange.responses:
            return
        body = exchange.body or ()
        size = _REQUEST_BYTES + _RESPONSE_BYTES * exchange.responses
        size += sum(_OUTPUT_BYTES + len(each) for _, data in body for each in data)
        if self._size + size > self._limit:
            self._size = self._limit  # Later requests are left out, too: the export has no holes.
            records.unkept += 1
            return
        self._size += size
        records.kept.append(
            KeptRequest(
                exchange.model_index,
                exchange.template_index,
                exchange.sequence_id,
                exchange.start_ns,
                tuple(accumulate(exchange.gaps_ns or (), initial=exchange.first_ns)),
                # As bytes: a view would keep the whole buffer that it was received in.
                [list(zip(specs, map(bytes, data), strict=True)) for specs, data in body],
            )
        )
