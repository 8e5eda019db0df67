"""Settings applied to configurations."""

import json

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from naiad.config.forms.json_form import config_from_json
from naiad.config.model_config_pb2 import DataType, ModelConfig, ModelInstanceGroup
from naiad.config.validate.model import validate
from naiad.tools.analyze.space import Dimension
from naiad.tools.analyze.variants import Machine, RefusedError, combinations, default_dimensions, listed, make_variant
from support.long_run import examples

DELAY = "dynamic_batching.max_queue_delay_microseconds"
PREFERRED = "dynamic_batching.preferred_batch_size"
ADAPTIVE = "parameters.adaptive_batching"


def model(**fields) -> ModelConfig:
    config = ModelConfig(**{"name": "m", "backend": "python", "max_batch_size": 8, **fields})
    tensor = {"data_type": "TYPE_FP32", "dims": [4]}
    config.input.add(name="I", **tensor)
    config.output.add(name="O", **tensor)
    if not config.instance_group:
        config.instance_group.add(name="m_0", count=1, kind=ModelInstanceGroup.KIND_CPU)
    return config


def applied(config: ModelConfig, settings) -> ModelConfig:
    return config_from_json(make_variant(config, settings, "m_config_0").config_json)


def test_fields_of_all_kinds_are_set():
    settings = {
        "max_batch_size": 16,
        DELAY: 100,
        PREFERRED: [4, 8],
        "instance_group.count": 3,
        "parameters.intra_op_thread_count": "2",
        "response_cache.enable": True,
    }
    config = applied(model(), settings)
    assert config.max_batch_size == 16
    assert config.dynamic_batching.max_queue_delay_microseconds == 100
    assert list(config.dynamic_batching.preferred_batch_size) == [4, 8]
    assert [(group.name, group.count) for group in config.instance_group] == [("m_0", 3)]
    assert config.parameters["intra_op_thread_count"].string_value == "2"
    assert config.response_cache.enable
    assert config.input == model().input


def test_none_turns_dynamic_batching_off():
    config = model()
    config.dynamic_batching.max_queue_delay_microseconds = 5
    config.parameters["adaptive_batching"].string_value = "true"
    changed = applied(config, {DELAY: None})
    assert not changed.HasField("dynamic_batching")
    assert not changed.parameters


def test_adaptive_batching_brings_the_batcher():
    changed = applied(model(), {ADAPTIVE: "true"})
    assert changed.HasField("dynamic_batching")
    assert changed.parameters["adaptive_batching"].string_value == "true"
    assert not applied(changed, {ADAPTIVE: "false"}).parameters


def test_kind_replaces_the_groups():
    config = model()
    config.instance_group.add(name="m_1", count=1, kind=ModelInstanceGroup.KIND_GPU, gpus=[0])
    changed = applied(config, {"instance_group.kind": "KIND_GPU", "instance_group.count": 2})
    assert [(group.kind, group.count, group.name) for group in changed.instance_group] == [
        (ModelInstanceGroup.KIND_GPU, 2, "")
    ]


def test_preferred_sizes_are_limited_by_the_batch():
    config = model()
    config.dynamic_batching.preferred_batch_size.extend([4, 8])
    assert list(applied(config, {"max_batch_size": 4}).dynamic_batching.preferred_batch_size) == [4]


def test_sizes_of_sequences_and_warmup_are_limited():
    config = model()
    config.sequence_batching.oldest.preferred_batch_size.extend([2, 8])
    sample = config.model_warmup.add(name="w", batch_size=8).inputs["I"]
    sample.data_type, sample.zero_data = DataType.TYPE_FP32, True
    sample.dims.append(4)
    changed = applied(config, {"max_batch_size": 2})
    assert list(changed.sequence_batching.oldest.preferred_batch_size) == [2]
    assert changed.model_warmup[0].batch_size == 2


def test_configuration_of_the_repository_needs_no_override():
    variant = make_variant(model(), {}, "m_config_default")
    assert (variant.config_json, variant.model, variant.source_model) == ("", "m", "")


def test_another_format_is_the_source():
    variant = make_variant(model(name="m_int8"), {"max_batch_size": 4}, "m_int8_config_0", "m")
    assert (variant.model, variant.source_model) == ("m", "m_int8")
    assert json.loads(variant.config_json)["name"] == "m_int8"


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"max_batch_size": 0, DELAY: 100}, "no effect with max_batch_size 0"),
        ({"max_batch_size": 1, DELAY: 100}, "no effect with max_batch_size 1"),
        ({DELAY: None, ADAPTIVE: "true"}, "no effect without dynamic_batching"),
        ({DELAY: 100, ADAPTIVE: "true"}, "chooses the delay"),
        ({"max_batch_size": 4, PREFERRED: [8]}, "preferred size must be <= max batch size"),
        ({"max_batch_size": -1}, "must be non-negative"),
        ({"max_batch_sise": 1}, "Cannot find field"),
        ({"instance_group.count": "many"}, "invalid value"),
        ({"input.dims": [1]}, "is a list"),
    ],
)
def test_senseless_combinations_are_refused(settings, reason):
    with pytest.raises(RefusedError, match=reason):
        make_variant(model(), settings, "m_config_0")


def test_sequences_refuse_dynamic_batching():
    config = model()
    config.sequence_batching.SetInParent()
    with pytest.raises(RefusedError, match="sequence_batching"):
        make_variant(config, {DELAY: 0}, "m_config_0")


def test_variants_are_numbered_and_refusals_kept():
    found = listed(model(), [{"max_batch_size": 4}, {"max_batch_size": -1}, {"max_batch_size": 4}, {DELAY: 0}])
    assert [each.name for each in found.all] == ["m_config_default", "m_config_0", "m_config_1"]
    assert [settings for settings, _ in found.refused] == [{"max_batch_size": -1}, {"max_batch_size": 4}]


def test_combinations_of_other_models_are_left_out():
    dimensions = [Dimension("m", "max_batch_size", (1, 2)), Dimension("n", "max_batch_size", (1, 2, 4))]
    assert [each.settings["max_batch_size"] for each in combinations(model(), dimensions).variants] == [1, 2]


def test_combination_of_the_repository_is_left_out():
    config = model(max_batch_size=4)
    found = combinations(config, [Dimension("m", "max_batch_size", (2, 4, 8))])
    assert [each.settings.get("max_batch_size") for each in found.all] == [None, 2, 8]
    assert len(found.refused) == 1


def test_too_many_combinations_are_an_error():
    dimensions = [Dimension("m", field, tuple(range(1, 400))) for field in ("max_batch_size", "instance_group.count")]
    with pytest.raises(ValueError, match="more than 100000 combinations"):
        combinations(model(), dimensions)


@hypothesis_settings(max_examples=examples(30))  # Each one makes and validates all variants of a space.
@given(
    cores=st.integers(1, 5),
    gpus=st.integers(0, 1),
    max_batch_size=st.sampled_from([0, 1, 8]),
    backend=st.sampled_from(["python", "onnxruntime", "openvino", "unknown"]),
    is_batcher_on=st.booleans(),
)
def test_default_space_gives_valid_distinct_configurations(cores, gpus, max_batch_size, backend, is_batcher_on):
    config = model(backend=backend, max_batch_size=max_batch_size)
    if is_batcher_on:
        config.dynamic_batching.SetInParent()
    dimensions = default_dimensions(config, Machine(cores, gpus), tries_cache=True)
    found = combinations(config, [each for each in dimensions if each.field != "instance_group.count"])
    assert found.variants
    assert len({each.config_json for each in found.variants}) == len(found.variants)
    for variant in found.variants:
        changed = config_from_json(variant.config_json)
        assert not [problem for problem in validate(changed) if problem.is_error]
        assert list(changed.input) == list(config.input)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "max_batch_size": st.integers(1, 128),
            DELAY: st.one_of(st.none(), st.integers(0, 10**6)),
            "instance_group.count": st.integers(1, 8),
            "parameters.num_threads": st.sampled_from(["1", "2"]),
        },
    )
)
def test_applied_settings_change_nothing_twice(settings):
    try:
        first = make_variant(model(), {**settings, "response_cache.enable": False}, "m_config_0")
    except RefusedError:
        return
    again = make_variant(config_from_json(first.config_json), first.settings, "m_config_0")
    assert again.config_json == first.config_json
