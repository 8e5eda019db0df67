"""How the models of a member reach the owner of the resources, which is the supervisor."""

import asyncio
import threading
from collections.abc import Callable, Collection, Coroutine, Sequence

from naiad.cluster.channel import ChannelError
from naiad.cluster.messages import ClaimSteps, RegisterClaims, Suspected
from naiad.engine.resource_owner import Step, Suspicion, Terms


class ResourceLink:
    """Implements `shared_resources.Owner` over the channel, which belongs to the event loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        ask: Callable[[object], Coroutine[object, object, object]],
        tell: Callable[[object], object],
    ) -> None:
        self._loop = loop
        self._ask = ask
        self._tell = tell
        self._lock = threading.Lock()
        self._steps: list[Step] = []
        self._ended: list[int] = []
        self._is_scheduled = False

    def register(self, terms: Sequence[Terms]) -> str:
        """Tell what instances need, and return why that cannot be, or nothing; blocks."""
        try:
            return str(asyncio.run_coroutine_threadsafe(self._ask(RegisterClaims(terms)), self._loop).result())
        except ChannelError as error:
            return f"the supervisor of this server could not be asked for resources: {error}"

    def take(self, step: Step) -> None:
        """Tell what becomes of a claim."""
        with self._lock:
            self._steps.append(step)
            self._schedule()

    def suspect(self, suspicion: Suspicion) -> None:
        """Tell what is held until what is waited for is granted; called on the loop."""
        self._flush()  # the owner has to know of all steps before
        self._tell(Suspected(suspicion))

    def unregister(self, numbers: Collection[int]) -> None:
        """Tell that there are no such claims any more."""
        with self._lock:
            self._ended += numbers
            self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon_threadsafe(self._flush)

    def _flush(self) -> None:
        with self._lock:
            message = ClaimSteps(self._steps, self._ended)
            self._steps, self._ended = [], []
            self._is_scheduled = False
        if message.steps or message.ended:
            self._tell(message)
