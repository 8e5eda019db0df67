"""ONNX models from a file to answers: loading, completing, checking, running, failing."""

import gc
import logging
import os
import weakref
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from naiad.backend.api import InstanceSpec
from naiad.backend.onnx import sessions as onnx_sessions
from naiad.backend.onnx.backend import OnnxInstance, OnnxModel, OnnxRuntimeBackend
from naiad.backend.onnx.sessions import SessionPlace
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import ErrorCode, InferError
from support import onnx_models
from support.backend_parts import (
    execute,
    infer,
    load_onnx,
    make_context,
    make_header,
    make_request,
    new_instance,
    output_arrays,
    strings,
)


def refusal(tmp_path, model, **fields) -> InferError:
    with pytest.raises(InferError) as caught:
        load_onnx(tmp_path, model, **fields)
    return caught.value


def tensor(name: str, dims, data_type: str = "TYPE_FP32", **fields):
    return {"name": name, "dims": dims, "data_type": data_type, **fields}


ADD_SUB_IO = {
    "input": [tensor("INPUT0", [16]), tensor("INPUT1", [16])],
    "output": [tensor("OUTPUT0", [16]), tensor("OUTPUT1", [16])],
}


def pair(first: float = 0, rows: int = 1):
    a = np.arange(rows * 16, dtype=np.float32).reshape(rows, 16) + np.float32(first)
    return {"INPUT0": a, "INPUT1": a * 3}


# --- completing a configuration -------------------------------------------------------------------------------------


def test_a_model_that_can_batch_does(tmp_path):
    _, config = load_onnx(tmp_path, onnx_models.add_sub())
    assert config.max_batch_size == 4
    assert config.HasField("dynamic_batching")
    assert [list(t.dims) for t in (*config.input, *config.output)] == [[16]] * 4


def test_default_max_batch_size_is_a_setting(tmp_path):
    _, config = load_onnx(tmp_path, onnx_models.add_sub(), backend_config={"default-max-batch-size": "9"})
    assert config.max_batch_size == 9
    _, config = load_onnx(tmp_path, None, backend_config={"default-max-batch-size": "1"})
    assert config.max_batch_size == 1
    assert not config.HasField("dynamic_batching")
    _, config = load_onnx(tmp_path, None, backend_config={"default-max-batch-size": "0"})
    assert config.max_batch_size == 0
    assert [list(t.dims) for t in config.input] == [[-1, 16]] * 2
    error = refusal(tmp_path, None, backend_config={"default-max-batch-size": "many"})
    assert "default-max-batch-size is 'many'" in error.message


def test_what_the_configuration_says_stays(tmp_path):
    _, config = load_onnx(
        tmp_path,
        onnx_models.add_sub(),
        max_batch_size=2,
        input=[tensor("INPUT1", [-1]), {"name": "INPUT0"}],
        dynamic_batching={"max_queue_delay_microseconds": 7},
    )
    assert config.max_batch_size == 2
    assert config.dynamic_batching.max_queue_delay_microseconds == 7
    assert [(t.name, list(t.dims)) for t in config.input] == [("INPUT1", [-1]), ("INPUT0", [16])]
    assert [t.name for t in config.output] == ["OUTPUT0", "OUTPUT1"]


def test_a_complete_configuration_is_left_alone(tmp_path):
    _, config = load_onnx(tmp_path, onnx_models.add_sub(), max_batch_size=4, **ADD_SUB_IO)
    assert not config.HasField("dynamic_batching")


def test_scalars_are_completed_to_one_element(tmp_path):
    model, config = load_onnx(tmp_path, onnx_models.total())
    assert config.max_batch_size == 0
    assert list(config.output[0].dims) == [1]
    # Triton: an empty reshape is refused without batching.
    assert not config.output[0].HasField("reshape")
    returned = infer(new_instance(model), {"INPUT0": np.ones((3, 4), np.float32)})
    assert returned["OUTPUT0"].tolist() == [12]


def test_one_number_per_row_is_reshaped_too(tmp_path):
    model, config = load_onnx(tmp_path, onnx_models.row_sums())
    assert (config.max_batch_size, list(config.output[0].dims)) == (4, [1])
    returned = infer(new_instance(model), {"INPUT0": np.ones((3, 4), np.float32)})
    assert returned["OUTPUT0"].tolist() == [[4], [4], [4]]


def test_max_batch_size_without_batching_is_rejected(tmp_path):
    error = refusal(tmp_path, onnx_models.add_sub([3, 16]), max_batch_size=8)
    assert error.code is ErrorCode.INVALID_ARG
    assert "model does not support batching while non-zero max_batch_size is specified" in error.message
    assert "tensor 'INPUT0' has shape [3,16] in the model" in error.message
    assert (
        "max_batch_size: 8. Set max_batch_size: 0, or export the model with a free first dimension" in error.message
    )


def test_batches_of_one_fit_fixed_first_dimension(tmp_path):
    model, config = load_onnx(tmp_path, onnx_models.add_sub([1, 16]), max_batch_size=1)
    assert [list(t.dims) for t in config.input] == [[16]] * 2
    assert infer(new_instance(model), pair())["OUTPUT1"].tolist() == (pair()["INPUT0"] * -2).tolist()


@pytest.mark.parametrize("complete", [True, False])
def test_a_model_of_sequences_is_refused(tmp_path, complete):
    io = {"input": [tensor("INPUT0", [4])], "output": [tensor("OUTPUT0", [4])]} if complete else {}
    error = refusal(tmp_path, onnx_models.sequence_output(), **io)
    assert error.code in (ErrorCode.UNSUPPORTED, ErrorCode.INVALID_ARG)
    assert "OUTPUT0" in error.message or "INPUT0" in error.message


# --- files ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["1", "1/model.onnx"])
@pytest.mark.parametrize("fields", [{}, {"default_model_filename": "model.onnx"}])
def test_weights_in_a_file_of_their_own(tmp_path, place, fields):
    """Beside the model file, or with it in a directory of its name."""
    onnx_models.external_data(tmp_path / place)
    model, config = load_onnx(tmp_path, None, **fields)
    assert list(config.input[0].dims) == [4096]
    returned = infer(new_instance(model), {"INPUT0": np.ones((1, 4096), np.float32)})
    assert returned["OUTPUT0"][0, 4095] == 4096


@pytest.mark.parametrize("place", ["1", "1/model.onnx"])
def test_weights_that_are_not_there_are_named(tmp_path, place):
    (onnx_models.external_data(tmp_path / place).parent / "model.onnx.data").unlink()
    error = refusal(tmp_path, None)
    assert f"{tmp_path / place / 'model.onnx'} cannot be loaded: " in error.message
    assert str(tmp_path / place / "model.onnx.data") in error.message


def test_weights_that_are_cut_off_are_refused(tmp_path):
    data = onnx_models.external_data(tmp_path / "1").parent / "model.onnx.data"
    os.truncate(data, 100)
    assert "weights" in refusal(tmp_path, None).message


@pytest.mark.parametrize("place", ["1", "1/model.onnx"])
@pytest.mark.parametrize(("size_bytes", "spins"), [(0, False), (300 << 10, True)])
def test_threads_spin_for_large_models(tmp_path, place, size_bytes, spins):
    path = onnx_models.external_data(tmp_path / place)
    os.truncate(path.parent / "model.onnx.data", (16 << 10) + size_bytes)
    model, _ = load_onnx(tmp_path, None, usable_cores=2)
    if spins:
        with pytest.raises(RuntimeError, match="allow_spinning"):
            options_of(model).get_session_config_entry("session.intra_op.allow_spinning")
    else:
        assert options_of(model).get_session_config_entry("session.intra_op.allow_spinning") == "0"


def test_default_model_filename(tmp_path):
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "other.onnx").write_bytes(onnx_models.add_sub())
    model, _ = load_onnx(tmp_path, None, default_model_filename="other.onnx")
    assert "OUTPUT0" in infer(new_instance(model), pair())


def test_a_missing_file_is_named(tmp_path):
    error = refusal(tmp_path, None)
    assert f"there is no file {tmp_path / '1' / 'model.onnx'}" in error.message
    assert "default_model_filename" in error.message


@pytest.mark.parametrize("cut", [0, 1, 50, -20])
@pytest.mark.parametrize("complete", [True, False])
def test_a_corrupt_file_is_refused_with_the_reason(tmp_path, cut, complete):
    content = onnx_models.add_sub()[:cut] if cut else b"this is not a model"
    io = {"max_batch_size": 4, **ADD_SUB_IO} if complete else {}
    error = refusal(tmp_path, content, **io)
    assert error.code is ErrorCode.INTERNAL
    assert error.message.startswith(
        f"model 'm' version 1: {tmp_path / '1' / 'model.onnx'} cannot be loaded: onnx runtime error "
    )


# --- holding the configuration against the model --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "text"),
    [
        pytest.param(
            {"input": [tensor("INPUT0", [16])]},
            "unable to load model 'm', configuration expects 1 inputs, model provides 2: add 'INPUT1' to 'input'",
            id="an input is missing",
        ),
        pytest.param(
            {"input": [*ADD_SUB_IO["input"], tensor("EXTRA", [1])]},
            "unable to load model 'm', configuration expects 3 inputs, model provides 2: remove 'EXTRA' from 'input'",
            id="an input too many",
        ),
        pytest.param(
            {"input": [tensor("INPUT0", [16]), tensor("UNKNOWN", [16])]},
            "unexpected inference input 'UNKNOWN', allowed inputs are: INPUT0, INPUT1",
            id="an input of another name",
        ),
        pytest.param(
            {"output": [tensor("SUM", [16])]},
            "unexpected inference output 'SUM', allowed outputs are: OUTPUT0, OUTPUT1; correct the configuration of "
            "model 'm'",
            id="an output of another name",
        ),
        pytest.param(
            {"output": [tensor("OUTPUT1", [16], "TYPE_INT32")]},
            "unable to load model 'm', unexpected datatype TYPE_INT32 for output 'OUTPUT1', expecting TYPE_FP32; "
            "write data_type: TYPE_FP32",
            id="datatype",
        ),
        pytest.param(
            {"input": [tensor("INPUT0", [16]), tensor("INPUT1", [2, 8])]},
            "model 'm', tensor 'INPUT1': the model expects 2 dimensions (shape [-1,16]) but the model configuration "
            "specifies 3 dimensions (an initial batch dimension because max_batch_size > 0 followed by the explicit "
            "tensor shape, making complete shape [-1,2,8]); write dims: [16] in config.pbtxt, or export the model "
            "with the shape that the configuration has",
            id="rank",
        ),
        pytest.param(
            {"input": [tensor("INPUT0", [16]), tensor("INPUT1", [17])]},
            "model 'm', tensor 'INPUT1': the model expects 2 dimensions (shape [-1,16]) but the model configuration "
            "specifies 2 dimensions (an initial batch dimension because max_batch_size > 0 followed by the explicit "
            "tensor shape, making complete shape [-1,17]): axis 1 is 16 in the model and 17 in the "
            "configuration; write dims: [16] in config.pbtxt, or export the model with the shape that the "
            "configuration has",
            id="dimension",
        ),
        pytest.param(
            {"input": [tensor("INPUT0", [16]), tensor("INPUT1", [16], optional=True)]},
            "input 'INPUT1' is 'optional' in the model configuration, but the model has no default",
            id="optional without a default",
        ),
    ],
)
def test_mismatches_are_named_with_fixes(tmp_path, change, text):
    error = refusal(tmp_path, onnx_models.add_sub(), max_batch_size=4, **{**ADD_SUB_IO, **change})
    assert error.code is ErrorCode.INVALID_ARG
    assert text in error.message


def test_batching_needs_a_free_first_dimension(tmp_path):
    error = refusal(tmp_path, onnx_models.add_sub([2, 16]), max_batch_size=4, **ADD_SUB_IO)
    assert error.message.startswith(
        "model 'm', tensor 'INPUT0': for the model to support batching the shape should have at least 1 dimension "
        "and the first dimension must be -1; but shape expected by the model is [2,16]"
    )
    assert "Set max_batch_size: 0" in error.message


@pytest.mark.parametrize("dims", [["N", 16], ["N", "width"], ["N", None]])
def test_free_configured_dimension_fits_any_model_dimension(tmp_path, dims):
    io = {
        "input": [tensor("INPUT0", [-1]), tensor("INPUT1", [-1])],
        "output": [tensor("OUTPUT0", [-1]), tensor("OUTPUT1", [-1])],
    }
    model, _ = load_onnx(tmp_path, onnx_models.add_sub(dims), max_batch_size=4, **io)
    assert infer(new_instance(model), pair())["OUTPUT0"].shape == (1, 16)


def test_strict_setting_brings_back_tritons_rule(tmp_path):
    io = {"input": [tensor("INPUT0", [-1])], "output": [tensor("OUTPUT0", [4])]}
    load_onnx(tmp_path, onnx_models.identity(), max_batch_size=4, **io)
    error = refusal(tmp_path, None, max_batch_size=4, backend_config={"strict-model-config": "true"}, **io)
    assert "axis 1 is 4 in the model and -1 in the configuration" in error.message


def test_a_subset_of_the_outputs_in_another_order(tmp_path):
    io = {"input": ADD_SUB_IO["input"][::-1], "output": ADD_SUB_IO["output"][1:]}
    model, _ = load_onnx(tmp_path, onnx_models.add_sub(), max_batch_size=4, **io)
    assert infer(new_instance(model), pair())["OUTPUT1"].tolist() == (pair()["INPUT0"] * -2).tolist()


# --- users bring models of every shape ------------------------------------------------------------------------------

_R, _M, _V = onnx_models.reshape, onnx_models, onnx_models.add_sub
MODELS_OF_EVERY_SHAPE = {
    "batch and width named": (_V(["N", "W"]), 4, [[-1]], [(2, 3)]),
    "batch named": (_V(["batch_size", 16]), 4, [[16]], [(3, 16)]),
    "batch without a name": (_V([None, 16]), 4, [[16]], [(3, 16)]),
    "everything without a name": (_V([None, None, None]), 4, [[-1, -1]], [(2, 3, 4)]),
    "same name twice": (_V(["N", "N"]), 4, [[-1]], [(3, 3)]),
    "name with odd characters": (_V(["unk__1", "p2o.DynamicDimension.0"]), 4, [[-1]], [(2, 5)]),
    "all fixed": (_V([2, 16]), 0, [[2, 16]], [(2, 16)]),
    "batch fixed at one": (_V([1, 3, 8, 8]), 0, [[1, 3, 8, 8]], [(1, 3, 8, 8)]),
    "fixed vector": (_V([16]), 0, [[16]], [(16,)]),
    "free vector": (_V(["N"]), 4, [[1]], [(3, 1)]),
    "scalar": (_V([]), 0, [[1]], [(1,)]),
    "only the second dimension free": (_V([16, "W"]), 0, [[16, -1]], [(16, 2)]),
    "only the last dimension free": (_V([1, 3, "W"]), 0, [[1, 3, -1]], [(1, 3, 7)]),
    "image, all free": (_M.identity(dims=["N", 3, "H", "W"]), 4, [[3, -1, -1]], [(2, 3, 4, 5)]),
    "image, channels last": (_M.identity(dims=["N", 8, 8, 3]), 4, [[8, 8, 3]], [(2, 8, 8, 3)]),
    "input batches, output fixed": (_R([1, -1], ["N", 4], [1, "M"]), 0, [[-1, 4]], [(2, 4)]),
    "input batches, output scalar": (_M.total(), 0, [[-1, 4]], [(3, 4)]),
    "input batches, output a vector": (_M.row_sums(), 4, [[4]], [(3, 4)]),
    "input batches, output a column": (_M.row_sums(keep_dims=True), 4, [[4]], [(3, 4)]),
    "output of unknown rank": (_M.squeeze(), 0, [[-1, 4]], [(2, 4)]),
    "input fixed, output free": (_M.non_zero(), 0, [[4]], [(4,)]),
    "input with a default": (_M.add_default(), 4, [[4]], [(2, 4)]),
    "rank 6": (_M.identity(dims=["N", 1, 2, 1, "X", 2]), 4, [[1, 2, 1, -1, 2]], [(2, 1, 2, 1, 3, 2)]),
    "flattening": (_R([0, -1], ["N", 2, 3], ["N", 6]), 4, [[2, 3]], [(2, 2, 3)]),
    "declares another output width": (_M.identity(dims=["N", "W"], output_dims=["N", "V"]), 4, [[-1]], [(2, 3)]),
}


@pytest.mark.parametrize("name", MODELS_OF_EVERY_SHAPE)
def test_without_any_configuration_a_model_loads_and_answers(tmp_path, name):
    content, max_batch_size, dims, shapes = MODELS_OF_EVERY_SHAPE[name]
    model, config = load_onnx(tmp_path, content)
    assert config.max_batch_size == max_batch_size
    assert [list(t.dims) for t in config.input] == dims * len(config.input)
    arrays = {t.name: np.ones(shapes[0], np.float32) for t in config.input}
    returned = infer(new_instance(model), arrays)
    assert set(returned) == {t.name for t in config.output}
    # What was completed is what the same file is then held against.
    fields = {"max_batch_size": config.max_batch_size, "input": config.input, "output": config.output}
    _, again = load_onnx(tmp_path, None, **fields)
    assert (again.input, again.output) == (config.input, config.output)


def test_there_are_25_of_them():
    assert len(MODELS_OF_EVERY_SHAPE) == 25


def test_fixed_graph_batch_size_is_found_later(tmp_path):
    model, config = load_onnx(tmp_path, onnx_models.reshape([-1, 4], ["N", "W"], ["N", 4]))
    assert config.max_batch_size == 4
    instance = new_instance(model)
    arrays = {"INPUT0": np.ones((1, 4), np.float32)}
    assert infer(instance, arrays)["OUTPUT0"].shape == (1, 4)
    arrays = {"INPUT0": np.ones((1, 2), np.float32)}
    with pytest.raises(
        InferError, match=r"output 'OUTPUT0' with shape \[1,4\] for a batch of 2: .*max_batch_size: 0"
    ):
        execute(instance, [make_request(arrays), make_request(arrays)])


# --- running --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 3])
def test_batches_on_buffers_and_batches_of_arrays_agree(tmp_path, count):
    model, _ = load_onnx(tmp_path, onnx_models.add_sub(), max_batch_size=8)
    instance = new_instance(model)
    arrays = [pair(number) for number in range(count)]
    header, other = make_header(arrays[0]), make_header(arrays[0])
    staged = execute(instance, [make_request(a, header=header) for a in arrays])
    assert len(instance._staged) == 1
    instance._may_stage = False
    plain = execute(instance, [make_request(a, header=other) for a in arrays])
    assert not instance._plans[other, count].staged
    for one, two, inputs in zip(staged, plain, arrays, strict=True):
        assert [bytes(data) for data in one.data] == [bytes(data) for data in two.data]
        assert output_arrays(one)["OUTPUT0"].tolist() == (inputs["INPUT0"] * 4).tolist()


def test_wrongly_declared_outputs_are_returned_unchanged(tmp_path):
    content = onnx_models.reshape([0, -1], ["N", 2, 2], ["N", 4])
    model, _ = load_onnx(tmp_path, content)
    instance = new_instance(model)
    # The graph says 4; a request that makes it something else is answered with what comes out.
    io = {"input": [tensor("INPUT0", [-1, -1])], "output": [tensor("OUTPUT0", [-1])]}
    model, _ = load_onnx(tmp_path, onnx_models.reshape([0, -1], ["N", "A", "B"], ["N", "A"]), max_batch_size=4, **io)
    instance = new_instance(model)
    for _ in range(2):
        returned = infer(instance, {"INPUT0": np.ones((2, 2, 3), np.float32)})
        assert returned["OUTPUT0"].shape == (2, 6)
    assert not instance._may_stage


def test_shapes_that_depend_on_data(tmp_path):
    model, _ = load_onnx(tmp_path, onnx_models.non_zero())
    instance = new_instance(model)
    header = make_header({"INPUT0": np.zeros(4, np.float32)})
    for values, expected in (([1, 0, 2, 0], [0, 2]), ([0, 0, 0, 0], []), ([1, 1, 1, 1], [0, 1, 2, 3])):
        array = np.array(values, np.float32)
        (response,) = execute(instance, [make_request({"INPUT0": array}, header=header)])
        assert output_arrays(response)["OUTPUT0"].tolist() == [expected]


def test_an_input_with_a_default_may_be_absent(tmp_path):
    io = {
        "input": [tensor("INPUT0", [4]), tensor("BIAS", [1], optional=True)],
        "output": [tensor("OUTPUT0", [4])],
    }
    # The first dimension of the default is not a batch.
    error = refusal(tmp_path, onnx_models.add_default(), max_batch_size=4, **io)
    assert "tensor 'BIAS'" in error.message
    io["input"][0]["dims"] = io["output"][0]["dims"] = [-1, 4]
    model, _ = load_onnx(tmp_path, onnx_models.add_default(5), **io)
    instance = new_instance(model)
    arrays = {"INPUT0": np.ones((2, 4), np.float32)}
    assert infer(instance, arrays)["OUTPUT0"].tolist() == [[6] * 4] * 2
    returned = infer(instance, {**arrays, "BIAS": np.full(1, 2, np.float32)})
    assert returned["OUTPUT0"].tolist() == [[3] * 4] * 2


def test_run_time_failure_has_text_of_runtime(tmp_path):
    model, _ = load_onnx(tmp_path, onnx_models.gather())
    instance = new_instance(model)
    good = make_request({"INPUT0": np.array([[3]])})
    bad = make_request({"INPUT0": np.array([[7]])}, header=good.header)
    for batch in ([bad], [good, bad]):
        with pytest.raises(InferError, match=r"onnx runtime error.*indices element out of data bounds") as caught:
            execute(instance, batch)
        assert caught.value.code is ErrorCode.INTERNAL
    assert output_arrays(execute(instance, [good])[0])["OUTPUT0"].tolist() == [[[6, 7]]]
    assert instance._may_stage


def test_a_shape_that_the_model_refuses(tmp_path):
    io = {"input": [tensor("INPUT0", [-1])], "output": [tensor("OUTPUT0", [-1])]}
    model, _ = load_onnx(tmp_path, onnx_models.identity(dims=["N", 4]), max_batch_size=4, **io)
    with pytest.raises(InferError, match="onnx runtime error 2: Got invalid dimensions for input: INPUT0"):
        infer(new_instance(model), {"INPUT0": np.ones((1, 5), np.float32)})


def test_strings_that_are_not_text_fail_alone(tmp_path):
    from naiad.core.datatype import DataType

    model, _ = load_onnx(tmp_path, onnx_models.identity(DataType.BYTES, ["N", 1]))
    arrays = [{"INPUT0": strings(text).reshape(1, 1)} for text in (b"one", b"\xff\xfe", "drei €".encode())]
    header = make_header(arrays[0])
    one, two, three = execute(new_instance(model), [make_request(a, header=header) for a in arrays])
    assert output_arrays(one)["OUTPUT0"].tolist() == [[b"one"]]
    assert two.error is not None
    assert two.error.code is ErrorCode.INVALID_ARG
    assert "input 'INPUT0' of model 'm' has an element that is not UTF-8" in two.error.message
    assert output_arrays(three)["OUTPUT0"].tolist() == [["drei €".encode()]]


def test_closed_model_releases_sessions(tmp_path):
    model, _ = load_onnx(tmp_path, onnx_models.add_sub())
    instance = new_instance(model)
    infer(instance, pair())
    session = weakref.ref(session_of(model)._sess)
    gc.disable()  # memory must be released at once
    try:
        instance.close()
        assert session() is not None, "others may use it"
        model.close()
        assert session() is None
    finally:
        gc.enable()
    with pytest.raises(InferError, match="the session is closed"):
        instance.run(pair(), ["OUTPUT0"])


# --- options --------------------------------------------------------------------------------------------------------


def session_of(model: OnnxModel, policy: str = ""):
    return model.find(InstanceSpec("m_0_0", 0, "KIND_CPU", 0, policy)).ort


def options_of(model: OnnxModel):
    return session_of(model).get_session_options()


def test_instances_share_one_session_and_the_cores(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    model, _ = load_onnx(tmp_path, onnx_models.add_sub(), usable_cores=8, instance_group=[{"count": 3}])
    first, second = new_instance(model, 0), new_instance(model, 1)
    assert isinstance(first, OnnxInstance)
    assert first._session is second._session
    assert model.plan(SessionPlace()).computing == 8
    assert options_of(model).intra_op_num_threads == 6
    assert "model 'm' version 1: 3 instances share a session of 6 intra-op threads" in caplog.text


@pytest.fixture
def opened(monkeypatch) -> list[Path]:
    """Return the paths of the sessions that are opened."""
    paths: list[Path] = []
    original = onnx_sessions.open_session
    monkeypatch.setattr(onnx_sessions, "open_session", lambda c, path, p: paths.append(path) or original(c, path, p))
    return paths


@pytest.mark.parametrize("usable_cores", [1, 2, 4])
@pytest.mark.parametrize("groups", [[], [{"count": 3}], [{"kind": "KIND_CPU", "count": 2}, {"count": 1}]])
def test_model_is_read_once_to_complete_and_load(tmp_path, opened, usable_cores, groups):
    model, _ = load_onnx(tmp_path, onnx_models.add_sub(), usable_cores=usable_cores, instance_group=groups)
    assert len(opened) == 1
    assert infer(new_instance(model), pair())["OUTPUT0"].shape == (1, 16)


def test_session_of_inspection_is_used_once(tmp_path, opened):
    first, config = load_onnx(tmp_path, onnx_models.add_sub())
    second, _ = load_onnx(tmp_path, None, max_batch_size=4, input=config.input, output=config.output)
    assert len(opened) == 2
    assert session_of(first) is not session_of(second)


@pytest.mark.parametrize("change", [{"parameters": {"intra_op_thread_count": {"string_value": "3"}}}, {"name": "n"}])
def test_session_with_other_settings_is_reopened(tmp_path, opened, change):
    (tmp_path / "model.onnx").write_bytes(onnx_models.add_sub())
    context = replace(make_context(ModelConfig(name="m")), version_dir=tmp_path)
    backend = OnnxRuntimeBackend()
    completed = backend.auto_complete(context)
    completed.instance_group.add(count=1)
    completed.MergeFrom(ModelConfig(**change))
    backend.load(replace(context, name=completed.name, config=completed))
    assert len(opened) == 2


def test_wrong_options_do_not_hide_wrong_batch_size(tmp_path):
    fields = {"max_batch_size": 8, "parameters": parameters(execution_mode="2")}
    assert "does not support batching" in refusal(tmp_path, onnx_models.add_sub([3, 16]), **fields).message


@pytest.mark.parametrize(("cores", "count"), [(1, 1), (2, 1), (3, 1), (4, 2), (64, 2)])
def test_default_instance_count_respects_the_cores(cores, count):
    context = make_context(ModelConfig(name="m"), usable_cores=cores)
    assert OnnxRuntimeBackend().default_instance_count(context) == count


def parameters(**values: str):
    return {name.replace("__", "."): {"string_value": value} for name, value in values.items()}


def test_parameters_reach_the_session(tmp_path):
    model, _ = load_onnx(
        tmp_path,
        onnx_models.add_sub(),
        parameters=parameters(
            intra_op_thread_count="3",
            inter_op_thread_count="2",
            execution_mode="1",
            enable_mem_arena="0",
            enable_mem_pattern="false",
            session__use_device_allocator_for_initializers="1",
            session__intra_op__allow_spinning="0",
            session__intra_op__spin_duration_us="200",
        ),
    )
    options = options_of(model)
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (3, 2)
    assert options.execution_mode == onnxruntime.ExecutionMode.ORT_PARALLEL
    assert not options.enable_cpu_mem_arena
    assert not options.enable_mem_pattern
    assert options.get_session_config_entry("session.use_device_allocator_for_initializers") == "1"
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    assert options.get_session_config_entry("session.intra_op.spin_duration_us") == "200"


def test_defaults_of_the_session(tmp_path):
    model, _ = load_onnx(tmp_path, onnx_models.add_sub(), usable_cores=2)
    options = options_of(model)
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (2, 1)
    assert options.enable_cpu_mem_arena
    assert options.get_session_config_entry("session.force_spinning_stop") == "1"
    assert options.get_session_config_entry("session.intra_op.spin_duration_us") == "1000"
    assert options.graph_optimization_level == onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL


@pytest.mark.parametrize(
    ("level", "name"),
    [(0, "ORT_ENABLE_ALL"), (1, "ORT_ENABLE_EXTENDED"), (-1, "ORT_ENABLE_BASIC"), (2, "ORT_DISABLE_ALL")],
)
def test_graph_levels(tmp_path, level, name):
    model, _ = load_onnx(tmp_path, onnx_models.add_sub(), optimization={"graph": {"level": level}})
    assert options_of(model).graph_optimization_level == getattr(onnxruntime.GraphOptimizationLevel, name)


def test_arena_shrinkage_is_an_option_of_every_run(tmp_path):
    fields = {"parameters": parameters(memory__enable_memory_arena_shrinkage="cpu:0")}
    model, _ = load_onnx(tmp_path, onnx_models.add_sub(), **fields)
    instance = new_instance(model)
    run_options = instance._run_options
    assert run_options.get_run_config_entry("memory.enable_memory_arena_shrinkage") == "cpu:0"
    assert infer(instance, pair())["OUTPUT0"].tolist() == (pair()["INPUT0"] * 4).tolist()
    assert not instance._staged


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        (
            {"parameters": parameters(intra_op_thread_count="all")},
            "model 'm': parameter 'intra_op_thread_count' is 'all'",
        ),
        ({"parameters": parameters(enable_mem_arena="maybe")}, "model 'm': parameter 'enable_mem_arena' is 'maybe'"),
        ({"optimization": {"graph": {"level": 5}}}, "optimization.graph.level is 5, expected 0"),
        ({"model_operations": {"op_library_filename": ["ops.so"]}}, "op_library_filename 'ops.so' is not a file"),
        (
            {"model_operations": {"op_library_filename": ["onnxruntime_extensions"]}},
            "pip install onnxruntime-extensions",
        ),
        (
            {"optimization": {"execution_accelerators": {"cpu_execution_accelerator": [{"name": "openvin"}]}}},
            "unknown Execution Accelerator 'openvin' is requested, expected one of cuda, tensorrt, openvino",
        ),
    ],
)
def test_options_that_make_no_sense_are_refused(tmp_path, fields, text):
    assert text in refusal(tmp_path, onnx_models.add_sub(), **fields).message


def test_a_library_that_is_none_is_refused(tmp_path):
    (tmp_path / "ops.so").write_bytes(b"not a library")
    error = refusal(tmp_path, onnx_models.add_sub(), model_operations={"op_library_filename": ["ops.so"]})
    assert f"custom operator library {tmp_path / 'ops.so'} cannot be loaded" in error.message


def test_an_accelerator_that_this_build_lacks_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    accelerators = {"cpu_execution_accelerator": [{"name": "openvino"}]}
    error = refusal(tmp_path, onnx_models.add_sub(), optimization={"execution_accelerators": accelerators})
    assert error.code is ErrorCode.UNSUPPORTED
    assert "needs OpenVINOExecutionProvider, which the installed onnxruntime" in error.message
    assert "install onnxruntime-openvino instead of onnxruntime" in error.message


def test_a_group_on_a_gpu_needs_its_provider(tmp_path, monkeypatch):
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    context_config = ModelConfig(name="m", max_batch_size=4, **ADD_SUB_IO)
    context_config.instance_group.add(kind="KIND_GPU", gpus=[1], count=1)
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "model.onnx").write_bytes(onnx_models.add_sub())
    with pytest.raises(InferError, match="execution accelerator 'cuda' needs CUDAExecutionProvider"):
        OnnxRuntimeBackend().load(make_context(context_config, tmp_path))


def test_instances_can_be_created_for_every_spec(tmp_path):
    model, _ = load_onnx(tmp_path, onnx_models.add_sub(), instance_group=[{"count": 2, "kind": "KIND_MODEL"}])
    for index in range(2):
        instance = model.create_instance(InstanceSpec(f"m_0_{index}", index, "KIND_MODEL"))
        assert "OUTPUT0" in infer(instance, pair())


# --- large tensors --------------------------------------------------------------------------------------------------


def large(rows: int = 1):
    return np.arange(rows * 2**18, dtype=np.float32).reshape(rows, 2**18)


@pytest.mark.parametrize("count", [1, 2])
def test_memory_of_large_outputs_is_released(tmp_path, count):
    model, _ = load_onnx(tmp_path, onnx_models.identity(dims=["N", "W"]))
    instance = new_instance(model)
    arrays = [large() + np.float32(number) for number in range(count)]
    header = make_header({"INPUT0": arrays[0]})
    responses = execute(instance, [make_request({"INPUT0": a}, header=header) for a in arrays])
    for response, array in zip(responses, arrays, strict=True):
        np.testing.assert_array_equal(output_arrays(response)["OUTPUT0"], array)
    assert instance._may_preallocate


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(onnx_models.reshape([0, 2, -1], ["N", "W"], ["N", 2, "W"]), id="declared wrongly"),
        pytest.param(onnx_models.reshape([0, 2, -1], ["N", "W"], ["N", 2, "V"]), id="unknown"),
    ],
)
def test_large_outputs_of_shapes_that_were_not_expected(tmp_path, content):
    io = {"input": [tensor("INPUT0", [-1])], "output": [tensor("OUTPUT0", [2, -1])]}
    model, _ = load_onnx(tmp_path, content, max_batch_size=4, **io)
    instance = new_instance(model)
    for _ in range(2):
        returned = infer(instance, {"INPUT0": large()})["OUTPUT0"]
        np.testing.assert_array_equal(returned, large().reshape(1, 2, -1))
    assert not instance._may_preallocate


def test_large_failed_request_has_reason(tmp_path):
    io = {"input": [tensor("INPUT0", [-1])], "output": [tensor("OUTPUT0", [-1])]}
    model, _ = load_onnx(tmp_path, onnx_models.identity(dims=["N", 4]), max_batch_size=4, **io)
    instance = new_instance(model)
    with pytest.raises(InferError, match="Got invalid dimensions for input: INPUT0"):
        infer(instance, {"INPUT0": large()})
    assert instance._may_preallocate


# --- host policies --------------------------------------------------------------------------------------------------


def policy_model(tmp_path, policies, groups, usable_cores=8, **parameters):
    """Load a model whose instances have host policies."""
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "model.onnx").write_bytes(onnx_models.add_sub())
    config = ModelConfig(name="m", max_batch_size=4, instance_group=groups, **ADD_SUB_IO, **parameters)
    context = make_context(config, tmp_path, usable_cores=usable_cores)
    return OnnxRuntimeBackend().load(replace(context, host_policies=policies))


def pool_affinities(opens):
    """Return where the threads run that this process has more of after `opens`."""
    tasks = Path("/proc/self/task")
    before = set(tasks.iterdir())
    opened = opens()
    return opened, [os.sched_getaffinity(int(task.name)) for task in set(tasks.iterdir()) - before]


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="threads cannot be bound here")
def test_session_threads_run_on_host_policy_cores(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    allowed = os.sched_getaffinity(0)
    one = frozenset({min(allowed)})
    groups = [{"kind": "KIND_CPU"} | group for group in ({"count": 2}, {"count": 1, "host_policy": "one"})]
    many = parameters(intra_op_thread_count="3")
    model, affinities = pool_affinities(lambda: policy_model(tmp_path, {"one": one}, groups, parameters=many))
    # Three threads an instance: 2 * 3 - 2 + 1 = 5 for the two that share a session, with the caller, and 3.
    assert sorted(map(len, affinities)) == sorted([len(allowed)] * 4 + [1] * 2)
    assert affinities.count(set(one)) >= 2
    assert session_of(model, "one") is not session_of(model)
    assert session_of(model, "cpu") is session_of(model), "no policy of that name"
    assert f"1 instance uses a session of 3 intra-op threads: at most 3 compute at once, on cores {min(one)}" in (
        caplog.text
    )
    instance = model.create_instance(InstanceSpec("m_1_0", 2, "KIND_CPU", 0, "one"))
    assert output_arrays(execute(instance, [make_request(pair())])[0])["OUTPUT0"].size


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="threads cannot be bound here")
def test_session_threads_do_not_exceed_policy_cores(tmp_path):
    cores = frozenset({min(os.sched_getaffinity(0))})
    model = policy_model(tmp_path, {"cpu": cores}, [{"kind": "KIND_CPU", "count": 1}])
    assert session_of(model, "cpu").get_session_options().intra_op_num_threads == 1


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="threads cannot be bound here")
def test_an_update_may_bring_another_host_policy(tmp_path):
    cores = frozenset({min(os.sched_getaffinity(0))})
    model = policy_model(tmp_path, {"one": cores}, [{"kind": "KIND_CPU", "count": 1}])
    config = ModelConfig(name="m", max_batch_size=4, **ADD_SUB_IO)
    config.instance_group.add(kind="KIND_CPU", count=1, host_policy="one")
    model.update_config(config)
    assert session_of(model, "one") is session_of(model, "one") is not session_of(model)
    assert session_of(model, "one").get_session_options().intra_op_num_threads == 1
    model.close()
    assert session_of(model, "one") is session_of(model) is None


def test_default_instance_count_respects_cpu_policy():
    context = replace(make_context(ModelConfig(name="m"), usable_cores=8), host_policies={"cpu": frozenset({0, 1})})
    assert OnnxRuntimeBackend().default_instance_count(context) == 1
