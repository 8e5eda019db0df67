"""A trial at load: free first dimensions that are no batch dimension."""

import numpy as np
import pytest

from naiad.backend.batch_trial import confirm_batching
from naiad.backend.signature import ModelSignature, TensorSignature, complete
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.datatype import DataType


def signature(inputs, outputs):
    return ModelSignature(
        "some",
        {name: TensorSignature(name, kind, dims) for name, (kind, dims) in inputs.items()},
        {name: TensorSignature(name, DataType.FP32, dims) for name, dims in outputs.items()},
    )


ONE = signature({"x": (DataType.FP32, (None, 2))}, {"y": (None,)})
TWO = signature({"x": (DataType.FP32, (None, 2)), "w": (DataType.FP32, (None,))}, {"y": (None,), "z": (None,)})


def equal(inputs):
    if len(inputs["x"]) != len(inputs["w"]):
        raise ValueError("unequal")
    return {"y": (len(inputs["x"]),), "z": (len(inputs["x"]),)}


RAGGED = signature({"x": (DataType.FP32, (None,)), "splits": (DataType.INT64, (None,))}, {"y": (None,)})


def fails(inputs):
    raise ValueError("no")


def only_one(inputs):
    if len(inputs["x"]) > 1:
        raise ValueError("one row")
    return {"y": (1,)}


@pytest.mark.parametrize(
    ("model", "run", "batches"),
    [
        (ONE, lambda inputs: {"y": (len(inputs["x"]),)}, True),
        (ONE, lambda inputs: {"y": (len(np.unique(inputs["x"])),)}, False),
        (ONE, lambda inputs: {"y": (1, 3)}, False),
        (ONE, lambda inputs: {"y": ()}, False),
        (ONE, only_one, False),
        (ONE, fails, True),
        (TWO, equal, True),
        (TWO, lambda inputs: {"y": (len(inputs["x"]),), "z": (len(inputs["w"]),)}, True),
        (TWO, lambda inputs: {"y": (len(inputs["x"]),), "z": (len(inputs["x"]),)}, False),
        (RAGGED, lambda inputs: {"y": (len(inputs["splits"]) - 1,)}, False),
        (RAGGED, fails, False),
    ],
)
def test_trial_decides_about_batches(model, run, batches):
    found = confirm_batching("m", model, run)
    assert found.is_batching is batches
    config = complete(ModelConfig(name="m"), found, 4)
    assert config.max_batch_size == (4 if batches else 0)
    assert list(config.output[0].dims) == ([1] if batches else [-1])


def test_rows_of_a_trial_have_datatypes():
    seen = {}

    def run(inputs):
        for name, array in inputs.items():
            seen.setdefault(name, array)
        return {"y": (3,)}

    confirm_batching(
        "m", signature({"t": (DataType.BYTES, (None, None)), "n": (DataType.INT8, (None, 4))}, {"y": (None,)}), run
    )
    assert seen["t"].tolist() == [[b""]] * 3
    assert (seen["n"].shape, seen["n"].dtype) == ((3, 4), np.int8)


@pytest.mark.parametrize(
    "model",
    [
        signature({"x": (DataType.FP32, ("N", 2))}, {"y": ("N",)}),
        signature({"x": (DataType.FP32, (1, 2))}, {"y": (None,)}),
    ],
)
def test_clear_signatures_are_not_tried(model):
    assert confirm_batching("m", model, fails) is model


def test_huge_rows_are_not_made():
    model = signature({"x": (DataType.FP32, (None, 1 << 30))}, {"y": (None,)})
    assert confirm_batching("m", model, lambda inputs: {"y": (0,)}).is_batching
