"""The trees backend: one engine for all instances of a version."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from naiad.backend.api import Backend, Instance, InstanceSpec, Model, ModelContext
from naiad.backend.framework import Parameters
from naiad.backend.signature import (
    ModelSignature,
    SignatureCheck,
    TensorSignature,
    complete,
    default_max_batch_size,
    is_complete,
)
from naiad.backend.tensor_instance import TensorInstance
from naiad.backend.trees.engines import ENGINES, Forest, TreeEngine, open_engine
from naiad.backend.trees.forest_file import find_forest_file
from naiad.backend.trees.xgboost_attributes import BEST_CHOICES, BEST_ITERATION
from naiad.config.execution_tensors import execution_config
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.datatype import DataType
from naiad.core.errors import excerpt, invalid_argument
from naiad.core.tensor import Array

_log = logging.getLogger(__name__)

INPUT = "input__0"
OUTPUT = "output__0"
SHAP = "treeshap_output"
"""Triton: the names of FIL's tensors."""
MISSING = "missing"
"""A number that means missing besides NaN: XGBoost's scikit-learn classes have it as an argument of this name."""
MAX_BATCH_SIZE = 8192
"""`max_batch_size` of a model without one, near that of FIL's examples: a row costs microseconds."""
GPU_PARAMETERS = (
    "algo", "storage_type", "blocks_per_sm", "threads_per_tree", "transfer_threshold", "chunk_size", "layout",
    "use_experimental_optimizations",
)  # fmt: skip
"""Triton: FIL's parameters for the layout of trees, which have no meaning for these engines."""


@dataclass(frozen=True, slots=True)
class OutputPlan:
    """How scores of a forest become the output `output__0`: by FIL's `output_class`, `predict_proba`, `threshold`."""

    forest: Forest
    is_class: bool
    is_probabilities: bool
    threshold: float

    @property
    def width(self) -> int:
        """Values per row."""
        if self.is_probabilities:
            return self.forest.class_count
        if self.is_class or self.forest.class_count == 2:
            return 1
        return self.forest.score_count

    def convert(self, scores: Array) -> Array:
        """Return FP32 [n, width] for scores [n, score_count]."""
        if self.is_probabilities:
            return _float32(np.concatenate((1 - scores, scores), axis=1) if scores.shape[1] == 1 else scores)
        if self.forest.class_count == 2 and scores.shape[1] == 2:
            scores = scores[:, 1:]
        if not self.is_class:
            return _float32(scores)
        classes = scores > self.threshold if scores.shape[1] == 1 else scores.argmax(axis=1)[:, None]
        labels = self.forest.labels
        return _float32(np.asarray(labels, np.float32)[classes.astype(np.intp)] if labels else classes)


def _float32(values: Array) -> Array:
    return np.ascontiguousarray(values, np.float32)


def plan_output(model: str, forest: Forest, parameters: Parameters) -> OutputPlan:
    """Return the output of a model. Raises InferError(INVALID_ARG) for classes of a model that has none.

    Triton: `predict_proba` has priority over `output_class`.
    """
    is_class, is_probabilities = parameters.flag("output_class"), parameters.flag("predict_proba")
    if (is_class or is_probabilities) and not forest.class_count:
        name = "predict_proba" if is_probabilities else "output_class"
        raise invalid_argument(
            f"model '{model}': parameter '{name}' is true, but the model is no classifier (objective "
            f"{forest.objective}); set it to false"
        )
    if is_class and not is_probabilities and any(not isinstance(label, (int, float)) for label in forest.labels):
        raise invalid_argument(
            f"model '{model}': parameter 'output_class' is true, but the classes of the model are texts "
            f"({excerpt(', '.join(map(str, forest.labels)))}), and the output is a number; set predict_proba, or "
            "serve the pickled estimator with the backend sklearn"
        )
    return OutputPlan(forest, is_class, is_probabilities, parameters.number("threshold", 0.5))


def forest_signature(plan: OutputPlan, input_type: DataType, *, has_contributions: bool) -> ModelSignature:
    """Return the tensors of a model, with `treeshap_output` if it `has_contributions`."""
    forest = plan.forest
    tensors = [TensorSignature(OUTPUT, DataType.FP32, (None, plan.width))]
    if has_contributions:
        classes = () if forest.score_count == 1 else (forest.score_count,)
        tensors.append(TensorSignature(SHAP, DataType.FP32, (None, *classes, forest.feature_count + 1)))
    source = TensorSignature(INPUT, input_type, (None, forest.feature_count))
    outputs = {tensor.name: tensor for tensor in tensors}
    return ModelSignature("trees", {INPUT: source}, outputs, features=forest.features)


class TreesBackend(Backend):
    """Forests of XGBoost, LightGBM and scikit-learn."""

    name: ClassVar[str] = "trees"

    def auto_complete(self, context: ModelContext) -> ModelConfig:
        """Fill in batching, inputs and outputs from the model file. Raises InferError."""
        config = ModelConfig()
        config.CopyFrom(context.config)
        if not any(output.dims for output in config.output):
            wants_shap = any(output.name == SHAP for output in config.output)
            config.ClearField("output")
        elif is_complete(config):
            return context.config
        else:
            wants_shap = False
        settings = context.backend_config
        batch_size = default_max_batch_size(settings, MAX_BATCH_SIZE)
        engine, plan = _open(context)
        return complete(config, _signature(config, engine, plan, has_contributions=wants_shap), batch_size)

    def load(self, context: ModelContext) -> Model:
        """Load the file and hold the configuration against it. Raises InferError."""
        engine, plan = _open(context)
        wants_shap = any(output.name == SHAP for output in context.config.output)
        if wants_shap and not engine.has_contributions:
            raise invalid_argument(
                f"model '{context.name}': output '{SHAP}' needs XGBoost or LightGBM and a file of theirs, but the "
                f"engine is {engine.name}; remove the output"
            )
        signature = _signature(context.config, engine, plan, has_contributions=wants_shap)
        SignatureCheck(execution_config(context.config), signature).check()
        ignored = [name for name in GPU_PARAMETERS if name in context.config.parameters]
        if ignored:
            _log.info("model '%s': parameters without effect on a CPU: %s", context.name, ", ".join(ignored))
        _log.info(
            "model '%s' version %d: engine %s, objective %s, %d features",
            context.name, context.version, engine.name, engine.forest.objective, engine.forest.feature_count,
        )  # fmt: skip
        return TreesModel(context, engine, plan)


def _open(context: ModelContext) -> tuple[TreeEngine, OutputPlan]:
    parameters = Parameters(context.config, context.backend_config)
    engine = open_engine(
        find_forest_file(context, parameters),
        parameters.choice("engine", ENGINES, "auto"),
        # One: the threads of a second one wait for each other longer than a usual batch takes.
        min(parameters.count("nthread", 1) or context.usable_cores, context.usable_cores),
        parameters.choice(BEST_ITERATION, BEST_CHOICES, "auto"),
        allow_unknown_field=parameters.flag("xgboost_allow_unknown_field"),
    )
    return engine, plan_output(context.name, engine.forest, parameters)


def _signature(
    config: ModelConfig, engine: TreeEngine, plan: OutputPlan, *, has_contributions: bool
) -> ModelSignature:
    """Return the tensors of a model; its input is FP32, or FP64 where the configuration says so."""
    is_double = any(
        tensor.name == INPUT and tensor.data_type == DataType.FP64.config_number for tensor in config.input
    )
    input_type = DataType.FP64 if is_double else DataType.FP32
    return forest_signature(plan, input_type, has_contributions=has_contributions and engine.has_contributions)


class TreesModel(Model):
    """One loaded version."""

    def __init__(self, context: ModelContext, engine: TreeEngine, plan: OutputPlan) -> None:
        self._context = context
        self._engine = engine
        self._plan = plan
        self.features = engine.forest.features
        parameters = Parameters(context.config, context.backend_config)
        stored = engine.forest.missing
        self._missing = parameters.number(MISSING, 0) if MISSING in parameters else stored

    def create_instance(self, spec: InstanceSpec) -> Instance:
        """Create an instance that uses the engine of the version."""
        return TreesInstance(self._context, self._engine, self._plan, self._missing)


class TreesInstance(TensorInstance):
    """Computes batches with an engine that it shares with the other instances."""

    runs_on_any_thread: ClassVar[bool] = True

    def __init__(
        self, context: ModelContext, engine: TreeEngine, plan: OutputPlan, missing: float | None = None
    ) -> None:
        """`missing` is a value besides NaN that means missing."""
        super().__init__(context)
        self.executable = engine
        self._plan = plan
        self._missing = missing

    def run(self, inputs: dict[str, Array], output_names: Sequence[str]) -> Sequence[Array]:
        """Compute scores, SHAP values or both; see `TensorInstance.run`."""
        rows = inputs[INPUT]
        if self._missing is not None:
            rows = np.where(rows == rows.dtype.type(self._missing), rows.dtype.type(np.nan), rows)
        return [
            self.executable.contributions(rows).astype("float32", copy=False)
            if name == SHAP
            else self._plan.convert(self.executable.predict(rows))
            for name in output_names
        ]
