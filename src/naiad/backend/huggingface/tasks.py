"""The tasks: from what a model returns for a batch of texts to the outputs of clients."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch

from naiad.backend.framework import Parameters
from naiad.backend.huggingface.directory import HuggingFaceDirectory
from naiad.backend.signature import TensorSignature
from naiad.backend.texts.text_directory import Pooling, Task
from naiad.backend.texts.text_tensors import TOKEN_COUNT, token_count_signature, token_counts
from naiad.core.datatype import DataType
from naiad.core.tensor import Array


def outputs_of(directory: HuggingFaceDirectory, parameters: Parameters) -> "TaskOutputs":
    """Return the outputs of a directory's task. Raises InferError(INVALID_ARG)."""
    if directory.task is Task.EMBEDDING:
        return Embedding(int(directory.config.hidden_size), directory.pooling(parameters))
    labels = directory.labels()
    if directory.task is Task.TEXT_CLASSIFICATION:
        return TextClassification(labels, str(getattr(directory.config, "problem_type", None) or ""))
    return TokenClassification(labels)


class Embedding:
    """One vector for a text."""

    def __init__(self, size: int, pooling: Pooling) -> None:
        self._pooling = pooling
        self.signatures = {
            "embedding": TensorSignature("embedding", DataType.FP32, (None, size)),
            TOKEN_COUNT: token_count_signature(),
        }

    def compute(self, result: Any, texts: Sequence[str], encodings: Sequence[Any], mask: Any) -> Mapping[str, Array]:
        """Return the outputs of a batch, a row per text.

        `result` is the model's, `encodings` are the tokenizer's, `mask` is 1 where a token is no padding.
        """
        hidden = result.last_hidden_state
        if self._pooling.mode == "mean":
            weights = mask.unsqueeze(-1).to(hidden.dtype)
            vectors = (hidden * weights).sum(1) / weights.sum(1).clamp(min=1)
        elif self._pooling.mode == "cls":
            vectors = hidden[:, 0]
        else:
            vectors = hidden[torch.arange(len(hidden), device=hidden.device), (mask.sum(1) - 1).clamp(min=0)]
        vectors = vectors.float()
        if self._pooling.normalizes:
            vectors = torch.nn.functional.normalize(vectors, dim=1)
        return {"embedding": vectors.cpu().numpy(), TOKEN_COUNT: token_counts(encodings)}


class TextClassification:
    """The label with the highest score, and the scores of all labels."""

    def __init__(self, labels: Sequence[str], problem_type: str) -> None:
        self._labels = np.array([label.encode() for label in labels], object)
        self._problem_type = problem_type
        self.signatures = {
            "label": TensorSignature("label", DataType.BYTES, (None, 1)),
            "scores": TensorSignature("scores", DataType.FP32, (None, len(labels))),
            TOKEN_COUNT: token_count_signature(),
        }

    def compute(self, result: Any, texts: Sequence[str], encodings: Sequence[Any], mask: Any) -> Mapping[str, Array]:
        """See `Embedding.compute`."""
        scores = result.logits.float()
        # transformers: the rules of its text-classification pipeline.
        if self._problem_type == "multi_label_classification" or len(self._labels) == 1:
            scores = scores.sigmoid() if self._problem_type != "regression" else scores
        elif self._problem_type != "regression":
            scores = scores.softmax(1)
        array = scores.cpu().numpy()
        label = self._labels[array.argmax(1)][:, None]
        return {"label": label, "scores": array, TOKEN_COUNT: token_counts(encodings)}


class TokenClassification:
    """The entities of a text as JSON: a list of objects with entity, score, start, end and text."""

    signatures: Mapping[str, TensorSignature] = {
        "entities": TensorSignature("entities", DataType.BYTES, (None, 1)),
    }

    def __init__(self, labels: Sequence[str]) -> None:
        self._labels = labels

    def compute(self, result: Any, texts: Sequence[str], encodings: Sequence[Any], mask: Any) -> Mapping[str, Array]:
        """See `Embedding.compute`."""
        scores, numbers = (tensor.cpu().tolist() for tensor in result.logits.float().softmax(2).max(2))
        rows = np.empty((len(texts), 1), object)
        for row, text in enumerate(texts):
            found = [
                (self._labels[numbers[row][index]], scores[row][index], *span)
                for index, span in _words(encodings[row])
            ]
            rows[row, 0] = json.dumps(merge_words(text, found), ensure_ascii=False).encode()
        return {"entities": rows}


TaskOutputs: TypeAlias = Embedding | TextClassification | TokenClassification
"""The outputs of a task."""


def merge_words(text: str, words: Sequence[tuple[str, float, int, int]]) -> list[dict[str, Any]]:
    """Return the entities of a text from its words: label (`B-PER`, `I-PER`, `PER`, `O`), score, start and end.

    A word continues the entity before it when the label is the same and does not begin with `B-`. The score is the
    mean of the words'. Positions count characters.
    """
    entities: list[dict[str, Any]] = []
    scores: list[float] = []
    open_label = ""
    for label, score, start, end in words:
        prefix, _, name = label.rpartition("-") if label[1:2] == "-" else ("", "", label)
        if name == "O":
            open_label = ""
            continue
        if name != open_label or prefix == "B":
            entities.append({"entity": name, "score": 0.0, "start": start})
            scores = []
        scores.append(score)
        open_label = name
        first = entities[-1]["start"]
        entities[-1] |= {"score": round(sum(scores) / len(scores), 6), "end": end, "text": text[first:end]}
    return entities


def _words(encoding: Any) -> list[tuple[int, tuple[int, int]]]:
    """Return the first token of each word, whose label counts, and the characters of the word."""
    words: dict[int, tuple[int, tuple[int, int]]] = {}
    for index, (word, (start, end)) in enumerate(zip(encoding.word_ids, encoding.offsets, strict=True)):
        if word is None:
            continue
        first = words.get(word)
        words[word] = (index, (start, end)) if first is None else (first[0], (first[1][0], end))
    return list(words.values())
