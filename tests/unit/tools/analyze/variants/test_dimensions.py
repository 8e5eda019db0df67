"""The default search space of a configuration."""

import pytest

from naiad.config.model_config_pb2 import ModelConfig, ModelInstanceGroup
from naiad.tools.analyze.variants import Machine, default_dimensions


def fields(config: ModelConfig, machine: Machine, **more) -> dict:
    return {each.field: each.values for each in default_dimensions(config, machine, **more)}


def test_batching_model_has_all_dimensions():
    config = ModelConfig(name="m", backend="onnxruntime", max_batch_size=8)
    assert fields(config, Machine(4)) == {
        "max_batch_size": (1, 2, 4, 8, 16, 32, 64, 128),
        "dynamic_batching.max_queue_delay_microseconds": (None, 0, 100, 500),
        "parameters.adaptive_batching": ("false", "true"),
        "instance_group.count": (1, 2, 4),
        "parameters.intra_op_thread_count": ("1", "2", "4"),
    }


def test_model_without_batches_varies_instances_only():
    config = ModelConfig(name="m", backend="python")
    assert fields(config, Machine(6)) == {"instance_group.count": (1, 2, 4, 6)}


@pytest.mark.parametrize(
    ("backend", "parameter"),
    [("openvino", "INFERENCE_NUM_THREADS"), ("tflite", "num_threads"), ("fil", "nthread"), ("sklearn", "n_jobs")],
)
def test_threads_have_the_name_of_the_backend(backend, parameter):
    assert fields(ModelConfig(name="m", backend=backend), Machine(2))[f"parameters.{parameter}"] == ("1", "2")


def test_platform_identifies_the_backend():
    config = ModelConfig(name="m", platform="onnxruntime_onnx")
    assert "parameters.intra_op_thread_count" in fields(config, Machine(2))


def test_bounds_come_from_the_user():
    config = ModelConfig(name="m", backend="python", max_batch_size=8)
    found = fields(config, Machine(2), batch_sizes=(3, 20), instances=(2, 5))
    assert found["max_batch_size"] == (3, 6, 12, 20)
    assert found["instance_group.count"] == (2, 3, 4, 5)


def test_gpus_add_the_kind():
    config = ModelConfig(name="m", backend="onnxruntime")
    assert fields(config, Machine(2, gpus=1))["instance_group.kind"] == ("KIND_CPU", "KIND_GPU")
    assert "instance_group.kind" not in fields(config, Machine(2))


def test_cpu_only_moves_instances_to_cpus():
    config = ModelConfig(name="m", backend="onnxruntime")
    group = config.instance_group.add(kind=ModelInstanceGroup.KIND_GPU)
    assert fields(config, Machine(2, gpus=1), is_cpu_only=True)["instance_group.kind"] == ("KIND_CPU",)
    group.kind = ModelInstanceGroup.KIND_CPU
    assert "instance_group.kind" not in fields(config, Machine(2, gpus=1), is_cpu_only=True)


def test_cache_and_preferred_sizes_on_request():
    config = ModelConfig(name="m", backend="python", max_batch_size=8)
    found = fields(config, Machine(1), tries_cache=True, preferred=[[4, 8]])
    assert found["response_cache.enable"] == (False, True)
    assert found["dynamic_batching.preferred_batch_size"] == ([4, 8],)
    config.model_transaction_policy.decoupled = True
    assert "response_cache.enable" not in fields(config, Machine(1), tries_cache=True)


def test_sequences_have_no_dynamic_batching():
    config = ModelConfig(name="m", backend="python", max_batch_size=8)
    config.sequence_batching.SetInParent()
    assert list(fields(config, Machine(2), tries_cache=True)) == ["max_batch_size", "instance_group.count"]


def test_ensembles_have_no_dimensions():
    config = ModelConfig(name="m", platform="ensemble", max_batch_size=8)
    config.ensemble_scheduling.step.add(model_name="member")
    assert default_dimensions(config, Machine(2)) == ()
