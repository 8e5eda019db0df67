"""The sklearn backend: one estimator for all instances of a version."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import sklearn

from naiad.backend.api import Backend, Instance, InstanceSpec, Model, ModelContext
from naiad.backend.framework import Parameters
from naiad.backend.signature import ModelSignature, SignatureCheck, completed
from naiad.backend.sklearn.estimator_file import load_estimator
from naiad.backend.sklearn.inputs import plan_inputs
from naiad.backend.sklearn.outputs import call, plan_outputs, read_outputs
from naiad.backend.tensor_instance import TensorInstance
from naiad.config.execution import execution_config
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.tensor import Array

_log = logging.getLogger(__name__)

MAX_BATCH_SIZE = 1024
"""`max_batch_size` of a model without one: a call costs hundreds of microseconds, a row in it few."""


class SklearnBackend(Backend):
    """Estimators of scikit-learn."""

    name: ClassVar[str] = "sklearn"

    def auto_complete(self, context: ModelContext) -> ModelConfig:
        """Fill in batching, inputs and outputs from the fitted estimator. Raises InferError."""
        return completed(context, lambda: SklearnModel(context).signature, MAX_BATCH_SIZE)

    def load(self, context: ModelContext) -> Model:
        """Load the file and hold the configuration against it. Raises InferError."""
        model = SklearnModel(context)
        SignatureCheck(execution_config(context.config), model.signature).check()
        _log.info(
            "model '%s' version %d: %s of scikit-learn %s, %s",
            context.name, context.version, type(model.estimator).__name__, sklearn.__version__,
            ", ".join(model.methods.values()),
        )  # fmt: skip
        return model


class SklearnModel(Model):
    """One loaded version."""

    def __init__(self, context: ModelContext) -> None:
        """Load the file. Raises InferError(INVALID_ARG)."""
        self._context = context
        config = execution_config(context.config)
        parameters = Parameters(config, context.backend_config)
        self.estimator = load_estimator(context, parameters)
        self.methods: Mapping[str, str] = plan_outputs(config, self.estimator, parameters)
        # Threads of joblib cost more than the usual batch.
        set_job_count(
            self.estimator, min(parameters.count("n_jobs", 1) or context.usable_cores, context.usable_cores)
        )
        self.inputs = plan_inputs(config, self.estimator)
        example = self.inputs.build(self.inputs.example())
        outputs = read_outputs(config, self.estimator, self.methods, example)
        self.signature = ModelSignature("scikit-learn", self.inputs.signatures, outputs)

    def create_instance(self, spec: InstanceSpec) -> Instance:
        """Create an instance that uses the estimator of the version."""
        return SklearnInstance(self._context, self)


class SklearnInstance(TensorInstance):
    """Calls the estimator that it shares with the other instances."""

    def __init__(self, context: ModelContext, model: SklearnModel) -> None:
        super().__init__(context)
        self.executable = model
        self._name = context.name
        outputs = model.signature.outputs.values()
        self._dtypes = {tensor.name: tensor.datatype.numpy for tensor in outputs if tensor.datatype is not None}

    def run(self, inputs: dict[str, Array], output_names: Sequence[str]) -> Sequence[Array]:
        """Call a method for each output; see `TensorInstance.run`."""
        model = self.executable
        table = model.inputs.build(inputs)
        return [
            call(self._name, model.estimator, model.methods[name], table).astype(self._dtypes[name], copy=False)
            for name in output_names
        ]


def set_job_count(estimator: Any, count: int) -> None:
    """Set `n_jobs` of an estimator and of all estimators in it."""
    for found in _estimators(estimator, set()):
        if hasattr(found, "n_jobs"):
            found.n_jobs = count


def _estimators(value: Any, seen: set[int]) -> Iterator[Any]:
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, dict):
        children: Any = value.values()
    elif isinstance(value, (list, tuple)):
        children = value
    elif hasattr(value, "get_params") and hasattr(value, "__dict__"):
        yield value
        children = vars(value).values()
    else:
        return
    for child in children:
        yield from _estimators(child, seen)
