"""The schema must stay exchangeable with Triton's, as tritonclient ships it."""

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from tritonclient.grpc import model_config_pb2 as theirs

from naiad.config import model_config_pb2 as ours
from naiad.config.forms.schema import is_repeated


def _type(field: FieldDescriptor) -> str:
    if field.message_type:
        return field.message_type.full_name.removeprefix("naiad.")
    if field.enum_type:
        return field.enum_type.full_name.removeprefix("naiad.")
    return str(field.type)


def _survey_enum(enum: EnumDescriptor, found: dict[str, object]) -> None:
    found[enum.full_name.removeprefix("naiad.")] = {value.name: value.number for value in enum.values}


def _survey(message: Descriptor, found: dict[str, object]) -> None:
    name = message.full_name.removeprefix("naiad.")
    found[name] = {
        field.name: (
            field.number,
            _type(field),
            is_repeated(field),
            field.containing_oneof.name if field.containing_oneof else "",
        )
        for field in message.fields
    }
    for nested in message.nested_types:
        _survey(nested, found)
    for enum in message.enum_types:
        _survey_enum(enum, found)


def _all(module) -> dict[str, object]:
    found: dict[str, object] = {}
    for message in module.DESCRIPTOR.message_types_by_name.values():
        _survey(message, found)
    for enum in module.DESCRIPTOR.enum_types_by_name.values():
        _survey_enum(enum, found)
    return found


def test_schema_has_fields_numbers_types_of_triton():
    assert _all(ours) == _all(theirs)


def test_a_message_of_tritonclient_reads_as_ours():
    sent = theirs.ModelConfig(name="m", max_batch_size=4, backend="python")
    sent.dynamic_batching.priority_queue_policy[2].max_queue_size = 7
    read = ours.ModelConfig.FromString(sent.SerializeToString())
    assert read.dynamic_batching.priority_queue_policy[2].max_queue_size == 7
    assert read.SerializeToString(deterministic=True) == sent.SerializeToString(deterministic=True)
