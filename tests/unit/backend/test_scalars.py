"""Scalars of models, which a configuration writes with one dimension."""

import numpy as np
import pytest

from naiad.backend.framework import Scalars
from naiad.backend.signature import ModelSignature, TensorSignature
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.datatype import DataType
from naiad.core.errors import InferError


def _scalars(max_batch_size=0, dims=(1,)):
    config = ModelConfig(name="m", max_batch_size=max_batch_size)
    config.output.add(name="Y", dims=dims)
    scalar, vector = (TensorSignature(name, DataType.FP32, dims) for name, dims in (("X", ()), ("V", (None,))))
    return Scalars(config, ModelSignature("any", {"X": scalar, "V": vector}, {}))


def test_scalar_inputs_lose_their_dimensions():
    inputs = {"X": np.array([3.0]), "V": np.array([3.0])}
    _scalars().to_model(inputs)
    assert (inputs["X"].shape, inputs["V"].shape) == ((), (1,))


@pytest.mark.parametrize("dims", [(1,), (1, 1)])
def test_scalar_outputs_get_configured_dimensions(dims):
    assert _scalars(dims=dims).to_client("Y", np.array(3.0)).shape == dims


def test_outputs_with_dimensions_stay():
    assert _scalars().to_client("Y", np.zeros((2, 3))).shape == (2, 3)


def test_scalar_inputs_need_models_without_batching():
    with pytest.raises(InferError, match=r"model 'm': input 'X' is a scalar in the model.*set max_batch_size: 0"):
        _scalars(max_batch_size=4)
