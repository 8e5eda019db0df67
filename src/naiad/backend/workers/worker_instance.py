"""An instance of a model in a worker process."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from naiad.backend.api import (
    HealthListener,
    InstanceDiedError,
    InstanceSpec,
    InstanceState,
    ModelContext,
    RemoteInstance,
)
from naiad.backend.custom_metrics import InstanceMetrics
from naiad.backend.workers.bls_channel import BlsChannel
from naiad.backend.workers.conversation.conversation import Conversation, Terms
from naiad.backend.workers.conversation.open_requests import DecoupledConversation, OrdinaryConversation
from naiad.backend.workers.conversation.tensor_rules import TensorRules
from naiad.backend.workers.life_cycle import WorkerLife
from naiad.backend.workers.process.server_channel import ServerChannel
from naiad.backend.workers.process.worker_process import WorkerProcess
from naiad.backend.workers.ranks.rank_group import RankConversation, RankGroup
from naiad.backend.workers.worker_settings import WorkerSettings, WorkerSource, rank_args, worker_environment
from naiad.config.execution_tensors import execution_config
from naiad.core.batch import Batch, SequenceEnd
from naiad.core.environment.ports import InferencePort
from naiad.core.errors import ErrorCode, FailureReason, InferError, internal
from naiad.core.request import InferRequest
from naiad.core.response import InferResponse

_EXIT_POLL_S = 0.05


class WorkerInstance(RemoteInstance):
    """One worker process, replaced when it dies."""

    def __init__(
        self,
        context: ModelContext,
        source: WorkerSource,
        settings: WorkerSettings,
        rules: TensorRules,
        spec: InstanceSpec,
    ) -> None:
        self.spec = spec
        self.health_listener: HealthListener | None = None
        """Called from the worker's watching thread when the health changes."""
        notes: dict[str, Any] = {
            **source.notes(context),
            "completes": False,
            "decoupled": context.config.model_transaction_policy.decoupled,
            "iterative": context.config.sequence_batching.iterative_sequence,
            "transport_bytes": settings.transport_bytes,
            "torch_distributed": settings.torch_distributed,
            "args": rank_args(context, source, spec, settings),
            "outputs": [output.name for output in execution_config(context.config).output],
        }
        environment = settings.interpreter.environ(worker_environment(context, spec.host_policy))
        port = context.port
        self._calls: BlsChannel | None = None
        self._metrics = metrics = InstanceMetrics(context.metrics)

        def listen_to(process: WorkerProcess, channel: ServerChannel, port: InferencePort) -> Callable[[], None]:
            self._calls = BlsChannel(
                channel,
                port,
                process,
                self._life,
                model=context.name,
                instance=self,
                metrics=metrics.holder,
                called=context.called,
            )
            port.loop.call_soon_threadsafe(self._calls.attach)
            return self._calls.close

        def launch() -> WorkerProcess:
            metrics.begin()
            descriptor = metrics.descriptor
            notes["metrics"] = descriptor
            if settings.has_ranks:
                create: Callable[..., WorkerProcess] = partial(RankGroup, settings, environment, rank_notes)
            else:
                create = partial(WorkerProcess, settings.interpreter.executable, environment)
            return create(
                model=context.name,
                transport_bytes=settings.transport_bytes,
                inherited=() if descriptor < 0 else (descriptor,),
                on_line=None if port is None else partial(listen_to, port=port),
            )

        def rank_notes(rank: int) -> dict[str, Any]:
            return {
                **notes,
                "metrics": -1,
                "sends_outputs": False,
                "args": rank_args(context, source, spec, settings, rank),
            }

        kind: type[Conversation] = DecoupledConversation if notes["decoupled"] else OrdinaryConversation
        if settings.has_ranks:
            kind = RankConversation
        terms = Terms(self, spec.name, context.name, str(context.version), settings.transport_bytes, rules)
        self._life = WorkerLife(spec.name, settings, launch, notes, partial(kind, terms=terms), self._report_health)
        self._running: Conversation | None = None
        self._conversation_with_blocks: Conversation | None = None

    @property
    def process_ids(self) -> Sequence[int]:
        """The worker that lives now."""
        return self._life.process_ids

    def interrupt(self) -> None:
        """End the worker without waiting for it."""
        self._life.interrupt()

    def start(self) -> None:
        """Start the worker. Raises InferError."""
        try:
            self._life.start()
        except InferError:
            self._metrics.close()
            raise

    def execute(self, batch: Batch) -> Sequence[InferResponse]:
        """Execute a batch in the worker. Raises InstanceDiedError if the worker dies meanwhile."""
        self.begin(batch)
        for request in batch.requests:
            # Cancelled on the loop before this thread had begun the batch.
            if request.cancelled:
                self.mark(request)
        while True:
            responses = self.finish()
            if responses is not None:
                return responses
            if self._running is not None and self._running.is_broken:
                self._running.await_exit(_EXIT_POLL_S)

    def begin(self, batch: Batch) -> None:
        """Send a batch to the worker, which may have open requests.

        Raises InferError for a batch that is too large, and without a worker.
        """
        # hot: bench/micro_worker.py
        conversation = self._running
        if conversation is not None:
            # It has open requests of earlier batches.
            try:
                conversation.begin(batch)
            finally:
                if not conversation.is_busy:
                    self._release(conversation)
            return
        life = self._life
        # Held until `finish`, on any thread: the channel must not be closed or trimmed in between.
        life.lock.acquire()
        try:
            self._running = life.conversation
            if self._running is None:
                raise self._has_no_worker()
            self._running.begin(batch)
        except BaseException:
            self._running = None
            life.lock.release()
            raise

    def finish(self) -> Sequence[InferResponse] | None:
        """Wait for input from the worker, and return its response to the batch. Raises InstanceDiedError after its
        death.

        None for an incomplete response, for responses of open requests, and while the cause of a death is unknown.
        """
        # hot: bench/micro_worker.py
        conversation = self._running
        if conversation is None:
            raise internal(f"instance '{self.spec.name}' executes nothing")
        try:
            return conversation.finish()
        finally:
            if not conversation.is_busy:
                self._release(conversation)

    def _has_no_worker(self) -> InstanceDiedError:
        """Return the error for a batch that was not sent, and can be executed by another instance."""
        text = self._life.health or f"instance '{self.spec.name}' has no worker"
        error = InstanceDiedError(ErrorCode.UNAVAILABLE, text, reason=FailureReason.BACKEND)
        error.has_begun = False
        return error

    def _release(self, conversation: Conversation) -> None:
        self._running = None
        if conversation is not self._conversation_with_blocks and conversation.has_blocks:
            # From now on the watching thread must check for idle memory.
            self._conversation_with_blocks = conversation
            self._life.wake()
        self._life.lock.release()

    def end_sequences(self, ended: Sequence[SequenceEnd]) -> None:
        """Notify the worker; a dead one has lost its sequences anyway."""
        running = self._running
        if running is not None:
            running.end_sequences(ended)
            return
        with self._life.lock:
            if self._life.conversation is not None:
                self._life.conversation.end_sequences(ended)

    def fileno(self) -> int:
        """Return the descriptor of the worker's responses."""
        return -1 if self._running is None else self._running.fileno()

    @property
    def is_busy(self) -> bool:
        """Whether the worker executes a batch or has open requests."""
        return self._running is not None

    @property
    def is_silent(self) -> bool:
        """Whether the worker has exited for an unknown cause."""
        return self._running is not None and self._running.is_broken

    def mark(self, request: InferRequest) -> None:
        """Mark the cancellation of a request for the worker."""
        conversation = self._running
        if conversation is not None:
            conversation.mark(request)
        if self._calls is not None:
            self._calls.parent_cancelled(request)

    def abandon(self, reason: str) -> None:
        """Kill the worker, which is restarted."""
        self._life.replace_worker(reason)

    @property
    def generation(self) -> int:
        """A different number for every worker."""
        return self._life.restart_count

    @property
    def health(self) -> str:
        """Empty while the worker lives; otherwise the cause of its death, or why it is unavailable."""
        return self._life.health or self.unavailable_reason

    @property
    def says_ready(self) -> bool:
        """The result of the model's `is_ready`; `health` covers the death of a worker."""
        conversation = self._life.conversation
        return conversation is None or conversation.says_ready

    @property
    def state(self) -> InstanceState:
        """Whether the worker executes, restarts, or has died too often."""
        return self._life.state

    @property
    def awaits_restart(self) -> bool:
        """Whether a worker is being started, within the time limit."""
        return self._life.awaits_restart

    @property
    def restart_count(self) -> int:
        """Number of restarts of the worker."""
        return self._life.restart_count

    def close(self) -> None:
        """Finalize the model and end the worker."""
        self._life.close()
        self._metrics.close()

    def warm_up_after_restart(self, warm_up: Callable[[], None]) -> None:
        """Set the warm-up of every further worker before it gets requests."""
        self._life.warm_up = warm_up

    def _report_health(self, health: str) -> None:
        if not health:
            self._metrics.settle()
        if self.health_listener is not None:
            self.health_listener(self, health)
