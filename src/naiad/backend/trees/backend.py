"""The trees backend: one engine for all instances of a version."""

import logging
from collections.abc import Sequence
from typing import ClassVar

from naiad.backend.api import Backend, Instance, InstanceSpec, Model, ModelContext
from naiad.backend.framework import Parameters
from naiad.backend.signature import (
    ModelSignature,
    SignatureCheck,
    complete,
    default_max_batch_size,
    is_complete,
)
from naiad.backend.tensor_instance import TensorInstance
from naiad.backend.trees.engines import ENGINES, Engine, open_engine
from naiad.backend.trees.forest_file import find_forest_file
from naiad.backend.trees.outputs import INPUT, SHAP, OutputPlan, forest_signature, plan_output
from naiad.config.execution import execution_config
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.datatype import DataType
from naiad.core.errors import invalid_argument
from naiad.core.tensor import Array

_log = logging.getLogger(__name__)

MAX_BATCH_SIZE = 8192
"""`max_batch_size` of a model without one, near that of FIL's examples: a row costs microseconds."""
GPU_PARAMETERS = (
    "algo", "storage_type", "blocks_per_sm", "threads_per_tree", "transfer_threshold", "chunk_size", "layout",
    "use_experimental_optimizations",
)  # fmt: skip
"""Triton: FIL's parameters for the layout of trees, which have no meaning for these engines."""


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


def _open(context: ModelContext) -> tuple[Engine, OutputPlan]:
    parameters = Parameters(context.config, context.backend_config)
    engine = open_engine(
        find_forest_file(context, parameters),
        parameters.choice("engine", ENGINES, "auto"),
        # One: the threads of a second one wait for each other longer than a usual batch takes.
        min(parameters.count("nthread", 1) or context.usable_cores, context.usable_cores),
        allow_unknown_field=parameters.flag("xgboost_allow_unknown_field"),
    )
    return engine, plan_output(context.name, engine.forest, parameters)


def _signature(config: ModelConfig, engine: Engine, plan: OutputPlan, *, has_contributions: bool) -> ModelSignature:
    """Return the tensors of a model; its input is FP32, or FP64 where the configuration says so."""
    is_double = any(
        tensor.name == INPUT and tensor.data_type == DataType.FP64.config_number for tensor in config.input
    )
    input_type = DataType.FP64 if is_double else DataType.FP32
    return forest_signature(plan, input_type, has_contributions=has_contributions and engine.has_contributions)


class TreesModel(Model):
    """One loaded version."""

    def __init__(self, context: ModelContext, engine: Engine, plan: OutputPlan) -> None:
        self._context = context
        self._engine = engine
        self._plan = plan

    def create_instance(self, spec: InstanceSpec) -> Instance:
        """Create an instance that uses the engine of the version."""
        return TreesInstance(self._context, self._engine, self._plan)


class TreesInstance(TensorInstance):
    """Computes batches with an engine that it shares with the other instances."""

    runs_on_any_thread: ClassVar[bool] = True

    def __init__(self, context: ModelContext, engine: Engine, plan: OutputPlan) -> None:
        super().__init__(context)
        self.executable = engine
        self._plan = plan

    def run(self, inputs: dict[str, Array], output_names: Sequence[str]) -> Sequence[Array]:
        """Compute scores, SHAP values or both; see `TensorInstance.run`."""
        rows = inputs[INPUT]
        return [
            self.executable.contributions(rows).astype("float32", copy=False)
            if name == SHAP
            else self._plan.convert(self.executable.predict(rows))
            for name in output_names
        ]
