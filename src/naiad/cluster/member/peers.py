"""The peer processes of a server process: requests go to the process with their sequence, responses come back.

Each sequence belongs to one process, which executes its requests (`SequenceModel`). Each process listens on a Unix
socket in a directory that only the user of the server can enter. The first request for a peer opens a connection,
which serves one direction: the side that opened it sends requests.
"""

import asyncio
import contextlib
import hashlib
import itertools
import logging
import socket
import time
from collections.abc import Callable
from pathlib import Path

from naiad.cluster.member.forwarded import (
    Answer,
    Cancel,
    CountSequences,
    Paused,
    ResponseHeaders,
    Submit,
    pack_rejection,
    pack_request,
    pack_response,
    unpack_header,
    unpack_response,
    unpack_times,
)
from naiad.cluster.messages import Welcome
from naiad.cluster.process_channel import ClusterChannel, ClusterChannelError
from naiad.core.errors import InferError, UnknownSequenceError, internal, unavailable
from naiad.core.request import ExecutionTimes, InferRequest
from naiad.core.response import InferResponse
from naiad.engine.engine import Engine
from naiad.engine.on_demand.held_inference import hold_request
from naiad.engine.on_demand.held_requests import ColdModelError
from naiad.engine.rollout.rollout_model import RolloutModel
from naiad.engine.serving.served import Served, ServedProxy
from naiad.telemetry.last_resort import begin_task

_log = logging.getLogger(__name__)

_BACKLOG = 128
_RETRY_S = 0.5
_PAUSE_POLL_S = 0.01
_FLUSH_POLL_S = 0.005
_FLUSH_TIMEOUT_S = 5.0


def owner_of(model: str, sequence_id: int | str, process_count: int) -> int:
    """Return the process of a sequence: the same in every process, and evenly distributed for any choice of ids."""
    digest = hashlib.blake2b(f"{model}\0{sequence_id!r}".encode("utf-8", "surrogateescape"), digest_size=8)
    return int.from_bytes(digest.digest(), "little") % process_count


class SequenceModel(ServedProxy):
    """A proxy of the served version that forwards requests of sequences in other processes.

    Its counts and measurements cover this process only: the executing process counts forwarded requests.
    All methods except `stop` and the counts are called on the event loop.
    """

    def __init__(self, key: str, served: Served, membership: Welcome, forwarding: "Peers") -> None:
        """`key` names the model in all processes."""
        super().__init__(served)
        self._key = key
        self._slot = membership.slot
        self._process_count = membership.process_count
        self._is_successor = membership.is_successor
        self._forwarding = forwarding

    # --- called on the event loop -----------------------------------------------------------------------------------

    def submit(self, request: InferRequest) -> None:
        """Execute a request here or forward it to the process of its sequence. Raises InferError."""
        sequence_id = request.header.sequence_id
        # A request without an id is rejected here as in every process.
        owner = owner_of(self._key, sequence_id, self._process_count) if sequence_id else self._slot
        if owner == self._slot:
            self.accept(request)
            return
        request.model = self
        self._forwarding.forward(owner, self._key, self.version, request)

    def forwards_choice(self, request: InferRequest) -> bool:
        """Forward a request of a sequence of another process, which picks the version. Raises InferError."""
        owner = owner_of(self._key, request.header.sequence_id, self._process_count)
        if owner == self._slot:
            return False
        request.model = self
        self._forwarding.forward(owner, self._key, "", request)
        return True

    def accept(self, request: InferRequest) -> None:
        """Execute a request of a sequence of this process. Raises InferError."""
        try:
            self._served.submit(request)
        except UnknownSequenceError as error:
            if self._is_successor:
                raise InferError(
                    error.code,
                    f"{error.message}; the process that had this sequence may have died and been "
                    "replaced: begin the sequence again",
                ) from None
            raise

    def cancel(self, request: InferRequest) -> bool:
        """Cancel a request; return True if it was dropped at once, which only happens in this process."""
        if request.model is not self:
            return self._served.cancel(request)
        if not request.cancelled:
            request.cancelled = True
            self._forwarding.cancel(request)
        return False

    def is_waiting(self, request: InferRequest) -> bool:
        """Return whether a request waits for an instance here; forwarded requests count as executing."""
        return request.model is not self and self._served.is_waiting(request)


class Peers:
    """Sends requests to peer processes and executes theirs."""

    def __init__(self, engine: Engine, directory: Path, slot: int) -> None:
        self._engine = engine
        self._directory = directory
        self._path = _socket_path(directory, slot)
        self._links: dict[int, Outgoing] = {}
        self._incoming: set[Incoming] = set()
        self._listener: socket.socket | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    # --- requests for other processes -------------------------------------------------------------------------------

    def forward(self, owner: int, model: str, version: str, request: InferRequest) -> None:
        """Forward a request to another process. Raises InferError(UNAVAILABLE) if it cannot be reached."""
        link = self._links.get(owner)
        if link is None or link.is_over:
            link = self._links[owner] = self._connect(owner)
        link.send(model, version, request)

    def cancel(self, request: InferRequest) -> None:
        """Cancel a forwarded request in its process."""
        for link in self._links.values():
            if link.cancel(request):
                return

    def _connect(self, owner: int) -> "Outgoing":
        connected = socket.socket(socket.AF_UNIX)
        connected.setblocking(False)
        try:
            # Connecting a Unix socket does not block: it succeeds at once, or the process does not exist.
            connected.connect(str(_socket_path(self._directory, owner)))
        except OSError as error:
            connected.close()
            raise unavailable(
                f"process {owner + 1} of this server, which has this sequence, cannot be reached "
                f"({error.strerror}); if it has died, it will be replaced: begin the sequence again"
            ) from None
        link = Outgoing(owner)
        self._spawn(link.channel, connected)
        return link

    def _spawn(self, channel: ClusterChannel, connected: socket.socket) -> None:
        begin_task("the connection to another process", _begin(channel, connected), self._tasks)

    def live_sequence_count(self) -> int:
        """Return the number of sequences of the processes that got requests from this one, as last reported."""
        return sum([link.live_sequence_count() for link in self._links.values()])

    # --- requests of other processes --------------------------------------------------------------------------------

    def listen(self) -> None:
        """Accept requests of other processes from now on. Raises InferError(INTERNAL)."""
        listener = socket.socket(socket.AF_UNIX)
        listener.setblocking(False)
        try:
            self._path.unlink(missing_ok=True)  # socket of the previous process of this slot
            listener.bind(str(self._path))
            listener.listen(_BACKLOG)
        except OSError as error:
            listener.close()
            raise internal(f"cannot listen for other processes at {self._path}: {error.strerror}") from error
        self._listener = listener
        self._watch()

    def _watch(self) -> None:
        if self._listener is not None:
            asyncio.get_running_loop().add_reader(self._listener.fileno(), self._on_connection)

    def _on_connection(self) -> None:
        assert self._listener is not None
        try:
            connected, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as error:
            _log.error("a connection of another process could not be accepted: %s", error.strerror)
            # An immediate retry would most likely fail as well, and keep the loop busy.
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._listener.fileno())
            loop.call_later(_RETRY_S, self._watch)
            return
        incoming = Incoming(self._engine, self._incoming.discard)
        self._incoming.add(incoming)
        self._spawn(incoming.channel, connected)

    # --- the end ----------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Accept no more requests, and close once the responses to the accepted ones are sent, within bounds."""
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener.fileno())
            self._listener.close()
            self._listener = None
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)
        deadline_s = time.monotonic() + _FLUSH_TIMEOUT_S
        while any(each.channel.unsent_bytes for each in self._incoming) and time.monotonic() < deadline_s:
            await asyncio.sleep(_FLUSH_POLL_S)
        for incoming in self._incoming:
            incoming.channel.close()
        for outgoing in self._links.values():
            outgoing.channel.close()


async def _begin(channel: ClusterChannel, connected: socket.socket) -> None:
    try:
        await channel.connect(connected)
    except OSError as error:
        channel.connection_lost(error)


def _socket_path(directory: Path, slot: int) -> Path:
    return directory / f"process{slot + 1}"


class Outgoing:
    """The requests that one peer process executes for this one. Implements `channel.Peer`."""

    def __init__(self, owner: int) -> None:
        self.channel = ClusterChannel(self)
        self.is_over = False
        self._owner = owner
        self._numbers = itertools.count()
        self._open: dict[int, InferRequest] = {}
        self._number_of: dict[int, int] = {}
        """By the identity of an open request."""
        self._paused: set[int] = set()
        self._headers = ResponseHeaders()
        self._live_count = 1
        """Its sequences as last reported; at least one before the first report."""
        self._querying: asyncio.Task[None] | None = None

    def live_sequence_count(self) -> int:
        """Return the last reported number of sequences of the process, and query it again; called on the loop."""
        if self.is_over:
            return 0
        if self._querying is None or self._querying.done():
            self._querying = asyncio.get_running_loop().create_task(self._ask())
        return self._live_count

    async def _ask(self) -> None:
        try:
            count = await self.channel.ask(CountSequences())
        except ClusterChannelError:
            return  # it has exited, and `on_lost` handles that
        assert isinstance(count, int)
        self._live_count = count

    def send(self, model: str, version: str, request: InferRequest) -> None:
        """Send a request; its responses go to its `on_response`."""
        number = next(self._numbers)
        self._open[number] = request
        self._number_of[id(request)] = number
        self.channel.send(pack_request(number, model, version, request))

    def cancel(self, request: InferRequest) -> bool:
        """Send a cancellation; return whether the request is one of these."""
        number = self._number_of.get(id(request))
        if number is None:
            return False
        self.channel.send(Cancel(number))
        return True

    # --- Peer -------------------------------------------------------------------------------------------------------

    def on_message(self, message: object) -> None:
        """Handle a response."""
        assert isinstance(message, Answer)
        number = message.number
        request = self._open[number]
        if message.final:
            self._forget(number, request)
            if message.times is not None and request.times is not None:
                unpack_times(message.times, request.times)
        header = self._headers.find(request.model.name, message.model_version, message.outputs)
        _respond(request, unpack_response(message, header))
        if request.is_paused and not message.final and number not in self._paused:
            self._paused.add(number)
            self.channel.send(Paused(number, is_paused=True, unread_bytes=request.unread_bytes))
            self._watch(number)

    def _forget(self, number: int, request: InferRequest) -> None:
        del self._open[number]
        del self._number_of[id(request)]
        self._paused.discard(number)

    def _watch(self, number: int) -> None:
        asyncio.get_running_loop().call_later(_PAUSE_POLL_S, self._look, number)

    def _look(self, number: int) -> None:
        """Poll for the client of a paused request to read again: nothing notifies this process."""
        request = self._open.get(number)
        if request is None or number not in self._paused:
            return
        # Also while it is paused: the process of the model judges whether the client reads anything.
        self.channel.send(Paused(number, request.is_paused, request.unread_bytes))
        if request.is_paused:
            self._watch(number)
        else:
            self._paused.discard(number)

    async def on_query(self, query: object) -> object:
        """Raise: this side gets no queries."""
        raise ClusterChannelError(f"{type(query).__name__} is not a query for this process")

    def on_lost(self) -> None:
        """Fail all open requests: the process has exited."""
        self.is_over = True
        for number, request in list(self._open.items()):
            self._forget(number, request)
            name, version = request.model.name, request.model.version
            error = unavailable(
                f"process {self._owner + 1} of this server has ended with sequence "
                f"{request.header.sequence_id} of model '{name}'; begin the sequence again"
            )
            _respond(request, InferResponse(self._headers.find(name, version), error=error))


def _respond(request: InferRequest, response: InferResponse) -> None:
    try:
        request.on_response(request, response)
    except Exception:
        # A defect must fail one request, not all requests to the same process.
        _log.exception("delivering the response to a request of model '%s' failed", request.header.model_name)


class _ForwardedRequest(InferRequest):
    """A request of a client of another process, which reports what the client has not read."""

    __slots__ = ("reported_unread_bytes",)

    reported_unread_bytes: int
    """Set with the first pause."""

    @property
    def unread_bytes(self) -> int:
        """Bytes of its responses that its client has not taken yet."""
        return self.reported_unread_bytes if self.is_paused else -1


class Incoming:
    """The requests of one peer process that this one executes. Implements `channel.Peer`."""

    def __init__(self, engine: Engine, on_lost: "Callable[[Incoming], None]") -> None:
        self.channel = ClusterChannel(self)
        self._engine = engine
        self._inference = engine.inference
        self._on_lost = on_lost
        self._open: dict[int, _ForwardedRequest] = {}

    # --- Peer -------------------------------------------------------------------------------------------------------

    def on_message(self, message: object) -> None:
        """Handle a request, or an update of one."""
        if isinstance(message, Submit):
            self._submit(message)
        elif isinstance(message, Cancel | Paused):
            request = self._open.get(message.number)
            if request is None:
                return  # its response is on its way
            if isinstance(message, Cancel):
                self._inference.cancel(request)
            else:
                request.is_paused = message.is_paused
                request.reported_unread_bytes = message.unread_bytes

    def _submit(self, submit: Submit) -> None:
        request = _ForwardedRequest(
            unpack_header(submit),
            submit.data,
            self._take_response,
            id=submit.request_id,
            arrival_ns=submit.arrival_ns,
            context=submit.number,
        )
        if submit.wants_times:
            request.times = ExecutionTimes()
        self._open[submit.number] = request
        try:
            self._accept(request, submit)
        except InferError as error:
            del self._open[submit.number]
            self.channel.send(pack_rejection(submit, error))

    def _accept(self, request: InferRequest, submit: Submit) -> None:
        """Submit a request of another process; its model may have to be loaded first. Raises InferError."""
        try:
            model = self._inference.served(submit.model, submit.model_version)
            if isinstance(model, RolloutModel):
                model.submit_sequence(request)
                return
            if not isinstance(model, SequenceModel):
                # The model was loaded again, with another configuration, after the request was sent.
                raise unavailable(f"model '{submit.model}' no longer has sequences")
            model.accept(request)
        except ColdModelError as cold:
            hold_request(request, cold, lambda again: self._accept(again, submit))

    def _take_response(self, request: InferRequest, response: InferResponse) -> None:
        number: int = request.context  # type: ignore[assignment]  # set in _submit
        if response.final:
            self._open.pop(number, None)
        self.channel.send(pack_response(number, request.times, response))

    async def on_query(self, query: object) -> object:
        """Return the number of sequences of this process. Raises ChannelError for other queries."""
        if isinstance(query, CountSequences):
            return self._engine.in_flight.own_sequence_count
        raise ClusterChannelError(f"{type(query).__name__} is not a query for this process")

    def on_lost(self) -> None:
        """Cancel the open requests: their process has exited."""
        self._on_lost(self)
        for request in list(self._open.values()):
            self._inference.cancel(request)
