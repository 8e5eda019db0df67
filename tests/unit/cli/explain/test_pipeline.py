"""Ensembles as graphs: which parts they have, and in which order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from naiad.cli.explain.ensemble_steps import parts_of
from naiad.config.model_config_pb2 import DataType, ModelConfig
from naiad.core.errors import InferError


def ensemble(steps, inputs=("I",), outputs=("O",)):
    """Return an ensemble; a step is its model, its inputs and its outputs."""
    config = ModelConfig(name="e", platform="ensemble")
    for name in inputs:
        config.input.add(name=name, data_type=DataType.TYPE_FP32, dims=[-1, 4])
    for name in outputs:
        config.output.add(name=name, data_type=DataType.TYPE_FP32, dims=[4])
    config.ensemble_scheduling.SetInParent()
    for model, reads, writes in steps:
        step = config.ensemble_scheduling.step.add(model_name=model, model_version=-1)
        for index, tensor in enumerate(reads):
            step.input_map[f"in{index}"] = tensor
        for index, tensor in enumerate(writes):
            step.output_map[f"out{index}"] = tensor
    return config


def steps_of(parts):
    return {part.title: part for part in parts if part.kind == "step"}


def test_steps_follow_what_they_read():
    config = ensemble([("c", ["a", "b"], ["O"]), ("b", ["a"], ["b"]), ("a", ["I"], ["a"])])
    steps = steps_of(parts_of(config))
    assert [steps[name].layer for name in "abc"] == [1, 2, 3]
    assert list(steps) == ["a", "b", "c"]


def test_branches_share_a_layer():
    config = ensemble([("a", ["I"], ["x"]), ("b", ["I"], ["y"]), ("c", ["x", "y"], ["O"])])
    steps = steps_of(parts_of(config))
    assert steps["a"].layer == steps["b"].layer == 1
    assert steps["c"].layer == 2


def test_versions_kinds_and_conditions_are_shown():
    config = ensemble([("a", ["I"], ["x"]), ("b", ["x"], ["O"])])
    config.ensemble_scheduling.step[0].model_version = 3
    config.parameters["run_if.b"].string_value = "x"
    members = {"a": ModelConfig(name="a", backend="python"), "b": ensemble([])}
    members["a"].model_transaction_policy.decoupled = True
    steps = steps_of(parts_of(config, members))
    assert steps["a v3"].note == "python, decoupled"
    assert steps["b"].note == "ensemble"
    assert ("if", "x") in steps["b"].reads


def test_a_model_that_is_no_ensemble_is_rejected():
    with pytest.raises(InferError, match="model 'm' is not an ensemble, so there is no graph to draw"):
        parts_of(ModelConfig(name="m", backend="python"))


def test_cyclic_steps_are_rejected():
    config = ensemble([("a", ["y", "I"], ["x"]), ("b", ["x"], ["y"]), ("c", ["I"], ["O"])])
    with pytest.raises(InferError, match="steps of ensemble 'e' form a cycle: 'a', 'b'"):
        parts_of(config)


@st.composite
def graphs(draw):
    steps, known = [], ["I", "J"]
    for number in range(draw(st.integers(1, 7))):
        reads = draw(st.lists(st.sampled_from(known), min_size=1, max_size=3, unique=True))
        writes = [f"t{number}_{index}" for index in range(draw(st.integers(1, 3)))]
        steps.append((f"m{number}", reads, writes))
        known += writes
    read = {tensor for _, reads, _ in steps for tensor in reads}
    outputs = [tensor for tensor in known[2:] if tensor not in read]
    return ensemble(steps, inputs=("I", "J"), outputs=outputs)


@given(graphs())
def test_parts_follow_all_that_they_read(config):
    written = set()
    parts = parts_of(config)
    for part in parts:
        assert {tensor for _, tensor in part.reads} <= written
        written |= {tensor for _, tensor in part.writes}
    assert len(parts) == len(config.input) + len(config.ensemble_scheduling.step) + len(config.output)
