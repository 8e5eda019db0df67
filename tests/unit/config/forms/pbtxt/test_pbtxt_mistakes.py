"""Each error in a text is reported at its position, and the rest of the text is still read."""

import pytest

from naiad.config.forms.pbtxt.text_format import MAX_CHARACTERS, parse_pbtxt
from naiad.config.forms.pbtxt.token_cursor import MAX_PROBLEMS

# text, line:column, part of the message, suggestion
MISTAKES = [
    ('nam: "x"', "1:1", "unknown field 'nam' in ModelConfig", "name"),
    ("max_batch_sise: 8", "1:1", "unknown field 'max_batch_sise'", "max_batch_size"),
    ("Max_Batch_Size: 8", "1:1", "unknown field 'Max_Batch_Size'", "max_batch_size"),
    ("inputs [ { } ]", "1:1", "unknown field 'inputs'", "input"),
    ("frobnicate { a { b: [ 1, { } ] } }", "1:1", "unknown field 'frobnicate'", ""),
    ("dims: 3", "1:1", "it belongs in input, output", ""),
    ('input { nam: "x" }', "1:9", "unknown field 'nam' in input", "name"),
    ("dynamic_batching { prefered_batch_size: [4] }", "1:20", "in dynamic_batching", "preferred_batch_size"),
    ("input { data_type: FP32 }", "1:20", "name 'FP32' is not a value for 'data_type'", "TYPE_FP32"),
    ("input { data_type: TYPE_FLOAT32 }", "1:20", "'TYPE_FLOAT32'", "TYPE_FP32"),
    ("input { data_type: TYPE_BYTES }", "1:20", "'TYPE_BYTES'", "TYPE_STRING"),
    ("input { data_type: type_int64 }", "1:20", "'type_int64'", "TYPE_INT64"),
    ('input { data_type: "TYPE_FP32" }', "1:20", 'string "TYPE_FP32"', "TYPE_FP32"),
    ("input { data_type: 99 }", "1:20", "number '99'", ""),
    ("input { data_type: -1 }", "1:21", "number '1'", ""),
    ("instance_group { kind: CPU }", "1:24", "name 'CPU'", "KIND_CPU"),
    ("instance_group { kind: KIND_GPUS }", "1:24", "name 'KIND_GPUS'", "KIND_GPU"),
    ('max_batch_size: "8"', "1:17", 'string "8" is not a value', "8"),
    ("max_batch_size: eight", "1:17", "name 'eight'", ""),
    ("max_batch_size: 8.0", "1:17", "number '8.0'", ""),
    ("max_batch_size: 089", "1:17", "number '089'", ""),
    ("max_batch_size: 8x", "1:17", "'8x' is not a number", ""),
    ("max_batch_size: 2147483648", "1:17", "2147483648 is out of range", ""),
    ("version_policy { latest { num_versions: -1 } }", "1:42", "-1 is out of range", ""),
    ("max_batch_size:", "1:16", "'max_batch_size' has no value", ""),
    ("response_cache { enable: }", "1:26", "'enable' has no value", ""),
    ("max_batch_size: { }", "1:17", "takes a plain value", ""),
    ("max_batch_size 8", "1:16", "missing ':' after 'max_batch_size'", ""),
    ("max_batch_size = 8", "1:16", "'=' after 'max_batch_size'", ""),
    ("max_batch_size: [ 8 ]", "1:17", "takes one value, not a list", ""),
    ("max_batch_size: 8 max_batch_size: 9", "1:19", "'max_batch_size' is given twice, first on line 1", ""),
    ("dynamic_batching { } dynamic_batching { }", "1:22", "is given twice", ""),
    ("dynamic_batching { } sequence_batching { }", "1:22", "cannot be given along with 'dynamic_batching'", ""),
    ("name: resnet", "1:7", "name 'resnet' is not a value for 'name'", '"resnet"'),
    ("name: 5", "1:7", "number '5'", '"5"'),
    ('name: "resnet', "1:7", "is not closed on its line", ""),
    ("name: “resnet”", "1:7", "typographic quotes", ""),
    (r'name: "a\qb"', "1:7", r"escape '\q' does not exist", ""),
    (r'name: "\777"', "1:7", "is above", ""),
    (r'name: "\ud800"', "1:7", "not a Unicode character", ""),
    (r'name: "\xff"', "1:7", "is not UTF-8", ""),
    ("response_cache { enable: yes }", "1:26", "name 'yes'", "true"),
    ("response_cache { enable: TRUE }", "1:26", "name 'TRUE'", "true"),
    ('response_cache { enable: "false" }', "1:26", 'string "false"', "false"),
    ("response_cache { enable: 2 }", "1:26", "number '2'", ""),
    ("sequence_batching { direct { minimum_slot_utilization: half } }", "1:56", "name 'half'", ""),
    ("input { dims: [ 1 2 ] }", "1:19", "missing ',' before '2' in the list 'dims'", ""),
    ("input { dims: [ 1, ] }", "1:18", "',' before the end of the list", ""),
    ("input { dims: [ , 1 ] }", "1:17", "unexpected ','", ""),
    ("input { dims: [ 1, 2 }", "1:15", "'[' is never closed", ""),
    ('input { dims: [ 1\n name: "x" }', "1:15", "'[' is never closed", ""),
    ("input [ { } { } ]", "1:13", "missing ',' before '{'", ""),
    ('input [ name: "x" ]', "1:9", "unexpected 'name' in the list 'input'", ""),
    ("input: 5", "1:8", "'input' needs a block, not '5'", ""),
    ('input { name: "x"', "1:7", "'{' is never closed", ""),
    ('input [ { name: "x" ]', "1:9", "'{' is never closed", ""),
    ("}", "1:1", "'}' closes no block", ""),
    ("input { } ]", "1:11", "']' closes no block", ""),
    ('{ name: "x" }', "1:1", "unexpected '{'", ""),
    ('"name": "x"', "1:1", 'the field name "name" is quoted', ""),
    ("5", "1:1", "unexpected '5'", ""),
    ('name: "x" // comment', "1:11", "is not a comment", ""),
    ('/* a\nb */ name: "x"', "1:1", "is not a comment", ""),
    ('name: "x" @', "1:11", "unexpected character '@'", ""),
    ('parameters { value { string_value: "x" } }', "1:12", "an entry of 'parameters' without 'key'", ""),
    ('metric_tags { key: "a" } metric_tags { key: "a" }', "1:38", "key 'a' is given twice", ""),
    ('parameters { key: "a" value: "x" }', "1:30", "'value' needs a block", ""),
    ('parameters { key: "a" valu { string_value: "x" } }', "1:23", "unknown field 'valu' in a map entry", "value"),
]


@pytest.mark.parametrize(("text", "place", "message", "suggestion"), MISTAKES, ids=[row[0] for row in MISTAKES])
def test_one_mistake_gives_one_problem(text: str, place: str, message: str, suggestion: str):
    (problem,) = parse_pbtxt(text).problems
    assert f"{problem.line}:{problem.column}" == place
    assert message in problem.message
    assert problem.suggestion == suggestion
    assert str(problem).startswith(f"config.pbtxt:{place}: ")


@pytest.mark.parametrize("text", [row[0] for row in MISTAKES])
def test_reading_continues_after_mistake(text: str):
    """A second error behind the first is found too, unless the first left a block open."""
    problems = parse_pbtxt(text + "\nbogus_field: 1").problems
    left_open = any("never closed" in p.message or "has no value" in p.message for p in problems)
    assert left_open or any("bogus_field" in p.message for p in problems)


def test_all_problems_of_a_file_come_together():
    text = """
name: "m"
max_batch_sise: 8
input [
  { name: "I" data_type: TYPE_FLOAT32 dims: [ 1 2 ] }
  { name: "J" data_type: TYPE_FP32 dims: [ 4, ] }
]
output { nam: "O", data_type: TYPE_FP32 dims: [ 4 ] }
instance_group [ { kind: KIND_CPU count: "2" } ]
"""
    places = [f"{problem.line}:{problem.column}" for problem in parse_pbtxt(text).problems]
    assert places == ["3:1", "5:26", "5:49", "6:3", "6:45", "8:10", "9:42"]


def test_mistyped_field_is_read_as_intended_field():
    parsed = parse_pbtxt('max_batch_sise: 8 inptu { name: "I" dims: 3 }')
    assert len(parsed.problems) == 2
    assert parsed.config.max_batch_size == 8
    assert parsed.config.input[0].name == "I"


def test_file_that_is_something_else_is_given_up():
    problems = parse_pbtxt("\n".join(f"@ line{n} %" for n in range(1000))).problems
    assert len(problems) == MAX_PROBLEMS + 1
    assert "the rest of the file was not read" in problems[-1].message


def test_too_long_file_is_not_read():
    (problem,) = parse_pbtxt("#" * (MAX_CHARACTERS + 1)).problems
    assert "no model configuration needs" in problem.message


@pytest.mark.parametrize("text", ["input{reshape{" * 20000, "a{" * 100000, "input[" * 100000, "<" * 100000])
def test_deep_nesting_does_not_overflow(text: str):
    assert parse_pbtxt(text).problems


def test_unknown_blocks_are_passed_over_at_any_depth():
    assert len(parse_pbtxt("a{" * 1000 + "}" * 1000).problems) == 1


@pytest.mark.parametrize(
    ("text", "position", "shown"),
    [
        ('# a ${comment}\nname: "m"\nmax_batch_size: ${max_batch_size}\n', "3:17", "${max_batch_size}"),
        ("max_batch_size: {{ size }}\ninput { dims: {{ size }} }", "1:17", "{{ size }}"),
        ("{% if gpu %}\nmax_batch_size: 8\n{% endif %}", "1:1", "{% if gpu %}, {% endif %}"),
        ("max_batch_size: $SIZE", "1:17", "$SIZE"),
        ("".join(f"dims: ${{d{i}}}\n" for i in range(9)), "1:7", "${d0}, ${d1}, ${d2}, ${d3}, ${d4} and 4 more"),
    ],
)
def test_template_without_values_is_one_problem(text: str, position: str, shown: str) -> None:
    (problem,) = parse_pbtxt(text, "c").problems
    assert str(problem).startswith(
        f"c:{position}: the file is a template without values for {shown}; expected a value"
    )


def test_placeholders_in_strings_are_text() -> None:
    text = 'name: "m"  # ${a}\nparameters { key: "a" value { string_value: "${b} {{c}} \\" $d" } }'
    parsed = parse_pbtxt(text)
    assert parsed.problems == []
    assert parsed.config.parameters["a"].string_value == '${b} {{c}} " $d'
