"""The classifier: a network of three layers, trained on the handwritten digits that scikit-learn contains."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from naiad.tools.demo.clients import Array

_TRAINED = 1500
"""Pictures to train on; the other 297 are asked."""


@dataclass(frozen=True, slots=True)
class Digits:
    """The trained network, and the pictures."""

    estimator: Any
    """sklearn.neural_network.MLPClassifier."""
    layers: Sequence[tuple[Array, Array]]
    """FP32 weights [inputs, outputs] and bias of each layer; ReLU between them, softmax after the last one."""
    pictures: Array
    """Pictures that were not trained on, FP32 [n, 64], 0 to 1."""
    labels: Array
    trained_pictures: Array
    trained_labels: Array

    def probabilities(self, pictures: Array) -> Array:
        """Return the probability of each digit, [n, 10], computed by numpy."""
        values = pictures
        for weights, bias in self.layers[:-1]:
            values = np.maximum(values @ weights + bias, 0)
        weights, bias = self.layers[-1]
        scores = values @ weights + bias
        scores = np.exp(scores - scores.max(1, keepdims=True))
        result: Array = scores / scores.sum(1, keepdims=True)
        return result


def train() -> Digits:
    """Train the network, in about two seconds."""
    from sklearn.datasets import load_digits
    from sklearn.neural_network import MLPClassifier

    pictures, labels = load_digits(return_X_y=True)
    pictures = (pictures / 16).astype(np.float32)
    # A tolerance ends the training without a warning.
    estimator = MLPClassifier((128, 64), max_iter=100, tol=0.005, random_state=0)
    estimator.fit(pictures[:_TRAINED], labels[:_TRAINED])
    weights = (array.astype(np.float32) for array in estimator.coefs_)
    biases = (array.astype(np.float32) for array in estimator.intercepts_)
    return Digits(
        estimator,
        list(zip(weights, biases, strict=True)),
        pictures[_TRAINED:],
        labels[_TRAINED:],
        pictures[:_TRAINED],
        labels[:_TRAINED],
    )
