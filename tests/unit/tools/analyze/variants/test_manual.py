"""Model Analyzer's lists of values."""

import pytest

from naiad.core.errors import InferError
from naiad.tools.analyze.variants import manual_settings


def test_lists_of_scalars_are_multiplied():
    parameters = {"max_batch_size": [2, 4], "dynamic_batching": {"max_queue_delay_microseconds": [0, 9]}}
    assert manual_settings(parameters) == [
        {"max_batch_size": 2, "dynamic_batching.max_queue_delay_microseconds": 0},
        {"max_batch_size": 2, "dynamic_batching.max_queue_delay_microseconds": 9},
        {"max_batch_size": 4, "dynamic_batching.max_queue_delay_microseconds": 0},
        {"max_batch_size": 4, "dynamic_batching.max_queue_delay_microseconds": 9},
    ]


def test_repeated_field_has_lists_of_lists():
    sizes = {"dynamic_batching": {"preferred_batch_size": [[4, 8], [2]]}}
    assert [next(iter(each.values())) for each in manual_settings(sizes)] == [[4, 8], [2]]
    plain = {"dynamic_batching": {"preferred_batch_size": [4, 8]}}
    assert manual_settings(plain) == [{"dynamic_batching.preferred_batch_size": [4, 8]}]


@pytest.mark.parametrize(
    "groups",
    [
        [[{"kind": "KIND_CPU", "count": 1}], [{"kind": "KIND_CPU", "count": 2}]],
        [{"kind": "KIND_CPU", "count": [1, 2]}],
        [[{"kind": "KIND_CPU", "count": [1, 2]}]],
        {"kind": "KIND_CPU", "count": [1, 2]},
    ],
)
def test_instance_groups_in_every_form(groups):
    assert manual_settings({"instance_group": groups}) == [
        {"instance_group": [{"kind": "KIND_CPU", "count": 1}]},
        {"instance_group": [{"kind": "KIND_CPU", "count": 2}]},
    ]


def test_parameters_are_texts_with_alternatives():
    parameters = {"a": {"string_value": ["1", "2"]}, "b": True}
    assert manual_settings({"parameters": parameters}) == [
        {"parameters.a": "1", "parameters.b": "true"},
        {"parameters.a": "2", "parameters.b": "true"},
    ]


def test_empty_message_is_a_value():
    assert manual_settings({"dynamic_batching": {}}) == [{"dynamic_batching": {}}]


def test_alternatives_of_a_message():
    alternatives = {"dynamic_batching": [{}, {"max_queue_delay_microseconds": [1, 2]}]}
    assert [each["dynamic_batching"] for each in manual_settings(alternatives)] == [
        {},
        {"max_queue_delay_microseconds": 1},
        {"max_queue_delay_microseconds": 2},
    ]


def test_unknown_field_has_a_suggestion():
    with pytest.raises(InferError, match=r"'dynamic_batching\.prefered_batch_size'; did you mean 'preferred_batch"):
        manual_settings({"dynamic_batching": {"prefered_batch_size": [4]}})
