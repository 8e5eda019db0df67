"""Positions in the picture of an ensemble."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from naiad.cli.explain.layout import lay_out
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


def steps_of(pipeline):
    return {box.title: box for box in pipeline.boxes if box.kind == "step"}


def test_steps_stand_right_of_what_they_read():
    config = ensemble([("c", ["a", "b"], ["O"]), ("b", ["a"], ["b"]), ("a", ["I"], ["a"])])
    steps = steps_of(lay_out(config))
    assert [steps[name].layer for name in "abc"] == [1, 2, 3]
    assert steps["a"].x < steps["b"].x < steps["c"].x


def test_branches_share_a_column():
    config = ensemble([("a", ["I"], ["x"]), ("b", ["I"], ["y"]), ("c", ["x", "y"], ["O"])])
    steps = steps_of(lay_out(config))
    assert steps["a"].layer == steps["b"].layer == 1
    assert steps["a"].y != steps["b"].y


def test_tensor_passing_column_has_lane():
    config = ensemble([("a", ["I"], ["x"]), ("b", ["x", "I"], ["O"])])
    lanes = [box for box in lay_out(config).boxes if box.kind == "lane"]
    assert [(lane.layer, lane.reads[0][1]) for lane in lanes] == [(1, "I")]


def test_versions_kinds_and_conditions_are_shown():
    config = ensemble([("a", ["I"], ["x"]), ("b", ["x"], ["O"])])
    config.ensemble_scheduling.step[0].model_version = 3
    config.parameters["run_if.b"].string_value = "x"
    members = {"a": ModelConfig(name="a", backend="python"), "b": ensemble([])}
    members["a"].model_transaction_policy.decoupled = True
    steps = steps_of(lay_out(config, members))
    assert steps["a v3"].note == "python, decoupled"
    assert steps["b"].note == "ensemble"
    assert ("if", "x") in steps["b"].reads


def test_a_model_that_is_no_ensemble_is_rejected():
    with pytest.raises(InferError, match="model 'm' is not an ensemble, so there is no graph to draw"):
        lay_out(ModelConfig(name="m", backend="python"))


def test_cyclic_steps_are_rejected():
    config = ensemble([("a", ["y", "I"], ["x"]), ("b", ["x"], ["y"]), ("c", ["I"], ["O"])])
    with pytest.raises(InferError, match="steps of ensemble 'e' form a cycle: 'a', 'b'"):
        lay_out(config)


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
def test_nothing_overlaps_and_every_tensor_arrives(config):
    pipeline = lay_out(config)
    taken = set()
    for box in pipeline.boxes:
        cells = {(x, y) for x in range(box.x, box.x + box.width) for y in range(box.y, box.y + box.height)}
        assert not cells & taken
        taken |= cells
    entered = {}
    for wire in pipeline.wires:
        assert wire.start[0] < wire.track
        assert all(wire.track < x for x, _ in wire.ends)
        for end in wire.ends:
            assert end not in entered
            entered[end] = wire.tensor
    for box in pipeline.boxes:
        for port, (_, tensor) in enumerate(box.reads):
            assert entered[box.enter(port)] == tensor
    # Between two columns no two tensors share a track, nor a row: outgoing rows are odd, incoming ones even.
    tracks = [wire.track for wire in pipeline.wires]
    assert len(tracks) == len(set(tracks))
    assert all(wire.start[1] % 2 == 1 and all(y % 2 == 0 for _, y in wire.ends) for wire in pipeline.wires)
