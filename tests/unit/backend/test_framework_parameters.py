"""Parameters, model files and thread counts, as the adapters of frameworks read them."""

from dataclasses import replace

import pytest

from naiad.backend.framework import Parameters, find_model_file, may_unpickle, threads_per_instance
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import InferError
from support.backend_parts import make_context


def _parameters(settings=None, **texts):
    config = ModelConfig(name="m")
    for name, text in texts.items():
        config.parameters[name].string_value = text
    return Parameters(config, settings)


def test_model_parameters_override_backend_settings():
    parameters = _parameters({"threads": "3", "mode": "slow"}, threads="2")
    assert (parameters.count("threads"), parameters.text("mode")) == (2, "slow")


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("1", True), ("ON", True), ("False", False), ("0", False)]
)
def test_flags_have_several_spellings(text, value):
    assert _parameters(fast=text).flag("fast", default=not value) is value


def test_absent_parameters_have_defaults():
    parameters = _parameters()
    values = (parameters.flag("a", default=True), parameters.count("a", 7), parameters.number("a", 0.5))
    assert (*values, parameters.choice("a", ["x"], "x")) == (True, 7, 0.5, "x")


@pytest.mark.parametrize(
    ("read", "text", "expected"),
    [
        (lambda p: p.flag("p"), "maybe", "expected true or false"),
        (lambda p: p.count("p", maximum=9), "10", "expected a whole number from 0 to 9"),
        (lambda p: p.count("p"), "-1", "expected a whole number"),
        (lambda p: p.number("p", 0), "nan", "expected a finite number"),
        (lambda p: p.number("p", 0), "x", "expected a number"),
        (lambda p: p.choice("p", ["cpu", "gpu"]), "tpu", "expected one of cpu, gpu"),
    ],
)
def test_wrong_values_name_what_is_expected(read, text, expected):
    with pytest.raises(InferError, match=f"model 'm': parameter 'p' is '{text}', {expected}"):
        read(_parameters(p=text))


def test_choices_ignore_case():
    assert _parameters(device="GPU").choice("device", ["cpu", "gpu"]) == "gpu"


def test_prefixes_select_parameters():
    assert _parameters({"x.a": "1"}, **{"x.b": "2", "y": "3"}).with_prefix("x.") == {"a": "1", "b": "2"}


def test_missing_model_file_names_alternatives(tmp_path):
    context = make_context(ModelConfig(name="m"), tmp_path)
    with pytest.raises(InferError, match=r"there is no file .*model\.a \(or model\.b\)"):
        find_model_file(context, ["model.a", "model.b"])
    (context.version_dir / "model.b").mkdir(parents=True)
    assert find_model_file(context, ["model.a", "model.b"]).name == "model.b"


def test_threads_share_the_usable_cores(tmp_path):
    config = ModelConfig(name="m")
    config.instance_group.add(count=2, kind="KIND_CPU")
    context = make_context(config, tmp_path)
    share = max(1, context.usable_cores // 2)
    assert threads_per_instance(context, Parameters(config), "threads") == share
    config.parameters["threads"].string_value = "5"
    assert threads_per_instance(context, Parameters(config), "threads") == 5


@pytest.mark.parametrize(("instances", "share"), [((2,), 4), ((3, 1), 2), ((20,), 1)])
def test_instances_divide_the_cores(tmp_path, instances, share):
    config = ModelConfig(name="m")
    for count in instances:
        config.instance_group.add(count=count, kind="KIND_CPU")
    context = replace(make_context(config, tmp_path), usable_cores=8)
    assert threads_per_instance(context, Parameters(config), "threads") == share


@pytest.mark.parametrize(
    ("setting", "allowed"), [("true", True), ("1", True), ("on", True), ("false", False), ("0", False), ("", False)]
)
def test_pickles_need_the_setting_of_the_server(tmp_path, setting, allowed):
    config = ModelConfig(name="m")
    config.parameters["allow-pickle"].string_value = "true"
    context = replace(make_context(config, tmp_path), backend_config={"allow-pickle": setting})
    assert may_unpickle(context) is allowed


def test_pickles_are_not_allowed_without_a_setting(tmp_path):
    assert not may_unpickle(make_context(ModelConfig(name="m"), tmp_path))
