"""One accounted request with its response, from its arrival to its end.

Only a server with an access log or with API keys has these objects.
"""

import time
from dataclasses import replace

from naiad.frontend.access.access import ApiKeyRule
from naiad.frontend.access.peer import address_of
from naiad.frontend.access.refusal import note_invalid
from naiad.frontend.accounting.key_usage import Exceeded, KeyTable, KeyUsage
from naiad.telemetry.logs.access_log import AccessEntry, AccessLog

_now_ns = time.monotonic_ns
REFUSALS = frozenset(
    (
        *(401, 403, 404, 405, 413, 414, 429, 431),
        *("UNAUTHENTICATED", "PERMISSION_DENIED", "UNIMPLEMENTED", "RESOURCE_EXHAUSTED"),
    )
)
"""Statuses with which a request is always in the access log."""
_HEALTH_PATHS = ("/v2/health/", "/grpc.health.v1.Health/", "/inference.GRPCInferenceService/Server")
"""Probes: limits of keys do not apply to them."""


class Exchange:
    """A request and its response."""

    __slots__ = ("_accounting", "_began_ns", "_client", "_is_over", "entry", "is_control", "is_sampled", "usage")

    def __init__(
        self, accounting: "Accounting", entry: AccessEntry, client: object, began_ns: int, usage: KeyUsage | None
    ) -> None:
        self._accounting = accounting
        self._client = client
        self._began_ns = began_ns
        self._is_over = False
        self.entry = entry
        self.usage = usage
        self.is_control = False
        """It changes something, and is always logged."""
        self.is_sampled = accounting.log is not None and accounting.log.takes()
        """It is one of the share that is logged."""

    def begin(self) -> Exceeded | None:
        """Count the request, or return the limit of its key that it exceeds."""
        usage = self.usage
        if usage is None:
            return None
        if usage.has_limits and not self.entry.path.startswith(_HEALTH_PATHS):
            exceeded = usage.exceeded(_now_ns())
            if exceeded is not None:
                self.usage = None  # neither counted nor in flight
                self.entry.error = exceeded.message
                return exceeded
        usage.receive(self.entry.bytes_in)
        usage.in_flight += 1
        return None

    def receive_more(self, size: int) -> Exceeded | None:
        """Count a further message of a stream as a request, or return the limit that it exceeds."""
        usage = self.usage
        if usage is not None:
            exceeded = usage.exceeded(_now_ns(), is_new=False) if usage.has_limits else None
            if exceeded is not None:
                return exceeded
            usage.receive(size)
        self.entry.bytes_in += size
        return None

    def send(self, size: int) -> None:
        """Count bytes of the response."""
        self.entry.bytes_out += size
        if self.usage is not None:
            self.usage.send(size)

    def finish(self, status: int | str) -> None:
        """End with a status; later calls do nothing."""
        if self._is_over:
            return
        self._is_over = True
        if self.usage is not None:
            self.usage.in_flight -= 1
        log = self._accounting.log
        if log is not None and (self.is_sampled or self.is_control or status in REFUSALS):
            log.write(
                replace(
                    self.entry,
                    status=status,
                    client=address_of(self._client),
                    duration_ns=_now_ns() - self._began_ns,
                )
            )
        self._client = None


class Accounting:
    """The accounts of one server process."""

    def __init__(self, log: AccessLog | None, keys: ApiKeyRule | None, process_count: int = 1) -> None:
        self.log = log
        self._keys = keys
        self.table = None if keys is None else KeyTable(keys.keys.keys, process_count)

    def keys_changed(self) -> None:
        """Follow a change of the key file."""
        if self._keys is not None and self.table is not None:
            self.table.replace(self._keys.keys.keys)

    def open(self, entry: AccessEntry, client: object, credentials: bytes | None, began_ns: int) -> Exchange:
        """Return the exchange of a request that has arrived; `credentials` is its field `authorization`."""
        usage = None
        if self._keys is not None and self.table is not None and credentials is not None:
            key = self._keys.find(credentials)
            if key is not None:
                entry.key = key.name
                usage = self.table.usage(key)
        return Exchange(self, entry, client, began_ns, usage)

    def note_invalid(self, method: str, path: str, status: int, message: str, client: object) -> None:
        """Log a request that a connection refuses, also in the access log."""
        entry = note_invalid(method, path, status, message, client)
        if self.log is not None:
            self.log.write(entry)
