"""Which GPUs a model is expected to need, and how budgets are named."""

import pytest
from google.protobuf import text_format

from naiad.config.model_config_pb2 import ModelConfig
from naiad.repository.control.on_demand.memory.budgets import (
    HOST,
    flag_of,
    freed_text,
    gpu_budgets_of,
    no_room,
    total_of,
)

BUDGETS = (HOST, "gpu:0", "gpu:1")


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ('backend: "python"', set()),
        ('backend: "pytorch"', {"gpu:0", "gpu:1"}),
        ('backend: "onnxruntime" instance_group { kind: KIND_GPU }', {"gpu:0", "gpu:1"}),
        ('backend: "python" instance_group { kind: KIND_GPU gpus: 1 }', {"gpu:1"}),
        ('backend: "python" instance_group { gpus: 0 } instance_group { kind: KIND_CPU }', {"gpu:0"}),
        ('backend: "pytorch" instance_group { kind: KIND_CPU }', set()),
        ('backend: "pytorch" instance_group { kind: KIND_MODEL }', set()),
        ('backend: "python" instance_group { kind: KIND_GPU gpus: [ 1, 7 ] }', {"gpu:1"}),
    ],
)
def test_instance_groups_name_the_gpus_of_a_model(text: str, gpus: set[str]) -> None:
    config = text_format.Parse(text, ModelConfig())
    assert gpu_budgets_of(config, BUDGETS) == gpus


def test_messages_name_flags_and_devices() -> None:
    assert flag_of(HOST) == "--model-memory-budget"
    assert "GPU 1" in flag_of("gpu:1")
    assert freed_text({HOST: 5, "gpu:1": 7}) == "; it has 5 bytes of the host, 7 bytes of GPU 1"
    assert freed_text({}) == ""
    text = no_room({"gpu:0": 9}, {HOST: 1, "gpu:0": 8}, {HOST: 1, "gpu:0": 7}, 2.0)
    assert "--model-gpu-memory-budget of GPU 0 (9 bytes, 8 are taken, it needs 7) within 2 s" in text


def test_sums_leave_empty_budgets_out() -> None:
    assert total_of([{HOST: 1, "gpu:0": 0}, {HOST: 2, "gpu:1": 3}]) == {HOST: 3, "gpu:1": 3}
