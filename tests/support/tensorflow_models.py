"""TensorFlow models made from a few operators."""

import os
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import tensorflow as tf

from support.digits_classifier import digits_classifier

tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)


class Digits(tf.Module):
    """The classifier of digits with variables, and a function of strings."""

    def __init__(self) -> None:
        super().__init__()
        weights = digits_classifier()
        arrays = (weights.hidden_weights, weights.hidden_bias, weights.weights, weights.bias)
        self.arrays = [tf.Variable(array) for array in arrays]

    @tf.function(input_signature=[tf.TensorSpec([None, 64], tf.float32, name="image")])
    def classify(self, image: Any) -> dict[str, Any]:
        """Return the probability of each digit."""
        hidden_weights, hidden_bias, weights, bias = self.arrays
        scores = tf.nn.relu(image @ hidden_weights + hidden_bias) @ weights + bias
        return {"probabilities": tf.nn.softmax(scores)}

    @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.string, name="text")])
    def measure(self, text: Any) -> dict[str, Any]:
        """Return texts in capitals, and their lengths."""
        return {"upper": tf.strings.upper(text, encoding="utf-8"), "length": tf.strings.length(text)}


def save_digits(directory: Path) -> Path:
    """Write a SavedModel with the signatures `serving_default` and `measure`, and return its directory."""
    digits = Digits()
    tf.saved_model.save(digits, str(directory), {"serving_default": digits.classify, "measure": digits.measure})
    return directory


def save_two_graphs(directory: Path) -> None:
    """Write a SavedModel with two graphs: `y` is twice `x`, or three times with the tag `big`."""
    builder = tf.compat.v1.saved_model.Builder(str(directory))
    for index, (factor, tags) in enumerate(((2.0, ["serve"]), (3.0, ["serve", "big"]))):
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            x = tf.compat.v1.placeholder(tf.float32, [None, 2], name="x")
            factors = tf.compat.v1.get_variable("factor", initializer=2.0, use_resource=True)
            session.run(factors.initializer)
            info = tf.compat.v1.saved_model.build_tensor_info
            y = {"y": info(x * factors * (factor / 2))}
            signature = tf.compat.v1.saved_model.build_signature_def({"x": info(x)}, y, "predict")
            if index == 0:
                builder.add_meta_graph_and_variables(session, tags, {"serving_default": signature})
            else:
                builder.add_meta_graph(tags, {"serving_default": signature})
    builder.save()


def keras_digits() -> Any:
    """Return the classifier as a Keras model, from `image` to one output."""
    weights = digits_classifier()
    model = keras.Sequential(
        [
            keras.layers.Input((64,), name="image"),
            keras.layers.Dense(32, activation="relu"),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    model.set_weights([weights.hidden_weights, weights.hidden_bias, weights.weights, weights.bias])
    return model


def graph_def() -> bytes:
    """Return a graph in which `total` is the sum of the placeholders `x` and `y`, [n, 4]; it looks up in a table.

    `name` is a table's text of the number `key`, [n, 1], which the operator `fill` fills.
    """
    graph = tf.Graph()
    with graph.as_default():
        x, y = (tf.compat.v1.placeholder(tf.float32, [None, 4], name=name) for name in "xy")
        tf.add(x, y, name="total")
        key = tf.compat.v1.placeholder(tf.int64, [None, 1], name="key")
        rows = tf.lookup.KeyValueTensorInitializer(tf.constant([1, 2], tf.int64), tf.constant(["one", "two"]))
        table = tf.lookup.StaticHashTable(rows, "none")
        tf.identity(table.lookup(key), name="name")
        tf.group(tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.TABLE_INITIALIZERS), name="fill")
    content: bytes = graph.as_graph_def().SerializeToString()
    return content
