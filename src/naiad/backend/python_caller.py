"""A worker as its line of calls sees it."""

from collections.abc import Sequence

from naiad.backend.custom_metrics import MetricHolder
from naiad.backend.python_calls import CallLine
from naiad.backend.python_channel import ServerChannel
from naiad.backend.python_life import WorkerLife
from naiad.backend.python_process import WorkerProcess
from naiad.core.ports import InferencePort
from naiad.core.request import InferRequest


class CallingWorker:
    """What the calls of one worker have to know of it."""

    def __init__(
        self, model: str, instance: object, life: WorkerLife, process: WorkerProcess, metrics: MetricHolder | None
    ) -> None:
        self.model = model
        self.instance = instance
        self.metrics = metrics
        self._life = life
        self._process = process

    @property
    def is_initializing(self) -> bool:
        """Whether the model is not ready yet."""
        return self._life.conversation is None

    @property
    def room_bytes(self) -> int:
        """Shared memory that batches leave to calls."""
        conversation = self._life.conversation
        return 0 if conversation is None else conversation.room_bytes

    def parents(self, serial: int, slots: Sequence[int]) -> Sequence[InferRequest]:
        """Return the requests that the number of a batch, or slots, stand for."""
        conversation = self._life.conversation
        return () if conversation is None else conversation.parents(serial, slots)

    def request_at(self, serial: int, place: int) -> InferRequest | None:
        """Return the request at a place of the batch with that number, or in a slot."""
        conversation = self._life.conversation
        return None if conversation is None else conversation.request_at(serial, place)

    def take_room(self, taken_bytes: int) -> None:
        """Note how much shared memory the calls have."""
        conversation = self._life.conversation
        if conversation is not None:
            conversation.take_room(taken_bytes)

    def kill(self, why: str) -> None:
        """End the worker, which breaks the rules."""
        self._process.kill(why)


def listen(worker: CallingWorker, channel: ServerChannel, port: InferencePort) -> CallLine:
    """Begin to listen to a worker's calls; callable on any thread."""
    line = CallLine(channel, port, worker)
    port.loop.call_soon_threadsafe(line.attach)
    return line
