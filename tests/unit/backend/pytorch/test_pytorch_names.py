"""Names of inputs and outputs, and parameters, of PyTorch models, without PyTorch."""

import pytest

from naiad.backend.pytorch.model_parameters import read_options
from naiad.backend.pytorch.naming import Slot, bind_inputs, bind_outputs
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import InferError
from support.backend_parts import make_context

SLOTS = [Slot(("ids", "ARGS[0]")), Slot(("mask", "ARGS[1]")), Slot(("flag",), default=None)]


def config_of(inputs=(), outputs=(), **parameters):
    config = ModelConfig(name="m")
    for name in inputs:
        config.input.add(name=name, data_type="TYPE_FP32", dims=[1])
    for name in outputs:
        config.output.add(name=name, data_type="TYPE_FP32", dims=[1])
    for name, text in parameters.items():
        config.parameters[name].string_value = text
    return config


@pytest.mark.parametrize(
    ("names", "positions"),
    [
        (("mask", "ids"), [1, 0]),
        (("ARGS[1]", "ids"), [1, 0]),
        (("INPUT__1", "INPUT__0"), [1, 0]),
        (("x__2", "y__0", "z__1"), [2, 0, 1]),
        (("first", "second"), [0, 1]),
        (("mask", "second"), [0, 1]),
    ],
)
def test_inputs_follow_the_rules_of_triton(names, positions):
    assert list(bind_inputs(config_of(names), SLOTS).values()) == positions


@pytest.mark.parametrize("names", [("ids",), ("a", "b", "c", "d"), ("INPUT__0", "INPUT__3"), ("INPUT__0", "X__0")])
def test_inputs_without_an_argument_are_refused(names):
    with pytest.raises(InferError, match="unable to load model 'm'"):
        bind_inputs(config_of(names), SLOTS)


@pytest.mark.parametrize("names", [("ids", "ARGS[0]"), ("INPUT__1", "X__1")])
def test_two_inputs_of_one_argument_are_refused(names):
    with pytest.raises(InferError, match="several inputs are one argument of forward"):
        bind_inputs(config_of(names), SLOTS)


def test_sequence_controls_are_arguments():
    config = config_of(["ids"])
    control = config.sequence_batching.control_input.add(name="mask").control.add()
    control.int32_false_true.extend([0, 1])
    assert bind_inputs(config, SLOTS) == {"ids": 0, "mask": 1}


@pytest.mark.parametrize(
    ("names", "positions"), [(("OUTPUT__2", "OUTPUT__0"), [2, 0]), (("a", "b"), [0, 1]), (("a__x", "b__1"), [0, 1])]
)
@pytest.mark.parametrize("slots", [None, [Slot(())] * 3])
def test_outputs_have_numbers_or_an_order(names, positions, slots):
    assert list(bind_outputs(config_of(outputs=names), slots).values()) == positions


def test_output_without_a_result_is_refused():
    with pytest.raises(InferError, match="This model has 1 outputs"):
        bind_outputs(config_of(outputs=["OUTPUT__1"]), [Slot(())])


# --- parameters -----------------------------------------------------------------------------------------------------


def options_of(backend_config=None, *, cores=4, **parameters):
    return read_options(make_context(config_of(**parameters), usable_cores=cores, backend_config=backend_config))


@pytest.mark.parametrize(
    ("parameters", "count"),
    [({}, 4), ({"INTRA_OP_THREAD_COUNT": "2"}, 2), ({"NUM_THREADS": "3"}, 3), ({"NUM_THREADS": "64"}, 4)],
)
def test_threads_do_not_exceed_the_cores(parameters, count):
    assert options_of(**parameters).thread_count == count


def test_options_have_the_defaults_of_triton():
    options = options_of()
    assert (options.has_inference_mode, options.is_optimized) == (True, True)
    flags = (options.shares_weights, options.cleans_cache, options.may_unpickle)
    assert flags == (False, False, False)
    assert (options.compile, options.process_flags) == (None, {})


def test_only_the_server_allows_pickles():
    assert options_of({"allow-pickle": "true"}).may_unpickle
    assert not options_of(**{"allow-pickle": "true"}).may_unpickle


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"model": "x"}'])
def test_wrong_compile_arguments_are_refused(text):
    with pytest.raises(InferError, match="parameter 'TORCH_COMPILE_OPTIONAL_PARAMETERS'"):
        options_of(TORCH_COMPILE_OPTIONAL_PARAMETERS=text)


def test_compile_arguments_are_json():
    assert options_of(TORCH_COMPILE_OPTIONAL_PARAMETERS='{"mode": "default"}').compile == {"mode": "default"}
