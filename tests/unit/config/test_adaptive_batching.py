"""The parameters of adaptive batching, and errors in them."""

import pytest

from naiad.config.forms.pbtxt.text_format import parse_pbtxt
from naiad.config.naiad_parameters import AdaptiveBatching, read_adaptive_batching
from naiad.config.validate.model import validate
from naiad.scheduler.adaptive import AdaptiveScheduler
from naiad.scheduler.dynamic import DynamicScheduler
from naiad.scheduler.factory import create_scheduler

_MODEL = """
name: "m"
backend: "onnxruntime"
max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: [ 4 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ 4 ] }
"""


def parameter(key, value):
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'


def parse(text):
    return parse_pbtxt(_MODEL + text)


def test_it_is_off_by_default():
    config = parse("dynamic_batching { }").config
    assert read_adaptive_batching(config) is None
    assert type(create_scheduler(config)) is DynamicScheduler


@pytest.mark.parametrize(("value", "on"), [("true", True), ("True", True), ("false", False)])
def test_the_switch(value, on):
    config = parse("dynamic_batching { }\n" + parameter("adaptive_batching", value)).config
    assert read_adaptive_batching(config) == (AdaptiveBatching() if on else None)
    assert isinstance(create_scheduler(config), AdaptiveScheduler) is on


def test_the_goal_and_the_limit():
    text = parameter("adaptive_batching", "true") + parameter("adaptive_batching_latency_goal_us", "2500")
    config = parse("dynamic_batching { max_queue_delay_microseconds: 700 }\n" + text).config
    assert read_adaptive_batching(config) == AdaptiveBatching(latency_goal_ns=2_500_000)
    assert isinstance(create_scheduler(config), AdaptiveScheduler)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (parameter("adaptive_batching", "yes") + "dynamic_batching { }", "neither true nor false"),
        (parameter("adaptive_batching", "true"), "requires the dynamic batcher"),
        (
            parameter("adaptive_batching", "true")
            + parameter("adaptive_batching_latency_goal_us", "5ms")
            + "dynamic_batching { }",
            "is not a time in microseconds",
        ),
        (
            parameter("adaptive_batching", "true")
            + parameter("adaptive_batching_latency_goal_us", "0")
            + "dynamic_batching { }",
            "is not a time in microseconds",
        ),
        (
            parameter("adaptive_batching", "true")
            + parameter("adaptive_batching_latency_goal_us", "9" * 5000)
            + "dynamic_batching { }",
            "is not a time in microseconds",
        ),
    ],
)
def test_mistakes_are_named_with_their_line(text, message):
    parsed = parse(text)
    problems = [problem for problem in validate(parsed.config, parsed=parsed) if problem.is_error]
    assert len(problems) == 1
    assert message in str(problems[0])
    assert "config.pbtxt:" in str(problems[0])


def test_a_goal_without_the_switch_is_a_warning():
    text = parameter("adaptive_batching_latency_goal_us", "2500") + "dynamic_batching { }"
    parsed = parse(text)
    problems = validate(parsed.config, parsed=parsed)
    assert [problem.is_error for problem in problems] == [False]
    assert "has no effect without 'adaptive_batching'" in str(problems[0])
