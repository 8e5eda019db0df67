"""The other members of a server, as far as they have sequences: requests go to them, answers come back.

Each member listens on a Unix socket in a directory that nobody but the user of the server can enter. A connection to
another member is opened with the first request for it, and serves one direction: who opened it sends requests.
"""

import asyncio
import contextlib
import itertools
import logging
import socket
import time
from collections.abc import Callable
from pathlib import Path

from naiad.cluster.channel import Channel, ChannelError
from naiad.cluster.member.engine import MemberEngine
from naiad.cluster.member.forwarded import (
    Answer,
    Cancel,
    CountSequences,
    Paused,
    ResponseHeaders,
    Submit,
    pack_refusal,
    pack_request,
    pack_response,
    unpack_header,
    unpack_response,
    unpack_times,
)
from naiad.cluster.member.sequence_model import SequenceModel
from naiad.core.errors import InferError, internal, unavailable
from naiad.core.request import ExecutionTimes, InferRequest
from naiad.core.response import InferResponse

_log = logging.getLogger(__name__)

_BACKLOG = 128
_RETRY_S = 0.5
_PAUSE_POLL_S = 0.01
_FLUSH_POLL_S = 0.005
_FLUSH_TIMEOUT_S = 5.0


class Peers:
    """Sends requests to other members and executes theirs. Implements `sequence_model.Forwarding`."""

    def __init__(self, engine: MemberEngine, directory: Path, slot: int) -> None:
        self._engine = engine
        self._directory = directory
        self._path = _socket_path(directory, slot)
        self._links: dict[int, Outgoing] = {}
        self._incoming: set[Incoming] = set()
        self._listener: socket.socket | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    # --- requests that others execute -------------------------------------------------------------------------------

    def forward(self, owner: int, model: str, version: str, request: InferRequest) -> None:
        """Have another process execute a request. Raises InferError(UNAVAILABLE) when it cannot be reached."""
        link = self._links.get(owner)
        if link is None or link.is_over:
            link = self._links[owner] = self._connect(owner)
        link.send(model, version, request)

    def cancel(self, request: InferRequest) -> None:
        """Tell the process that has a forwarded request that nobody waits for its answer."""
        for link in self._links.values():
            if link.cancel(request):
                return

    def _connect(self, owner: int) -> "Outgoing":
        connected = socket.socket(socket.AF_UNIX)
        connected.setblocking(False)
        try:
            # Between Unix sockets this does not wait: the connection stands, or the process is not there.
            connected.connect(str(_socket_path(self._directory, owner)))
        except OSError as error:
            connected.close()
            raise unavailable(
                f"process {owner + 1} of this server, which has this sequence, cannot be reached "
                f"({error.strerror}); if it has died, another takes its place in a moment: begin the sequence again"
            ) from None
        link = Outgoing(owner)
        self._spawn(link.channel, connected)
        return link

    def _spawn(self, channel: Channel, connected: socket.socket) -> None:
        task = asyncio.get_running_loop().create_task(_begin(channel, connected))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def live_sequence_count(self) -> int:
        """Return how many sequences the processes have to which this one has sent requests, as far as is known."""
        return sum([link.live_sequence_count() for link in self._links.values()])

    # --- requests of others -----------------------------------------------------------------------------------------

    def listen(self) -> None:
        """Take requests of other members from now on. Raises InferError(INTERNAL)."""
        listener = socket.socket(socket.AF_UNIX)
        listener.setblocking(False)
        try:
            self._path.unlink(missing_ok=True)  # that of a member which had this slot before
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
            # Another try at once would most likely fail as well, and keep the loop busy.
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._listener.fileno())
            loop.call_later(_RETRY_S, self._watch)
            return
        incoming = Incoming(self._engine, self._incoming.discard)
        self._incoming.add(incoming)
        self._spawn(incoming.channel, connected)

    # --- the end ----------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Take no more requests, and end once the answers to those that were taken are sent, within bounds."""
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


async def _begin(channel: Channel, connected: socket.socket) -> None:
    try:
        await channel.connect(connected)
    except OSError as error:
        channel.connection_lost(error)


def _socket_path(directory: Path, slot: int) -> Path:
    return directory / f"process{slot + 1}"


class Outgoing:
    """The requests that one other member executes for this one. Implements `channel.Peer`."""

    def __init__(self, owner: int) -> None:
        self.channel = Channel(self)
        self.is_over = False
        self._owner = owner
        self._numbers = itertools.count()
        self._open: dict[int, InferRequest] = {}
        self._number_of: dict[int, int] = {}
        """By the identity of a request that is open."""
        self._paused: set[int] = set()
        self._headers = ResponseHeaders()
        self._live_count = 1
        """Sequences that it said it has; before it was asked there may be one."""
        self._asking: asyncio.Task[None] | None = None

    def live_sequence_count(self) -> int:
        """Return how many sequences the process had when it was asked last, and ask again; called on the loop."""
        if self.is_over:
            return 0
        if self._asking is None or self._asking.done():
            self._asking = asyncio.get_running_loop().create_task(self._ask())
        return self._live_count

    async def _ask(self) -> None:
        try:
            count = await self.channel.ask(CountSequences())
        except ChannelError:
            return  # it is gone, which `lost` is told
        assert isinstance(count, int)
        self._live_count = count

    def send(self, model: str, version: str, request: InferRequest) -> None:
        """Send a request; its answers come through its `on_response`."""
        number = next(self._numbers)
        self._open[number] = request
        self._number_of[id(request)] = number
        self.channel.tell(pack_request(number, model, version, request))

    def cancel(self, request: InferRequest) -> bool:
        """Tell that nobody waits for an answer; whether the request is one of these."""
        number = self._number_of.get(id(request))
        if number is None:
            return False
        self.channel.tell(Cancel(number))
        return True

    # --- Peer -------------------------------------------------------------------------------------------------------

    def told(self, message: object) -> None:
        """Take an answer."""
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
            self.channel.tell(Paused(number, is_paused=True))
            self._watch(number)

    def _forget(self, number: int, request: InferRequest) -> None:
        del self._open[number]
        del self._number_of[id(request)]
        self._paused.discard(number)

    def _watch(self, number: int) -> None:
        asyncio.get_running_loop().call_later(_PAUSE_POLL_S, self._look, number)

    def _look(self, number: int) -> None:
        """Tell when the client of a request takes what it is sent again: nobody says so here."""
        request = self._open.get(number)
        if request is None or number not in self._paused:
            return
        if request.is_paused:
            self._watch(number)
        else:
            self._paused.discard(number)
            self.channel.tell(Paused(number, is_paused=False))

    async def asked(self, question: object) -> object:
        """Nothing is asked."""
        raise ChannelError(f"{type(question).__name__} is no question for this process")

    def lost(self) -> None:
        """Answer what the process has not: it is gone."""
        self.is_over = True
        for number, request in list(self._open.items()):
            self._forget(number, request)
            name, version = request.model.name, request.model.version
            error = unavailable(
                f"process {self._owner + 1} of this server has ended while it had sequence "
                f"{request.header.sequence_id} of model '{name}'; begin the sequence again"
            )
            _respond(request, InferResponse(self._headers.find(name, version), error=error))


def _respond(request: InferRequest, response: InferResponse) -> None:
    try:
        request.on_response(request, response)
    except Exception:
        # A defect must cost one request, not all that wait for the same process.
        _log.exception("answering a request of model '%s' failed", request.header.model_name)


class Incoming:
    """The requests of one other member that this one executes. Implements `channel.Peer`."""

    def __init__(self, engine: MemberEngine, on_lost: "Callable[[Incoming], None]") -> None:
        self.channel = Channel(self)
        self._engine = engine
        self._on_lost = on_lost
        self._open: dict[int, InferRequest] = {}

    # --- Peer -------------------------------------------------------------------------------------------------------

    def told(self, message: object) -> None:
        """Take a request, or news about one."""
        if isinstance(message, Submit):
            self._submit(message)
        elif isinstance(message, Cancel | Paused):
            request = self._open.get(message.number)
            if request is None:
                return  # its answer is on its way
            if isinstance(message, Cancel):
                self._engine.cancel(request)
            else:
                request.is_paused = message.is_paused

    def _submit(self, submit: Submit) -> None:
        request = InferRequest(
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
            model = self._engine.served(submit.model, submit.model_version)
            if not isinstance(model, SequenceModel):
                # It was loaded again, with another configuration, between the request and now.
                raise unavailable(f"model '{submit.model}' has no sequences any more")
            model.accept(request)
        except InferError as error:
            del self._open[submit.number]
            self.channel.tell(pack_refusal(submit, error))

    def _take_response(self, request: InferRequest, response: InferResponse) -> None:
        number: int = request.context  # type: ignore[assignment]  # set in _submit
        if response.final:
            self._open.pop(number, None)
        self.channel.tell(pack_response(number, request.times, response))

    async def asked(self, question: object) -> object:
        """Tell how many sequences this process has. Raises ChannelError for other questions."""
        if isinstance(question, CountSequences):
            return self._engine.own_sequence_count
        raise ChannelError(f"{type(question).__name__} is no question for this process")

    def lost(self) -> None:
        """Cancel what is open: whoever waited for it is gone."""
        self._on_lost(self)
        for request in list(self._open.values()):
            self._engine.cancel(request)
