"""The messages equal the messages of tritonclient, except for their package."""

import pytest
from tritonclient.grpc import service_pb2 as theirs

from naiad.protocol import service_pb2 as ours


def messages(descriptors):
    for descriptor in descriptors:
        yield descriptor
        yield from messages(descriptor.nested_types)


def short(full_name):
    return full_name.removeprefix("naiad.").removeprefix("inference.").removeprefix("config.")


def describe(descriptor):
    return {
        field.number: (
            field.name,
            field.type,
            field.is_repeated,
            field.containing_oneof.name if field.containing_oneof else None,
            short(field.message_type.full_name) if field.message_type else None,
        )
        for field in descriptor.fields
    }


OURS = {short(d.full_name): d for d in messages(ours.DESCRIPTOR.message_types_by_name.values())}
THEIRS = {short(d.full_name): d for d in messages(theirs.DESCRIPTOR.message_types_by_name.values())}


def test_every_message_is_there():
    assert OURS.keys() == THEIRS.keys()


@pytest.mark.parametrize("name", sorted(THEIRS))
def test_fields_are_equal(name):
    assert describe(OURS[name]) == describe(THEIRS[name])


def test_response_contains_config_message():
    field = ours.ModelConfigResponse.DESCRIPTOR.fields_by_name["config"]
    assert short(field.message_type.full_name) == "ModelConfig"
