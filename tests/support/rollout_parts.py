"""Versions that a test answers by hand, behind an engine with a rollout."""

from collections.abc import Callable, Sequence
from typing import Any

from naiad.cluster.member.all_processes import AllProcesses
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.datatype import DataType
from naiad.core.errors import InferError, cancelled_request
from naiad.core.request import InferRequest, RequestHeader
from naiad.core.response import InferResponse, ResponseHeader
from naiad.core.tensor import TensorSpec
from naiad.engine.engine import Engine
from naiad.engine.serving.served import Served
from naiad.options.network.endpoints import MetricsOptions
from naiad.repository.rollout_records import RolloutRecords
from naiad.telemetry.metrics.metrics import Registry
from naiad.telemetry.statistics.model_statistics import ModelStatistics
from support.engine_parts import Answers

SPEC = TensorSpec("OUT", DataType.FP32, (2,))


def member_engine() -> tuple[Engine, AllProcesses]:
    """Return the engine of one of several processes, without models, and what asks all of them."""
    processes = AllProcesses()
    return Engine(server_id="x", metrics=Registry(), processes=processes), processes


class ScriptedVersion(Served):
    """A version whose requests wait until `answer`; `rejection` may reject them at once."""

    def __init__(self, version: int, config: ModelConfig | None = None) -> None:
        config = config or ModelConfig(name="m")
        decoupled = config.model_transaction_policy.decoupled
        super().__init__("m", str(version), config, ModelStatistics("m", str(version)), is_decoupled=decoupled)
        self.waiting: list[InferRequest] = []
        self.seen: list[InferRequest] = []
        self.rejection: Callable[[InferRequest], InferError | None] = lambda request: None
        self.reason = ""
        self.queued = 0

    def submit(self, request: InferRequest) -> None:
        error = self.rejection(request)
        if error is not None:
            raise error
        request.model = self
        self.waiting.append(request)
        self.seen.append(request)

    def answer(self, data: bytes = bytes(8), error: InferError | None = None) -> None:
        """Answer all waiting requests."""
        waiting, self.waiting = self.waiting, []
        header = ResponseHeader("m", self.version, () if error else (SPEC,))
        for request in waiting:
            request.on_response(request, InferResponse(header, () if error else (data,), error=error))

    def cancel(self, request: InferRequest) -> bool:
        request.cancelled = True
        self.waiting.remove(request)
        header = ResponseHeader("m", self.version, ())
        request.on_response(request, InferResponse(header, error=cancelled_request()))
        return True

    def is_waiting(self, request: InferRequest) -> bool:
        return request in self.waiting

    @property
    def pending_count(self) -> int:
        return self.queued

    @property
    def in_flight_count(self) -> int:
        return len(self.waiting)

    @property
    def health(self) -> str:
        return self.reason

    def abort(self, reason: str) -> None:
        """Nothing to do."""

    def stop(self, timeout_s: float) -> bool:
        return True


class LaterLoop:
    """An event loop whose callbacks wait for `run`."""

    def __init__(self) -> None:
        self.callbacks: list[tuple[Callable[..., object], tuple[Any, ...]]] = []

    def call_soon(self, callback: Callable[..., object], *args: Any) -> None:
        self.callbacks.append((callback, args))

    call_soon_threadsafe = call_soon

    def run(self) -> None:
        """Run the callbacks that wait now."""
        callbacks, self.callbacks = self.callbacks, []
        for callback, args in callbacks:
            callback(*args)


class Scene:
    """An engine with versions of one model."""

    def __init__(self, *versions: int, config: ModelConfig | None = None) -> None:
        self.loop = LaterLoop()
        self.engine = Engine(server_id="naiad", metrics=Registry(MetricsOptions()))
        self.engine.rollout_commands.keep(RolloutRecords(), self.loop)  # type: ignore[arg-type]  # what is used of it
        self.versions = {version: ScriptedVersion(version, config) for version in versions}
        self.answers = Answers()
        self.publish()

    def publish(self) -> None:
        """Publish the versions, as after a load."""
        self.engine.models.publish({"m": dict(self.versions)} if self.versions else {}, "m")

    def change(self, **fields: Any) -> None:
        """Change the rollout as a client does."""
        self.engine.rollout_commands.apply("m", self.engine.rollout_commands.changed("m", fields))

    def end(self) -> None:
        """End the rollout as a client does."""
        self.engine.rollout_commands.apply("m", self.engine.rollout_commands.changed("m", None))

    def send(self, count: int = 1, *, version: str = "", request_id: str = "", **fields: Any) -> list[InferRequest]:
        """Submit requests and return them."""
        header = RequestHeader(
            model_name="m", model_version=version, inputs=[TensorSpec("IN", DataType.FP32, (2,))], **fields
        )
        sent = [InferRequest(header, [bytes(8)], self.answers, id=request_id, arrival_ns=1) for _ in range(count)]
        for request in sent:
            self.engine.inference.submit(request)
        return sent

    def answer(self, data: bytes = bytes(8)) -> None:
        """Answer all waiting requests of all versions."""
        for version in self.versions.values():
            version.answer(data)

    def seen(self) -> Sequence[int]:
        """Return the number of requests that each version has got, in the order of the versions."""
        return [len(version.seen) for version in self.versions.values()]
