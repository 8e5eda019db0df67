"""Sequences with several server processes: a request reaches any of them, the one with its sequence executes it."""

import contextlib
import os
import queue
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

from naiad.cluster.member.peers import owner_of
from support.held_models import Notes, write_held
from support.sequence_models import write_running_sum
from support.server_process import ServerProcess, serving
from support.waiting import wait_until

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

StartServer = Callable[..., ServerProcess]
PROCESSES = 3
# Every client has a connection of its own, so that requests of one sequence reach different processes.
OWN_CHANNEL = [("grpc.use_local_subchannel_pool", 1)]


def write_repository(root: Path) -> Path:
    write_running_sum(root, "direct_sum", "direct { }", max_batch_size=64, idle_us=60_000_000)
    write_running_sum(root, "oldest_sum", "oldest { max_candidate_sequences: 64 }", max_batch_size=16)
    write_running_sum(root, "short_sum", "direct { }", idle_us=300_000)
    extra = "sequence_batching { max_sequence_idle_microseconds: 60000000 }"
    write_held(root, "held", root.parent / "notes", extra=extra)
    return root


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_repository(tmp_path_factory.mktemp("sequences") / "models")


@pytest.fixture(scope="module")
def notes(models: Path) -> Notes:
    return Notes(models.parent / "notes")


@pytest.fixture(scope="module")
def trio(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    log = tmp_path_factory.mktemp("server") / "log"
    with serving(log, f"--model-repository={models}", f"--processes={PROCESSES}") as running:
        yield running


def grpc_client(running: ServerProcess) -> grpcclient.InferenceServerClient:
    return grpcclient.InferenceServerClient(running.grpc_url, channel_args=OWN_CHANNEL)


@pytest.fixture
def clients(trio: ServerProcess) -> Iterator[list[grpcclient.InferenceServerClient]]:
    """As many as there are processes; connections are shared out evenly, so each process has one."""
    opened = [grpc_client(trio) for _ in range(PROCESSES)]
    yield opened
    for client in opened:
        client.close()


def held_input() -> grpcclient.InferInput:
    made = grpcclient.InferInput("IN", [1, 1], "FP32")
    made.set_data_from_numpy(np.ones((1, 1), np.float32))
    return made


def tensor(number, library=grpcclient):
    made = library.InferInput("INPUT", [1, 1], "FP32")
    made.set_data_from_numpy(np.array([[number]], np.float32))
    return made


def add(client, model, number, sequence, *, start=False, end=False, library=grpcclient, **more):
    return (
        client.infer(
            model,
            [tensor(number, library)],
            sequence_id=sequence,
            sequence_start=start,
            sequence_end=end,
            **more,
        )
        .as_numpy("OUTPUT")
        .item()
    )


def members(running: ServerProcess) -> dict[int, int]:
    """Return the pid of each slot."""
    found = {}
    for child in psutil.Process(running.process.pid).children():
        with contextlib.suppress(psutil.NoSuchProcess):  # a zombie is none, too
            name = child.name()
            if name.startswith("naiad:"):
                found[int(name.partition(":")[2]) - 1] = child.pid
    return found


def statistics_of(running: ServerProcess, model: str) -> dict:
    (row,) = running.get(f"/v2/models/{model}/stats").json["model_stats"]
    return row


def metric(running: ServerProcess, name: str, model: str) -> float:
    text = running.get("/metrics", url=running.metrics_url).body.decode()
    (value,) = [
        line.split()[-1] for line in text.splitlines() if line.startswith(name + "{") and f'model="{model}"' in line
    ]
    return float(value)


@pytest.mark.parametrize("model", ["direct_sum", "oldest_sum"])
def test_a_sequence_goes_on_whichever_process_is_asked(clients, model) -> None:
    for sequence in range(1, 13):
        sums = [
            add(clients[step % PROCESSES], model, step + 1, sequence, start=step == 0, end=step == 6)
            for step in range(7)
        ]
        assert sums == [1, 3, 6, 10, 15, 21, 28]


def test_over_http_and_across_protocols(trio: ServerProcess, clients) -> None:
    connections = [httpclient.InferenceServerClient(trio.http_url) for _ in range(PROCESSES)]
    for sequence in range(100, 112):
        assert add(connections[0], "direct_sum", 1, sequence, start=True, library=httpclient) == 1
        assert add(connections[1], "direct_sum", 2, sequence, library=httpclient) == 3
        assert add(clients[sequence % PROCESSES], "direct_sum", 3, sequence) == 6
        assert add(connections[2], "direct_sum", 4, sequence, end=True, library=httpclient) == 10
    for connection in connections:
        connection.close()


def test_over_streams(trio: ServerProcess) -> None:
    """Two streams on different connections take turns in the same sequences; one stream keeps the order."""
    results: list[queue.Queue] = [queue.Queue(), queue.Queue()]
    streams = [grpc_client(trio) for _ in results]
    for stream, answers in zip(streams, results, strict=True):
        stream.start_stream(lambda result, error, answers=answers: answers.put((result, error)))
    sequences = range(200, 230)
    for step in range(4):
        stream, answers = streams[step % 2], results[step % 2]
        for sequence in sequences:
            stream.async_stream_infer(
                "oldest_sum",
                [tensor(step + sequence)],
                request_id=str(sequence),
                sequence_id=sequence,
                sequence_start=step == 0,
                sequence_end=step == 3,
            )
        for sequence in sequences:
            result, error = answers.get(timeout=60)
            assert error is None
            assert result.get_response().id == str(sequence)
            assert result.as_numpy("OUTPUT").item() == (step + 1) * sequence + sum(range(step + 1))
    for stream in streams:
        stream.stop_stream()
        stream.close()


def test_many_connections_and_sequences_never_mix(trio: ServerProcess) -> None:
    opened = [grpc_client(trio) for _ in range(12)]

    def run(sequence: int) -> list[float]:
        numbers = [sequence * 10 + step for step in range(8)]
        return [
            add(opened[(sequence + step) % 12], "oldest_sum", number, sequence, start=step == 0, end=step == 7)
            - sum(numbers[: step + 1])
            for step, number in enumerate(numbers)
        ]

    before = statistics_of(trio, "oldest_sum")
    with ThreadPoolExecutor(24) as pool:
        differences = list(pool.map(run, range(1000, 1120)))
    assert not np.any(differences)
    after = statistics_of(trio, "oldest_sum")
    assert after["inference_count"] - before["inference_count"] == 960
    assert after["inference_stats"]["success"]["count"] - before["inference_stats"]["success"]["count"] == 960
    assert metric(trio, "nv_inference_request_success", "oldest_sum") == after["inference_stats"]["success"]["count"]
    for client in opened:
        client.close()


# --- errors ---------------------------------------------------------------------------------------------------------


def test_errors_of_the_owner_reach_the_client(clients) -> None:
    for client in clients:
        with pytest.raises(InferenceServerException, match="must specify the START flag") as caught:
            add(client, "direct_sum", 1, 424242)
        assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"
        wrong = grpcclient.InferInput("INPUT", [1, 2], "FP32")
        wrong.set_data_from_numpy(np.ones((1, 2), np.float32))
        with pytest.raises(InferenceServerException, match="unexpected shape"):
            client.infer("direct_sum", [wrong], sequence_id=424242, sequence_start=True)
        with pytest.raises(InferenceServerException, match="non-zero or non-empty correlation ID"):
            add(client, "direct_sum", 1, 0, start=True)


def test_sequences_become_idle_at_their_owner(clients) -> None:
    assert add(clients[0], "short_sum", 1, 5, start=True) == 1
    # Requests before its end keep it alive, so they come less and less often.
    for pause_s in (1, 2, 4, 8, 16):
        time.sleep(pause_s)
        try:
            add(clients[0], "short_sum", 1, 5)
        except InferenceServerException:
            break
    for client in clients:
        with pytest.raises(InferenceServerException, match="START"):
            add(client, "short_sum", 1, 5)


def test_process_that_receives_request_handles_classes_and_regions(clients) -> None:
    asked = grpcclient.InferRequestedOutput("OUTPUT", class_count=1)
    for client in clients:
        result = client.infer(
            "direct_sum", [tensor(3)], outputs=[asked], sequence_id=77, sequence_start=True, sequence_end=True
        )
        assert result.as_numpy("OUTPUT").ravel().tolist() == [b"3.000000:0"]


def test_cancelled_requests_are_cancelled_at_their_owner(trio: ServerProcess, clients, notes: Notes) -> None:
    sequence = next(n for n in range(1, 100) if owner_of("held", n, PROCESSES) == 0)
    done: dict[str, queue.Queue] = {}

    def ask(client: grpcclient.InferenceServerClient, request_id: str, *, start: bool = False):
        answered = done[request_id] = queue.Queue()
        return client.async_infer(
            "held",
            [held_input()],
            lambda result, error: answered.put(error),
            request_id=request_id,
            sequence_id=sequence,
            sequence_start=start,
        )

    ask(clients[0], "first", start=True)
    notes.wait("first", "began")
    # Those behind it wait, one on each connection, and are dropped while it executes.
    calls = []
    for number, client in enumerate(clients):
        calls.append(ask(client, f"waits-{number}"))
        trio.wait_requests("held", waiting=number + 1)
    for call in calls:
        call.cancel()
    for number in range(len(calls)):
        assert "cancel" in str(done[f"waits-{number}"].get(timeout=60)).lower()
    wait_until(lambda: statistics_of(trio, "held")["inference_stats"]["fail"]["count"] == 3)
    notes.release("first")
    assert done["first"].get(timeout=60) is None
    wait_until(lambda: statistics_of(trio, "held")["inference_count"] == 1)
    assert not any(notes.has(f"waits-{number}", "began") for number in range(len(calls)))


# --- deaths and ends ------------------------------------------------------------------------------------------------


def test_dead_owner_is_reported_and_replaced(start_server: StartServer, tmp_path: Path) -> None:
    running = start_server(write_repository(tmp_path / "models"), f"--processes={PROCESSES}")
    running.wait_ready()
    opened = [grpc_client(running) for _ in range(PROCESSES)]
    owner = 1
    sequence = next(n for n in range(1, 100) if owner_of("direct_sum", n, PROCESSES) == owner)
    other = next(n for n in range(1, 100) if owner_of("direct_sum", n, PROCESSES) == 0)
    waiting = next(n for n in range(1, 100) if owner_of("held", n, PROCESSES) == owner)
    failures: queue.Queue = queue.Queue()
    for number, client in enumerate(opened):
        add(client, "direct_sum", 1, sequence, start=True)
        add(client, "direct_sum", 1, other, start=True)
        client.async_infer(
            "held",
            [held_input()],
            lambda result, error: failures.put(error),
            sequence_id=waiting,
            sequence_start=True,
        )
        running.wait_requests("held", waiting=number, executing=1)
    os.kill(members(running)[owner], signal.SIGKILL)
    reported = [str(failures.get(timeout=60)) for _ in opened]
    # One came over the connection that died with the process.
    assert sum("has ended with sequence" in text and "begin the sequence again" in text for text in reported) == 2
    wait_until(
        lambda: b"naiad_processes %d" % PROCESSES in running.get("/metrics", url=running.metrics_url).body,
        running.log_text,
    )
    for client in opened:
        with pytest.raises(InferenceServerException, match="been replaced: begin the sequence again"):
            add(client, "direct_sum", 1, sequence)
    assert [add(client, "direct_sum", 1, other) for client in opened] == [2, 3, 4]
    assert [add(client, "direct_sum", 1, sequence, start=n == 0) for n, client in enumerate(opened)] == [1, 2, 3]
    # Through one process only: the other processes learn of the ends as well, without idle timeouts.
    for each in (sequence, other):
        add(opened[0], "direct_sum", 1, each, end=True)
    for client in opened:
        client.close()
    running.signal()
    assert running.wait_exit() == 0


def test_sequences_finish_while_the_server_drains(start_server: StartServer, tmp_path: Path) -> None:
    running = start_server(write_repository(tmp_path / "models"), "--processes=2")
    running.wait_ready()
    opened = [grpc_client(running) for _ in range(2)]
    for client in opened:
        for sequence in range(1, 9):
            add(client, "direct_sum", 1, sequence, start=client is opened[0])
    running.signal()
    wait_until(lambda: not running.is_ready())
    for step, client in enumerate((*opened, *opened)):
        for sequence in range(1, 9):
            assert add(client, "direct_sum", 1, sequence, end=step == 3) == step + 3
    with pytest.raises(InferenceServerException):
        add(opened[0], "direct_sum", 1, 9, start=True)
    assert running.wait_exit() == 0
    for client in opened:
        client.close()


def test_sequences_go_on_while_another_version_loads(start_server: StartServer, tmp_path: Path) -> None:
    root = tmp_path / "models"
    model = write_running_sum(root, "direct_sum", "direct { }", max_batch_size=8, idle_us=60_000_000)
    running = start_server(root, "--processes=2", "--model-control-mode=explicit", "--load-model=*")
    running.wait_ready()
    client = grpc_client(running)
    for sequence in range(1, 5):
        assert add(client, "direct_sum", 1, sequence, start=True) == 1
    shutil.copytree(model / "1", model / "2")
    begun = running.post("/v2/models/direct_sum/rollout", {"stable": 1, "canary": 2, "weight": 50})
    assert begun.status == 200, begun.body
    for sequence in range(1, 5):
        assert add(client, "direct_sum", 1, sequence, end=True) == 2
    client.close()


@pytest.fixture
def short_directory() -> Iterator[Path]:
    """A directory whose sockets have paths that the kernel takes."""
    with tempfile.TemporaryDirectory() as path:
        yield Path(path)


def test_nothing_is_left_in_the_temporary_directory(
    start_server: StartServer, tmp_path: Path, short_directory: Path
) -> None:
    root = short_directory
    running = start_server(write_repository(tmp_path / "models"), "--processes=2", environment={"TMPDIR": str(root)})
    running.wait_ready()
    (directory,) = root.glob("naiad-*")
    assert directory.stat().st_mode & 0o777 == 0o700
    assert sorted(path.name for path in directory.iterdir()) == ["process1", "process2"]
    running.signal()
    assert running.wait_exit() == 0
    assert list(root.glob("naiad-*")) == []
