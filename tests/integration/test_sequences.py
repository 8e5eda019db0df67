"""Sequences through a real server with stock clients: controls, states, both strategies, ids, idleness."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

from support.sequence_models import write_running_sum
from support.server_process import ServerProcess, serving
from support.waiting import wait_until

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

STRATEGIES = ("direct_sum", "oldest_sum")


@pytest.fixture(scope="module")
def sequence_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    root = tmp_path_factory.mktemp("sequences")
    write_running_sum(root, "direct_sum", "direct { }", instances=2)
    write_running_sum(root, "oldest_sum", "oldest { max_candidate_sequences: 64 }", max_batch_size=16)
    write_running_sum(root, "short_sum", "direct { }", max_batch_size=1, idle_us=200_000)
    write_running_sum(
        root,
        "begun_sum",
        "direct { }",
        initial_state='initial_state: { name: "from file" data_type: TYPE_FP32 dims: [ 1 ] data_file: "begin" }',
    )
    state = root / "begun_sum" / "initial_state"
    state.mkdir()
    (state / "begin").write_bytes(np.float32(100).tobytes())
    with serving(tmp_path_factory.mktemp("server") / "log", f"--model-repository={root}") as running:
        yield running


@pytest.fixture
def client(sequence_server: ServerProcess):
    with grpcclient.InferenceServerClient(sequence_server.grpc_url) as opened:
        yield opened


def add(client, model, number, sequence, *, start=False, end=False, library=grpcclient, outputs=None):
    made = library.InferInput("INPUT", [1, 1], "FP32")
    made.set_data_from_numpy(np.array([[number]], np.float32))
    return client.infer(model, [made], sequence_id=sequence, sequence_start=start, sequence_end=end, outputs=outputs)


def value_of(result, name="OUTPUT"):
    return result.as_numpy(name).item()


@pytest.mark.parametrize("model", STRATEGIES)
def test_state_is_kept_between_requests_and_given_up_at_the_start(client, model) -> None:
    assert value_of(add(client, model, 1, 7, start=True)) == 1
    assert value_of(add(client, model, 2, 7)) == 3
    assert value_of(add(client, model, 3, 7, end=True)) == 6
    assert value_of(add(client, model, 5, 7, start=True, end=True)) == 5


@pytest.mark.parametrize("model", STRATEGIES)
def test_controls(client, model) -> None:
    first = add(client, model, 1, 12345, start=True)
    names = ("SEEN_ID", "SEEN_START", "SEEN_READY", "SEEN_END")
    assert [value_of(first, name) for name in names] == [12345, 1, 1, 0]
    last = add(client, model, 1, 12345, end=True)
    assert [value_of(last, name) for name in names] == [12345, 0, 1, 1]


def test_states_and_controls_are_not_seen_by_clients(client) -> None:
    result = add(client, "direct_sum", 1, 9, start=True, end=True)
    names = [output.name for output in result.get_response().outputs]
    assert names == ["OUTPUT", "SEEN_ID", "SEEN_START", "SEEN_READY", "SEEN_END"]
    metadata = client.get_model_metadata("direct_sum", as_json=True)
    assert [tensor["name"] for tensor in metadata["inputs"]] == ["INPUT"]
    wanted = [grpcclient.InferRequestedOutput("OUTPUT")]
    result = add(client, "direct_sum", 2, 9, start=True, end=True, outputs=wanted)
    assert [output.name for output in result.get_response().outputs] == ["OUTPUT"]


def test_over_http_too(sequence_server: ServerProcess) -> None:
    with httpclient.InferenceServerClient(sequence_server.http_url) as client:
        assert value_of(add(client, "oldest_sum", 1, 77, start=True, library=httpclient)) == 1
        assert value_of(add(client, "oldest_sum", 2, 77, end=True, library=httpclient)) == 3


@pytest.mark.parametrize("model", STRATEGIES)
def test_many_sequences_at_once_never_mix(client, model) -> None:
    def run(sequence: int) -> list[float]:
        numbers = [sequence * 100 + step for step in range(8)]
        return [
            value_of(add(client, model, number, sequence, start=step == 0, end=step == 7)) - sum(numbers[: step + 1])
            for step, number in enumerate(numbers)
        ]

    with ThreadPoolExecutor(24) as pool:
        differences = list(pool.map(run, range(1, 49)))
    assert not np.any(differences)


def test_initial_state_from_a_file(client) -> None:
    assert value_of(add(client, "begun_sum", 1, 3, start=True)) == 101
    assert value_of(add(client, "begun_sum", 1, 3, end=True)) == 102


@pytest.mark.parametrize(
    ("sequence", "start", "message"),
    [
        (0, True, "must specify a non-zero or non-empty correlation ID"),
        (424242, False, "must specify the START flag on the first request of the sequence"),
    ],
)
def test_what_belongs_to_no_sequence_is_refused(client, sequence, start, message) -> None:
    with pytest.raises(InferenceServerException, match=message) as caught:
        add(client, "direct_sum", 1, sequence, start=start)
    assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"


def test_more_than_one_row_is_refused(client) -> None:
    made = grpcclient.InferInput("INPUT", [2, 1], "FP32")
    made.set_data_from_numpy(np.ones((2, 1), np.float32))
    with pytest.raises(InferenceServerException, match="must specify batch-size 1"):
        client.infer("direct_sum", [made], sequence_id=1, sequence_start=True)


def test_a_string_id_is_refused_by_a_model_that_takes_numbers(client) -> None:
    with pytest.raises(InferenceServerException, match="takes integers"):
        add(client, "direct_sum", 1, "name", start=True)


def test_an_idle_sequence_gives_its_slot_to_the_backlog(client) -> None:
    began = time.monotonic()
    assert value_of(add(client, "short_sum", 1, 1, start=True)) == 1
    assert value_of(add(client, "short_sum", 5, 2, start=True, end=True)) == 5
    assert time.monotonic() - began > 0.2
    with pytest.raises(InferenceServerException, match="START"):
        add(client, "short_sum", 1, 1)


def test_sequences_finish_while_the_server_drains(tmp_path: Path, start_server) -> None:
    write_running_sum(tmp_path / "models", "sum", "direct { }")
    server = start_server(tmp_path / "models")
    server.wait_ready()
    with grpcclient.InferenceServerClient(server.grpc_url) as client:
        assert value_of(add(client, "sum", 1, 5, start=True)) == 1
        server.signal()
        wait_until(lambda: not server.is_ready())
        assert value_of(add(client, "sum", 2, 5)) == 3
        assert value_of(add(client, "sum", 3, 5, end=True)) == 6
    assert server.wait_exit() == 0
