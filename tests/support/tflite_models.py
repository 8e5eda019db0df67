"""TFLite models made by TensorFlow's converter."""

import os
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf

from support.digits_classifier import digits_classifier

tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)


def convert(function: Callable[..., Any], specs: Sequence[Any], **options: Any) -> bytes:
    """Return a model of a TensorFlow function, which returns a dictionary of its outputs."""
    module = tf.Module()
    module.function = tf.function(function, input_signature=specs)
    converter = tf.lite.TFLiteConverter.from_concrete_functions([module.function.get_concrete_function()], module)
    for name, value in options.items():
        setattr(converter, name, value)
    content: bytes = converter.convert()
    return content


def digits_function(image: Any) -> dict[str, Any]:
    """Classify images, [n, 64]."""
    weights = digits_classifier()
    hidden = tf.nn.relu(image @ weights.hidden_weights + weights.hidden_bias)
    return {"probabilities": tf.nn.softmax(hidden @ weights.weights + weights.bias)}


@cache
def digits_tflite(rows: int | None = None) -> bytes:
    """Return the classifier of digits: image [rows, 64] to probabilities [rows, 10]."""

    def classify(image: Any) -> dict[str, Any]:
        return digits_function(image)

    return convert(classify, [tf.TensorSpec([rows, 64], tf.float32, name="image")])


@cache
def quantised_digits() -> bytes:
    """Return the classifier with UINT8 inputs and outputs."""

    def classify(image: Any) -> dict[str, Any]:
        return digits_function(image)

    def examples() -> Any:
        for index in range(100):
            yield [digits_classifier().images[index : index + 1]]

    return convert(
        classify,
        [tf.TensorSpec([None, 64], tf.float32, name="image")],
        optimizations=[tf.lite.Optimize.DEFAULT],
        representative_dataset=examples,
        inference_input_type=tf.uint8,
        inference_output_type=tf.uint8,
    )


def two_signatures(directory: Path) -> bytes:
    """Return a model with the signatures `double` and `add`; `directory` takes the SavedModel between."""
    module = tf.Module()
    spec = tf.TensorSpec([None, 4], tf.float32)
    module.double = tf.function(lambda x: {"twice": x * 2}, input_signature=[spec])
    module.add = tf.function(lambda x, y: {"sum": x + y}, input_signature=[spec, spec])
    tf.saved_model.save(module, str(directory), signatures={"double": module.double, "add": module.add})
    converter = tf.lite.TFLiteConverter.from_saved_model(str(directory), signature_keys=["double", "add"])
    content: bytes = converter.convert()
    return content
