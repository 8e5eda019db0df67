"""Which fields of a configuration a client without permission may change: all of them, one by one."""

import re
from typing import Any

import pytest

from naiad.config.changes.override import (
    ALLOWED,
    ALLOWED_PARAMETERS,
    is_allowed,
    is_allowed_parameter,
    limited_override,
)
from naiad.config.forms.schema import is_map, is_message, is_repeated
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import ErrorCode, InferError
from support.config_fields import fields_of

OWNER_ONLY = (
    "platform",
    "backend",
    "runtime",
    "output.label_filename",
    "batch_input.kind",
    "optimization.cuda.graphs",
    "optimization.execution_accelerators.cpu_execution_accelerator.parameters",
    "sequence_batching.state.initial_state.data_file",
    "sequence_batching.control_input.name",
    "ensemble_scheduling.step.model_name",
    "instance_group.host_policy",
    "instance_group.secondary_devices.device_id",
    "default_model_filename",
    "cc_model_filenames",
    "metric_tags",
    "parameters",
    "model_warmup.inputs.input_data_file",
    "model_operations.op_library_filename",
    "model_repository_agents.agents.name",
    "model_metrics.metric_control.histogram_options.buckets",
)
SECRET = "not the owner's"


def with_field(path: str, value: object = None) -> ModelConfig:
    """Return a configuration with one field set, and the messages above it."""
    config = ModelConfig()
    set_field(config, path.split("."), value)
    return config


def set_field(message: Any, names: list[str], value: object) -> None:
    field = message.DESCRIPTOR.fields_by_name[names[0]]
    holder = getattr(message, field.name)
    if is_map(field):
        kind = field.message_type.fields_by_name["key"]
        key = "key" if kind.cpp_type == kind.CPPTYPE_STRING else 1
        if not is_message(field.message_type.fields_by_name["value"]):
            holder[key] = SECRET if value is None else value
        elif names == ["parameters"]:
            holder[key].string_value = SECRET if value is None else value
        else:
            set_field(holder[key], names[1:], value)
    elif is_message(field):
        inner = holder.add() if is_repeated(field) else holder
        inner.SetInParent()
        if names[1:]:
            set_field(inner, names[1:], value)
    elif is_repeated(field):
        holder.append(plain_value(field) if value is None else value)
    else:
        setattr(message, field.name, plain_value(field) if value is None else value)


def plain_value(field: Any) -> object:
    if field.cpp_type == field.CPPTYPE_STRING:
        return SECRET
    return field.cpp_type == field.CPPTYPE_BOOL or 1


def refusal(override: ModelConfig, owner: ModelConfig, *known: ModelConfig) -> str:
    with pytest.raises(InferError) as caught:
        limited_override(override, owner, known)
    assert caught.value.code is ErrorCode.PERMISSION_DENIED
    return caught.value.message


@pytest.mark.parametrize("path", fields_of())
def test_each_field_is_accepted_or_refused_by_name(path: str) -> None:
    override = with_field(path)
    if is_allowed(path) or path == "version_policy.all":
        assert limited_override(override, ModelConfig()) == override
        return
    text = refusal(override, ModelConfig())
    named = re.sub(r"\[[^\]]*\]", "", text.partition(" only the owner")[0])
    assert f"'{path}'" in named
    assert "--allow-client-model-files=true" in text
    assert "config.pbtxt" in text


@pytest.mark.parametrize("path", fields_of())
def test_value_of_the_owner_is_no_change(path: str) -> None:
    config = with_field(path)
    assert limited_override(config, config) == config


@pytest.mark.parametrize("path", [path for path in fields_of() if not is_allowed(path) and "." not in path])
def test_field_that_is_left_out_keeps_its_value(path: str) -> None:
    owner = with_field(path)
    kept = limited_override(ModelConfig(max_batch_size=3), owner)
    owner.max_batch_size = 3
    assert kept == owner


def test_table_names_fields_of_the_schema() -> None:
    listed = {f"{message}.{name}".lstrip(".") for message, names in ALLOWED.items() for name in names.split()}
    assert listed <= set(fields_of())
    assert not listed.intersection(OWNER_ONLY)
    assert set(OWNER_ONLY) <= set(fields_of())


def test_field_that_is_not_listed_yet_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import naiad.config.changes.override as table

    monkeypatch.setattr(table, "_LEAVES", table._LEAVES - {"instance_group.count"})
    assert "'instance_group[0].count'" in refusal(with_field("instance_group.count"), ModelConfig())


@pytest.mark.parametrize("key", ["sha256", "trusted_types", "EXECUTION_ENV_PATH", "EXECUTION_ENV_PYTHON",
                                 "isolation", "tensor_parallel_size", "TF_INIT_OPS_FILE", "CPU_EXTENSION_PATH",
                                 "property.CACHE_DIR", "session.x", "execute_timeout_s", "refuse_after_deaths",
                                 "rendezvous", "anything"])  # fmt: skip
def test_parameters_of_the_owner(key: str) -> None:
    override, owner = ModelConfig(), ModelConfig()
    override.parameters[key].string_value = "client"
    assert f"""'parameters["{key}"]'""" in refusal(override, owner)
    owner.parameters[key].string_value = "owner"
    assert f"""'parameters["{key}"]'""" in refusal(override, owner)
    assert limited_override(ModelConfig(max_batch_size=1), owner).parameters[key].string_value == "owner"


def test_parameters_of_every_client() -> None:
    override, owner = ModelConfig(), ModelConfig()
    owner.parameters["num_threads"].string_value = "1"
    for key in [*sorted(ALLOWED_PARAMETERS), "pad_input.X"]:
        assert is_allowed_parameter(key)
        override.parameters[key].string_value = "2"
    assert limited_override(override, owner) == override
    assert not limited_override(ModelConfig(), owner).parameters, "a listed parameter may be left out"


def test_values_of_the_owner_are_not_shown() -> None:
    owner, override = ModelConfig(), ModelConfig()
    owner.parameters["sha256"].string_value = "f00d"
    override.parameters["sha256"].string_value = "beef"
    assert "f00d" not in refusal(override, owner)


def test_completed_values_are_no_change() -> None:
    owner = ModelConfig(platform="onnxruntime_onnx")
    completed = ModelConfig(platform="onnxruntime_onnx", backend="onnxruntime", default_model_filename="model.onnx")
    override = ModelConfig(backend="onnxruntime", default_model_filename="model.onnx", max_batch_size=2)
    result = limited_override(override, owner, [completed])
    assert (result.platform, result.backend) == ("onnxruntime_onnx", "onnxruntime")
    assert "'default_model_filename'" in refusal(ModelConfig(default_model_filename="other"), owner, completed)


def test_elements_of_a_list_are_found_by_name() -> None:
    owner = ModelConfig()
    owner.output.add(name="A", label_filename="a.txt")
    owner.output.add(name="B", label_filename="b.txt")
    override = ModelConfig()
    override.output.add(name="B", dims=[2])
    assert limited_override(override, owner).output[0].label_filename == "b.txt"
    override.output[0].label_filename = "a.txt"
    assert "'output[0].label_filename'" in refusal(override, owner)


def test_other_scheduler_is_a_choice_of_the_client() -> None:
    owner = ModelConfig()
    owner.sequence_batching.direct.SetInParent()
    owner.sequence_batching.control_input.add(name="START")
    override = ModelConfig()
    override.sequence_batching.oldest.max_candidate_sequences = 4
    kept = limited_override(override, owner)
    assert kept.sequence_batching.control_input[0].name == "START"
    assert kept.sequence_batching.WhichOneof("strategy_choice") == "oldest"
    override.dynamic_batching.SetInParent()
    assert limited_override(override, owner).WhichOneof("scheduling_choice") == "dynamic_batching"


def test_warm_up_file_stays_without_other_data() -> None:
    owner = ModelConfig()
    owner.model_warmup.add(name="w").inputs["X"].input_data_file = "x.raw"
    override = ModelConfig()
    override.model_warmup.add(name="w").inputs["X"].dims.append(2)
    assert limited_override(override, owner).model_warmup[0].inputs["X"].input_data_file == "x.raw"
    override.model_warmup[0].inputs["X"].zero_data = True
    assert limited_override(override, owner) == override
    override.model_warmup[0].inputs["X"].input_data_file = "../y.raw"
    assert """'model_warmup[0].inputs["X"].input_data_file'""" in refusal(override, owner)
