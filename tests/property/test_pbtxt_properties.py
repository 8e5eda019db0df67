"""Every written configuration reads back; any text is read without harm, and with the result of protobuf's reader."""

from typing import Any

from google.protobuf import text_format
from google.protobuf.descriptor import FieldDescriptor
from hypothesis import given, settings
from hypothesis import strategies as st

from naiad.config.forms.json_form import config_from_json, config_to_json
from naiad.config.forms.pbtxt.text_format import format_config, parse_pbtxt
from naiad.config.forms.schema import INT_RANGES, is_map, is_message, is_repeated
from naiad.config.model_config_pb2 import ModelConfig
from naiad.config.problem import errors_of
from support.long_run import examples

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


def _scalars(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    if field.cpp_type in INT_RANGES:
        return st.integers(*INT_RANGES[field.cpp_type])
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        return st.sampled_from([value.number for value in field.enum_type.values])
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return st.booleans()
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return _TEXT
    width = 32 if field.cpp_type == FieldDescriptor.CPPTYPE_FLOAT else 64
    return st.floats(width=width, allow_nan=False, allow_infinity=False)


def _fill(draw: st.DrawFn, message: Any) -> None:
    fields = [field for field in message.DESCRIPTOR.fields if draw(st.integers(0, 3)) == 0]
    for field in fields:
        _fill_field(draw, message, field)


def _fill_field(draw: st.DrawFn, message: Any, field: FieldDescriptor) -> None:
    value = getattr(message, field.name)
    if is_map(field):
        keys = draw(st.lists(_scalars(field.message_type.fields_by_name["key"]), max_size=2, unique=True))
        element = field.message_type.fields_by_name["value"]
        for key in keys:
            if is_message(element):
                _fill(draw, value[key])
            else:
                value[key] = draw(_scalars(element))
    elif is_message(field) and is_repeated(field):
        for _ in range(draw(st.integers(0, 2))):
            _fill(draw, value.add())
    elif is_message(field):
        value.SetInParent()
        _fill(draw, value)
    elif is_repeated(field):
        value.extend(draw(st.lists(_scalars(field), max_size=3)))
    else:
        setattr(message, field.name, draw(_scalars(field)))


@st.composite
def configs(draw: st.DrawFn) -> ModelConfig:
    config = ModelConfig()
    _fill(draw, config)
    return config


@given(configs())
@settings(deadline=None)
def test_written_config_is_read_back(config: ModelConfig):
    parsed = parse_pbtxt(format_config(config))
    assert errors_of(parsed.problems) == []
    assert parsed.config == config


@given(configs())
@settings(deadline=None)
def test_json_form_is_read_back(config: ModelConfig):
    assert config_from_json(config_to_json(config)) == config


_WORDS = "input dims name dynamic_batching parameters key value kind instance_group bogus max_batch_size true"
_MARKS = 'TYPE_FP32 inf : : { } { } [ ] < > , ; - = 3 0x1 08 1.5 "x" " /* \\ é \0'
_FRAGMENTS = st.sampled_from([*_WORDS.split(" "), *_MARKS.split(" "), "'y'", "#c\n", "\n", "//x\n"])


@given(st.lists(_FRAGMENTS, max_size=40).map(" ".join))
@settings(max_examples=examples(500))
def test_any_text_is_read_without_harm(text: str):
    parsed = parse_pbtxt(text)
    for problem in parsed.problems:
        assert problem.message
        assert 1 <= problem.line <= text.count("\n") + 1
    if not errors_of(parsed.problems):
        assert text_format.Parse(text, ModelConfig()) == parsed.config


@given(configs(), st.data())
@settings(max_examples=examples(200))
def test_what_protobuf_refuses_is_a_problem(config: ModelConfig, data: st.DataObject):
    """Cut a piece out of a valid text: texts that protobuf's reader rejects give a problem, otherwise both agree."""
    text = format_config(config)
    start = data.draw(st.integers(0, len(text)))
    damaged = text[:start] + text[start + data.draw(st.integers(1, 5)) :]
    try:
        expected = text_format.Parse(damaged, ModelConfig())
    except text_format.ParseError:
        assert errors_of(parse_pbtxt(damaged).problems)
        return
    parsed = parse_pbtxt(damaged)
    if not errors_of(parsed.problems):
        assert parsed.config == expected
