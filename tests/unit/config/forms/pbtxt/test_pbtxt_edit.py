"""Edits of a `config.pbtxt`: what changes, changes where it stands; the rest of the text stays."""

import difflib

import pytest

from naiad.config.forms.pbtxt.edit import edited, with_changes
from naiad.config.forms.pbtxt.text_format import parse_pbtxt
from naiad.config.model_config_pb2 import ModelConfig

TEXT = """# The classifier of the shop. Ask Kim before you change it.
backend: "onnxruntime"  # not TensorRT: no GPU
max_batch_size: 1       # one picture

input [ { name: "x" data_type: TYPE_FP32 dims: [ 3, 4 ] } ]
output { name: "y" data_type: TYPE_FP32 dims: 4 }

instance_group [
  {
    # one for each socket
    kind: KIND_CPU
    count: 1
  }
]
parameters {
  key: "intra_op_thread_count"  # of the runtime
  value { string_value: "1" }
}
parameters { key: "other" value { string_value: "# no comment" } }
"""


def config(text: str) -> ModelConfig:
    return parse_pbtxt(text).config


def changed_lines(before: str, after: str) -> list[str]:
    return [line for line in difflib.ndiff(before.splitlines(), after.splitlines()) if line[0] in "+-"]


def changes(**values: object) -> ModelConfig:
    found = config(TEXT)
    for name, value in values.items():
        setattr(found, name, value)
    return found


def test_number_changes_where_it_stands() -> None:
    found = edited(TEXT, changes(max_batch_size=8))
    assert found == TEXT.replace("max_batch_size: 1 ", "max_batch_size: 8 ")


def test_count_of_a_group_changes_inside_its_block() -> None:
    wanted = changes()
    wanted.instance_group[0].count = 4
    assert edited(TEXT, wanted) == TEXT.replace("count: 1", "count: 4")


def test_value_of_a_parameter_changes_and_others_stay() -> None:
    wanted = changes()
    wanted.parameters["intra_op_thread_count"].string_value = "2"
    assert edited(TEXT, wanted) == TEXT.replace('string_value: "1"', 'string_value: "2"')


def test_new_fields_follow_the_text() -> None:
    wanted = changes()
    wanted.dynamic_batching.max_queue_delay_microseconds = 100
    wanted.parameters["adaptive_batching"].string_value = "true"
    found = edited(TEXT, wanted)
    assert found.startswith(TEXT)
    assert config(found) == wanted


def test_removed_fields_leave_the_comments() -> None:
    wanted = changes()
    wanted.ClearField("instance_group")
    del wanted.parameters["other"]
    found = edited(TEXT, wanted)
    assert config(found) == wanted
    kept = [line for line in TEXT.splitlines() if "#" in line and "socket" not in line and "no comment" not in line]
    assert all(line in found.splitlines() for line in kept)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("dynamic_batching { }", "dynamic_batching { max_queue_delay_microseconds: 7 }"),
        ("dynamic_batching {}", "dynamic_batching { max_queue_delay_microseconds: 7 }"),
        (
            "dynamic_batching {\n  # short\n}\n",
            "dynamic_batching {\n  # short\n  max_queue_delay_microseconds: 7\n}\n",
        ),
        (
            "dynamic_batching: < max_queue_delay_microseconds: 5; >",
            "dynamic_batching: < max_queue_delay_microseconds: 7; >",
        ),
        ("name: 'a'", "name: 'a'\ndynamic_batching {\n  max_queue_delay_microseconds: 7\n}\n"),
        ("", "dynamic_batching {\n  max_queue_delay_microseconds: 7\n}\n"),
        (
            '\ufeffdynamic_batching { max_queue_delay_microseconds: 5 } # "5"',
            '\ufeffdynamic_batching { max_queue_delay_microseconds: 7 } # "5"',
        ),
    ],
)
def test_every_form_of_a_block_is_edited(text: str, expected: str) -> None:
    wanted = config(text)
    wanted.dynamic_batching.max_queue_delay_microseconds = 7
    assert edited(text, wanted) == expected


def test_lists_of_numbers_are_replaced() -> None:
    text = "# sizes\ndynamic_batching {\n  preferred_batch_size: [ 2, 4 ] # powers\n}\n"
    wanted = config(text)
    wanted.dynamic_batching.preferred_batch_size[:] = [8]
    found = edited(text, wanted)
    assert config(found) == wanted
    assert "# sizes" in found
    assert "# powers" in found


def test_same_configuration_is_the_same_text() -> None:
    assert edited(TEXT, config(TEXT)) == TEXT


def test_text_with_errors_is_replaced() -> None:
    wanted = ModelConfig(name="m", max_batch_size=2)
    assert config(edited("max_batch_size: {", wanted)) == wanted


def test_what_the_server_completed_stays_out() -> None:
    before = config(TEXT)
    before.name = "shop"
    before.instance_group[0].name = "shop_0"
    before.optimization.input_pinned_memory.enable = True
    before.optimization.output_pinned_memory.enable = True
    before.version_policy.latest.num_versions = 1
    after = ModelConfig()
    after.CopyFrom(before)
    after.max_batch_size = 8
    after.instance_group[0].count = 2
    found = edited(TEXT, with_changes(config(TEXT), before, after))
    assert changed_lines(TEXT, found) == [
        "- max_batch_size: 1       # one picture",
        "+ max_batch_size: 8       # one picture",
        "-     count: 1",
        "+     count: 2",
    ]


def test_completed_group_gets_only_its_count() -> None:
    before = ModelConfig(name="m")
    before.instance_group.add(name="m_0", count=1, kind=1)
    after = ModelConfig()
    after.CopyFrom(before)
    after.instance_group[0].count = 3
    found = with_changes(config('backend: "python"'), before, after)
    assert found == config('backend: "python" instance_group { count: 3 }')


def test_removed_parameter_and_batcher_are_removed() -> None:
    own = config('parameters { key: "a" value { string_value: "1" } } dynamic_batching { }')
    after = ModelConfig()
    after.CopyFrom(own)
    after.parameters.clear()
    after.ClearField("dynamic_batching")
    assert with_changes(own, own, after) == ModelConfig()


def test_completed_batcher_stays_beside_a_new_size() -> None:
    own = config('backend: "onnxruntime"')
    before = config('backend: "onnxruntime" max_batch_size: 4 dynamic_batching { }')
    after = config('backend: "onnxruntime" max_batch_size: 8 dynamic_batching { }')
    assert with_changes(own, before, after) == after
