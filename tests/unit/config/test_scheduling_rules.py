"""The rules of a configuration in words, and hints on models that never batch."""

import pytest

from naiad.config.forms.pbtxt.text_format import parse_pbtxt
from naiad.config.scheduling_rules import batching_hints, scheduler_kind, scheduling_rules

ADAPTIVE = 'parameters { key: "adaptive_batching" value { string_value: "true" } }'
GOAL = 'parameters { key: "adaptive_batching_latency_goal_us" value { string_value: "2500" } }'
OLDEST = "sequence_batching { oldest { max_candidate_sequences: %d max_queue_delay_microseconds: 70 } }"
STEP = (
    'step { model_name: "%s" model_version: -1 '
    'input_map { key: "I" value: "%s" } output_map { key: "O" value: "%s" } }'
)


def config_of(text):
    parsed = parse_pbtxt('name: "m"\n' + text)
    assert not parsed.problems
    return parsed.config


@pytest.mark.parametrize(
    ("text", "kind", "expected"),
    [
        (
            'instance_group [ { kind: KIND_CPU rate_limiter { resources [ { name: "R" global: true count: 3 }, '
            '{ name: "S" count: 1 }, { name: "T" } ] priority: 2 } }, { kind: KIND_CPU } ]',
            "default",
            [
                "instance of group 0 executes when 3 R and 1 S of its device are free.",
                "each execution costs 2 turns.",
            ],
        ),
        ("max_batch_size: 8", "default", ["executed alone", "may have up to 8 rows"]),
        ("max_batch_size: 8 dynamic_batching { }", "dynamic", ["up to 8 rows, not requests.", "No batch waits"]),
        (
            "max_batch_size: 8 dynamic_batching { preferred_batch_size: [ 8, 4 ] max_queue_delay_microseconds: 300 }",
            "dynamic",
            ["preferred size (4, 8) is sent at once", "until its oldest request has waited 300 us"],
        ),
        (
            "max_batch_size: 8 dynamic_batching { priority_levels: 3 default_priority_level: 2 "
            "default_queue_policy { max_queue_size: 9 default_timeout_microseconds: 50 allow_timeout_override: true "
            "timeout_action: DELAY } }",
            "dynamic",
            ["1 to 3, default 2", "rejected while 9 requests of its level wait", "50 us (or its own", "to the end"],
        ),
        (
            "max_batch_size: 8 dynamic_batching { default_queue_policy { default_timeout_microseconds: 50 } }",
            "dynamic",
            ["When it has waited 50 us it fails with UNAVAILABLE"],
        ),
        (
            'max_batch_size: 8 input { name: "x" dims: [ -1 ] } dynamic_batching { preserve_ordering: true }',
            "dynamic",
            ["not requests, of equal shapes.", "is sent after the responses"],
        ),
        (
            f"max_batch_size: 8 dynamic_batching {{ max_queue_delay_microseconds: 700 }} {ADAPTIVE} {GOAL}",
            "adaptive",
            ["has paid off", "at most 700 us", "within 2500 us"],
        ),
        (f"max_batch_size: 8 dynamic_batching {{ }} {ADAPTIVE}", "adaptive", ["at most 1000000 us"]),
        ("max_batch_size: 4 " + OLDEST % 50, "sequence, oldest", ["up to 50 live", "up to 4", "70 us", "1000000 us"]),
        ("max_batch_size: 4 " + OLDEST % 0, "sequence, oldest", ["up to 4 live sequences"]),
        (
            "max_batch_size: 4 sequence_batching { oldest { preferred_batch_size: [ 4, 2 ] } }",
            "sequence, oldest",
            ["preferred size (2, 4) is sent at once"],
        ),
        (
            "max_batch_size: 4 sequence_batching { iterative_sequence: true oldest { } }",
            "sequence, oldest",
            ["a sequence of its own, and executes with other sequences"],
        ),
        ("max_batch_size: 4 sequence_batching { direct { } }", "sequence, direct", ["a row of its own, of 4"]),
        (
            "max_batch_size: 4 sequence_batching { direct { max_queue_delay_microseconds: 90 } }",
            "sequence, direct",
            ["No batch waits", "needs 'minimum_slot_utilization'"],
        ),
        (
            "max_batch_size: 4 sequence_batching { direct { max_queue_delay_microseconds: 90 "
            "minimum_slot_utilization: 0.5 } }",
            "sequence, direct",
            ["waits up to 90 us until 50% of the rows"],
        ),
        (
            "max_batch_size: 8 dynamic_batching { priority_levels: 2 default_priority_level: 1 default_queue_policy "
            "{ max_queue_size: 9 } priority_queue_policy { key: 2 value { default_timeout_microseconds: 70 } } }",
            "dynamic",
            ["while 9 requests of its level", "Otherwise with priority 2: When it has waited 70 us it fails"],
        ),
        (
            "max_batch_size: 8 dynamic_batching { priority_levels: 2 default_priority_level: 1 default_queue_policy "
            "{ max_queue_size: 9 } priority_queue_policy { key: 2 value { } } }",
            "dynamic",
            ["Otherwise with priority 2: The queue has no limit"],
        ),
        (
            f'platform: "ensemble" ensemble_scheduling {{ {STEP % ("a", "I", "t")} {STEP % ("b", "t", "O")} }}',
            "ensemble",
            ["\na: I -> t.", "\nb: t -> O."],
        ),
        (
            'platform: "ensemble" response_cache { enable: true } '
            f"ensemble_scheduling {{ {STEP % ('a', 'I', 'O')} }}",
            "ensemble",
            ["response cache first"],
        ),
        ("max_batch_size: 8 response_cache { enable: true }", "default", ["response cache first"]),
    ],
)
def test_rules_describe_the_configuration(text, kind, expected):
    config = config_of(text)
    assert scheduler_kind(config) == kind
    rules = "\n".join(scheduling_rules(config))
    for part in expected:
        assert part in rules


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("max_batch_size: 0 dynamic_batching { }", "'max_batch_size' is 0"),
        ("max_batch_size: 1 dynamic_batching { }", "'max_batch_size' is 1"),
        ("max_batch_size: 8 dynamic_batching { preferred_batch_size: [ 1 ] }", "'preferred_batch_size' is 1"),
        ("max_batch_size: 8", "add 'dynamic_batching { }'"),
        ("max_batch_size: 8 dynamic_batching { default_queue_policy { max_queue_size: 1 } }", "'max_queue_size' 1"),
        ("max_batch_size: 8 " + OLDEST % 1, "'max_candidate_sequences' is 1"),
    ],
)
def test_a_model_that_never_batches_has_a_hint(text, hint):
    (found,) = batching_hints(config_of(text))
    assert hint in found


@pytest.mark.parametrize(
    "text",
    [
        "max_batch_size: 0",
        "max_batch_size: 8 dynamic_batching { }",
        "max_batch_size: 8 dynamic_batching { preferred_batch_size: [ 1, 8 ] }",
        "max_batch_size: 8 dynamic_batching { preferred_batch_size: [ 1 ] max_queue_delay_microseconds: 5 }",
        "max_batch_size: 8 dynamic_batching { priority_levels: 2 default_priority_level: 1 "
        "default_queue_policy { max_queue_size: 1 } }",
        "max_batch_size: 8 " + OLDEST % 2,
        'max_batch_size: 8 platform: "ensemble" ensemble_scheduling { }',
    ],
)
def test_other_models_have_none(text):
    assert batching_hints(config_of(text)) == []
