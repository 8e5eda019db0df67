"""Greedy CTC decoding: repeated classes and blanks are removed, the rest is the text."""

from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

BLANK = 0


def decode(classes: np.ndarray, scores: np.ndarray, characters: list[str]) -> tuple[str, float]:
    """Return the text of one line and the mean score of its characters."""
    kept = (classes != BLANK) & (classes != np.concatenate(([-1], classes[:-1])))
    if not kept.any():
        return "", 0.0
    return "".join(characters[number] for number in classes[kept]), float(scores[kept].mean())


class TritonPythonModel:
    """Converts classes to text."""

    def initialize(self, args):
        """Read the characters, one per line; the first is the blank."""
        labels = Path(args["model_repository"]) / "labels.txt"
        self.characters = labels.read_text(encoding="utf-8").split("\n")[:-1]

    def execute(self, requests):
        """Return the text of the lines of every request."""
        responses = []
        for request in requests:
            classes = pb_utils.get_input_tensor_by_name(request, "CLASSES").as_numpy()
            scores = pb_utils.get_input_tensor_by_name(request, "SCORES").as_numpy()
            read = [decode(*line, self.characters) for line in zip(classes, scores, strict=True)]
            text = np.array([line.encode() for line, _ in read], dtype=object)
            confidence = np.array([score for _, score in read], np.float32)
            tensors = [pb_utils.Tensor("TEXT", text), pb_utils.Tensor("CONFIDENCE", confidence)]
            responses.append(pb_utils.InferenceResponse(tensors))
        return responses
