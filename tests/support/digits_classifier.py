"""A small classifier of scikit-learn's digits, whose weights tests write into the formats of frameworks."""

from functools import cache
from typing import Any, NamedTuple

import numpy as np


class DigitsClassifier(NamedTuple):
    """`softmax(relu(x @ hidden_weights + hidden_bias) @ weights + bias)`, all FP32."""

    hidden_weights: np.ndarray[Any, Any]
    """[64, 32]"""
    hidden_bias: np.ndarray[Any, Any]
    weights: np.ndarray[Any, Any]
    """[32, 10]"""
    bias: np.ndarray[Any, Any]
    images: np.ndarray[Any, Any]
    """Images that were not trained on, [n, 64], 0 to 1."""
    labels: np.ndarray[Any, Any]

    def probabilities(self, images: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return the probability of each digit, [n, 10], computed by numpy."""
        hidden = np.maximum(images @ self.hidden_weights + self.hidden_bias, 0)
        scores = np.exp(hidden @ self.weights + self.bias)
        return scores / scores.sum(1, keepdims=True)


@cache
def digits_classifier() -> DigitsClassifier:
    """Train the classifier, in about a second."""
    from sklearn.datasets import load_digits
    from sklearn.neural_network import MLPClassifier

    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32)
    trained = MLPClassifier((32,), max_iter=60, tol=0.01, random_state=0).fit(images[:1500], labels[:1500])
    weights = [array.astype(np.float32) for array in (*trained.coefs_, *trained.intercepts_)]
    return DigitsClassifier(weights[0], weights[2], weights[1], weights[3], images[1500:], labels[1500:])
