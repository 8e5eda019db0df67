"""What configurations say about a system."""

import pytest
from google.protobuf import text_format

from naiad.config.model_config_pb2 import ModelConfig
from naiad.tools.analyze.simulation.simulated_system import RouteStep
from naiad.tools.analyze.simulation.system_configuration import configured, route_steps
from naiad.tools.analyze.space import Point
from naiad.tools.analyze.variants.dimensions import THREADS
from support.simulated_rows import config_of, point_of


def ensemble(name, *steps):
    """An ensemble; a step is a model, its inputs and its output."""
    config = ModelConfig(name=name)
    config.input.add(name="x")
    for model, inputs, output in steps:
        step = config.ensemble_scheduling.step.add(model_name=model)
        step.input_map.update({f"i{number}": each for number, each in enumerate(inputs)})
        step.output_map["o"] = output
    return config


def steps_of(name, *configs):
    models = configured(Point(()), {each.name: each for each in configs}, 2)
    return route_steps(name, models)


def test_a_variant_replaces_the_configuration():
    base = {"m": config_of(instances=1)}
    found = configured(point_of(config_of(instances=3, threads=2)), base, 8)["m"]
    assert (found.instance_count, found.threads, found.source) == (3, 2, "m")


@pytest.mark.parametrize(("backend", "parameter"), [*THREADS.items(), ("fil", "nthread")])
def test_each_backends_parameter_gives_its_threads(backend, parameter):
    config = ModelConfig(name="m", backend=backend)
    config.parameters[parameter].string_value = "3"
    assert configured(Point(()), {"m": config}, 8)["m"].threads == 3


@pytest.mark.parametrize("backend", ["trees", "fil", "sklearn"])
def test_backends_of_one_thread_leave_cores_alone(backend):
    assert configured(Point(()), {"m": ModelConfig(name="m", backend=backend)}, 8)["m"].threads == 1


@pytest.mark.parametrize(("instances", "cores", "threads"), [(1, 4, 4), (2, 4, 2), (3, 4, 1), (8, 4, 1)])
def test_threads_by_default_share_the_cores(instances, cores, threads):
    config = config_of(instances=instances)
    del config.parameters["intra_op_thread_count"]
    assert configured(Point(()), {"m": config}, cores)["m"].threads == threads


def test_a_python_model_has_one_thread():
    config = config_of(backend="python")
    del config.parameters["intra_op_thread_count"]
    assert configured(Point(()), {"m": config}, 8)["m"].threads == 1


def test_requests_of_sequences_count_as_independent():
    config = text_format.Parse(
        'name: "m" sequence_batching { oldest { max_queue_delay_microseconds: 70 } }', ModelConfig()
    )
    found = configured(Point(()), {"m": config}, 2)["m"].config
    assert found.dynamic_batching.max_queue_delay_microseconds == 70


def test_steps_follow_the_makers_of_their_inputs():
    # `c` is written first and runs last.
    top = ensemble("top", ("c", ["y", "z"], "out"), ("a", ["x"], "y"), ("b", ["x"], "z"))
    found = steps_of("top", top, *map(config_of, "abc"))
    assert found == [RouteStep("a"), RouteStep("b"), RouteStep("c", (0, 1))]


def test_an_inner_ensemble_is_spread_out():
    inner = ensemble("inner", ("a", ["x"], "p"), ("b", ["p"], "q"))
    top = ensemble("top", ("inner", ["x"], "y"), ("inner", ["y"], "out"))
    found = steps_of("top", top, inner, *map(config_of, "ab"))
    assert found == [RouteStep("a"), RouteStep("b", (0,)), RouteStep("a", (1,)), RouteStep("b", (2,))]


@pytest.mark.parametrize(
    ("step", "text"),
    [
        (("top", ["x"], "y"), "'top' contains itself"),
        (("gone", ["x"], "y"), "'gone' has no configuration"),
        (("a", ["nothing"], "y"), "whose inputs no step makes"),
    ],
)
def test_an_ensemble_that_cannot_run_is_an_error(step, text):
    with pytest.raises(ValueError, match=text):
        steps_of("top", ensemble("top", step), config_of("a"))
