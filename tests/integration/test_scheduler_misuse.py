"""Every misuse of a scheduler is reported: at load if it can be known then, otherwise to the request."""

import time
from collections.abc import Iterator, Mapping

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

from support.ensemble_models import Step, tensor, write_ensemble
from support.model_repository import write_identity, write_model
from support.sequence_models import write_running_sum
from support.server_process import ServerProcess, serving
from support.transport import Transport

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

START = "{ kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] }"


def control(text: str) -> str:
    return f'sequence_batching {{ direct {{ }} control_input [ {{ name: "C" control [ {text} ] }} ] }}'


def state(initial: str = "", *, dims: str = "dims: [ 1 ]", datatype: str = "data_type: TYPE_FP32") -> str:
    names = 'input_name: "S" output_name: "N"'
    return f"sequence_batching {{ direct {{ }} state [ {{ {names} {datatype} {dims} {initial} }} ] }}"


def begins(data: str, dims: str = "1") -> str:
    return f'initial_state: {{ name: "f" data_type: TYPE_FP32 dims: [ {dims} ] {data} }}'


def warmup(
    data: str = "zero_data: true", *, name: str = "IN", dims: str = "4", rows: int = 1, kind: str = "FP32"
) -> str:
    given = f'inputs {{ key: "{name}" value {{ data_type: TYPE_{kind} dims: [ {dims} ] {data} }} }}'
    return f'model_warmup [ {{ name: "w" batch_size: {rows} {given} }} ]'


def needs(resource: str) -> str:
    return f"instance_group [ {{ count: 1 kind: KIND_CPU rate_limiter {{ resources [ {{ {resource} }} ] }} }} ]"


SEQUENCES = {
    "unknown_control": (
        control("{ kind: CONTROL_SEQUENCE_BEGIN fp32_false_true: [ 0, 1 ] }"),
        "'CONTROL_SEQUENCE_BEGIN' is not a value for 'kind'; expected one of CONTROL_SEQUENCE_START,",
    ),
    "control_without_values": (
        control("{ kind: CONTROL_SEQUENCE_START }"),
        "sequence batching must specify either 'int32_false_true', 'fp32_false_true' or 'bool_false_true' for "
        "CONTROL_SEQUENCE_START",
    ),
    "control_with_two_kinds_of_values": (
        control("{ kind: CONTROL_SEQUENCE_END fp32_false_true: [ 0, 1 ] int32_false_true: [ 0, 1 ] }"),
        "sequence batching specifies more than one from 'int32_false_true', 'fp32_false_true' and 'bool_false_true' "
        "for CONTROL_SEQUENCE_END",
    ),
    "control_with_three_values": (
        control("{ kind: CONTROL_SEQUENCE_READY fp32_false_true: [ 0, 1, 2 ] }"),
        "sequence batching control 'fp32_false_true' must have exactly 2 entries for CONTROL_SEQUENCE_READY",
    ),
    "control_twice": (
        control(f"{START}, {START}"),
        "sequence batching specifies multiple CONTROL_SEQUENCE_START tensors",
    ),
    "tensor_of_two_controls": (
        control(f'{START} ] }}, {{ name: "C" control [ {START.replace("START", "END")}'),
        "sequence batching control tensor 'C' is specified for multiple control kinds",
    ),
    "state_twice": (
        state().replace("[ {", "[ { input_name: 'S' output_name: 'M' data_type: TYPE_FP32 dims: [ 1 ] }, {"),
        "sequence state input 'S' can only be specified once",
    ),
    "control_without_a_name": (
        f"sequence_batching {{ direct {{ }} control_input [ {{ control [ {START} ] }} ] }}",
        "sequence batching control tensor must have a name",
    ),
    "id_of_another_type": (
        control("{ kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_FP32 }"),
        "unexpected data type for control CONTROL_SEQUENCE_CORRID",
    ),
    "id_with_values": (
        control("{ kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 fp32_false_true: [ 0, 1 ] }"),
        "sequence batching must not specify either 'int32_false_true', 'fp32_false_true' or 'bool_false_true' for "
        "CONTROL_SEQUENCE_CORRID",
    ),
    "utilisation_above_one": (
        "sequence_batching { direct { max_queue_delay_microseconds: 1 minimum_slot_utilization: 1.5 } }",
        "sequence batching minimum slot utilization must be in range (0.0, 1.0]",
    ),
    "preferred_above_the_maximum": (
        "sequence_batching { oldest { max_candidate_sequences: 4 preferred_batch_size: [ 99 ] } }",
        "sequence batching preferred batch size must be <= max batch size",
    ),
    "fewer_than_no_candidates": (
        "sequence_batching { oldest { max_candidate_sequences: -1 } }",
        "sequence batching max candidate sequences must be positive",
    ),
    "two_strategies": (
        "sequence_batching { direct { } oldest { max_candidate_sequences: 4 } }",
        "'oldest' cannot be given along with 'direct'",
    ),
    "two_schedulers": (
        "sequence_batching { direct { } } dynamic_batching { }",
        "'dynamic_batching' cannot be given along with 'sequence_batching'",
    ),
    "state_without_datatype": (state(datatype=""), "sequence state 'S' must specify 'data_type'"),
    "state_without_dims": (state(dims=""), "sequence state 'S' must specify 'dims'"),
    "state_without_data": (
        state(begins("")),
        "initial_state setting expects state'S' to have zero_data or data_file",
    ),
    "state_of_other_dims": (
        state(begins("zero_data: true", "2")),
        "'initial_state' dim for input name 'S' doesn't match 'state' dim description.",
    ),
    "state_of_open_dims": (
        state(begins("zero_data: true", "-1"), dims="dims: [ -1 ]"),
        "'initial_state' field for state input name 'S' contains variable dimensions.",
    ),
    "state_file_that_is_not_there": (
        state(begins('data_file: "absent"')),
        "the initial state of 'S' cannot be read from",
    ),
    "state_file_elsewhere": (
        state(begins('data_file: "../../secret"')),
        "initial state file '../../secret' must stay within model directory.",
    ),
}
BATCHING = {
    "preferred_above_the_maximum": (
        "dynamic_batching { preferred_batch_size: [ 99 ] }",
        "dynamic batching preferred size must be <= max batch size",
    ),
    "preferred_zero": (
        "dynamic_batching { preferred_batch_size: [ 0 ] }",
        "dynamic batching preferred size must be positive",
    ),
    "default_level_beyond": (
        "dynamic_batching { priority_levels: 2 default_priority_level: 3 }",
        "default priority level must be in range [1, 2]",
    ),
    "no_default_level": (
        "dynamic_batching { priority_levels: 2 }",
        "default priority level must be in range [1, 2]",
    ),
    "policy_of_no_level": (
        "dynamic_batching { priority_levels: 2 default_priority_level: 1 "
        "priority_queue_policy { key: 3 value { } } }",
        "priority queue policy must have priority level in range [1, 2]",
    ),
    "order_and_levels": (
        "dynamic_batching { priority_levels: 2 default_priority_level: 1 preserve_ordering: true }",
        "Only one priority level is allowed when 'preserve_ordering' is true",
    ),
    "order_and_delay": (
        "dynamic_batching { preserve_ordering: true default_queue_policy { default_timeout_microseconds: 1 "
        "timeout_action: DELAY } }",
        "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true",
    ),
}
OTHERS = {
    "cached_sequences": (
        "sequence_batching { direct { } } response_cache { enable: true }",
        "Response Cache does not currently support model",
    ),
    "cached_streams": (
        "model_transaction_policy { decoupled: true } response_cache { enable: true }",
        "with 'decoupled' transaction policy. Please disable the response cache.",
    ),
    "more_than_there_is": (
        needs('name: "R" global: true count: 4'),
        'Resource count for "R" is limited to 3 which will prevent scheduling of one or more model instances, the '
        "minimum required count is 4; start the server with --rate-limit-resource=R:4",
    ),
    "what_there_is_not": (
        needs('name: "X" count: 1'),
        'Resource count for "X" is limited to 0 which will prevent scheduling of one or more model instances',
    ),
    "resource_without_a_name": (needs("count: 1"), "resource 0 of instance group 0 must specify 'name'"),
    "gpu_without_one": ("instance_group [ { kind: KIND_GPU } ]", "has kind KIND_GPU but no GPUs are available"),
    "warmup_of_another_shape": (
        warmup(dims="5"),
        "warmup sample 'w': [request id: warmup w] unexpected shape for input 'IN'",
    ),
    "warmup_of_no_input": (warmup(name="NO"), "warmup sample 'w' has data for 'NO', which is not an input"),
    "warmup_of_another_type": (
        warmup(kind="INT32"),
        "inference input 'IN' data-type is 'INT32', but model 'warmup_of_another_type' expects 'FP32'",
    ),
    "warmup_without_data": (warmup(""), "warmup input 'IN' must specify its data"),
    "warmup_file_that_is_not_there": (warmup('input_data_file: "absent"'), "warmup/absent cannot be read"),
    "warmup_file_elsewhere": (
        warmup('input_data_file: "../../secret"'),
        "warmup data file '../../secret' must stay within model directory.",
    ),
    "warmup_file_without_a_name": (warmup('input_data_file: ""'), "warmup input 'IN' must name its file"),
    "warmup_beyond_all_memory": (
        warmup(dims="90000000000000"),
        "asks for 360000000000064 bytes, the limit is ",
    ),
    "warmup_of_too_many_rows": (
        warmup(rows=99),
        "warmup sample 'w' has batch size 99, which the model does not accept",
    ),
    "warmup_of_open_dims": (warmup(dims="-1"), "warmup input 'IN' must have fixed dims"),
    "warmup_without_inputs": (
        'model_warmup [ { name: "w" batch_size: 1 } ]',
        "missing required input(s) ['IN']",
    ),
}
PLAIN = {**SEQUENCES, **{f"batching_{name}": case for name, case in BATCHING.items()}, **OTHERS}

A, B = tensor("A", dims="-1"), tensor("B", dims="-1")
MEMBER: Step = ("member", {"INPUT0": "A"}, {"OUTPUT0": "B"})


def step(reads: str, writes: str) -> Step:
    return ("member", {"INPUT0": reads}, {"OUTPUT0": writes})


ENSEMBLES: Mapping[str, tuple[Mapping[str, object], str]] = {
    "no_step": ({"steps": []}, "must specify 'step' for ensemble 'no_step'"),
    "steps_in_a_circle": (
        {"steps": [MEMBER, step("x", "y"), step("y", "x")]},
        "ensemble tensor 'x' is not written: at least one of its depending tensors is not connected; expected "
        "steps without a cycle",
    ),
    "first_of_a_circle": (
        {"steps": [("second_of_a_circle", {"A": "A"}, {"B": "B"})]},
        "circular dependency between ensembles: first_of_a_circle -> ... -> second_of_a_circle -> first_of_a_circle",
    ),
    "second_of_a_circle": (
        {"steps": [("first_of_a_circle", {"A": "A"}, {"B": "B"})]},
        "circular dependency between ensembles: second_of_a_circle -> ... -> first_of_a_circle -> second_of_a_circle",
    ),
    "itself": (
        {"steps": [("itself", {"A": "A"}, {"B": "B"})]},
        "circular dependency between ensembles: itself -> ... -> itself -> itself",
    ),
    "missing_member": (
        {"steps": [("unknown", {"INPUT0": "A"}, {"OUTPUT0": "B"})]},
        "ensemble missing_member contains models that are not available or ambiguous: unknown",
    ),
    "missing_input": (
        {"steps": [("member", {"INPUT9": "A"}, {"OUTPUT0": "B"})]},
        "ensemble tensor A is mapping to non-existing input INPUT9 in model member; expected one of INPUT0; did you "
        "mean 'INPUT0'?",
    ),
    "missing_output": (
        {"steps": [("member", {"INPUT0": "A"}, {"OUTPUT9": "B"})]},
        "ensemble tensor B is mapped from non-existing output OUTPUT9 in model member",
    ),
    "unused_input": (
        {"inputs": [A, tensor("C")]},
        "ensemble input 'C' for ensemble unused_input' is not used",
    ),
    "unwritten_output": (
        {"outputs": [B, tensor("C")]},
        "ensemble output 'C' for ensemble unwritten_output' is not used",
    ),
    "unused_tensor": ({"steps": [MEMBER, step("A", "x")]}, "ensemble tensor 'x' is unused in ensemble"),
    "unwritten_tensor": (
        {"steps": [step("x", "B"), step("A", "x2"), step("x2", "x3")]},
        "ensemble tensor 'x' is not written",
    ),
    "tensor_written_twice": (
        {"steps": [MEMBER, MEMBER]},
        "ensemble tensor 'B' can appear in an output map only once",
    ),
    "other_datatype": (
        {"inputs": [tensor("A", "INT32", "-1")]},
        "ensemble tensor A: inconsistent data type: TYPE_INT32 is inferred from model other_datatype while TYPE_FP32 "
        "is inferred from model member",
    ),
    "other_shape": (
        {"outputs": [tensor("B", dims="4, 4")]},
        "ensemble tensor B: inconsistent shape: [-1,4,4] is inferred from model other_shape while [-1,-1] is "
        "inferred from model member",
    ),
    "members_of_other_datatypes": (
        {"steps": [step("A", "x"), ("sums", {"INPUT": "x"}, {"SEEN_ID": "y"}), step("y", "B")]},
        "ensemble tensor y: inconsistent data type: TYPE_INT64 is inferred from model sums while TYPE_FP32 is "
        "inferred from model member",
    ),
    "more_rows_than_a_member": (
        {"max_batch_size": 64},
        "allows maximum batch size 64, but it contains model member which only allows maximum batch size to be 8",
    ),
    "with_instances": (
        {"extra": "instance_group [ { count: 1 } ]"},
        "instance group should not be specified for ensemble 'with_instances'",
    ),
    "with_warmup": (
        {"extra": warmup(name="A")},
        "model_warmup can not be specified for ensemble 'with_warmup'",
    ),
    "with_optimization": (
        {"extra": "optimization { }"},
        "optimization should not be specified for ensemble 'with_optimization'",
    ),
    "with_batching": (
        {"extra": "dynamic_batching { }"},
        "'ensemble_scheduling' cannot be given along with 'dynamic_batching'",
    ),
    "condition_on_no_tensor": (
        {"extra": 'parameters { key: "run_if.member" value { string_value: "NOPE" } }'},
        "condition 'run_if.member' of ensemble 'condition_on_no_tensor' names 'NOPE', not one of its tensors",
    ),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    root = tmp_path_factory.mktemp("models")
    tensors = (
        'input [ { name: "IN" data_type: TYPE_FP32 dims: [ 4 ] } ] '
        'output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 4 ] } ]'
    )
    for name, (extra, _) in PLAIN.items():
        write_model(root, name, f'backend: "identity" max_batch_size: 8 {tensors} {extra}')
    write_identity(root, "member")
    for name, (fields, _) in ENSEMBLES.items():
        write_ensemble(root, name, **{"inputs": [A], "outputs": [B], "steps": [MEMBER], **fields})
    write_running_sum(root, "sums", "direct { }")
    write_running_sum(root, "short", "oldest { max_candidate_sequences: 4 }", idle_us=50_000)
    with serving(
        tmp_path_factory.mktemp("server") / "log",
        f"--model-repository={root}",
        "--model-control-mode=explicit",
        "--load-model=sums",
        "--load-model=short",
        "--load-model=member",
        "--rate-limit=execution_count",
        "--rate-limit-resource=R:3",
    ) as running:
        yield running


@pytest.mark.parametrize(
    ("name", "message"),
    [(name, message) for name, (_, message) in [*PLAIN.items(), *ENSEMBLES.items()]],
    ids=[*PLAIN, *ENSEMBLES],
)
def test_when_it_is_loaded(server: ServerProcess, name: str, message: str) -> None:
    with grpcclient.InferenceServerClient(server.grpc_url) as client:
        with pytest.raises(InferenceServerException) as caught:
            client.load_model(name)
        assert message in caught.value.message()
        states = {entry.name: entry.state for entry in client.get_model_repository_index().models}
        assert states[name] != "READY"
    with httpclient.InferenceServerClient(server.http_url) as client:
        with pytest.raises(InferenceServerException) as caught:
            client.load_model(name)
        assert message in caught.value.message()


def test_what_is_right_serves_beside_all_of_it(server: ServerProcess) -> None:
    with grpcclient.InferenceServerClient(server.grpc_url) as client:
        assert client.is_server_live()
        assert client.is_model_ready("sums")


def ask(transport: Transport, model: str, rows: int = 1, **fields: object) -> None:
    transport.infer(model, {"INPUT": np.ones((rows, 1), np.float32)}, **fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"sequence_id": 991},
            "inference request for sequence 991 to model 'sums' must specify the START flag on the first request of "
            "the sequence",
        ),
        (
            {"sequence_id": 0, "sequence_start": True},
            "inference request to model 'sums' must specify a non-zero or non-empty correlation ID",
        ),
        ({}, "inference request to model 'sums' must specify a non-zero or non-empty correlation ID"),
        (
            {"sequence_id": 992, "sequence_start": True, "rows": 2},
            "inference request to model 'sums' must specify batch-size 1 due to requirements of sequence batcher",
        ),
        (
            {"sequence_id": "text", "sequence_start": True},
            "sequence id 'text' is a string, but model 'sums' takes integers",
        ),
    ],
    ids=["no_start", "no_id", "nothing", "two_rows", "text"],
)
def test_when_it_is_asked(transport: Transport, fields: dict, message: str) -> None:
    with transport.fails("INVALID_ARGUMENT", message):
        ask(transport, "sums", **{"request_id": "mine", **fields})


def test_request_after_the_end(transport: Transport) -> None:
    ask(transport, "sums", sequence_id=77, sequence_start=True)
    ask(transport, "sums", sequence_id=77, sequence_end=True)
    with pytest.raises(InferenceServerException, match="must specify the START flag"):
        ask(transport, "sums", sequence_id=77)


@pytest.mark.parametrize("value", [-1, 1.5, True, [1], {}])
def test_an_id_that_is_none(server: ServerProcess, value: object) -> None:
    answer = server.post(
        "/v2/models/sums/infer",
        {
            "parameters": {"sequence_id": value, "sequence_start": True},
            "inputs": [{"name": "INPUT", "shape": [1, 1], "datatype": "FP32", "data": [1]}],
        },
    )
    assert answer.status == 400
    assert "sequence_id" in answer.json["error"]


def test_late_request_of_expired_sequence_gets_reason(transport: Transport) -> None:
    ask(transport, "short", sequence_id=88, sequence_start=True)
    # Requests before its end keep it alive, so they come less and less often.
    for pause_s in (0.2, 1, 4, 16):
        time.sleep(pause_s)
        try:
            ask(transport, "short", sequence_id=88)
        except InferenceServerException:
            break
    with pytest.raises(InferenceServerException, match="sequence 88 has expired: no request arrived for") as caught:
        ask(transport, "short", sequence_id=88)
    assert "must specify the START flag on the first request of the sequence" in caught.value.message()
