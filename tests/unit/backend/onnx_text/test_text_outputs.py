import numpy as np
import pytest

from naiad.backend.onnx_text.text_outputs import pooled, scores_of
from naiad.backend.texts.text_directory import Pooling

HIDDEN = np.array([[[3, 4], [1, 0], [9, 9]], [[0, 2], [4, 0], [2, 4]]], np.float32)
MASK = np.array([[1, 1, 0], [1, 1, 1]])


@pytest.mark.parametrize(
    ("mode", "wanted"), [("mean", [[2, 2], [2, 2]]), ("cls", [[3, 4], [0, 2]]), ("last", [[1, 0], [2, 4]])]
)
def test_padding_does_not_count(mode, wanted):
    np.testing.assert_allclose(pooled(HIDDEN, MASK, Pooling(mode, normalizes=False)), wanted)


def test_last_token_after_padding_on_the_left():
    found = pooled(HIDDEN, np.array([[0, 1, 1], [0, 0, 1]]), Pooling("last", normalizes=False))
    np.testing.assert_allclose(found, [[9, 9], [2, 4]])


def test_normalised_vectors_have_length_one():
    found = pooled(HIDDEN * 0 + [0, 3], MASK, Pooling("mean", normalizes=True))
    np.testing.assert_allclose(found, [[0, 1], [0, 1]])
    assert not pooled(HIDDEN * 0, MASK, Pooling("mean", normalizes=True)).any()


def test_scores_follow_the_problem():
    logits = np.array([[0.0, 1000.0], [2.0, 2.0]], np.float32)
    np.testing.assert_allclose(scores_of(logits, ""), [[0, 1], [0.5, 0.5]])
    np.testing.assert_allclose(scores_of(np.zeros((1, 1), np.float32), ""), [[0.5]])
    np.testing.assert_allclose(scores_of(logits[1:], "multi_label_classification"), [[0.880797, 0.880797]], rtol=1e-5)
    np.testing.assert_array_equal(scores_of(logits, "regression"), logits)
