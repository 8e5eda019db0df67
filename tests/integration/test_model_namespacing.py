"""Models of equal names in two repositories, with a real server: Triton's rules for which one is meant."""

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

from support.ensemble_models import tensor, write_ensemble
from support.long_run import mostly_long
from support.model_repository import add_sub_config, write_model
from support.model_zoo import python_source
from support.sequence_models import write_running_sum
from support.server_process import ServerProcess

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

StartServer = Callable[..., ServerProcess]

POLL = ("--model-control-mode=poll", "--repository-poll-secs=1", "--repository-settle-secs=0.4")
EXPLICIT = ("--model-control-mode=explicit",)
NUMBERS = np.arange(16, dtype=np.float32)
SUM, DIFFERENCE = (NUMBERS + NUMBERS).tolist(), (NUMBERS - NUMBERS).tolist()


def write_member(root: Path, name: str, *, adds_first: bool) -> None:
    first, second = "+-" if adds_first else "-+"
    outputs = {"OUTPUT0": f"INPUT0 {first} INPUT1", "OUTPUT1": f"INPUT0 {second} INPUT1"}
    config = add_sub_config("python", max_batch_size=0, extra="response_cache { enable: true }")
    write_model(root, name, config, {"1/model.py": python_source(outputs, inputs=["INPUT0", "INPUT1"])})


def write_pipeline(root: Path, name: str, member: str) -> None:
    names = {key: key for key in ("INPUT0", "INPUT1")}, {key: key for key in ("OUTPUT0", "OUTPUT1")}
    inputs, outputs = ([tensor(key) for key in each] for each in names)
    write_ensemble(root, name, inputs, outputs, [(member, *names)], max_batch_size=0)


class Scene:
    """Two repositories, one whose models add first and one whose models subtract first, and a server over both."""

    def __init__(
        self,
        root: Path,
        start: StartServer,
        members: tuple[str, str],
        ensembles: tuple[str, str],
        ends: contextlib.ExitStack,
    ) -> None:
        self.ends = ends
        """Closes the clients: a server waits some seconds for connections that are open."""
        self.roots = (root / "addsub_repo", root / "subadd_repo")
        self._start = start
        for store, member, ensemble, adds in zip(self.roots, members, ensembles, (True, False), strict=True):
            write_member(store, member, adds_first=adds)
            write_pipeline(store, ensemble, member)

    def serve(self, *flags: str) -> "Scene":
        second = f"--model-repository={self.roots[1]}"
        self.server = self._start(self.roots[0], second, "--model-namespacing=true", *flags)
        self.server.wait_ready()
        self.http = self.ends.enter_context(httpclient.InferenceServerClient(self.server.http_url))
        self.grpc = self.ends.enter_context(grpcclient.InferenceServerClient(self.server.grpc_url))
        return self

    def infer(self, model: str) -> list[float]:
        """Return the first output, the same over both protocols."""
        answers = []
        for package, client in ((httpclient, self.http), (grpcclient, self.grpc)):
            inputs = [package.InferInput(name, [16], "FP32") for name in ("INPUT0", "INPUT1")]
            for each in inputs:
                each.set_data_from_numpy(NUMBERS)
            answers.append(client.infer(model, inputs).as_numpy("OUTPUT0").tolist())
        assert answers[0] == answers[1]
        return answers[0]

    def refusal(self, model: str) -> str:
        with pytest.raises(InferenceServerException) as raised:
            self.infer(model)
        assert raised.value.status() == "400"
        return str(raised.value.message())

    def expect(self, **expected: list[float]) -> None:
        assert {name: self.infer(name) for name in expected} == expected

    def index(self) -> list[tuple[str, str]]:
        return [(row["name"], row.get("state", "")) for row in self.http.get_model_repository_index()]


def until(holds: Callable[[], bool], what: str, timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


AMBIGUOUS = (
    "There are 2 identifiers of model '{}' in global map, model namespace must be provided to resolve ambiguity."
)


@pytest.fixture
def make(tmp_path: Path, start_server: StartServer) -> Iterator[Callable[..., Scene]]:
    with contextlib.ExitStack() as ends:
        yield lambda members, ensembles: Scene(tmp_path, start_server, members, ensembles, ends)


@pytest.mark.parametrize(
    "flags", mostly_long([(), POLL, EXPLICIT], EXPLICIT.__eq__), ids=["none", "poll", "explicit"]
)
def test_unique_names_are_served_as_usual(make: Callable[..., Scene], flags: tuple[str, ...]) -> None:
    scene = make(("composing_addsub", "composing_subadd"), ("simple_addsub", "simple_subadd")).serve(*flags)
    if flags == EXPLICIT:
        for name in ("simple_addsub", "simple_subadd"):
            scene.http.load_model(name)
    scene.expect(simple_addsub=SUM, composing_addsub=SUM, simple_subadd=DIFFERENCE, composing_subadd=DIFFERENCE)
    assert "is not found" in scene.refusal("missing")


@pytest.mark.parametrize("flags", mostly_long([(), POLL, EXPLICIT], POLL.__eq__), ids=["none", "poll", "explicit"])
def test_each_ensemble_has_member_of_its_own_repository(make: Callable[..., Scene], flags: tuple[str, ...]) -> None:
    scene = make(("composing_model", "composing_model"), ("simple_addsub", "simple_subadd"))
    scene.serve(*flags, "--cache-config=local,size=1048576")
    if flags == EXPLICIT:
        for name in ("simple_addsub", "simple_subadd"):
            scene.http.load_model(name)
    for _ in range(2):  # the second time from the cache, which keeps them apart
        scene.expect(simple_addsub=SUM, simple_subadd=DIFFERENCE)
    assert AMBIGUOUS.format("composing_model") in scene.refusal("composing_model")
    assert scene.index() == [
        ("composing_model", "READY"),
        ("simple_addsub", "READY"),
        ("composing_model", "READY"),
        ("simple_subadd", "READY"),
    ]
    # naiad's own: a client may say which one it means.
    given = [grpcclient.InferInput(name, [16], "FP32").set_data_from_numpy(NUMBERS) for name in ("INPUT0", "INPUT1")]
    answer = scene.grpc.infer(f"{scene.roots[1]}::composing_model", given)
    assert answer.as_numpy("OUTPUT0").tolist() == DIFFERENCE
    assert answer.get_response().model_name == "composing_model"


def test_ambiguous_name_is_refused_in_every_request(make: Callable[..., Scene]) -> None:
    scene = make(("composing_model", "composing_model"), ("simple_addsub", "simple_subadd")).serve()
    for ask in (
        scene.http.get_model_metadata,
        scene.http.get_model_config,
        scene.http.get_inference_statistics,
        scene.grpc.get_model_config,
        scene.grpc.get_inference_statistics,
    ):
        with pytest.raises(InferenceServerException, match="must be provided to resolve ambiguity"):
            ask("composing_model")
    assert scene.server.get("/v2/models/composing_model/ready").status == 400
    assert scene.http.get_model_config("simple_addsub")["ensemble_scheduling"]["step"][0]["model_namespace"] == str(
        scene.roots[0]
    )
    scene.infer("simple_addsub")
    counts = [row["inference_count"] for row in scene.http.get_inference_statistics()["model_stats"]]
    assert counts == [2, 2, 0, 0]
    lines = scene.server.get("/metrics", url=scene.server.metrics_url).body.decode().splitlines()
    shown = [line for line in lines if line.startswith('nv_inference_count{model="composing_model"')]
    assert shown == [
        f'nv_inference_count{{model="composing_model",namespace="{root}",version="1"}} {count}'
        for root, count in zip(scene.roots, (2, 0), strict=True)
    ]


@pytest.mark.parametrize("flags", [POLL, EXPLICIT], ids=["poll", "explicit"])
def test_ensembles_of_equal_names_keep_members_reachable(make: Callable[..., Scene], flags: tuple[str, ...]) -> None:
    scene = make(("composing_addsub", "composing_subadd"), ("simple_ensemble", "simple_ensemble")).serve(*flags)
    if flags == EXPLICIT:
        scene.http.load_model("simple_ensemble")
    scene.expect(composing_addsub=SUM, composing_subadd=DIFFERENCE)
    assert AMBIGUOUS.format("simple_ensemble") in scene.refusal("simple_ensemble")
    if flags == EXPLICIT:
        scene.http.unload_model("simple_ensemble", unload_dependents=True)
        assert {state for _, state in scene.index()} == {"UNAVAILABLE"}


def test_ensembles_follow_members_that_come_and_go(make: Callable[..., Scene], tmp_path: Path) -> None:
    scene = make(("composing_model", "composing_model"), ("simple_addsub", "simple_subadd")).serve(*POLL)
    inside, outside = scene.roots[0] / "composing_model", tmp_path / "composing_model"
    scene.expect(simple_addsub=SUM, simple_subadd=DIFFERENCE)

    def answers(model: str, expected: list[float]) -> bool:
        try:
            return scene.infer(model) == expected
        except (InferenceServerException, AssertionError):
            return False  # the change may come between the two protocols

    shutil.move(inside, outside)
    until(lambda: answers("simple_addsub", DIFFERENCE), "the ensemble has not gone to the other member")
    until(lambda: answers("composing_model", DIFFERENCE), "the name is still ambiguous")
    scene.expect(simple_subadd=DIFFERENCE)

    shutil.move(outside, inside)
    until(lambda: answers("simple_addsub", SUM), "the ensemble has not come back to its own member")
    scene.expect(simple_subadd=DIFFERENCE)
    assert AMBIGUOUS.format("composing_model") in scene.refusal("composing_model")


def test_ensemble_with_ambiguous_member_waits_for_resolution(make: Callable[..., Scene], tmp_path: Path) -> None:
    scene = make(("composing_model", "composing_model"), ("simple_addsub", "simple_subadd"))
    third = tmp_path / "third_repo"
    write_pipeline(third, "stranger", "composing_model")
    scene.serve(*POLL, f"--model-repository={third}", "--exit-on-error=false", "--strict-readiness=false")
    assert "contains models that are not available or ambiguous: composing_model" in scene.server.log_text()
    assert not scene.http.is_model_ready("stranger")
    shutil.rmtree(scene.roots[0] / "composing_model")
    until(lambda: scene.http.is_model_ready("stranger"), "the only member that is left has not been taken")
    scene.expect(stranger=DIFFERENCE)


def test_commands_link_ensembles_again(make: Callable[..., Scene], tmp_path: Path) -> None:
    scene = make(("composing_model", "composing_model"), ("simple_addsub", "simple_subadd")).serve(*EXPLICIT)
    inside, outside = scene.roots[0] / "composing_model", tmp_path / "composing_model"
    shutil.move(inside, outside)
    for name in ("simple_addsub", "simple_subadd"):
        scene.http.load_model(name)
    scene.expect(simple_addsub=DIFFERENCE, simple_subadd=DIFFERENCE, composing_model=DIFFERENCE)

    shutil.move(outside, inside)
    scene.http.load_model("simple_addsub")
    scene.expect(simple_addsub=SUM, simple_subadd=DIFFERENCE)
    assert AMBIGUOUS.format("composing_model") in scene.refusal("composing_model")

    scene.http.unload_model("composing_model")
    assert [row for row in scene.index() if row[0] == "composing_model"] == [("composing_model", "UNAVAILABLE")] * 2
    scene.http.load_model("composing_model")
    scene.expect(simple_addsub=SUM, simple_subadd=DIFFERENCE)


def test_models_of_equal_names_need_the_flag(make: Callable[..., Scene]) -> None:
    scene = make(("composing_model", "composing_model"), ("simple_addsub", "simple_subadd"))
    second = f"--model-repository={scene.roots[1]}"
    server = scene._start(scene.roots[0], second, "--exit-on-error=false", "--strict-readiness=false")
    server.wait_started()
    rows = server.post("/v2/repository/index").json
    assert {"model appears in two or more repositories"} == {
        row["reason"] for row in rows if row["name"] == "composing_model"
    }


# --- several processes ----------------------------------------------------------------------------------------------


def test_processes_distinguish_models_of_one_name(make: Callable[..., Scene]) -> None:
    scene = make(("composing_model", "composing_model"), ("simple_addsub", "simple_subadd"))
    scene.serve(*EXPLICIT, "--processes=2")
    for name in ("simple_addsub", "simple_subadd"):
        scene.http.load_model(name)
    scene.expect(simple_addsub=SUM, simple_subadd=DIFFERENCE)
    scene.expect(simple_addsub=SUM)
    assert AMBIGUOUS.format("composing_model") in scene.refusal("composing_model")
    assert scene.index() == [
        ("composing_model", "READY"),
        ("simple_addsub", "READY"),
        ("composing_model", "READY"),
        ("simple_subadd", "READY"),
    ]
    rows = scene.http.get_inference_statistics()["model_stats"]
    assert [(row["name"], row["inference_count"]) for row in rows] == [
        ("composing_model", 4),
        ("simple_addsub", 4),
        ("composing_model", 2),
        ("simple_subadd", 2),
    ]

    # One of them goes everywhere, and a process that starts later knows which.
    scene.grpc.unload_model(f"{scene.roots[0]}::composing_model", unload_dependents=False)
    scene.http.unload_model("simple_addsub")
    scene.expect(composing_model=DIFFERENCE, simple_subadd=DIFFERENCE)
    victim, survivor = scene.server.members()
    os.kill(victim, signal.SIGKILL)
    until(lambda: set(scene.server.members()) - {victim, survivor} != set(), "no process took the place of the dead")
    scene.server.wait_ready()
    assert [state for _, state in scene.index()] == ["UNAVAILABLE", "UNAVAILABLE", "READY", "READY"]
    scene.http.close()
    scene.http = scene.ends.enter_context(httpclient.InferenceServerClient(scene.server.http_url))
    scene.expect(composing_model=DIFFERENCE, simple_subadd=DIFFERENCE)


def test_processes_separate_sequences_of_equal_model_names(make: Callable[..., Scene], tmp_path: Path) -> None:
    scene = make(("a", "b"), ("c", "d"))
    for root in scene.roots:
        write_running_sum(root, "sum", "direct { }", max_batch_size=8, idle_us=60_000_000)
    scene.serve("--processes=2")
    sums = {}
    for number, root in enumerate(scene.roots, start=1):
        for sequence in range(1, 9):
            for step in range(3):
                given = grpcclient.InferInput("INPUT", [1, 1], "FP32")
                given.set_data_from_numpy(np.full((1, 1), number * sequence, np.float32))
                answer = scene.grpc.infer(
                    f"{root}::sum", [given], sequence_id=sequence, sequence_start=step == 0, sequence_end=step == 2
                )
            sums[number, sequence] = answer.as_numpy("OUTPUT").item()
            assert answer.get_response().model_name == "sum"
    assert sums == {(number, sequence): 3.0 * number * sequence for number, sequence in sums}
