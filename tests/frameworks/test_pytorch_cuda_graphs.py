"""Forward passes as graphs: when they are recorded and replayed; a recorder for the CPU takes the GPU's place."""

import logging

import numpy as np
import pytest
import torch

from naiad.backend.api import InstanceSpec
from naiad.backend.pytorch import cuda_graphs, instance
from naiad.backend.pytorch.backend import PyTorchBackend
from naiad.backend.pytorch.cuda_graphs import Graph, GraphedCall
from naiad.config.model_config_pb2 import ModelConfig
from support.backend_parts import load_model, make_context


class Recorder:
    """Replays by calling again, and writes to the same memory each time, as a graph does."""

    def __init__(self, device="cpu"):
        self.records = 0

    def record(self, call, arguments):
        self.records += 1
        given = [cuda_graphs._copied(argument) for argument in arguments]
        returned = call(given)

        def replay():
            leaves = zip(cuda_graphs._tensors(returned), cuda_graphs._tensors(call(given)), strict=True)
            for target, source in leaves:
                target.copy_(source)

        return Graph(given, returned, replay)


class Refusing:
    def __init__(self, device="cpu"):
        self.asked = 0

    def record(self, call, arguments):
        self.asked += 1
        raise RuntimeError("operation not permitted when stream is capturing")


def double(arguments):
    return (arguments[0] * 2, {"first": arguments[0][:1]})


def answers(graphed, *values):
    first, rest = graphed([torch.tensor(values, dtype=torch.float32)])
    return first, rest["first"]


def test_second_batch_of_a_shape_is_recorded_and_later_ones_replayed():
    recorder = Recorder()
    calls = []
    graphed = GraphedCall("m", lambda arguments: calls.append(1) or double(arguments), recorder)
    first, _ = answers(graphed, 1, 2)
    assert recorder.records == 0
    second, view = answers(graphed, 3, 4)
    third, _ = answers(graphed, 5, 6)
    other, _ = answers(graphed, 7)
    assert recorder.records == 1
    assert [each.tolist() for each in (first, second, third, other)] == [[2, 4], [6, 8], [10, 12], [14]]
    assert view.tolist() == [3], "a later replay has changed an answer"
    assert len(calls) == 5


def test_model_that_cannot_be_recorded_runs_without_graphs(caplog):
    recorder = Refusing()
    graphed = GraphedCall("m", double, recorder)
    with caplog.at_level(logging.WARNING):
        for value in (1, 2, 3):
            assert answers(graphed, value)[0].tolist() == [2 * value]
            assert answers(graphed, value, 0)[0].tolist() == [2 * value, 0]
    assert recorder.asked == 2
    assert [record.getMessage() for record in caplog.records] == [
        "model 'm' runs without CUDA graphs: operation not permitted when stream is capturing"
    ]


def test_number_of_graphs_is_limited(monkeypatch):
    monkeypatch.setattr(cuda_graphs, "MAX_GRAPHS", 2)
    monkeypatch.setattr(cuda_graphs, "MAX_SEEN", 3)
    recorder = Recorder()
    graphed = GraphedCall("m", double, recorder)
    for _ in range(3):
        for rows in range(1, 6):
            assert answers(graphed, *range(rows))[0].tolist() == [2.0 * row for row in range(rows)]
    assert recorder.records == 2
    assert len(graphed._seen) == 3


def test_optional_inputs_of_a_dictionary_have_graphs_of_their_own():
    recorder = Recorder()
    graphed = GraphedCall("m", lambda arguments: sum(arguments[0].values()), recorder)
    one, two = torch.ones(2), torch.full((2,), 2.0)
    for _ in range(2):
        assert graphed([{"a": one, "b": two}]).tolist() == [3, 3]
        assert graphed([{"a": one}]).tolist() == [1, 1]
        assert graphed([{"b": two}]).tolist() == [2, 2]
    assert recorder.records == 3


def test_texts_are_never_recorded():
    recorder = Recorder()
    graphed = GraphedCall("m", lambda arguments: torch.tensor([len(arguments[0])]), recorder)
    assert [graphed([["x"] * count]).item() for count in (1, 2, 2, 1)] == [1, 2, 2, 1]
    assert recorder.records == 0


SOURCE = """
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return x * 2
"""


@pytest.fixture
def program(tmp_path):
    """A loaded model, its program and its options; `graphs` is set by the test."""
    config = ModelConfig(name="m", backend="pytorch", max_batch_size=4)
    config.input.add(name="x", data_type="TYPE_FP32", dims=[2])
    config.output.add(name="OUTPUT__0", data_type="TYPE_FP32", dims=[2])
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "model.py").write_text(SOURCE)
    model, config = load_model(PyTorchBackend(), make_context(config, tmp_path))
    made = model.create_instance(InstanceSpec("m_0", 0, "KIND_CPU"))
    return make_context(config, tmp_path), made.executable, made._options


@pytest.mark.parametrize(
    ("device", "graphs", "expected"), [("cuda:0", True, True), ("cuda:0", False, False), ("cpu", True, False)]
)
def test_configuration_turns_graphs_on_for_gpus_only(program, monkeypatch, device, graphs, expected):
    context, loaded, options = program
    context.config.optimization.cuda.graphs = graphs
    monkeypatch.setattr(instance, "dlpack_device", lambda device: (2, 0))
    made = instance.TorchInstance(context, loaded, device, options)
    assert (made._graphed is not None) is expected


def test_instance_answers_through_graphs_and_forgets_them(program):
    context, loaded, options = program
    made = instance.TorchInstance(context, loaded, "cpu", options)
    graphed = made._graphed = GraphedCall("m", loaded.call, Recorder())
    found = [made.run({"x": np.full((1, 2), value, np.float32)}, ["OUTPUT__0"])[0] for value in (1, 2, 3)]
    assert [each.tolist() for each in found] == [[[2, 2]], [[4, 4]], [[6, 6]]]
    assert len(graphed._graphs) == 1
    made.close()
    assert not graphed._graphs
    with pytest.raises(RuntimeError, match="closed"):
        graphed([torch.ones(1, 2)])
