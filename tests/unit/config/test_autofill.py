import pytest

from naiad.config.autofill import (
    autofill,
    completed_fields,
    instance_group_problems,
    merge_auto_completed,
    normalize,
)
from naiad.config.forms.pbtxt.text_format import parse_pbtxt
from naiad.config.model_config_pb2 import ModelConfig, ModelInstanceGroup

CPU, GPU, MODEL = ModelInstanceGroup.KIND_CPU, ModelInstanceGroup.KIND_GPU, ModelInstanceGroup.KIND_MODEL


def config_of(text: str) -> ModelConfig:
    parsed = parse_pbtxt(text)
    assert parsed.problems == []
    return parsed.config


@pytest.mark.parametrize(
    ("files", "backend", "platform"),
    [
        (["model.onnx"], "onnxruntime", "onnxruntime_onnx"),
        (["model.py", "weights.bin"], "python", ""),
        (["model.savedmodel"], "tensorflow", "tensorflow_savedmodel"),
        (["model.graphdef"], "tensorflow", "tensorflow_graphdef"),
        (["model.plan"], "tensorrt", "tensorrt_plan"),
        (["model.xml", "model.bin"], "openvino", ""),
        (["model.pt"], "pytorch", "pytorch_libtorch"),
        (["model.pt2"], "pytorch", "torch_aoti"),
        (["model.tflite"], "litert", ""),
        (["model.onnx", "model.py"], "onnxruntime", "onnxruntime_onnx"),
    ],
)
def test_backend_follows_from_files(files: list[str], backend: str, platform: str):
    filled = autofill(ModelConfig(), model_name="m", version_files=files)
    assert (filled.name, filled.backend, filled.platform) == ("m", backend, platform)
    assert filled.default_model_filename == files[0]


@pytest.mark.parametrize(
    ("text", "files", "backend", "platform", "filename"),
    [
        ('backend: "onnxruntime"', [], "onnxruntime", "onnxruntime_onnx", "model.onnx"),
        ('platform: "onnxruntime_onnx"', [], "onnxruntime", "onnxruntime_onnx", "model.onnx"),
        ('platform: "torch_aoti"', [], "pytorch", "torch_aoti", "model.pt2"),
        ('backend: "pytorch"', ["model.pt2"], "pytorch", "torch_aoti", "model.pt2"),
        ('backend: "pytorch"', [], "pytorch", "", ""),
        ('backend: "pytorch" runtime: "model.py"', ["model.py", "model.pt"], "pytorch", "pytorch_libtorch", ""),
        ('backend: "pytorch" runtime: "model.py" default_model_filename: "x.pt"', [], "pytorch", "", "x.pt"),
        ('backend: "python"', ["model.onnx"], "python", "", "model.py"),
        ('backend: "identity"', ["model.onnx"], "identity", "", ""),
        ('backend: "python" default_model_filename: "x.py"', ["model.py"], "python", "", "x.py"),
        ('platform: "strange"', ["model.onnx"], "", "strange", ""),
    ],
)
def test_what_is_configured_stays(text: str, files: list[str], backend: str, platform: str, filename: str):
    filled = autofill(config_of(text), model_name="m", version_files=files)
    assert (filled.backend, filled.platform, filled.default_model_filename) == (backend, platform, filename)


def test_custom_backend_from_name_only_without_file():
    filled = autofill(ModelConfig(), model_name="a.identity", version_files=[])
    assert (filled.backend, filled.default_model_filename) == ("identity", "model.identity")
    assert autofill(ModelConfig(), model_name="a.b.identity", version_files=[]).backend == "b.identity"
    assert autofill(config_of('default_model_filename: "x"'), model_name="a.identity").backend == ""
    assert autofill(ModelConfig(), model_name="a.identity", version_files=["model.py"]).backend == "python"
    assert autofill(ModelConfig(), model_name="plain", version_files=["x.bin"]).backend == ""


def test_ensemble_gets_its_platform_and_no_backend():
    filled = autofill(config_of("ensemble_scheduling { }"), model_name="e", version_files=["model.onnx"])
    assert (filled.platform, filled.backend) == ("ensemble", "")


def test_autofill_leaves_its_argument_alone():
    config = ModelConfig()
    autofill(config, model_name="m", version_files=["model.py"])
    normalize(config, default_cpu_instances=1)
    assert config == ModelConfig()


def test_defaults_are_written_out():
    normal = normalize(config_of('name: "m" max_batch_size: 8 dynamic_batching { }'), default_cpu_instances=2)
    assert normal == config_of(
        'name: "m" max_batch_size: 8 version_policy { latest { num_versions: 1 } } '
        "dynamic_batching { preferred_batch_size: [ 8 ] } "
        "optimization { input_pinned_memory { enable: true } output_pinned_memory { enable: true } } "
        'instance_group { name: "m" kind: KIND_CPU count: 2 }'
    )


def test_defaults_of_sequence_batching():
    normal = normalize(config_of("max_batch_size: 4 sequence_batching { oldest { max_candidate_sequences: 9 } }"))
    assert normal.sequence_batching.max_sequence_idle_microseconds == 1_000_000
    assert list(normal.sequence_batching.oldest.preferred_batch_size) == [4]


def test_given_values_are_not_replaced_by_defaults():
    text = (
        'name: "m" max_batch_size: 8 version_policy { all { } } dynamic_batching { preferred_batch_size: [ 2 ] } '
        "optimization { input_pinned_memory { enable: false } output_pinned_memory { } } "
        'instance_group { name: "g" kind: KIND_MODEL count: 3 }'
    )
    assert normalize(config_of(text), default_cpu_instances=2) == config_of(text)


def test_normalizing_twice_changes_nothing():
    once = normalize(
        config_of('name: "m" max_batch_size: 2 sequence_batching { oldest { } }'), default_cpu_instances=1
    )
    assert normalize(once, default_cpu_instances=5) == once


def test_non_batching_model_gets_no_preferred_size():
    assert not normalize(config_of("dynamic_batching { }")).dynamic_batching.preferred_batch_size


def test_ensemble_gets_neither_pinned_memory_nor_instances():
    normal = normalize(config_of('name: "e" platform: "ensemble"'), default_cpu_instances=1)
    assert not normal.HasField("optimization")
    assert not normal.instance_group


@pytest.mark.parametrize(
    ("group", "gpu_count", "expected"),
    [
        ("", 0, (CPU, 2, [])),
        ("", 2, (GPU, 1, [0, 1])),
        ("kind: KIND_CPU", 2, (CPU, 2, [])),
        ("count: 3", 0, (CPU, 3, [])),
        ("count: -1", 0, (CPU, 2, [])),
        ("gpus: [ 1 ]", 2, (GPU, 1, [1])),
        ("gpus: [ 5 ]", 2, (CPU, 2, [5])),
        ("kind: KIND_GPU", 2, (GPU, 1, [0, 1])),
        ("kind: KIND_GPU", 0, (GPU, 1, [])),
        ("kind: KIND_MODEL", 0, (MODEL, 1, [])),
    ],
)
def test_instance_group(group: str, gpu_count: int, expected: tuple[int, int, list[int]]):
    config = config_of(f'name: "m" instance_group {{ {group} }}')
    (made,) = normalize(config, gpu_count=gpu_count, default_cpu_instances=2).instance_group
    assert (made.kind, made.count, list(made.gpus)) == expected


def test_instance_groups_are_named_by_their_index():
    config = config_of('name: "m" instance_group [ { }, { name: "own" }, { } ]')
    groups = normalize(config, default_cpu_instances=1).instance_group
    assert [group.name for group in groups] == ["m_0", "own", "m_2"]


@pytest.mark.parametrize(
    ("group", "gpu_count", "message"),
    [
        ("kind: KIND_GPU", 0, "instance group m_0 of model m has kind KIND_GPU but no GPUs are available"),
        ("kind: KIND_GPU", 0, "; expected KIND_CPU or KIND_AUTO: 0 GPUs were found"),
        ("kind: KIND_GPU gpus: [ 0 ]", 0, "instance group m_0 of model m specifies invalid or unsupported gpu id 0"),
        ("kind: KIND_GPU gpus: [ 0 ]", 0, "; expected no 'gpus', and KIND_CPU or KIND_AUTO: 0 GPUs were found"),
        ("kind: KIND_GPU gpus: [ 2 ]", 2, "; expected a number below 2, as many GPUs were found"),
        ("kind: KIND_CPU gpus: [ 0 ]", 0, "; expected no 'gpus': 0 GPUs were found"),
        (
            "kind: KIND_GPU gpus: [ 0, 4 ]",
            2,
            "gpu id 4. GPUs with at least the minimum required CUDA compute compatibility of 6.000000 are: 0, 1",
        ),
        ("kind: KIND_CPU gpus: [ 0 ]", 2, "has kind KIND_CPU but specifies one or more GPUs"),
        ("kind: KIND_MODEL gpus: [ 0 ]", 0, "has kind KIND_MODEL but specifies one or more GPUs"),
        ("gpus: [ 0 ]", 0, "has kind KIND_CPU but specifies one or more GPUs"),
    ],
)
def test_instance_group_that_cannot_be(group: str, gpu_count: int, message: str):
    config = normalize(
        config_of(f'name: "m" instance_group {{ {group} }}'), gpu_count=gpu_count, default_cpu_instances=1
    )
    (problem,) = instance_group_problems(config, gpu_count=gpu_count)
    assert message in problem.description


def test_group_that_is_right_has_no_problem():
    config = normalize(config_of('name: "m" instance_group { gpus: [ 1 ] }'), gpu_count=2, default_cpu_instances=1)
    assert instance_group_problems(config, gpu_count=2) == []


def test_only_what_a_backend_may_complete_is_taken():
    base = config_of('name: "m" backend: "python" parameters { key: "a" value { string_value: "x" } }')
    completed = config_of(
        'name: "other" backend: "else" max_batch_size: 4 input { name: "I" dims: 1 } output { name: "O" dims: 2 } '
        "dynamic_batching { } model_transaction_policy { decoupled: true } instance_group { count: 9 }"
    )
    assert merge_auto_completed(base, completed) == config_of(
        'name: "m" backend: "python" parameters { key: "a" value { string_value: "x" } } max_batch_size: 4 '
        'input { name: "I" dims: 1 } output { name: "O" dims: 2 } dynamic_batching { } '
        "model_transaction_policy { decoupled: true }"
    )


def test_a_scheduler_that_was_chosen_stays():
    merged = merge_auto_completed(config_of("sequence_batching { }"), config_of("dynamic_batching { }"))
    assert merged.WhichOneof("scheduling_choice") == "sequence_batching"


def test_completed_fields_are_those_that_were_not_written():
    written = config_of(
        'name: "m" backend: "identity" max_batch_size: 4 dynamic_batching { max_queue_delay_microseconds: 5 }'
    )
    complete = normalize(written, default_cpu_instances=1)
    assert completed_fields(written, complete) == [
        "version_policy",
        "instance_group",
        "dynamic_batching.preferred_batch_size",
        "optimization",
    ]
    assert completed_fields(complete, complete) == []
