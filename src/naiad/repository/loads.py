"""Loads of versions: each in a thread, with its time limit, its retries, and the ways to end it.

A framework cannot be interrupted. A load that was asked to end and goes on loses its waiting thread: it is deserted,
and what it makes is released when it ends.
"""

import logging
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace
from typing import Generic

from naiad.backend.load_stop import LoadStop
from naiad.core.errors import ErrorCode, InferError, cause_of, internal, unavailable
from naiad.repository.lifecycle import LoadedVersion, V
from naiad.repository.load_pool import ends_within
from naiad.repository.model_plan import ModelPlan, Update, VersionLoader
from naiad.telemetry.last_resort import report

_log = logging.getLogger(__name__)
_LOOK_S = 0.02
"""How often a load in progress is looked at: whether it has to end, or takes long; its end is seen at once."""
_STOP_S = 4.0
"""After this, a load that was asked to end is not waited for any more."""
_STOPPING = "the load was ended because the server is stopping"


@dataclass(frozen=True, slots=True)
class PreparedVersion(Generic[V]):
    """A version that can be put in place."""

    version: V
    update: Update | None = None
    """Set for a version that is already in place: the change that applies the new plan."""

    def release(self) -> None:
        """Release what was loaded and cannot be put in place."""
        if self.update is not None:
            self.update.discard()
        else:
            stop_version(self.version, 0.0)


_LONGEST_SLEEP_S = 3600.0
"""The system sleeps for no more than some 10^11 seconds; a time limit may be longer."""


class LoadDeadlines:
    """The time limits of loads: one thread asks each load to end whose time is over.

    Theory of operation: all loads have the same limit, so the one that has begun first is due first. The thread
    sleeps until then; a load that begins meanwhile is due later, so it needs no wake-up. When it wakes up and no
    load is left, it ends, and the next load starts another one. A thread for each load, as `threading.Timer` has it,
    took a tenth of the CPU of the load of a small model.
    """

    def __init__(self, timeout_s: float) -> None:
        """`timeout_s` is the limit of each load, 0 for none."""
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._stops: OrderedDict[object, tuple[float, LoadStop]] = OrderedDict()
        """The end of its time and the stop of each load in progress, in the order of their begins."""
        self._has_thread = False

    def begin(self, load: object, stop: LoadStop) -> None:
        """Note that a load has begun, which `end` gets too. Raises RuntimeError if no thread can be started."""
        if not self._timeout_s:
            return
        with self._lock:
            self._stops[load] = (time.monotonic() + self._timeout_s, stop)
            starts, self._has_thread = not self._has_thread, True
        if starts:
            try:
                threading.Thread(target=self._watch, name="load-deadlines", daemon=True).start()
            except BaseException:
                with self._lock:
                    self._has_thread = False
                    self._stops.pop(load, None)
                raise

    def end(self, load: object) -> None:
        """Note that a load has ended."""
        with self._lock:
            self._stops.pop(load, None)

    def _watch(self) -> None:
        while (wait_s := self._stop_late_loads()) is not None:
            time.sleep(min(wait_s, _LONGEST_SLEEP_S))

    def _stop_late_loads(self) -> float | None:
        """Ask the loads to end whose time is over; return seconds until the next one, None if there is none."""
        late: list[LoadStop] = []
        with self._lock:
            now_s = time.monotonic()
            while self._stops and next(iter(self._stops.values()))[0] <= now_s:
                _, (_, stop) = self._stops.popitem(last=False)
                late.append(stop)
            wait_s = next(iter(self._stops.values()))[0] - now_s if self._stops else None
            self._has_thread = wait_s is not None
        for stop in late:
            stop.request(f"the load took longer than --max-load-seconds={self._timeout_s:g}")
        return wait_s


class VersionLoads(Generic[V]):
    """The loads of versions in progress. A model is loaded by one piece of work at a time."""

    def __init__(self, loader: VersionLoader[V], *, retry_count: int = 0, timeout_s: float = 0.0) -> None:
        """`timeout_s` is the time limit of the load of a version, 0 for none."""
        self._loader = loader
        self._retry_count = retry_count
        self._deadlines = LoadDeadlines(timeout_s)
        self.is_abandoned = False
        """Whether the server is stopping: no further load begins."""
        self._since_s: dict[tuple[str, int], float] = {}
        self._stops: dict[str, LoadStop] = {}
        """Of the loads in progress, by model."""
        self._deserted: Counter[str] = Counter()
        """Loads without a waiting thread that have not ended, by model."""
        self._deserted_changed = threading.Condition()

    def durations(self) -> Mapping[str, float]:
        """Return the names of the models that load now, and for how many seconds each has been loading."""
        now_s = time.monotonic()
        newest_first = sorted(self._since_s.copy().items(), key=lambda item: -item[1])
        return {name: now_s - since_s for (name, _), since_s in newest_first}

    def abandon(self) -> None:
        """Cancel loading: loads in progress end at their next step, waiting ones do not begin."""
        self.is_abandoned = True
        for stop in list(self._stops.values()):
            stop.request(_STOPPING)

    def check_deserted(self, name: str) -> None:
        """Raise InferError(UNAVAILABLE) if an earlier load of a model goes on although it was asked to end."""
        if name in self._deserted:
            raise unavailable(f"an earlier load of '{name}', which was asked to end, has not ended yet")

    def wait_deserted(self, timeout_s: float) -> bool:
        """Wait for the end of all deserted loads; return whether they have ended in time."""
        with self._deserted_changed:
            return self._deserted_changed.wait_for(lambda: not self._deserted, max(0.0, timeout_s))

    # --- one model --------------------------------------------------------------------------------------------------

    def begin(
        self,
        pool: Executor,
        plan: ModelPlan,
        kept: Mapping[int, V] | None = None,
        *,
        stop: LoadStop | None = None,
    ) -> "dict[int, Future[PreparedVersion[V]]]":
        """Begin the load of the versions of a plan. Of the `kept` ones, one that can serve the plan is changed."""
        kept = kept or {}
        stop = self._stops[plan.entry.key] = stop or LoadStop()
        if self.is_abandoned:
            stop.request(_STOPPING)
        own = replace(plan, stop=stop)
        return {number: pool.submit(self._bring, own, number, kept.get(number)) for number in plan.versions}

    def end(self, name: str) -> None:
        """Note that the loads of a model have ended."""
        self._stops.pop(name, None)

    def result(
        self, name: str, future: "Future[PreparedVersion[V]]", on_wait: Callable[[], object] = lambda: None
    ) -> PreparedVersion[V]:
        """Wait for a version; not for longer than a moment after its load was asked to end. Raises what it raises.

        `on_wait` is called every now and then meanwhile.
        """
        stop = self._stops[name]
        while not stop.is_requested:
            if ends_within(future, _LOOK_S):
                return future.result()
            on_wait()
        if ends_within(future, _STOP_S):
            return future.result()
        if future.cancel():
            raise unavailable(stop.reason)
        _log.warning("the load of '%s' cannot be interrupted in its present step; its result will be discarded", name)
        with self._deserted_changed:
            self._deserted[name] += 1
        future.add_done_callback(lambda done: self._discard(name, done))
        raise unavailable(stop.reason)

    def _discard(self, name: str, future: "Future[PreparedVersion[V]]") -> None:
        """Release what a deserted load has made."""
        if not future.cancelled() and future.exception() is None:
            future.result().release()
        _log.info("a load of '%s' that was asked to end has ended", name)
        with self._deserted_changed:
            self._deserted[name] -= 1
            if not self._deserted[name]:
                del self._deserted[name]
            self._deserted_changed.notify_all()

    # --- one version ------------------------------------------------------------------------------------------------

    def _bring(self, plan: ModelPlan, version: int, kept: V | None) -> PreparedVersion[V]:
        """Load a version, or prepare the change of the one in place."""
        if kept is not None:
            update = self._loader.update(plan, version, kept)
            if update is not None:
                return PreparedVersion(kept, update)
        return PreparedVersion(self._load_version(plan, version))

    def _load_version(self, plan: ModelPlan, version: int) -> V:
        name = plan.entry.key
        key = (name, version)
        self._since_s[key] = time.monotonic()
        load = object()
        try:
            self._deadlines.begin(load, plan.stop)
            loaded = self._try_to_load(plan, version)
            if plan.stop.is_requested:
                stop_version(loaded, 0.0)
                plan.stop.check()
            return loaded
        finally:
            self._deadlines.end(load)
            del self._since_s[key]

    def _try_to_load(self, plan: ModelPlan, version: int) -> V:
        name = plan.entry.key
        retries_left = self._retry_count
        while True:
            if self.is_abandoned:
                raise unavailable("loading was abandoned because the server is stopping")
            _log.info("loading: %s:%d", name, version)
            try:
                return self._load_now(plan, version)
            except Exception as error:
                plan.stop.check()  # the cause of any failure meanwhile
                if not retries_left:
                    raise
                retries_left -= 1
                _log.warning("failed to load '%s' version %d, trying again: %s", name, version, reason_of(error))

    def _load_now(self, plan: ModelPlan, version: int) -> V:
        try:
            return self._loader.load(plan, version)
        except Exception:
            raise
        except BaseException as error:
            # SystemExit of a model's module, for example: it would leave the version in LOADING, and end the server
            # where a task waits for the load.
            raise internal(cause_of(error)) from error


def stop_version(loaded: LoadedVersion, timeout_s: float) -> bool:
    """Stop a version; a failure is logged only."""
    try:
        return loaded.stop(timeout_s)
    except BaseException as error:
        report("stopping a model version", error)
        return True


def reason_of(error: Exception) -> str:
    """Return the reason of a failed load: the message of an InferError, type and text of any other exception."""
    return error.message if isinstance(error, InferError) else cause_of(error)


def status_of(error: Exception) -> str:
    """Return `reason_of` after the code, as in Triton's reason of a failed version."""
    code = error.code if isinstance(error, InferError) else ErrorCode.INTERNAL
    return f"{code.words}: {reason_of(error)}"


def traceback_of(error: Exception) -> Exception | None:
    """Return the exception to log with a traceback: only unexpected failures, and only in a verbose log."""
    return None if isinstance(error, InferError) or not _log.isEnabledFor(logging.DEBUG) else error
