"""Ensembles follow their members."""

import pytest

from naiad.config.forms.json_form import config_from_json
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import InferError
from naiad.tools.analyze.variants import fit_ensembles, make_variant, members_first

TENSOR = {"data_type": "TYPE_FP32", "dims": [4]}


def config(name: str, *members: str, max_batch_size: int = 8) -> ModelConfig:
    made = ModelConfig(name=name, max_batch_size=max_batch_size)
    made.input.add(name="I", **TENSOR)
    made.output.add(name="O", **TENSOR)
    if not members:
        made.backend = "python"
    else:
        made.platform = "ensemble"
    for number, member in enumerate(members):
        step = made.ensemble_scheduling.step.add(model_name=member, model_version=-1)
        step.input_map["I"] = "I" if number == 0 else f"t{number - 1}"
        step.output_map["O"] = "O" if number == len(members) - 1 else f"t{number}"
    return made


CONFIGS = {
    "outer": config("outer", "inner", "c"),
    "inner": config("inner", "a", "b"),
    **{name: config(name, max_batch_size=16) for name in "abc"},
}


def limits(*variants) -> dict[str, int]:
    return {
        each.model: config_from_json(each.config_json).max_batch_size for each in fit_ensembles(CONFIGS, variants)
    }


def batch(model: str, size: int):
    return make_variant(CONFIGS[model], {"max_batch_size": size}, f"{model}_config_0")


def test_order_has_members_first():
    order = members_first(CONFIGS)
    assert order.index("a") < order.index("inner") < order.index("outer")


def test_circle_of_ensembles_is_an_error():
    with pytest.raises(InferError, match="contain each other"):
        members_first({"x": config("x", "y"), "y": config("y", "x")})


def test_smallest_member_limits_ensembles_above():
    assert limits(batch("a", 4), batch("c", 32)) == {"a": 4, "c": 32, "inner": 4, "outer": 4}


def test_ensemble_grows_with_its_members():
    assert limits(batch("a", 64), batch("b", 32), batch("c", 128)) == {
        "a": 64,
        "b": 32,
        "c": 128,
        "inner": 32,
        "outer": 32,
    }


def test_repository_configurations_leave_ensembles_alone():
    default = make_variant(CONFIGS["a"], {}, "a_config_default")
    assert fit_ensembles(CONFIGS, [default]) == [default]


def test_variant_of_the_ensemble_keeps_its_settings():
    cached = make_variant(CONFIGS["inner"], {"response_cache.enable": True}, "inner_config_3")
    (_, inner, *_) = fit_ensembles(CONFIGS, [batch("a", 2), cached])
    assert (inner.name, inner.settings) == ("inner_config_3", {"response_cache.enable": True, "max_batch_size": 2})


def test_ensembles_above_only_shrink():
    known = {name: CONFIGS[name] for name in ("inner", "a")}
    shrunk, fitted = fit_ensembles(known, [batch("a", 4)], above=["inner"])
    assert (shrunk.model, fitted.model, fitted.settings) == ("a", "inner", {"max_batch_size": 4})
    assert [each.model for each in fit_ensembles(known, [batch("a", 64)], above=["inner"])] == ["a"]
