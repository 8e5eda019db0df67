"""Artefacts of jax.export that cannot be served, and the names of tensors."""

import jax
import numpy as np
import pytest
from google.protobuf import text_format
from jax import export

from naiad.backend.api import InstanceSpec, ModelContext
from naiad.backend.jax.artifact import leaf_names
from naiad.backend.jax.backend import JaxBackend
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import InferError
from support.jax_models import serialise, shape


def load(directory, content, config="", kind="KIND_CPU"):
    (directory / "model.jaxexport").write_bytes(content)
    backend = JaxBackend()
    parsed = text_format.Parse(config, ModelConfig(name="model", backend="jax"))
    completed = backend.auto_complete(ModelContext("model", 1, parsed, directory, directory, 2))
    model = backend.load(ModelContext("model", 1, completed, directory, directory, 2))
    return completed, model.create_instance(InstanceSpec("model_0_0", 0, kind))


def failure(directory, content, config="", kind="KIND_CPU"):
    with pytest.raises(InferError) as raised:
        load(directory, content, config, kind)
    return raised.value.message


DOUBLE = serialise(lambda x: x * 2, shape("b, 3"))


@pytest.mark.parametrize("length", [0, 1, 100, len(DOUBLE) // 2, len(DOUBLE) - 300])
def test_truncated_files_are_named(tmp_path, length):
    message = failure(tmp_path, DOUBLE[:length])
    assert message.startswith(f"model 'model' version 1: {tmp_path}/model.jaxexport ")


@pytest.mark.parametrize("content", [b"PK\x03\x04 an archive", b"{}", bytes(1000)])
def test_other_formats_are_named(tmp_path, content):
    assert "cannot be read by JAX" in failure(tmp_path, content)


def test_other_platform_names_the_fix(tmp_path):
    cuda = serialise(lambda x: x * 2, shape("b, 3"), platforms=("cuda",))
    message = failure(tmp_path, cuda)
    assert "was exported for cuda, but the instance is of KIND_CPU; export it with platforms=['cpu', ...]" in message
    assert "was exported for cpu, but the instance is of KIND_GPU" in failure(tmp_path, DOUBLE, kind="KIND_GPU")


def test_several_platforms_are_served(tmp_path):
    load(tmp_path, serialise(lambda x: x * 2, shape("b, 3"), platforms=("cpu", "cuda")))


def test_fixed_rows_do_not_batch(tmp_path):
    content = serialise(lambda x: x * 2, jax.ShapeDtypeStruct((2, 3), np.float32))
    config, _ = load(tmp_path, content)
    assert (config.max_batch_size, list(config.input[0].dims)) == (0, [2, 3])
    assert "max_batch_size" in failure(tmp_path, content, "max_batch_size: 4")


def test_different_free_rows_do_not_batch(tmp_path):
    first, second = (jax.ShapeDtypeStruct((size, 3), np.float32) for size in export.symbolic_shape("a, b"))
    content = serialise(lambda x, y: (x, y), first, second)
    config, _ = load(tmp_path, content)
    assert config.max_batch_size == 0
    assert "has no batch dimension, but the configuration has max_batch_size: 4" in failure(
        tmp_path, content, "max_batch_size: 4"
    )


def test_random_keys_are_refused(tmp_path):
    content = serialise(jax.random.key_data, jax.eval_shape(lambda: jax.random.key(0)))
    assert "input 'input_0' of the JAX model is a key<fry>, which the protocol cannot carry" in failure(
        tmp_path, content
    )


def test_keys_name_the_leaves():
    def names(tree, prefix="output", depth=0):
        return leaf_names(jax.tree_util.tree_structure(tree), prefix, depth=depth)

    assert names({"a": 1, "b": (2, 3)}) == ["a", "b.0", "b.1"]
    assert names((1, 2)) == ["output_0", "output_1"]
    assert names(1) == ["output_0"]
    assert names(((1, {"image": 2}), {"mask": 3}), "input", 2) == ["input_0", "image", "mask"]
    assert names((({"x": 1}, {"x": 2}), {}), "input", 2) == ["input_0", "input_1"]
