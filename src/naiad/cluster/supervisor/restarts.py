"""Restarts of server processes: when a dead process is replaced, when the server ends, and with which options.

A process that dies again and again is replaced after longer and longer pauses, while another one serves. Only when
all of them die again and again is it pointless to go on.

Pure: time is an argument. `share_of` divides limits and caches among the processes.
"""

import enum
from dataclasses import replace

from naiad.options.options import ServerOptions

_SECOND_NS = 1_000_000_000
STABLE_NS = 60 * _SECOND_NS
"""A process that has served for this time did not die of its start."""
DELAYS_NS = tuple(int(delay_s * _SECOND_NS) for delay_s in (0.1, 1, 2, 4, 8))
"""Delay before the restart after the first, second ... death in a row. After more deaths the process keeps dying."""
LONGEST_DELAY_NS = 60 * _SECOND_NS


class _State(enum.Enum):
    STARTING = 1
    SERVING = 2
    EMPTY = 3


class _Slot:
    """The place of one process and of its replacements."""

    __slots__ = ("deaths", "due_ns", "serving_since_ns", "state")

    def __init__(self) -> None:
        self.state = _State.EMPTY
        self.due_ns = 0
        self.serving_since_ns = 0
        self.deaths = 0
        """Deaths in a row without a stable time between."""

    @property
    def keeps_dying(self) -> bool:
        return self.deaths > len(DELAYS_NS)

    def is_stable(self, now_ns: int) -> bool:
        return self.state is _State.SERVING and now_ns - self.serving_since_ns >= STABLE_NS


class Supervision:
    """The states of all slots.

    The server opens when every slot serves for the first time. A death before that is a failed start: the models that
    one process cannot load, none can. After that a process is replaced, with longer delays if replacements die as
    well.
    """

    def __init__(self, slot_count: int) -> None:
        self._slots = [_Slot() for _ in range(slot_count)]
        self.is_open = False
        self.verdict = ""
        """The reason to end the server; empty if there is none."""

    @property
    def all_serve(self) -> bool:
        """Return whether every slot serves."""
        return all(slot.state is _State.SERVING for slot in self._slots)

    def due(self, now_ns: int) -> list[int]:
        """Return the slots with a process to start now."""
        return [n for n, slot in enumerate(self._slots) if slot.state is _State.EMPTY and slot.due_ns <= now_ns]

    def wake_ns(self) -> int:
        """Return the time at which the next slot is due; 0 if none waits."""
        return min((slot.due_ns for slot in self._slots if slot.state is _State.EMPTY), default=0)

    def started(self, slot: int) -> None:
        """Note that a process was started; it does not serve yet."""
        self._slots[slot].state = _State.STARTING

    def serves(self, slot: int, now_ns: int) -> None:
        """Note that a process has loaded its models and serves."""
        self._slots[slot].state = _State.SERVING
        self._slots[slot].serving_since_ns = now_ns
        self.is_open = self.is_open or self.all_serve

    def died(self, slot: int, now_ns: int, cause: str) -> None:
        """Note that a process has exited; `cause` follows a colon in the message."""
        place = self._slots[slot]
        place.deaths = 1 if place.is_stable(now_ns) else place.deaths + 1
        place.state = _State.EMPTY
        if not self.is_open:
            self.verdict = self.verdict or f"process {slot + 1} did not start: {cause}"
            return
        place.due_ns = now_ns + _delay_ns(place.deaths)
        if len(self.failing(now_ns)) == len(self._slots):
            subject = "the only process" if len(self._slots) == 1 else f"each of the {len(self._slots)} processes"
            fewest = min(each.deaths for each in self._slots)
            self.verdict = self.verdict or (
                f"{subject} has died {fewest} times in a row or more, each time within "
                f"{STABLE_NS // _SECOND_NS} s; the last time: {cause}"
            )

    def failing(self, now_ns: int) -> list[int]:
        """Return the slots whose processes keep dying: none of them has been stable for a number of deaths."""
        return [n for n, slot in enumerate(self._slots) if slot.keeps_dying and not slot.is_stable(now_ns)]

    def outlook(self, slot: int) -> str:
        """Return when a dead process is replaced, for a message."""
        place = self._slots[slot]
        delay_s = _delay_ns(place.deaths) / _SECOND_NS
        if place.deaths == 1:
            return f"it will be replaced in {delay_s:g} s"
        return f"it will be replaced in {delay_s:g} s, after {place.deaths} deaths in a row"


def _delay_ns(deaths: int) -> int:
    if deaths <= len(DELAYS_NS):
        return DELAYS_NS[deaths - 1]
    return min(LONGEST_DELAY_NS, DELAYS_NS[-1] << min(deaths - len(DELAYS_NS), 16))


def share_of(options: ServerOptions, slot: int, start: int) -> ServerOptions:
    """Return the options of the `start`-th process of a slot.

    Limits of connections and of request bytes, the local cache and the size of a recording are divided; delays,
    warnings and the ready file of the supervisor are removed. --exit-on-error applies only to the start of the
    server: a model that serving processes could no longer load must not keep a replacement from serving what it can.
    """
    count = options.process_count
    cache = {name: dict(settings) for name, settings in options.cache_config.items()}
    size = cache.get("local", {}).get("size", "")
    if size.isascii() and size.isdigit():
        cache["local"]["size"] = str(int(size) // count)
    return replace(
        options,
        cache_config=cache,
        repository=replace(options.repository, exit_on_error=options.repository.exit_on_error and start == 1),
        drain_s=0.0,
        ready_file="",
        max_request_bytes=-(-options.max_request_bytes // count),
        no_effect=(),
        http=replace(options.http, max_connections=-(-options.http.max_connections // count)),
        grpc=replace(options.grpc, max_connections=-(-options.grpc.max_connections // count)),
        trace=replace(options.trace, file=_own_file(options.trace.file, slot, start)),
        # A replacement continues the recording.
        recording=replace(
            options.recording,
            path=_own_file(options.recording.path, slot, 1),
            size_bytes=options.recording.size_bytes // count,
        ),
    )


def _own_file(path: str, slot: int, start: int) -> str:
    """Return a path that no other process writes to, nor an earlier process of the slot."""
    if not path:
        return path
    return f"{path}.process{slot + 1}" + (f"-{start}" if start > 1 else "")
