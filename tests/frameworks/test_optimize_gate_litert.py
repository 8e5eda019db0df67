"""Conversions by TensorFlow's converters: faithful ones are accepted."""

import pytest
import tensorflow as tf

from naiad.tools.optimize.candidate import Precision
from support.judged_conversions import ROWS, dense_source, files, reasons, verdict, verify_package
from support.tflite_models import convert, digits_function


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.INT8_DYNAMIC])
def test_litert_is_accepted_and_verified(precision, tmp_path):
    options = {} if precision is Precision.FP32 else {"optimizations": [tf.lite.Optimize.DEFAULT]}
    spec = tf.TensorSpec([None, 64], tf.float32, name="image")
    (files(tmp_path) / "model.tflite").write_bytes(convert(digits_function, [spec], **options))
    names = ({"IMAGE": "image"}, {"PROBABILITIES": "probabilities"})
    found = verdict(tmp_path, dense_source(), ROWS, "litert", precision, names=names)
    assert found.is_accepted, reasons(found)
    assert verify_package(tmp_path, "litert", precision) == 0
