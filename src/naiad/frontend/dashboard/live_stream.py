"""The live stream of one client: what it has got, and what is new to it.

A client that does not read skips samples: as long as it has not taken earlier ones, nothing is added. Counters are
totals, so the next sample has what the skipped ones had.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from naiad.frontend.access.peer import network_of
from naiad.frontend.context import CancelReason, HttpContext
from naiad.frontend.dashboard.live_request import LiveRequest
from naiad.protocol.json.management import live
from naiad.telemetry.live.live_answer import (
    FailureEntry,
    LiveAnswer,
    LiveDetail,
    LogEntry,
    ModelVersionName,
    VersionKey,
)
from naiad.telemetry.live.tail import TailReader
from naiad.telemetry.statistics.live_counts import LiveCounts
from naiad.wire.header_fields import Headers

EVENT_STREAM: Headers = (
    (b"Content-Type", b"text/event-stream; charset=utf-8"),
    (b"Cache-Control", b"no-store"),
    (b"X-Accel-Buffering", b"no"),  # proxies must not buffer the events
)
MAX_UNREAD_BYTES = 128 * 1024
"""A client with more unread bytes gets nothing until it has read them."""
MAX_FAILURES, MAX_LINES = 50, 200
_HEARTBEAT_S = 10.0


@dataclass(frozen=True, slots=True)
class Rights:
    """What a client may do."""

    allowed: Mapping[str, Mapping[str, Any]]
    """By category: `allowed`, and `reason` if it is not."""

    def has(self, category: str) -> bool:
        """Return whether the client may use a category."""
        return bool(self.allowed[category]["allowed"])


@dataclass(frozen=True, slots=True)
class EncodedVersion:
    """A version with its name for clients, its counters and their JSON, which all streams share."""

    name: str
    row: LiveCounts
    json: bytes


class LiveStream:
    """Sends the events of one client."""

    def __init__(
        self, context: HttpContext, request: LiveRequest, read_rights: Callable[[HttpContext], Rights]
    ) -> None:
        self.request = request
        self.owner = owner_of(context)
        """The client that has the stream, for the bound of their number."""
        self.due_s = 0.0
        """The loop's time of the next sample."""
        self._context = context
        self._read_rights = read_rights
        self.rights = read_rights(context)
        self._sent: dict[VersionKey, LiveCounts] = {}
        self._server: Mapping[str, Any] | None = None
        self._models: object = None
        self._detail: LiveDetail | None = None
        self._failures: TailReader[FailureEntry] = TailReader()
        self._log: TailReader[LogEntry] = TailReader()
        self._sent_s = 0.0

    def begin(self, on_end: Callable[["LiveStream"], object]) -> None:
        """Begin the response; `on_end` is called when the client disconnects."""

        def end(reason: CancelReason) -> None:
            on_end(self)

        self._context.on_disconnect = end
        self._context.start_stream(200, EVENT_STREAM)

    @property
    def detail_name(self) -> ModelVersionName | None:
        """The model whose details it shows; None for none."""
        return (self.request.model, self.request.version) if self.request.model else None

    @property
    def wants_log(self) -> bool:
        """Whether it shows the log."""
        return self.request.has_log and self.rights.has("logging")

    @property
    def is_slow(self) -> bool:
        """Whether the client has not taken what was sent."""
        return self._context.unread_bytes > MAX_UNREAD_BYTES

    def check_rights(self) -> bool:
        """Read the rights again, which keys may have lost; return whether the stream may go on."""
        self.rights = self._read_rights(self._context)
        return self.rights.has("statistics")

    def send_state(self, server: Mapping[str, Any], models: Mapping[bool, bytes]) -> None:
        """Send what the server is, and its models, if that has changed.

        `models` has the events for clients with and without access to the repository, the same objects until they
        change.
        """
        shown = {**server, "allowed": self.rights.allowed}
        if shown != self._server:
            self._server = shown
            self._write(live.encode_server(shown))
        chosen = models[self.rights.has("model-repository")]
        if chosen is not self._models:
            self._models = chosen
            self._write(chosen)

    def send_sample(self, answer: LiveAnswer, time_ms: int, versions: Mapping[VersionKey, EncodedVersion]) -> None:
        """Send the versions that have changed since the last sample, and the details."""
        self._write(live.encode_sample(answer, time_ms, list(self._changes(versions))))
        name = self.detail_name
        detail = None if name is None else answer.details.get(name)
        if name is not None and detail is not None and detail != self._detail:
            self._detail = detail
            self._write(live.encode_detail(name[0], detail, has_ids=self.rights.has("logging")))
        failures, left_out = self._failures.read(answer.failures, MAX_FAILURES)
        if failures or left_out:
            names = None if self.rights.has("logging") else _names(versions.values())
            self._write(live.encode_failures(failures, left_out, names))
        if self.wants_log:
            lines, left_out = self._log.read(answer.log, MAX_LINES)
            if lines or left_out:
                self._write(live.encode_log(lines, left_out))

    def _changes(self, versions: Mapping[VersionKey, EncodedVersion]) -> Iterator[tuple[str, bytes]]:
        sent = self._sent
        for key in [key for key in sent if key not in versions]:
            del sent[key]
        for key, version in versions.items():
            if sent.get(key) is not version.row:
                sent[key] = version.row
                yield version.name, version.json

    def beat(self, now_s: float) -> None:
        """Send a heartbeat if nothing was sent for a while."""
        if now_s - self._sent_s >= _HEARTBEAT_S and not self.is_slow:
            self._write(live.HEARTBEAT)
        self._sent_s = max(self._sent_s, now_s - _HEARTBEAT_S)

    def note_sent(self, now_s: float) -> None:
        """Note that something was sent."""
        self._sent_s = now_s

    def end(self, reason: str) -> None:
        """Send the last event and end the response."""
        self._write(live.encode_gone(reason))
        self._context.end()

    def _write(self, text: bytes) -> None:
        self._context.send((text,))


def owner_of(context: HttpContext) -> str:
    """Return the client that a stream counts for: its API key, or else its network."""
    key: str = getattr(context, "key_name", "")
    return f"key {key}" if key else f"address {network_of(context.client)}"


def _names(versions: Iterable[EncodedVersion]) -> set[str]:
    """Return the names of ready models and of their versions, which every client of a stream may know."""
    names = {version.name for version in versions}
    return names | {name.rpartition("/")[0] for name in names}
