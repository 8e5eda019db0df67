"""The `python` backend: `model.py` files, executed by worker processes, one per instance.

A Python-based backend is one `model.py` in a directory of its own, which executes all models of the backend;
`--backend-config=python,...` applies to it too.
"""

import ast
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from naiad.backend.api import (
    Backend,
    HealthListener,
    Instance,
    InstanceDiedError,
    InstanceSpec,
    InstanceState,
    Model,
    ModelContext,
    RemoteInstance,
)
from naiad.backend.custom_metrics import InstanceMetrics
from naiad.backend.load_stop import LoadStop
from naiad.backend.python.calls import BlsChannel
from naiad.backend.python.conversation.conversation import Conversation, Terms
from naiad.backend.python.conversation.open_requests import DecoupledConversation, OrdinaryConversation
from naiad.backend.python.conversation.tensors import TensorRules
from naiad.backend.python.ranks import RankConversation, RankGroup
from naiad.backend.python.settings import (
    WorkerSettings,
    WorkerSource,
    instance_args,
    rank_args,
    read_settings,
    worker_environment,
)
from naiad.backend.python.worker.channel import ServerChannel
from naiad.backend.python.worker.environment import PARAMETER
from naiad.backend.python.worker.process import WorkerProcess
from naiad.backend.python.worker_life import WorkerLife, begin, end
from naiad.backend.registry import PYTHON_RUNTIME
from naiad.config.execution import execution_config
from naiad.config.forms.json_form import config_from_dict
from naiad.config.model_config_pb2 import ModelConfig
from naiad.config.problem import raise_problems
from naiad.core.batch import Batch, SequenceEnd
from naiad.core.errors import ErrorCode, FailureReason, InferError, internal, invalid_argument, not_found
from naiad.core.ports import InferencePort
from naiad.core.request import InferRequest
from naiad.core.response import InferResponse

_EXIT_POLL_S = 0.05
_COMPLETES = "auto_complete_config"
_ENVIRONMENT = f"pb_exec_env_{PYTHON_RUNTIME}.tar.gz"
"""Triton: the environment of all models of a Python-based backend, next to its `model.py`."""
_PARSING = threading.Lock()
"""Before Python 3.13 all threads share the depth counter of `ast.parse`, which fails with SystemError (gh-106905)."""


@dataclass(frozen=True, slots=True)
class ModelSource(WorkerSource):
    """The location of a Python model's code."""

    model_file: Path
    is_shared: bool = False
    """Whether it belongs to a backend and executes other models too."""

    def notes(self, context: ModelContext) -> dict[str, Any]:
        """Return the notes that a worker needs to load it."""
        return {
            "model_file": str(self.model_file),
            "model_dir": str(context.model_dir),
            "version_dir": str(context.version_dir),
            "is_shared": self.is_shared,
        }


class PythonBackend(Backend):
    """Runs models that are classes `TritonPythonModel` in a file `model.py`."""

    name: ClassVar[str] = "python"

    def auto_complete(self, context: ModelContext) -> ModelConfig:
        """Return the configuration of the model's `auto_complete_config`, from a temporary process.

        Raises InferError if the function raises or returns another type.
        """
        source = self.source(context)
        if not may_complete(source.model_file):
            return context.config
        settings = read_settings(context)
        try:
            extra = ask_once(context, source, settings)
        except InferError as error:
            error.message = f"auto_complete_config of model '{context.name}': {error.message}"
            raise
        if extra.get("config") is None:
            return context.config
        completed, problems = config_from_dict(extra["config"])
        if problems:
            raise_problems(problems)
        return completed

    def gpu_unsupported_reason(self) -> str:
        """Return "": the model gets the number of its GPU, and decides on its use."""
        return ""

    def load(self, context: ModelContext) -> Model:
        """Load one version. Raises InferError for a missing file and for unsupported settings."""
        return PythonModel(context, self.source(context), read_settings(context))

    def source(self, context: ModelContext) -> ModelSource:
        """Return the location of a model's code. Raises InferError(NOT_FOUND) without a file."""
        return ModelSource(find_model_file(context))


class PythonBasedBackend(PythonBackend):
    """A directory with a `model.py`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def source(self, context: ModelContext) -> ModelSource:
        """Return the file of the backend."""
        return ModelSource(self._directory / PYTHON_RUNTIME, is_shared=True)

    def auto_complete(self, context: ModelContext) -> ModelConfig:
        """Return the configuration of the backend's `auto_complete_config`. Raises InferError."""
        return super().auto_complete(self._with_environment(context))

    def load(self, context: ModelContext) -> Model:
        """Load one version of a model. Raises InferError."""
        return super().load(self._with_environment(context))

    def _with_environment(self, context: ModelContext) -> ModelContext:
        """Return a context with the backend's environment in the configuration, if the model has none of its own."""
        archive = self._directory / _ENVIRONMENT
        if PARAMETER in context.config.parameters or not archive.is_file():
            return context
        config = ModelConfig()
        config.CopyFrom(context.config)
        config.parameters[PARAMETER].string_value = str(archive)
        return replace(context, config=config)


class PythonModel(Model):
    """One version of a model with workers as instances; they share only its source."""

    def __init__(
        self, context: ModelContext, source: WorkerSource, settings: WorkerSettings, rules: TensorRules | None = None
    ) -> None:
        """`rules` come from the configuration unless given."""
        self._context = context
        self.stop = context.stop
        self._source = source
        self.settings = settings
        """The settings of its workers."""
        # One object for all instances, so that a message is logged once per version.
        self._rules = rules or TensorRules(
            context.config, version=str(context.version), is_strict=settings.has_strict_outputs
        )

    def update_config(self, config: ModelConfig) -> None:
        """Use this configuration for new workers; running ones keep theirs, as in Triton."""
        self._context = replace(self._context, config=config)

    def create_instance(self, spec: InstanceSpec) -> Instance:
        """Start a worker and initialize the model in it. Raises InferError with the traceback if that fails."""
        instance = PythonInstance(self._context, self._source, self.settings, self._rules, spec)
        with (self.stop or LoadStop()).calling(instance.interrupt):
            instance.start()
        return instance


class PythonInstance(RemoteInstance):
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
                channel, port, process, self._life, model=context.name, instance=self, metrics=metrics.holder
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
        """Empty while the worker lives; otherwise the cause of its death, or the unavailable_reason."""
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


def find_model_file(context: ModelContext) -> Path:
    """Return the path of the model's file. Raises InferError(NOT_FOUND) without one."""
    filename = context.config.default_model_filename or "model.py"
    if not filename.endswith(".py"):
        raise invalid_argument(f"Model name must end with '.py'. Model name is \"{filename}\".")
    path = context.version_dir / filename
    if not path.is_file():
        raise not_found(f"Python model file not found in '{path}'")
    return path


def may_complete(model_file: Path) -> bool:
    """Return whether the model may have an `auto_complete_config`, without running it.

    A class without bases and decorators has only the methods in its body; all other classes must be imported.
    """
    try:
        source = model_file.read_bytes()
        with _PARSING:
            tree = ast.parse(source, str(model_file))
    except (SyntaxError, ValueError, OSError):
        return True
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == "TritonPythonModel":
            inherits = bool(node.bases or node.keywords or node.decorator_list)
            return inherits or _COMPLETES in ast.unparse(node)
    return True


def ask_once(context: ModelContext, source: WorkerSource, settings: WorkerSettings) -> Mapping[str, Any]:
    """Return a worker's facts about a model without loading it. Raises InferError."""
    spec = InstanceSpec(context.name, 0, "KIND_CPU")
    notes = {
        **source.notes(context),
        "completes": True,
        "args": {**instance_args(context, spec), **source.args(context, spec)},
    }
    wake_read, wake_write = os.pipe()
    try:
        process = WorkerProcess(
            settings.interpreter.executable,
            settings.interpreter.environ(worker_environment(context)),
            model=context.name,
            transport_bytes=0,
        )
    except OSError as error:
        os.close(wake_read)
        os.close(wake_write)
        raise internal(f"the worker cannot be started with {settings.interpreter.executable}: {error}") from None
    try:
        with context.stop.calling(process.kill):
            return begin(process, settings, notes, wake_read)
    finally:
        process.kill()
        end(process, 0.0, wake_read)
        process.close()
        os.close(wake_read)
        os.close(wake_write)
