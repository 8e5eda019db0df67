"""Ensembles through a real server with stock clients."""

import queue
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

from support import onnx_models
from support.ensemble_models import tensor, write_ensemble
from support.held_models import Notes, write_held
from support.model_repository import add_sub_config, write_identity, write_model
from support.server_process import ServerProcess, serving

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

A = np.arange(32, dtype=np.float32).reshape(2, 16)
B = np.full((2, 16), 3, np.float32)
TWO_INPUTS = [tensor("A"), tensor("B")]
_REPEAT = """
  backend: "repeat" max_batch_size: 0
  input [ { name: "IN" data_type: TYPE_INT32 dims: [ -1 ] }, { name: "DELAY" data_type: TYPE_UINT32 dims: [ -1 ] },
          { name: "WAIT" data_type: TYPE_UINT32 dims: [ 1 ] } ]
  output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }, { name: "IDX" data_type: TYPE_UINT32 dims: [ 1 ] } ]
  model_transaction_policy { decoupled: true }
"""


_TWO = """
import json

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            value = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            tensors = [pb_utils.Tensor("SAME", value), pb_utils.Tensor("NEGATED", -value)]
            left_out = json.loads(request.parameters()).get("left_out")
            responses.append(pb_utils.InferenceResponse([t for t in tensors if t.name() != left_out]))
        return responses
"""


def write_members(root: Path) -> None:
    write_model(root, "add_sub", add_sub_config("onnxruntime"), {"1/model.onnx": onnx_models.add_sub()})
    write_identity(root, "int_identity", datatype="INT32", max_batch_size=0)
    write_model(root, "repeat", _REPEAT, {})
    (root / "repeat" / "1").mkdir(exist_ok=True)
    write_identity(root, "flag", datatype="BOOL", max_batch_size=8)
    rows = f"input [ {tensor('IN', dims='-1, 16')} ] output [ {tensor('OUT', dims='-1, 16')} ]"
    write_model(root, "rows", f'backend: "identity" max_batch_size: 0 {rows}')


def write_ensembles(root: Path, notes: Path) -> None:
    write_held(root, "slow", notes)
    labelled = tensor("SAME", dims="3", extra='label_filename: "labels.txt"')
    write_ensemble(
        root,
        "chain",
        TWO_INPUTS,
        [tensor("SUM"), tensor("DIFFERENCE")],
        [
            ("add_sub", {"INPUT0": "A", "INPUT1": "B"}, {"OUTPUT0": "t0", "OUTPUT1": "t1"}),
            ("add_sub", {"INPUT0": "t0", "INPUT1": "t1"}, {"OUTPUT0": "SUM", "OUTPUT1": "DIFFERENCE"}),
        ],
    )
    write_ensemble(
        root,
        "nested",
        TWO_INPUTS,
        [tensor("OUT")],
        [
            ("chain", {"A": "A", "B": "B"}, {"SUM": "s"}),
            ("add_sub", {"INPUT0": "s", "INPUT1": "B"}, {"OUTPUT0": "OUT"}),
        ],
    )
    write_ensemble(
        root,
        "slow_chain",
        [tensor("A", dims="-1")],
        [tensor("OUT", dims="-1")],
        [("slow", {"IN": "A"}, {"OUT": "t"}), ("slow", {"IN": "t"}, {"OUT": "OUT"})],
        max_batch_size=1,
    )
    write_ensemble(
        root,
        "conditional",
        [tensor("A"), tensor("B"), tensor("DETAILS", "BOOL", "1")],
        [tensor("SUM"), tensor("MORE")],
        [
            ("add_sub", {"INPUT0": "A", "INPUT1": "B"}, {"OUTPUT0": "SUM", "OUTPUT1": "t"}),
            ("flag", {"INPUT0": "DETAILS"}, {"OUTPUT0": "wanted"}),
            ("chain", {"A": "SUM", "B": "t"}, {"SUM": "MORE"}),
        ],
        extra='parameters { key: "run_if.chain" value { string_value: "wanted" } }',
    )
    write_ensemble(
        root,
        "stream",
        [tensor("IN", "INT32", "-1"), tensor("DELAY", "UINT32", "-1"), tensor("WAIT", "UINT32", "1")],
        [tensor("OUT", "INT32", "1"), tensor("IDX", "UINT32", "1")],
        [
            ("repeat", {"IN": "IN", "DELAY": "DELAY", "WAIT": "WAIT"}, {"OUT": "t", "IDX": "IDX"}),
            ("int_identity", {"INPUT0": "t"}, {"OUTPUT0": "OUT"}),
        ],
        max_batch_size=0,
        scheduling="max_inflight_requests: 4",
    )
    write_ensemble(
        root,
        "reshaped",
        [tensor("A", dims="4, 4", extra="reshape { shape: [ 16 ] }"), tensor("B")],
        [tensor("SUM", dims="2, 8", extra="reshape { shape: [ 16 ] }"), tensor("DIFFERENCE")],
        [("add_sub", {"INPUT0": "A", "INPUT1": "B"}, {"OUTPUT0": "SUM", "OUTPUT1": "DIFFERENCE"})],
    )
    two = f"input [ {tensor('IN', dims='3')} ] output [ {labelled}, {tensor('NEGATED', dims='3')} ]"
    files = {"1/model.py": _TWO, "labels.txt": "cat\ndog\nemu\n"}
    write_model(root, "two", f'backend: "python" max_batch_size: 8 {two}', files)
    write_ensemble(
        root,
        "fork",
        [tensor("IN", dims="3")],
        [tensor("SAME", dims="3"), tensor("TWICE", dims="3")],
        [
            ("two", {"IN": "IN"}, {"SAME": "SAME", "NEGATED": "t"}),
            ("two", {"IN": "t"}, {"NEGATED": "TWICE"}),
        ],
    )
    write_ensemble(
        root,
        "mixed",
        TWO_INPUTS,
        [tensor("OUT")],
        [
            ("add_sub", {"INPUT0": "A", "INPUT1": "B"}, {"OUTPUT0": "sum"}),
            ("rows", {"IN": "sum"}, {"OUT": "again"}),
            ("add_sub", {"INPUT0": "again", "INPUT1": "B"}, {"OUTPUT0": "OUT"}),
        ],
        extra="model_transaction_policy { decoupled: true }",
    )


@pytest.fixture(scope="module")
def notes(tmp_path_factory: pytest.TempPathFactory) -> Notes:
    return Notes(tmp_path_factory.mktemp("notes"))


@pytest.fixture(scope="module")
def ensemble_server(tmp_path_factory: pytest.TempPathFactory, notes: Notes) -> Iterator[ServerProcess]:
    root = tmp_path_factory.mktemp("ensembles")
    write_members(root)
    write_ensembles(root, notes.where)
    with serving(tmp_path_factory.mktemp("server") / "log", f"--model-repository={root}") as running:
        yield running


@pytest.fixture
def client(ensemble_server: ServerProcess):
    with grpcclient.InferenceServerClient(ensemble_server.grpc_url) as opened:
        yield opened


def given(**arrays):
    made = []
    for name, array in arrays.items():
        kinds = {"float32": "FP32", "int32": "INT32", "uint32": "UINT32", "bool": "BOOL"}
        one = grpcclient.InferInput(name, list(array.shape), kinds[array.dtype.name])
        one.set_data_from_numpy(array)
        made.append(one)
    return made


def test_values_pass_from_step_to_step(client) -> None:
    result = client.infer("chain", given(A=A, B=B), request_id="r")
    np.testing.assert_array_equal(result.as_numpy("SUM"), 2 * A)
    np.testing.assert_array_equal(result.as_numpy("DIFFERENCE"), 2 * B)
    response = result.get_response()
    assert (response.id, response.model_name, response.model_version) == ("r", "chain", "1")


def test_an_ensemble_in_an_ensemble(client) -> None:
    np.testing.assert_array_equal(client.infer("nested", given(A=A, B=B)).as_numpy("OUT"), 2 * A + B)


def test_only_the_outputs_asked_for(client) -> None:
    wanted = [grpcclient.InferRequestedOutput("DIFFERENCE")]
    result = client.infer("chain", given(A=A, B=B), outputs=wanted)
    assert [output.name for output in result.get_response().outputs] == ["DIFFERENCE"]


def test_steps_run_only_for_requested_outputs(client) -> None:
    value = np.array([[1, 5, 3]], np.float32)

    def executions() -> int:
        (row,) = client.get_inference_statistics("two").model_stats
        return row.inference_count

    before = executions()
    same = client.infer("fork", given(IN=value), outputs=[grpcclient.InferRequestedOutput("SAME")])
    np.testing.assert_array_equal(same.as_numpy("SAME"), value)
    assert executions() == before + 1
    np.testing.assert_array_equal(client.infer("fork", given(IN=value)).as_numpy("TWICE"), value)
    assert executions() == before + 3


def test_classes_have_the_labels_of_members(client) -> None:
    value = np.array([[1, 5, 3]], np.float32)
    wanted = [grpcclient.InferRequestedOutput("SAME", class_count=2)]
    classes = client.infer("fork", given(IN=value), outputs=wanted).as_numpy("SAME")
    assert classes.tolist() == [[b"5.000000:1:dog", b"3.000000:2:emu"]]


def test_left_out_output_fails_only_its_readers(client) -> None:
    value, left_out = np.array([[1, 5, 3]], np.float32), {"left_out": "NEGATED"}
    same = [grpcclient.InferRequestedOutput("SAME")]
    result = client.infer("fork", given(IN=value), outputs=same, parameters=left_out)
    np.testing.assert_array_equal(result.as_numpy("SAME"), value)
    with pytest.raises(InferenceServerException, match="expected 1 inputs but got 0 inputs for model 'two'"):
        client.infer("fork", given(IN=value), parameters=left_out)


def test_response_has_sequence_parameters(client) -> None:
    value = np.array([[1, 5, 3]], np.float32)
    response = client.infer("fork", given(IN=value), sequence_id=7, sequence_start=True).get_response()
    found = {name: response.parameters[name] for name in response.parameters}
    assert (found["sequence_id"].int64_param, found["sequence_start"].bool_param) == (7, True)
    assert not found["sequence_end"].bool_param


def test_statistics_sum_up_the_members(client) -> None:
    # E11
    def counted(model):
        found = client.get_inference_statistics(model).model_stats[0]
        return found.inference_count, found.execution_count, found.inference_stats

    before = counted("chain")
    members = counted("add_sub")
    client.infer("chain", given(A=A, B=B))
    after = counted("chain")
    assert (after[0] - before[0], after[1] - before[1]) == (2, 1)
    assert counted("add_sub")[1] - members[1] == 2
    assert after[2].compute_infer.ns > before[2].compute_infer.ns
    assert after[2].success.count == before[2].success.count + 1


@pytest.mark.parametrize(("wanted", "names"), [(True, ["SUM", "MORE"]), (False, ["SUM"])])
def test_a_conditional_step(client, wanted, names) -> None:
    flags = np.full((2, 1), wanted)
    result = client.infer("conditional", given(A=A, B=B, DETAILS=flags))
    assert [output.name for output in result.get_response().outputs] == names
    np.testing.assert_array_equal(result.as_numpy("SUM"), A + B)
    if wanted:
        np.testing.assert_array_equal(result.as_numpy("MORE"), 2 * (A + B))


def test_error_names_ensemble_and_keeps_its_code(client) -> None:
    with pytest.raises(InferenceServerException) as caught:
        client.infer("chain", given(A=np.zeros((1, 15), np.float32), B=B[:1]))
    assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"
    with pytest.raises(InferenceServerException, match="inference request batch-size must be <= 8 for 'chain'"):
        client.infer("chain", given(A=np.zeros((9, 16), np.float32), B=np.zeros((9, 16), np.float32)))


def test_a_cancelled_request_starts_no_further_step(client, ensemble_server, notes) -> None:
    def statistics(model: str):
        return client.get_inference_statistics(model).model_stats[0]

    before = statistics("slow").execution_count
    call = client.async_infer(
        "slow_chain",
        given(A=np.zeros((1, 4), np.float32)),
        request_id="cancelled",
        callback=lambda result, error: None,
    )
    notes.wait("cancelled", "began")
    call.cancel()
    notes.wait("cancelled", "cancelled")
    for model in ("slow", "slow_chain"):
        ensemble_server.wait_requests(model, waiting=0, executing=0)
    assert statistics("slow").execution_count - before == 1
    assert statistics("slow_chain").inference_stats.fail.count == 1


def test_every_response_of_a_decoupled_member_goes_on(client) -> None:
    answers: queue.Queue = queue.Queue()
    client.start_stream(lambda result, error: answers.put((result, error)))
    count = 200
    inputs = given(IN=np.arange(count, dtype=np.int32), DELAY=np.zeros(count, np.uint32), WAIT=np.zeros(1, np.uint32))
    client.async_stream_infer("stream", inputs, request_id="s", enable_empty_final_response=True)
    found = {}
    while True:
        result, error = answers.get(timeout=60)
        assert error is None
        response = result.get_response()
        if response.outputs:
            found[result.as_numpy("IDX").item()] = result.as_numpy("OUT").item()
        if response.parameters["triton_final_response"].bool_param:
            break
    client.stop_stream()
    assert found == {number: number for number in range(count)}


def test_the_members_decide_whether_an_ensemble_is_decoupled(client) -> None:
    # E7: "stream" does not say that it is, "mixed" says so, and neither is asked.
    assert client.get_model_config("stream").config.model_transaction_policy.decoupled
    assert not client.get_model_config("mixed").config.model_transaction_policy.decoupled
    assert client.infer("mixed", given(A=A[:1], B=B[:1])).get_response().outputs


@pytest.mark.parametrize("rows", [1, 2])
def test_member_without_batching_gets_whole_tensor(client, rows) -> None:
    # E3
    answer = client.infer("mixed", given(A=A[:rows], B=B[:rows]))
    assert (answer.as_numpy("OUT") == A[:rows] + 2 * B[:rows]).all()


def test_clients_and_members_see_different_reshape_shapes(client) -> None:
    # E3
    answer = client.infer("reshaped", given(A=A.reshape(2, 4, 4), B=B))
    assert (answer.as_numpy("SUM") == (A + B).reshape(2, 2, 8)).all()
    assert (answer.as_numpy("DIFFERENCE") == A - B).all()
    with pytest.raises(InferenceServerException, match="unexpected shape for input 'A' for model 'reshaped'"):
        client.infer("reshaped", given(A=A, B=B))


def test_many_at_once(client) -> None:
    def run(number: int) -> bool:
        a = np.full((1, 16), number, np.float32)
        return bool((client.infer("nested", given(A=a, B=a)).as_numpy("OUT") == 3 * number).all())

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(run, range(400)))


def test_mismatched_steps_are_reported_at_load(tmp_path: Path, start_server) -> None:
    root = tmp_path / "models"
    write_members(root)
    outputs = [tensor("OUT")]
    add = ("add_sub", {"INPUT0": "A", "INPUT1": "B"}, {"OUTPUT0": "OUT"})
    write_ensemble(root, "absent", TWO_INPUTS, outputs, [("unknown", *add[1:])])
    write_ensemble(root, "typo", TWO_INPUTS, outputs, [("add_sub", {"INPUT0": "A", "INPUT9": "B"}, add[2])])
    write_ensemble(root, "one", TWO_INPUTS, outputs, [("two", {"A": "A", "B": "B"}, {"OUT": "OUT"})])
    write_ensemble(root, "two", TWO_INPUTS, outputs, [("one", {"A": "A", "B": "B"}, {"OUT": "OUT"})])
    write_ensemble(
        root,
        "cached",
        [tensor("IN", "INT32", "-1"), tensor("DELAY", "UINT32", "-1"), tensor("WAIT", "UINT32", "1")],
        [tensor("OUT", "INT32", "1")],
        [("repeat", {"IN": "IN", "DELAY": "DELAY", "WAIT": "WAIT"}, {"OUT": "OUT"})],
        max_batch_size=0,
        extra="response_cache { enable: true }",
    )
    server = start_server(root, "--exit-on-error=false", "--strict-readiness=false")
    server.wait_started()
    with grpcclient.InferenceServerClient(server.grpc_url) as client:
        reasons = {row.name: row.reason for row in client.get_model_repository_index().models}
    assert "unknown" in reasons["absent"]
    assert "INPUT9" in reasons["typo"]
    assert "two" in reasons["one"]
    assert "with 'decoupled' transaction policy. Please disable the response cache." in reasons["cached"]
    assert reasons["add_sub"] == ""


def test_an_ensemble_finishes_while_the_server_drains(tmp_path: Path, start_server) -> None:
    root = tmp_path / "models"
    write_members(root)
    notes = Notes(tmp_path / "notes")
    write_ensembles(root, notes.where)
    server = start_server(root)
    server.wait_ready()
    with grpcclient.InferenceServerClient(server.grpc_url) as client, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(client.infer, "slow_chain", given(A=np.ones((1, 4), np.float32)), request_id="first")
        notes.wait("first", "began")
        server.signal()
        server.wait_log(r"Signal \(15\) received")
        notes.release("first")
        np.testing.assert_array_equal(asked.result(60).as_numpy("OUT"), np.full((1, 4), 4))
    assert server.wait_exit() == 0
