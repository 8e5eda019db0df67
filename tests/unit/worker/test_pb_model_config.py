"""`pb_utils.ModelConfig`: what it completes and what it refuses, in Triton's words."""

import json
from typing import Any

import pytest
import triton_python_backend_utils as pb_utils


def config(**fields: Any) -> pb_utils.ModelConfig:
    return pb_utils.ModelConfig(json.dumps({"name": "m", "max_batch_size": 0, "input": [], "output": [], **fields}))


A = {"name": "A", "data_type": "TYPE_FP32", "dims": [4]}


def test_completes_an_empty_configuration():
    made = config()
    made.set_max_batch_size(8)
    made.set_dynamic_batching()
    made.add_input({**A, "optional": True})
    made.add_output({"name": "B", "data_type": "TYPE_INT32", "dims": [1]})
    made.set_model_transaction_policy({"decoupled": False})
    tree = made.as_dict()
    assert tree["max_batch_size"] == 8
    assert tree["dynamic_batching"] == {}
    assert tree["input"] == [{**A, "optional": True}]
    assert tree["output"] == [{"name": "B", "data_type": "TYPE_INT32", "dims": [1]}]
    assert tree["model_transaction_policy"] == {"decoupled": False}
    assert pb_utils.get_input_config_by_name(tree, "A") == {**A, "optional": True}
    assert pb_utils.get_output_config_by_name(tree, "A") is None
    assert not pb_utils.using_decoupled_model_transaction_policy(tree)


def test_completes_open_fields_and_keeps_the_rest():
    made = config(input=[{"name": "A", "data_type": "TYPE_INVALID", "dims": [], "format": "FORMAT_NONE"}])
    made.add_input(A)
    assert made.as_dict()["input"] == [{**A, "format": "FORMAT_NONE"}]
    made.add_input(A)
    assert len(made.as_dict()["input"]) == 1


def test_dynamic_batching_that_is_configured_stays():
    made = config(dynamic_batching={"preferred_batch_size": [2]})
    made.set_dynamic_batching()
    assert made.as_dict()["dynamic_batching"] == {"preferred_batch_size": [2]}


def refused(action: Any, **fields: Any) -> str:
    made = config(**fields)
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the text is what is tested
        action(made)
    return str(caught.value)


def test_max_batch_size_may_only_grow():
    assert refused(lambda c: c.set_max_batch_size(4), max_batch_size=8) == (
        "configuration specified max_batch_size 8, but in auto-complete-config function for model 'm' specified "
        "max_batch_size 4"
    )


@pytest.mark.parametrize("scheduler", ["sequence_batching", "ensemble_scheduling"])
def test_dynamic_batching_beside_another_scheduler(scheduler):
    assert refused(lambda c: c.set_dynamic_batching(), **{scheduler: {}}) == (
        f"Configuration specified scheduling_choice as '{scheduler}', but auto-complete-config function for model "
        "'m' tries to set scheduling_choice as 'dynamic_batching'"
    )


@pytest.mark.parametrize(
    ("kind", "properties", "said"),
    [
        (
            "input",
            {**A, "reshape": []},
            "input 'A' in auto-complete-config function for model 'm' contains property other than 'name', "
            "'data_type', 'dims' and 'optional'.",
        ),
        (
            "output",
            {**A, "optional": True},
            "output 'A' in auto-complete-config function for model 'm' contains property other than 'name', "
            "'data_type' and 'dims'.",
        ),
        ("input", {}, "input in auto-complete-config function for model 'm' is missing 'name' property."),
        (
            "output",
            {"name": "A", "dims": [1]},
            "output 'A' in auto-complete-config function for model 'm' is missing 'data_type' property.",
        ),
        (
            "input",
            {"name": "A", "data_type": "TYPE_FP32"},
            "input 'A' in auto-complete-config function for model 'm' is missing 'dims' property.",
        ),
    ],
)
def test_wrong_properties(kind, properties, said):
    assert refused(lambda c: getattr(c, f"add_{kind}")(properties)) == said


@pytest.mark.parametrize("kind", ["input", "output"])
def test_contradictions(kind):
    known = {kind: [{**A, "optional": False}]}
    assert refused(lambda c: getattr(c, f"add_{kind}")({**A, "data_type": "TYPE_INT8"}), **known) == (
        f"unable to load model 'm', configuration expects datatype TYPE_FP32 for {kind} 'A', model provides TYPE_INT8"
    )
    assert refused(lambda c: getattr(c, f"add_{kind}")({**A, "dims": [5]}), **known) == (
        "model 'm', tensor 'A': the model expects dims [5] but the model configuration specifies dims [4]"
    )


def test_contradiction_about_optional():
    assert refused(lambda c: c.add_input({**A, "optional": True}), input=[{**A, "optional": False}]) == (
        "model 'm', tensor 'A': the model expects optional True but the model configuration specifies optional False"
    )


def test_transaction_policy():
    assert refused(lambda c: c.set_model_transaction_policy({"other": 1})) == (
        "model transaction property in auto-complete-config function for model 'm' contains property other than "
        "'decoupled'."
    )
    policy = {"model_transaction_policy": {"decoupled": False}}
    assert refused(lambda c: c.set_model_transaction_policy({"decoupled": True}), **policy) == (
        "trying to change decoupled property in auto-complete-config for model 'm', which is already set to 'False'."
    )
