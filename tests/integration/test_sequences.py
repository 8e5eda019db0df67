"""Sequences through a real server over every transport: controls, states, both strategies, ids, idleness."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from support.sequence_models import write_running_sum
from support.server_process import ServerProcess, serving
from support.transport import new_transport
from support.waiting import wait_until

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

STRATEGIES = ("direct_sum", "oldest_sum")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
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


def add(transport, model, number, sequence, *, start=False, end=False, outputs=None, **more):
    given = {"INPUT": np.array([[number]], np.float32)}
    return transport.infer(
        model, given, sequence_id=sequence, sequence_start=start, sequence_end=end, outputs=outputs, **more
    )


def value_of(result, name="OUTPUT"):
    return result[name].item()


@pytest.mark.parametrize("model", STRATEGIES)
def test_state_lasts_until_sequence_starts_again(transport, model) -> None:
    assert value_of(add(transport, model, 1, 7, start=True)) == 1
    assert value_of(add(transport, model, 2, 7)) == 3
    assert value_of(add(transport, model, 3, 7, end=True)) == 6
    assert value_of(add(transport, model, 5, 7, start=True, end=True)) == 5


@pytest.mark.parametrize("model", STRATEGIES)
def test_controls(transport, model) -> None:
    first = add(transport, model, 1, 12345, start=True)
    names = ("SEEN_ID", "SEEN_START", "SEEN_READY", "SEEN_END")
    assert [value_of(first, name) for name in names] == [12345, 1, 1, 0]
    last = add(transport, model, 1, 12345, end=True)
    assert [value_of(last, name) for name in names] == [12345, 0, 1, 1]


def test_states_and_controls_are_not_seen_by_clients(transport) -> None:
    result = add(transport, "direct_sum", 1, 9, start=True, end=True)
    assert result.names == ["OUTPUT", "SEEN_ID", "SEEN_START", "SEEN_READY", "SEEN_END"]
    assert [tensor.name for tensor in transport.metadata("direct_sum").inputs] == ["INPUT"]
    assert add(transport, "direct_sum", 2, 9, start=True, end=True, outputs=["OUTPUT"]).names == ["OUTPUT"]


@pytest.mark.parametrize("model", STRATEGIES)
def test_many_sequences_at_once_never_mix(transport, model) -> None:
    def run(sequence: int) -> list[float]:
        numbers = [sequence * 100 + step for step in range(8)]
        client = transport.new_client()
        found = [
            value_of(add(transport, model, number, sequence, start=step == 0, end=step == 7, client=client))
            for step, number in enumerate(numbers)
        ]
        client.close()
        return np.subtract(found, np.cumsum(numbers)).tolist()

    with ThreadPoolExecutor(24) as pool:
        differences = list(pool.map(run, range(1, 49)))
    assert not np.any(differences)


def test_initial_state_from_a_file(transport) -> None:
    assert value_of(add(transport, "begun_sum", 1, 3, start=True)) == 101
    assert value_of(add(transport, "begun_sum", 1, 3, end=True)) == 102


@pytest.mark.parametrize(
    ("sequence", "start", "message"),
    [
        (0, True, "must specify a non-zero or non-empty correlation ID"),
        (424242, False, "must specify the START flag on the first request of the sequence"),
    ],
)
def test_what_belongs_to_no_sequence_is_refused(transport, sequence, start, message) -> None:
    with transport.fails("INVALID_ARGUMENT", message):
        add(transport, "direct_sum", 1, sequence, start=start)


def test_more_than_one_row_is_refused(transport) -> None:
    with transport.fails("INVALID_ARGUMENT", "must specify batch-size 1"):
        transport.infer("direct_sum", {"INPUT": np.ones((2, 1), np.float32)}, sequence_id=1, sequence_start=True)


def test_model_with_numeric_ids_refuses_string_id(transport) -> None:
    with pytest.raises(InferenceServerException, match="takes integers"):
        add(transport, "direct_sum", 1, "name", start=True)


def test_idle_sequence_gives_its_slot_to_backlog(transport) -> None:
    began = time.monotonic()
    assert value_of(add(transport, "short_sum", 1, 1, start=True)) == 1
    assert value_of(add(transport, "short_sum", 5, 2, start=True, end=True)) == 5
    assert time.monotonic() - began > 0.2
    with pytest.raises(InferenceServerException, match="START"):
        add(transport, "short_sum", 1, 1)


def test_sequences_finish_while_the_server_drains(tmp_path: Path, start_server) -> None:
    write_running_sum(tmp_path / "models", "sum", "direct { }")
    server = start_server(tmp_path / "models")
    server.wait_ready()
    with closing(new_transport("grpc", server)) as transport:
        assert value_of(add(transport, "sum", 1, 5, start=True)) == 1
        server.signal()
        wait_until(lambda: not server.is_ready())
        assert value_of(add(transport, "sum", 2, 5)) == 3
        assert value_of(add(transport, "sum", 3, 5, end=True)) == 6
    assert server.wait_exit() == 0
