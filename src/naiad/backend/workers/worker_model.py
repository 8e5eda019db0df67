"""A version of a model whose instances are worker processes."""

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from naiad.backend.api import Instance, InstanceSpec, Model, ModelContext
from naiad.backend.load_stop import LoadStop
from naiad.backend.workers.conversation.tensor_rules import TensorRules
from naiad.backend.workers.life_cycle import begin, end
from naiad.backend.workers.process.worker_process import WorkerProcess
from naiad.backend.workers.worker_instance import WorkerInstance
from naiad.backend.workers.worker_settings import WorkerSettings, WorkerSource, instance_args, worker_environment
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import internal


class WorkerModel(Model):
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
        instance = WorkerInstance(self._context, self._source, self.settings, self._rules, spec)
        with (self.stop or LoadStop()).calling(instance.interrupt):
            instance.start()
        return instance


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
