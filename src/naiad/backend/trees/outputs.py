"""What a forest returns: FIL's parameters `output_class`, `predict_proba` and `threshold`."""

from dataclasses import dataclass

import numpy as np

from naiad.backend.framework import Parameters
from naiad.backend.signature import ModelSignature, TensorSignature
from naiad.backend.trees.engines import Forest
from naiad.core.datatype import DataType
from naiad.core.errors import invalid_argument
from naiad.core.tensor import Array

INPUT = "input__0"
OUTPUT = "output__0"
SHAP = "treeshap_output"
"""Triton: the names of FIL's tensors."""


@dataclass(frozen=True, slots=True)
class OutputPlan:
    """How scores of a forest become the output `output__0`."""

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
        if scores.shape[1] == 1:
            return _float32(scores > self.threshold)
        return _float32(scores.argmax(axis=1)[:, None])


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
    return OutputPlan(forest, is_class, is_probabilities, parameters.number("threshold", 0.5))


def forest_signature(plan: OutputPlan, input_type: DataType, *, has_contributions: bool) -> ModelSignature:
    """Return the tensors of a model, with `treeshap_output` if it `has_contributions`."""
    forest = plan.forest
    tensors = [TensorSignature(OUTPUT, DataType.FP32, (None, plan.width))]
    if has_contributions:
        classes = () if forest.score_count == 1 else (forest.score_count,)
        tensors.append(TensorSignature(SHAP, DataType.FP32, (None, *classes, forest.feature_count + 1)))
    source = TensorSignature(INPUT, input_type, (None, forest.feature_count))
    return ModelSignature("trees", {INPUT: source}, {tensor.name: tensor for tensor in tensors})
