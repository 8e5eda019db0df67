"""The identity backend."""

import numpy as np
import pytest

from naiad.backend import identity
from naiad.backend.api import InstanceSpec
from naiad.backend.identity import IdentityBackend
from naiad.backend.load_stop import LoadStop
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import InferError
from support.backend_parts import execute, infer, make_context, make_header, make_request, strings


def config(**parameters: str) -> ModelConfig:
    made = ModelConfig(name="m", max_batch_size=8)
    for number, datatype in enumerate(("TYPE_FP32", "TYPE_STRING")):
        made.input.add(name=f"INPUT{number}", data_type=datatype, dims=[-1])
        made.output.add(name=f"OUTPUT{number}", data_type=datatype, dims=[-1])
    for name, value in parameters.items():
        made.parameters[name].string_value = value
    return made


def spec(index: int = 0) -> InstanceSpec:
    return InstanceSpec(f"m_0_{index}", index, "KIND_CPU")


@pytest.fixture
def naps(monkeypatch):
    taken: list[float] = []
    monkeypatch.setattr(identity.time, "sleep", taken.append)
    monkeypatch.setattr(LoadStop, "wait", lambda _, timeout_s: taken.append(timeout_s))
    return taken


def arrays():
    return {"INPUT0": np.ones((1, 3), np.float32), "INPUT1": strings(b"a", b"").reshape(1, 2)}


def test_inputs_come_back_under_the_names_of_outputs():
    instance = IdentityBackend().load(make_context(config())).create_instance(spec())
    returned = infer(instance, arrays())
    assert returned["OUTPUT0"].tolist() == [[1, 1, 1]]
    assert returned["OUTPUT1"].tolist() == [[b"a", b""]]
    assert list(infer(instance, arrays(), ["OUTPUT1"])) == ["OUTPUT1"]


def test_response_uses_received_buffer_and_shared_headers():
    instance = IdentityBackend().load(make_context(config())).create_instance(spec())
    header = make_header(arrays())
    requests = [make_request(arrays(), header=header) for _ in range(3)]
    responses = execute(instance, requests)
    assert all(a.data[0] is r.data[0] for a, r in zip(responses, requests, strict=True))
    assert len({id(response.header) for response in responses}) == 1


def test_a_single_pair_may_have_any_names():
    made = ModelConfig(name="m")
    made.input.add(name="x", data_type="TYPE_BF16", dims=[2])
    made.output.add(name="y", data_type="TYPE_BF16", dims=[2])
    assert identity.pair_tensors(made) == {"x": "y"}


def test_delays(naps):
    made = config(execute_delay_ms="20", creation_delay_sec="3", instance_wise_delay_multiplier="2")
    model = IdentityBackend().load(make_context(made))
    assert naps == [3]
    for index in range(3):
        instance = model.create_instance(spec(index))
        assert not instance.runs_on_any_thread
        execute(instance, [make_request(arrays()), make_request(arrays())])
    assert naps[1:] == [0.02, 0.04, 0.08]


def test_without_delay_nothing_sleeps(naps):
    instance = IdentityBackend().load(make_context(config())).create_instance(spec(1))
    assert instance.runs_on_any_thread
    infer(instance, arrays())
    assert naps == []


@pytest.mark.parametrize("value", ["", "fast", "-1", "nan", "inf"])
def test_a_delay_that_is_no_number_is_refused(value):
    with pytest.raises(InferError, match=f"parameter 'execute_delay_ms' is '{value}', expected a number"):
        IdentityBackend().load(make_context(config(execute_delay_ms=value)))


def test_tensors_without_a_partner_are_refused():
    made = config()
    made.output[1].name = "OTHER"
    with pytest.raises(InferError, match="returns input 'INPUT1' as output 'OUTPUT1', which"):
        identity.pair_tensors(made)
    made = config()
    made.output.add(name="OUTPUT2", data_type="TYPE_FP32", dims=[1])
    with pytest.raises(InferError, match="no input belongs to output 'OUTPUT2'"):
        identity.pair_tensors(made)
    made = config()
    made.output[0].data_type = made.output[1].data_type
    with pytest.raises(InferError, match="expected input and output datatype to match, got"):
        identity.pair_tensors(made)


# --- reshape and optional inputs ------------------------------------------------------------------------------------


def reshaped(dims, target, output_dims, output_target=None, **fields) -> ModelConfig:
    made = ModelConfig(name="m", **fields)
    source = made.input.add(name="INPUT0", data_type="TYPE_INT8", dims=dims)
    source.reshape.shape.extend(target)
    output = made.output.add(name="OUTPUT0", data_type="TYPE_INT8", dims=output_dims)
    if output_target is not None:
        output.reshape.shape.extend(output_target)
    return made


def test_shapes_are_compared_after_reshape():
    instance = IdentityBackend().load(make_context(reshaped([2, 3], [6], [6]))).create_instance(spec())
    returned = infer(instance, {"INPUT0": np.arange(6, dtype=np.int8).reshape(2, 3)})
    assert returned["OUTPUT0"].tolist() == [0, 1, 2, 3, 4, 5]
    with pytest.raises(InferError) as caught:
        IdentityBackend().load(make_context(reshaped([2, 3], [6], [2, 3])))
    assert caught.value.message.startswith("expected input and output shape to match, got [6] and [2,3]")


def test_both_reshapes_count_in_the_answer():
    made = reshaped([-1, 2], [-1, 1, 2], [-1, 2], [-1, 1, 2], max_batch_size=4)
    instance = IdentityBackend().load(make_context(made)).create_instance(spec())
    assert infer(instance, {"INPUT0": np.ones((3, 5, 2), np.int8)})["OUTPUT0"].shape == (3, 5, 2)


def test_a_missing_optional_input_is_answered_with_zeros():
    made = config()
    for tensor in made.input:
        tensor.optional = True
    made.input[0].dims[:] = [-1, 2]
    made.output[0].dims[:] = [-1, 2]
    instance = IdentityBackend().load(make_context(made)).create_instance(spec())
    returned = infer(instance, {"INPUT1": strings(b"a", b"b").reshape(2, 1)})
    assert returned["OUTPUT0"].tolist() == [[[0, 0]], [[0, 0]]]
    assert returned["OUTPUT1"].tolist() == [[b"a"], [b"b"]]
    returned = infer(instance, {"INPUT0": np.ones((3, 1, 2), np.float32)})
    assert returned["OUTPUT1"].tolist() == [[b""]] * 3
    # An output that was not asked for is not made.
    assert list(infer(instance, {"INPUT0": np.ones((1, 1, 2), np.float32)}, ["OUTPUT0"])) == ["OUTPUT0"]
