"""What a backend implements: three nouns (Backend, Model, Instance) and few verbs.

A third party ships a backend as a package with an entry point in the group `naiad.backends`, whose name is the
`backend` of `config.pbtxt` and whose object is a `Backend` class. Most frameworks only need `TensorInstance.run`.

Threads: `Backend` and `Model` methods are called from loading threads, never from the event loop; `Instance.execute`
is called from that instance's own thread, one batch at a time.
"""

import abc
import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar

from naiad.backend.custom_metrics import CustomMetrics
from naiad.backend.load_stop import LoadStop
from naiad.config.model_config_pb2 import ModelConfig
from naiad.config.tensors.features import Features
from naiad.core.batch import Batch, SequenceEnd
from naiad.core.device_tensor import Device
from naiad.core.environment.ports import InferencePort
from naiad.core.errors import InferError
from naiad.core.request import InferRequest
from naiad.core.response import InferResponse
from naiad.options.execution_limits import DEFAULT_EXECUTE_TIMEOUT_S
from naiad.telemetry.statistics.part_statistics import CallStatistics


@dataclass(frozen=True, slots=True)
class ModelContext:
    """One version of a model, as a backend loads it."""

    name: str
    version: int
    config: ModelConfig
    """Complete and normalised: instance groups resolved, batching fields filled in."""
    model_dir: Path
    """The model's directory: labels, environments, the version directories."""
    version_dir: Path
    """The version's directory, which holds the model file."""
    usable_cores: int
    """Cores that the whole process may use (affinity and cgroup quota)."""
    backend_config: Mapping[str, str] = field(default_factory=dict)
    """`--backend-config` settings: the global ones overlaid with this backend's."""
    worker_config: Mapping[str, str] = field(default_factory=dict)
    """`--backend-config=python,...`: settings of worker processes, for all backends in them."""
    port: InferencePort | None = None
    """How the model reaches other models of the server; None without a server."""
    metrics: CustomMetrics | None = None
    """Where the model's own metrics are shown; None without a server."""
    host_policies: Mapping[str, frozenset[int]] = field(default_factory=dict)
    """The cores of each host policy of the server, by its name."""
    execute_timeout_s: float = DEFAULT_EXECUTE_TIMEOUT_S
    """After this an execution without progress counts as hung, unless the model says otherwise; 0 for no limit."""
    namespace: str = ""
    """Its namespace, which distinguishes models of equal names; empty without namespaces."""
    called: CallStatistics = field(default_factory=CallStatistics, compare=False)
    """Counts its calls of other models."""
    stop: LoadStop = field(default_factory=LoadStop, compare=False)
    """Whether the load has to end; long steps obey it."""


@dataclass(frozen=True, slots=True)
class InstanceSpec:
    """One instance of a model, as its instance group asks for it."""

    name: str
    """`<group>_<i>`, as Triton names it, for example `densenet_0_1`."""
    index: int
    """Number among all instances of the model version, from 0."""
    kind: str
    """KIND_CPU, KIND_GPU or KIND_MODEL; KIND_AUTO has been resolved."""
    device_id: int = 0
    host_policy: str = ""
    """Name of its host policy, which binds it to cores where the server has one of that name."""
    profiles: Sequence[str] = ()
    """`profile` of its group: the optimization profiles of a TensorRT engine that it may use."""


class InstanceState(enum.IntEnum):
    """The states of an instance; the numbers are the values of the metric `naiad_worker_state`."""

    READY = 0
    RESTARTING = 1
    """Its worker has died and a new one starts; requests wait for it."""
    DOWN = 2
    """Its workers have died too often: requests are refused until a restart on trial succeeds."""
    TRIAL = 3
    """It was down, has started again, and executes its first batch since: READY after it, or DOWN."""


class Instance(abc.ABC):
    """One executor of a model version. It executes one batch at a time in a thread of its own."""

    runs_on_any_thread: ClassVar[bool] = False
    """Whether `execute` may also be called on the event loop, never at the same time as on its own thread.

    The engine does so while executions take less time than waking a thread costs.
    """
    device: Device | None = None
    """Where it computes, if `execute` takes a `DeviceTensor` of any device in place of a buffer, and may return one
    for an output that stays on its device. Then all instances of the version take them, also those without a device.
    """
    mapped_bytes: int = 0
    """Bytes of files that are mapped into this process, which instances of a version share. They count as its memory
    as they are used, so the growth of a load does not show them.
    """
    unavailable_reason: str = ""
    """Why it cannot execute, set by the engine: an execution hangs."""
    cores: frozenset[int] = frozenset()
    """Cores that it is bound to by its host policy, set by the engine; empty for any.

    It was made by a thread that runs on them alone, and so do the threads and processes that were started then.
    """

    @abc.abstractmethod
    def execute(self, batch: Batch) -> Sequence[InferResponse]:
        """Execute `batch` and return one response per request, in the order of `batch.requests`.

        Stamps `batch.compute_start_ns` when the inputs are staged and `batch.compute_end_ns` when the model has
        returned (`time.monotonic_ns`); the caller stamps `exec_start_ns` before and `exec_end_ns` after.
        A request that fails alone gets a response with `error`. Raise InferError to fail the whole batch; any other
        exception fails the batch too and is logged with its traceback.

        Of a model with `iterative_sequence` an entry may be `core.response.RESCHEDULE`: the request is executed again
        in a later batch. A decoupled one emits that instead of a further response.

        Of a decoupled model it returns no responses: it sends them through `batch.emit`, as many as it likes, also
        after it has returned and has been given another batch. Every request needs its `final` response, which may
        be `empty_final` or carry an `error`. When it raises, the requests that are still open are answered with that.
        """

    def interrupt(self) -> None:  # noqa: B027 - most instances cannot be interrupted
        """End the start or the execution that is in progress on another thread; the instance is of no use then.

        `close` follows. By default nothing happens, and the caller does not wait for the execution.
        """

    @property
    def health(self) -> str:
        """Empty while the instance can execute; otherwise the reason why it cannot (a dead worker)."""
        return self.unavailable_reason

    @property
    def says_ready(self) -> bool:
        """Readiness as the model itself reports it, for probes; it executes requests in any case."""
        return True

    @property
    def state(self) -> InstanceState:
        """The state of the instance; `health` has the reason."""
        return InstanceState.RESTARTING if self.health else InstanceState.READY

    @property
    def awaits_restart(self) -> bool:
        """Whether requests wait for the instance although it cannot execute now: it will soon."""
        return False

    @property
    def restart_count(self) -> int:
        """Number of restarts of its worker process."""
        return 0

    @property
    def process_ids(self) -> Sequence[int]:
        """The process that executes for this instance, if it is another one than the server."""
        return ()

    def warm_up_after_restart(self, warm_up: Callable[[], None]) -> None:  # noqa: B027 - most instances start once
        """Take what has to be executed whenever the instance has started again, before its `health` says so.

        It calls `execute`, and raises when the instance is of no use.
        """

    def end_sequences(self, ended: Sequence[SequenceEnd]) -> None:  # noqa: B027 - most keep no state of their own
        """Take note of sequences that will not go on although no request had END.

        Called while no batch executes, before the next one does, on the executing thread.
        """

    def close(self) -> None:  # noqa: B027 - an instance without resources has nothing to do
        """Release what the instance holds. No batch is running and none will follow."""


class RemoteInstance(Instance):
    """An instance that executes in another process, so that a batch can be begun and finished without blocking.

    The event loop drives it itself: two threads fewer to wake for each batch. Everything but `execute` (which serves
    callers without a loop, and which a thread of the loop uses for batches that take long to hand over) is called on
    the loop. One batch at a time: `begin`, then `finish` whenever `fileno()` is readable until it returns. Of a
    decoupled model `finish` is called while `is_busy`, also between batches: it emits what has come.
    """

    others_wait: Callable[[], bool] | None = None
    """Set by its runner: returns whether requests wait for an instance."""

    @abc.abstractmethod
    def fileno(self) -> int:
        """Return the descriptor that becomes readable when the answer has come or the other process has died.

        The caller watches a duplicate, since the instance may close its own at any time. Valid after `begin`.
        """

    @property
    @abc.abstractmethod
    def generation(self) -> int:
        """A number that is another one for every process that takes over."""

    @abc.abstractmethod
    def begin(self, batch: Batch) -> None:
        """Hand `batch` over. Raises as `execute` does."""

    @abc.abstractmethod
    def finish(self) -> Sequence[InferResponse] | None:
        """Return the responses of the batch begun, None while they have not completely arrived.

        Stamps the times of the batch. Raises as `execute` does. Does not wait for what takes time to be known (how
        the other process has died): then `is_silent` is true, and it is to be called again soon.
        """

    @property
    def is_busy(self) -> bool:
        """Whether a batch was begun and not finished, or requests of a decoupled model are open."""
        return False

    @property
    def is_silent(self) -> bool:
        """Whether nothing will come through `fileno()` any more although it `is_busy`."""
        return False

    def mark(self, request: InferRequest) -> None:
        """Notify the other process, if it executes `request`, of its cancellation."""

    def abandon(self, reason: str) -> None:
        """Replace the other process, whose conversation is lost; `finish` must raise soon. On the loop."""


class Model(abc.ABC):
    """One loaded version of a model: what its instances share (a session, weights)."""

    labels: Mapping[str, Sequence[str]] = MappingProxyType({})
    """Class labels that the model file itself has, by output; a `label_filename` takes precedence."""
    stop: LoadStop | None = None
    """What ends the creation of instances; the engine sets that of each change of instances."""
    features: Features | None = None
    """Names and categories of columns that the model file itself has."""

    @abc.abstractmethod
    def create_instance(self, spec: InstanceSpec) -> Instance:
        """Create one instance; called concurrently for several. Raises InferError with a reason that helps."""

    def update_config(self, config: ModelConfig) -> None:  # noqa: B027 - most instances need nothing of it
        """Take note of a configuration with other instance groups, for instances that are created from now on."""

    def close(self) -> None:  # noqa: B027
        """Release what the version holds, after its instances are closed."""


class Backend(abc.ABC):
    """One kind of model. The server makes one object per backend name that a repository uses."""

    name: ClassVar[str]

    def auto_complete(self, context: ModelContext) -> ModelConfig:
        """Return a copy of `context.config` with the model's own facts filled in.

        Only inputs, outputs, max_batch_size, the scheduling choice, the transaction policy and the parameters of
        features are taken from the result; other edits are dropped. Not called with --disable-auto-complete-config.
        """
        return context.config

    def default_instance_count(self, context: ModelContext) -> int:
        """Instances of a group of KIND_CPU that names no count."""
        return 1

    def gpu_unsupported_reason(self) -> str:
        """Return why instances cannot be on GPUs, empty when they can. Asked only where there are GPUs.

        Instances of a backend that can are on all GPUs unless the configuration says otherwise; `spec.device_id` is
        the number of each one's GPU, as CUDA counts.
        """
        return f"backend '{self.name}' does not use GPUs"

    @abc.abstractmethod
    def load(self, context: ModelContext) -> Model:
        """Load one version. Raises InferError with a message that names file, problem and fix."""


HealthListener = Callable[[Instance, str], None]
"""Called (from any thread) when the health of an instance changes; the text is the new `health`."""


class InstanceDiedError(InferError):
    """The worker of an instance died while it had a batch; `message` names the instance and the signal.

    If the worker has not begun the batch (`has_begun`), another one can execute it.
    """
