"""The sklearn backend: one estimator for all instances of a version."""

import itertools
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import sklearn

from naiad.backend.api import Backend, Instance, InstanceSpec, Model, ModelContext
from naiad.backend.framework import Parameters
from naiad.backend.signature import ModelSignature, SignatureCheck, TensorSignature, completed
from naiad.backend.sklearn.estimator_file import load_estimator
from naiad.backend.sklearn.inputs import ColumnInputs, MatrixInput, free_columns, plan_inputs
from naiad.backend.sklearn.outputs import (
    MethodCall,
    call,
    class_labels,
    plan_outputs,
    read_outputs,
    to_datatype,
    to_tensor,
)
from naiad.backend.tensor_instance import TensorInstance
from naiad.config.execution_tensors import execution_config
from naiad.config.model_config_pb2 import ModelConfig
from naiad.config.tensors.features import Features
from naiad.core.errors import InferError
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
            ", ".join(model.calls),
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
        self.calls: Mapping[str, MethodCall] = plan_outputs(config, self.estimator, parameters)
        self.labels = class_labels(self.estimator, self.calls)
        # Threads of joblib cost more than the usual batch.
        set_job_count(
            self.estimator, min(parameters.count("n_jobs", 1) or context.usable_cores, context.usable_cores)
        )
        self.inputs, outputs = self._tried(config)
        names = tuple(str(name) for name in getattr(self.estimator, "feature_names_in_", ()))
        self.features = Features(names if isinstance(self.inputs, MatrixInput) else (), null_is_nan=True)
        self.signature = ModelSignature("scikit-learn", self.inputs.signatures, outputs, features=self.features)

    def _tried(self, config: ModelConfig) -> tuple[MatrixInput | ColumnInputs, dict[str, TensorSignature]]:
        """Return inputs with which a trial row succeeds, and the outputs that it has. Raises InferError(INVALID_ARG).

        An estimator does not store the dtypes of its columns: a column of which it says nothing is a number, and if
        it does not take the row, text, a truth value or a date.
        """
        inputs = plan_inputs(config, self.estimator)
        others = inputs.others(free_columns(config, self.estimator, inputs))
        found = next((each for each in itertools.chain([inputs], others) if self._accepts(each)), inputs)
        return found, read_outputs(config, self.estimator, self.calls, found.build(found.example()))

    def _accepts(self, inputs: MatrixInput | ColumnInputs) -> bool:
        """Return whether the estimator takes a trial row."""
        method = next(iter(self.calls.values())).method
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                call(self._context.name, self.estimator, method, inputs.build(inputs.example()))
            except InferError:
                return False
        return True

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
        results: dict[str, Any] = {}
        arrays: list[Array] = []
        for name in output_names:
            each = model.calls[name]
            if each.method not in results:
                results[each.method] = call(self._name, model.estimator, each.method, table)
            array = to_tensor(results[each.method], each.target)
            arrays.append(to_datatype(self._name, name, array, self._dtypes[name]))
        return arrays


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
