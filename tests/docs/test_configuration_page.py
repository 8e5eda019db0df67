"""The reference page names every field, and its examples are configurations."""

import re
from pathlib import Path

import pytest
from google.protobuf.descriptor import Descriptor

from naiad.config.forms.pbtxt.text_format import parse_pbtxt
from naiad.config.forms.schema import is_map_entry, is_message
from naiad.config.model_config_pb2 import ModelConfig

PAGE = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```protobuf\n(.*?)```", PAGE, re.DOTALL)


def field_names(message: Descriptor, seen: set[str]) -> set[str]:
    if message.full_name in seen:
        return set()
    seen.add(message.full_name)
    names = set() if is_map_entry(message) else {field.name for field in message.fields}
    for field in message.fields:
        if is_message(field):
            names |= field_names(field.message_type, seen)
    return names


def test_every_field_is_on_the_page():
    named = set(re.findall(r"[A-Za-z_0-9]+", PAGE))
    assert field_names(ModelConfig.DESCRIPTOR, set()) - named == set()


@pytest.mark.parametrize("example", EXAMPLES)
def test_example_reads(example: str):
    assert parse_pbtxt(example).problems == []
    assert example.strip()
