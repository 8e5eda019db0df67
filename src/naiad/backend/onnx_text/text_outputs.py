"""From what an ONNX encoder returns to the outputs of clients: vectors, or labels with scores."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from naiad.backend.framework import Parameters
from naiad.backend.signature import ModelSignature, TensorSignature
from naiad.backend.texts.text_directory import Pooling, Task, TextDirectory
from naiad.backend.texts.text_tensors import TOKEN_COUNT, token_count_signature, token_counts
from naiad.core.datatype import DataType
from naiad.core.tensor import Array

_TINY = 1e-12
"""The least length by which a vector is divided."""
_READY = "sentence_embedding"
"""The output of exports that have pooling and normalisation in their graph."""


def text_outputs_of(
    directory: TextDirectory, task: Task, parameters: Parameters, graph: ModelSignature
) -> "TextOutputs":
    """Return the outputs of a directory's task. Raises InferError(INVALID_ARG)."""
    if task is Task.TOKEN_CLASSIFICATION:
        raise directory.error("is for the task token-classification, which the backend huggingface has")
    if task is Task.TEXT_GENERATION:
        raise directory.error("is for the task text-generation, which the backend onnx_decoder has")
    name = _output_name(directory, task, graph)
    dims = graph.outputs[name].dims or ()
    if task is Task.EMBEDDING:
        size = dims[-1] if dims and isinstance(dims[-1], int) else directory.setting("hidden_size")
        if not isinstance(size, int) or size < 1:
            raise directory.error("says nowhere how long its vectors are; add 'hidden_size' to config.json")
        return PooledVectors(name, size, directory.pooling(parameters) if len(dims) != 2 else None)
    labels = directory.labels()
    if dims and isinstance(dims[-1], int) and dims[-1] != len(labels):
        raise directory.error(f"has {len(labels)} labels in config.json and {dims[-1]} scores in its ONNX model")
    return LabelScores(name, labels, str(directory.setting("problem_type") or ""))


def _output_name(directory: TextDirectory, task: Task, graph: ModelSignature) -> str:
    wanted = [_READY, "last_hidden_state", "token_embeddings"] if task is Task.EMBEDDING else ["logits"]
    names = list(graph.outputs)
    found = next((name for name in wanted if name in names), names[0] if len(names) == 1 else "")
    if not found:
        raise directory.error(
            f"has an ONNX model with the outputs {', '.join(names)}; for the task '{task}' it needs "
            f"{' or '.join(wanted)}"
        )
    return found


class PooledVectors:
    """One vector for a text."""

    def __init__(self, tensor: str, size: int, pooling: Pooling | None) -> None:
        """`tensor` is the output of the graph; `pooling` is None where the graph pools itself."""
        self.tensor = tensor
        self._pooling = pooling
        self.signatures = {
            "embedding": TensorSignature("embedding", DataType.FP32, (None, size)),
            TOKEN_COUNT: token_count_signature(),
        }

    def compute(self, result: Array, mask: Array, encodings: Sequence[Any]) -> Mapping[str, Array]:
        """Return the outputs of a batch, a row per text; `mask` [texts, tokens] is 1 where a token is no padding."""
        vectors = result.astype(np.float32, copy=False)
        if self._pooling is not None:
            vectors = pooled(vectors, mask, self._pooling)
        return {"embedding": np.ascontiguousarray(vectors), TOKEN_COUNT: token_counts(encodings)}


def pooled(hidden: Array, mask: Array, pooling: Pooling) -> Array:
    """Return a vector for each text of `hidden` FP32 [texts, tokens, size]."""
    if pooling.mode == "mean":
        weights = mask.astype(np.float32)
        sums = np.einsum("ijk,ij->ik", hidden, weights)
        vectors: Array = sums / np.maximum(weights.sum(1, keepdims=True), 1)
    elif pooling.mode == "cls":
        vectors = hidden[:, 0]
    else:
        # The mask may begin with padding: the last token is where it is 1 for the last time.
        last = mask.shape[1] - 1 - np.argmax(mask[:, ::-1], axis=1)
        vectors = hidden[np.arange(len(hidden)), last]
    if pooling.normalizes:
        vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), _TINY)
    return vectors


class LabelScores:
    """The label with the highest score, and the scores of all labels."""

    def __init__(self, tensor: str, labels: Sequence[str], problem_type: str) -> None:
        self.tensor = tensor
        self._labels = np.array([label.encode() for label in labels], object)
        self._problem_type = problem_type
        self.signatures = {
            "label": TensorSignature("label", DataType.BYTES, (None, 1)),
            "scores": TensorSignature("scores", DataType.FP32, (None, len(labels))),
            TOKEN_COUNT: token_count_signature(),
        }

    def compute(self, result: Array, mask: Array, encodings: Sequence[Any]) -> Mapping[str, Array]:
        """See `PooledVectors.compute`."""
        scores = scores_of(result.astype(np.float32), self._problem_type)
        label = self._labels[scores.argmax(1)][:, None]
        return {"label": label, "scores": scores, TOKEN_COUNT: token_counts(encodings)}


TextOutputs: TypeAlias = PooledVectors | LabelScores
"""The outputs of a task."""


def scores_of(logits: Array, problem_type: str) -> Array:
    """Return the scores of `logits` [texts, labels] by the rules of transformers' text-classification pipeline."""
    if problem_type == "regression":
        return logits
    if problem_type == "multi_label_classification" or logits.shape[1] == 1:
        sigmoid: Array = 1 / (1 + np.exp(-logits))
        return sigmoid
    powers = np.exp(logits - logits.max(1, keepdims=True))
    softmax: Array = powers / powers.sum(1, keepdims=True)
    return softmax
