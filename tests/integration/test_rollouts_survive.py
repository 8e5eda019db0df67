"""Rollouts in real servers that are stopped, killed, and joined by others: what was decided stays decided."""

import contextlib
import json
import os
import shutil
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

from naiad.cli import rollout as verb
from support.long_run import mostly_long
from support.model_repository import write_scale
from support.object_stores import ENVIRONMENT, S3Server
from support.server_process import ServerProcess
from support.waiting import wait_until

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

StartServer = Callable[..., ServerProcess]
EXPLICIT = ("--model-control-mode=explicit", "--load-model=*")
POLL = ("--model-control-mode=poll", "--repository-poll-secs=1", "--repository-settle-secs=0.1")
MODES = {"none": (), "poll": POLL, "explicit": EXPLICIT}
GUARD = "stable = 1\ncanary = 2\nweight = 50\n[guard]\nmin_requests = 10\nmax_error_rate = 0.1\n"
FAILING = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([], pb_utils.TritonError("broken")) for _ in requests]
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with a model that multiplies by the number of its version: 1 and 2."""
    root = tmp_path / "models"
    for version in (1, 2):
        write_scale(root, version, version=version)
    return root


def send(server: ServerProcess, count: int, version: str = "") -> Counter[str]:
    """Return how many of `count` requests each version has answered, or failed."""
    tensor = grpcclient.InferInput("IN", [1], "FP32")
    tensor.set_data_from_numpy(np.ones(1, np.float32))
    found: Counter[str] = Counter()
    with grpcclient.InferenceServerClient(server.grpc_url) as client:
        for _ in range(count):
            try:
                answer = client.infer("scale", [tensor], model_version=version).get_response()
                found[answer.model_version] += 1
            except InferenceServerException as error:
                found[str(error.message())] += 1
    return found


def change(server: ServerProcess, **fields: Any) -> Any:
    answer = server.request("POST", "/v2/models/scale/rollout", json.dumps(fields).encode())
    assert answer.status == 200, answer.json
    return answer.json


def status_of(server: ServerProcess) -> Any:
    return server.request("GET", "/v2/models/scale/rollout").json


def refusal(server: ServerProcess, **fields: Any) -> str:
    answer = server.request("POST", "/v2/models/scale/rollout", json.dumps(fields).encode())
    assert answer.status == 400, answer.json
    return str(answer.json["error"])


def end(server: ServerProcess, number: signal.Signals) -> None:
    server.process.send_signal(number)
    server.wait_exit()


@pytest.fixture
def again(start_server: StartServer, root: Path, tmp_path: Path) -> Callable[..., ServerProcess]:
    """A function that starts a server of the repository, or one more."""
    environment = {"NAIAD_CACHE": str(tmp_path / "cache")}

    def start(*flags: str, **more: Any) -> ServerProcess:
        server = start_server(root, *flags, environment={**environment, **more.pop("environment", {})}, **more)
        server.wait_ready()
        return server

    return start


RESTARTS = [
    pytest.param(signal.SIGTERM, EXPLICIT, id="explicit-stopped"),
    pytest.param(signal.SIGKILL, (*EXPLICIT, "--processes=2"), id="explicit-killed-two-processes"),
]


@pytest.mark.parametrize(("number", "flags"), RESTARTS)
def test_split_and_refusal_survive_a_restart(
    again: Callable[..., ServerProcess], number: signal.Signals, flags: tuple[str, ...]
) -> None:
    server = again(*flags)
    assert send(server, 4) == {"2": 4}
    change(server, stable=1, canary=2, weight=10)
    assert 8 <= send(server, 100)["2"] <= 12
    end(server, number)

    server = again(*flags)
    found = send(server, 100)
    assert 8 <= found["2"] <= 12
    assert found["1"] == 100 - found["2"]
    change(server, action="rollback")
    end(server, number)

    server = again(*flags)
    assert send(server, 60) == {"1": 60}
    assert "version 2 was refused (rolled back by a client); allow it again with" in refusal(
        server, weight=5, canary=2
    )
    assert server.request("DELETE", "/v2/models/scale/rollout").status == 200
    assert send(server, 20) == {"1": 20}
    end(server, number)

    server = again(*flags)
    assert send(server, 20) == {"1": 20}
    assert change(server, allow=2, stable=1, canary=2, weight=100)["refused"] == {}
    assert send(server, 20) == {"2": 20}


PHASES: dict[str, tuple[list[dict[str, Any]], dict[str, int]]] = {
    "canary": ([{"stable": 1, "canary": 2, "weight": 25}], {"1": 15, "2": 5}),
    "blue-green": ([{"to": 1}], {"1": 20}),
    "blue-green switched": ([{"to": 1}, {"to": 2}], {"2": 20}),
    "canary rolled back": ([{"stable": 1, "canary": 2, "weight": 50}, {"action": "rollback"}], {"1": 20}),
    "blue-green rolled back": ([{"to": 1}, {"to": 2}, {"action": "rollback"}], {"1": 20}),
}
"""Decisions of a client, and how 20 requests are split afterwards. Version 3, the newest, has never been chosen."""


def assert_split(server: ServerProcess, wanted: dict[str, int]) -> None:
    """A process that other clients ask too may be one request ahead of an even split."""
    found = send(server, 20)
    assert found.keys() == wanted.keys(), found
    assert all(abs(found[version] - count) <= 1 for version, count in wanted.items()), found


@pytest.mark.parametrize("phase", mostly_long(PHASES, "canary rolled back".__eq__))
def test_restarts_and_replicas_keep_every_phase(again: Callable[..., ServerProcess], root: Path, phase: str) -> None:
    write_scale(root, 3, version=3)
    decisions, split = PHASES[phase]
    state: Any = {}
    server = again(*EXPLICIT)
    assert send(server, 4) == {"3": 4}
    for fields in decisions:
        state = change(server, **fields)
    assert_split(server, split)
    for number in (signal.SIGTERM, signal.SIGKILL):
        end(server, number)
        server = again(*EXPLICIT)
        assert_split(server, split)
    replicas = [server, again(*EXPLICIT, "--processes=2")]
    for old in list(replicas):  # a rolling restart: each one is replaced while all serve
        seen: Counter[str] = Counter()
        stop = threading.Event()

        def ask(seen: Counter[str] = seen, stop: threading.Event = stop) -> None:
            while not stop.is_set():
                for each in list(replicas):
                    seen.update(send(each, 4))

        thread = threading.Thread(target=ask)
        thread.start()
        try:
            new = again(*EXPLICIT)
            assert_split(new, split)
            replicas.append(new)
            wait_until(lambda seen=seen: sum(seen.values()) >= 40, "no requests were answered")  # type: ignore[misc]
            replicas.remove(old)
        finally:
            stop.set()
            thread.join(60)
        end(old, signal.SIGTERM)
        assert seen.keys() == split.keys(), "another version has answered during the restart"
    for each in replicas:
        assert_split(each, split)
        assert status_of(each)["refused"].keys() == state["refused"].keys()


@pytest.mark.parametrize("mode", MODES)
def test_guard_does_not_try_a_refused_canary_again(
    again: Callable[..., ServerProcess], root: Path, mode: str
) -> None:
    (root / "scale" / "rollout.toml").write_text(GUARD)
    (root / "scale" / "2" / "model.py").write_text(FAILING)
    server = again(*MODES[mode])

    def is_rolled_back() -> bool:
        send(server, 10)
        return bool(status_of(server)["rollout"]["weight"] == 0)

    wait_until(is_rolled_back, "the canary was not rolled back")
    wait_until((root / ".scale.rollout.json").exists, "the verdict was not stored")
    end(server, signal.SIGKILL)
    servers = [again(*MODES[mode]), again(*MODES[mode])]
    for each in servers:
        assert send(each, 40) == {"1": 40}
        assert "rolled back by the guard (error_rate)" in status_of(each)["refused"]["2"]


@pytest.mark.long
def test_replicas_follow_decisions_of_each_other(again: Callable[..., ServerProcess], root: Path) -> None:
    one, two = again(*EXPLICIT), again(*EXPLICIT, "--processes=2")
    change(one, stable=1, canary=2, weight=50)

    def splits(server: ServerProcess, **wanted: int) -> bool:
        found = send(server, 20)
        return {version: found[version] for version in ("1", "2")} == {"1": wanted["one"], "2": wanted["two"]}

    wait_until(lambda: splits(two, one=10, two=10), "the second replica did not follow")
    three = again(*EXPLICIT)
    assert splits(three, one=10, two=10)
    change(two, action="rollback")
    for each in (one, three):
        wait_until(
            lambda each=each: splits(each, one=20, two=0), "a replica still gives requests to a refused version"
        )  # type: ignore[misc]
    # Decisions of servers follow each other, however many of them decide.
    change(one, weight=0, aliases={"one": 1})
    change(three, aliases={"three": 1})
    wait_until(lambda: status_of(one)["rollout"]["aliases"] == {"three": 1}, "the last decision does not count")
    assert [status_of(each)["revision"] for each in (one, three)] == [status_of(three)["revision"]] * 2
    assert [path.name for path in root.iterdir() if path.name.startswith(".")] == [".scale.rollout.json"]


def test_new_version_becomes_canary_by_one_command(
    again: Callable[..., ServerProcess], root: Path, tmp_path: Path
) -> None:
    shutil.move(root / "scale" / "2", tmp_path / "2")
    server = again(*EXPLICIT)
    assert send(server, 4) == {"1": 4}
    shutil.move(tmp_path / "2", root / "scale" / "2")
    seen: Counter[str] = Counter()
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            seen.update(send(server, 20))

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        command = ["scale", "--canary", "2", "--weight", "10", "-u", f"http://{server.http_url}"]
        assert verb.run(command) == 0
        before = sum(seen.values())
        wait_until(lambda: sum(seen.values()) > before + 200, "no requests were answered")
    finally:
        stop.set()
        thread.join(60)
    assert set(seen) == {"1", "2"}
    assert seen["2"] <= 0.13 * sum(seen.values()), "version 2 has got more than its share at some time"
    assert server.log_text().count("loading: scale:1") == 1, "version 1 was loaded again"
    assert "version 7 has no directory" in refusal(server, canary=7)
    assert 8 <= send(server, 100)["2"] <= 12


@pytest.mark.parametrize("mode", ["none", "poll"])
@pytest.mark.long
def test_declared_rollout_gets_a_version_in_any_mode(
    again: Callable[..., ServerProcess], root: Path, tmp_path: Path, mode: str
) -> None:
    shutil.move(root / "scale" / "2", tmp_path / "2")
    (root / "scale" / "rollout.toml").write_text("stable = 1\n")
    server = again(*MODES[mode], "--processes=2")
    shutil.move(tmp_path / "2", root / "scale" / "2")
    change(server, canary=2, weight=50)
    for _ in range(4):  # over connections of both processes
        assert send(server, 20) == {"1": 10, "2": 10}
    end(server, signal.SIGKILL)
    assert send(again(*MODES[mode]), 20) == {"1": 10, "2": 10}


def test_canary_that_does_not_load_changes_nothing(again: Callable[..., ServerProcess], root: Path) -> None:
    (root / "scale" / "2" / "model.py").rename(root / "scale" / "model.py.2")
    (root / "scale" / "2").rmdir()
    server = again(*EXPLICIT)
    (root / "scale" / "2").mkdir()
    (root / "scale" / "2" / "model.py").write_text("import nothing_of_this_name\n")
    assert "nothing_of_this_name" in refusal(server, canary=2, weight=10)
    assert send(server, 10) == {"1": 10}
    assert server.request("GET", "/v2/models/scale/rollout").status == 404
    (root / "scale" / "model.py.2").replace(root / "scale" / "2" / "model.py")
    change(server, canary=2, weight=50)
    assert send(server, 10) == {"1": 5, "2": 5}


def test_newest_version_is_not_loaded_if_refused(again: Callable[..., ServerProcess], root: Path) -> None:
    server = again(*EXPLICIT)
    change(server, to=1)
    change(server, to=2)
    change(server, action="rollback")
    assert server.request("DELETE", "/v2/models/scale/rollout").status == 200
    end(server, signal.SIGTERM)
    server = again(*EXPLICIT)
    assert send(server, 5) == {"1": 5}
    assert "is not found" in next(iter(send(server, 1, version="2"))) or send(server, 1, version="2") != {"2": 1}
    assert server.post("/v2/repository/models/scale/load").status == 200
    assert send(server, 5) == {"1": 5}
    write_scale(root, 3, version=3)
    assert server.post("/v2/repository/models/scale/load").status == 200
    assert send(server, 5) == {"3": 5}  # Triton's policy, where no rollout is in progress


def test_model_without_its_stable_version_is_mended(again: Callable[..., ServerProcess], root: Path) -> None:
    server = again(*EXPLICIT)
    change(server, to=1)
    end(server, signal.SIGKILL)
    shutil.rmtree(root / "scale" / "1")
    server = again(*EXPLICIT, "--exit-on-error=false", "--strict-readiness=false")
    assert "version 1, stable as a client has set it, has no directory" in server.log_text()
    assert "2" not in send(server, 2)
    change(server, to=2)
    assert send(server, 5) == {"2": 5}


@pytest.mark.parametrize(
    "content",
    # tests/property/test_rollout_record_properties.py has more of them.
    mostly_long([b"", b'{"format": "naiad rollout", "sch', b"[1, 2]", bytes(range(256))], b"[1, 2]".__eq__),
)
def test_unusable_record_is_named_and_releases_nothing(
    again: Callable[..., ServerProcess], root: Path, content: bytes
) -> None:
    (root / ".scale.rollout.json").write_bytes(content)
    server = again(*EXPLICIT)
    assert send(server, 20) == {"1": 20}
    assert f"the record {root / '.scale.rollout.json'} cannot be used" in server.log_text()
    assert "held back" in status_of(server)["note"]
    change(server, to=2)
    end(server, signal.SIGKILL)
    assert (root / ".scale.rollout.json.unreadable").read_bytes() == content
    assert send(again(*EXPLICIT), 20) == {"2": 20}


def test_state_is_kept_where_the_operator_wants_it(
    again: Callable[..., ServerProcess], root: Path, tmp_path: Path
) -> None:
    place = tmp_path / "states"
    server = again(*EXPLICIT, f"--rollout-state={place}")
    document = change(server, stable=1, canary=2, weight=50)
    assert document["record"] == str(place / ".scale.rollout.json")
    end(server, signal.SIGKILL)
    assert not (root / ".scale.rollout.json").exists()
    assert send(again(*EXPLICIT, f"--rollout-state={place}"), 20) == {"1": 10, "2": 10}


@pytest.mark.skipif(os.geteuid() == 0 and not shutil.which("setpriv"), reason="root writes everywhere")
def test_read_only_repository_is_kept_in_the_cache(
    root: Path, tmp_path: Path, again: Callable[..., ServerProcess]
) -> None:
    # A directory in the place of the file that would be written: root cannot write there either.
    (root / ".scale.rollout.json.new").mkdir()
    server = again(*EXPLICIT)
    document = change(server, stable=1, canary=2, weight=50)
    assert document["record"].startswith(str(tmp_path / "cache" / "rollouts"))
    server.wait_log("where other servers do not see it: .*--rollout-state=PATH")
    end(server, signal.SIGKILL)
    assert send(again(*EXPLICIT), 20) == {"1": 10, "2": 10}


@pytest.mark.long
def test_killed_writers_leave_a_whole_record(again: Callable[..., ServerProcess], root: Path) -> None:
    expected = 0
    for attempt in range(4):
        server = again(*EXPLICIT)
        if expected:
            found = status_of(server)["rollout"]["weight"]
            assert found in (expected, expected % 100 + 1), "an answered decision is lost"
        else:
            change(server, stable=1, canary=2, weight=1)
            expected = 1
        threading.Timer(0.15 * attempt, lambda server=server: server.process.kill()).start()  # type: ignore[misc]
        with contextlib.suppress(OSError, ValueError, KeyError):
            while True:
                wanted = expected % 100 + 1
                assert change(server, weight=wanted)["rollout"]["weight"] == wanted
                expected = wanted
        server.wait_exit()
    assert not list(root.glob("*.unreadable"))


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    server = S3Server()
    yield server
    server.stop()


def test_replicas_of_a_bucket_share_the_state(
    s3: S3Server, root: Path, start_server: StartServer, tmp_path: Path
) -> None:
    s3.upload("rollouts", root)

    def start(name: str, *flags: str) -> ServerProcess:
        environment = {**ENVIRONMENT, "NAIAD_CACHE": str(tmp_path / name)}
        server = start_server(s3.url("rollouts"), *flags, environment=environment)
        server.wait_ready()
        return server

    one = start("one", *EXPLICIT)
    document = change(one, stable=1, canary=2, weight=50)
    assert document["record"] == f"{s3.url('rollouts')}/.scale.rollout.json"
    end(one, signal.SIGKILL)
    two = start("two", *EXPLICIT)
    assert send(two, 20) == {"1": 10, "2": 10}
    one = start("one", *POLL)
    change(two, action="rollback")
    assert send(two, 20) == {"1": 20}
    wait_until(lambda: send(one, 20) == {"1": 20}, "the other replica did not follow")
    assert one.log_text().count("loading: scale:") == 2, "the record counts as a file of the model"
