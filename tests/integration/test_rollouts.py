"""Rollouts in real servers, with real clients: names, splits, changes, sequences, and several processes."""

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

from naiad.cli import rollout as verb
from naiad.config.rollout.rollout_declaration import parse_toml
from support.model_repository import write_model, write_scale
from support.sequence_models import write_running_sum
from support.server_process import ServerProcess, serving
from support.waiting import wait_until

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

StartServer = Callable[..., ServerProcess]

FAILING = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        error = pb_utils.TritonError("the new version is broken")
        return [pb_utils.InferenceResponse([], error) for _ in requests]
"""


def write_versions(root: Path, *factors: float, rollout: str = "", name: str = "scale") -> Path:
    """Write versions from 1 that multiply by these numbers."""
    for version, factor in enumerate(factors, 1):
        write_scale(root, factor, version=version, name=name)
    if rollout:
        (root / name / "rollout.toml").write_text(rollout)
    return root


def call(server: ServerProcess, method: str, path: str, body: object = None) -> tuple[int, Any]:
    payload = None if body is None else json.dumps(body).encode()
    answer = server.request(method, path, payload)
    return answer.status, answer.json


def change(server: ServerProcess, model: str = "scale", **fields: Any) -> Any:
    status, document = call(server, "POST", f"/v2/models/{model}/rollout", fields)
    assert status == 200, document
    return document


def status_of(server: ServerProcess, model: str = "scale") -> Any:
    status, document = call(server, "GET", f"/v2/models/{model}/rollout")
    assert status == 200, document
    return document


def http_infer(server: ServerProcess, version: str = "", model: str = "scale", **fields: Any) -> Any:
    with httpclient.InferenceServerClient(server.http_url) as client:
        return infer(client, httpclient, version, model, **fields)


def infer(client: Any, module: Any, version: str = "", model: str = "scale", **fields: Any) -> Any:
    tensor = module.InferInput("IN", [1], "FP32")
    tensor.set_data_from_numpy(np.ones(1, np.float32))
    return client.infer(model, [tensor], model_version=version, **fields)


def versions(server: ServerProcess, count: int, model: str = "scale") -> Counter[str]:
    """Return how many of `count` requests over gRPC each version has answered."""
    with grpcclient.InferenceServerClient(server.grpc_url) as client:
        return Counter(infer(client, grpcclient, model=model).get_response().model_version for _ in range(count))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    root = write_versions(tmp_path_factory.mktemp("rollout") / "models", 1, 2)
    write_versions(root, 1, 1, name="twin", rollout="stable = 1\ncanary = 2\nshadow = 100\n")
    config = (root / "scale" / "config.pbtxt").read_text()
    (root / "scale" / "config.pbtxt").write_text(config + "version_policy { all { } }\n")
    log = tmp_path_factory.mktemp("log") / "log"
    flags = ["--model-control-mode=explicit", "--load-model=*"]
    with serving(log, f"--model-repository={root}", *flags, "--http-header-forward-pattern=user") as running:
        yield running


class TestNames:
    @pytest.mark.parametrize(("name", "version"), [("stable", "1"), ("canary", "2"), ("latest", "2"), ("old", "1")])
    def test_names_are_accepted_by_both_protocols(self, server: ServerProcess, name: str, version: str) -> None:
        change(server, stable=1, canary=2, weight=0, aliases={"old": 1})
        assert http_infer(server, name).get_response()["model_version"] == version
        with grpcclient.InferenceServerClient(server.grpc_url) as client:
            assert infer(client, grpcclient, name).get_response().model_version == version
            assert client.is_model_ready("scale", name)
            assert client.get_model_metadata("scale", name).versions == [version]
            assert client.get_inference_statistics("scale", name).model_stats[0].version == version

    def test_names_exist_without_a_rollout(self, server: ServerProcess) -> None:
        call(server, "DELETE", "/v2/models/scale/rollout")
        assert [http_infer(server, name).get_response()["model_version"] for name in ("stable", "canary")] == [
            "2"
        ] * 2

    def test_unknown_name_is_a_clear_error(self, server: ServerProcess) -> None:
        with pytest.raises(InferenceServerException, match="or a name: canary, latest, stable"):
            http_infer(server, "champion")


class TestSplit:
    def test_share_and_version_of_responses(self, server: ServerProcess) -> None:
        change(server, stable=1, canary=2, weight=20, sticky="")
        found = versions(server, 200)
        assert 38 <= found["2"] <= 42
        document = status_of(server)
        assert document["canary"]["requests"] == found["2"]
        assert document["stable"]["requests"] == found["1"]
        assert document["canary"]["p99_ms"] > 0

    def test_outputs_come_from_the_version(self, server: ServerProcess) -> None:
        change(server, stable=1, canary=2, weight=50, sticky="")
        for _ in range(10):
            result = http_infer(server)
            factor = float(result.get_response()["model_version"])
            assert result.as_numpy("OUT").tolist() == [factor]

    def test_sticky_header_decides(self, server: ServerProcess) -> None:
        change(server, stable=1, canary=2, weight=50, sticky="user")
        chosen: dict[str, set[str]] = {}
        for user in [f"u{number}" for number in range(12)] * 3:
            found = http_infer(server, headers={"user": user}).get_response()["model_version"]
            chosen.setdefault(user, set()).add(found)
        assert all(len(each) == 1 for each in chosen.values())
        assert {version for each in chosen.values() for version in each} == {"1", "2"}

    def test_changes_under_load_fail_no_request(self, server: ServerProcess) -> None:
        change(server, stable=1, canary=2, weight=50, sticky="")
        stop = threading.Event()
        failures: list[Exception] = []

        def load() -> None:
            with grpcclient.InferenceServerClient(server.grpc_url) as client:
                while not stop.is_set():
                    try:
                        infer(client, grpcclient)
                    except InferenceServerException as error:
                        failures.append(error)

        threads = [threading.Thread(target=load) for _ in range(2)]
        for thread in threads:
            thread.start()
        for _ in range(5):
            for fields in ({"weight": 90}, {"action": "rollback"}, {"to": 2, "allow": 2}, {"action": "rollback"}):
                change(server, **fields)
            change(server, allow=2, stable=1, canary=2, weight=50)
        call(server, "DELETE", "/v2/models/scale/rollout")
        stop.set()
        for thread in threads:
            thread.join(60)
        assert failures == []


class TestVerb:
    def run(self, server: ServerProcess, *flags: str) -> int:
        return verb.run(["scale", "--url", f"http://{server.http_url}", *flags])

    def test_blue_green_switch_and_back(self, server: ServerProcess, capsys: pytest.CaptureFixture[str]) -> None:
        call(server, "DELETE", "/v2/models/scale/rollout")
        assert self.run(server, "--to", "1") == 0
        assert "version 1 serves all requests" in capsys.readouterr().out
        assert versions(server, 5) == {"1": 5}
        assert self.run(server, "--rollback") == 0
        assert versions(server, 5) == {"2": 5}
        assert "version 1 is refused (rolled back by a client)" in capsys.readouterr().out
        assert self.run(server, "--to", "1") == 1
        assert "naiad rollout scale --allow 1" in capsys.readouterr().err
        assert self.run(server, "--to", "1", "--allow", "1") == 0
        assert self.run(server, "--end") == 0
        assert "has ended" in capsys.readouterr().out
        assert self.run(server) == 0
        assert "the rollout has ended" in capsys.readouterr().out

    def test_canary_is_promoted(self, server: ServerProcess, capsys: pytest.CaptureFixture[str]) -> None:
        assert self.run(server, "--stable", "1", "--canary", "2", "--weight", "10", "--json") == 0
        assert json.loads(capsys.readouterr().out)["canary"]["percent"] == 10
        assert self.run(server, "--promote") == 0
        assert "version 2 serves all requests" in capsys.readouterr().out
        assert self.run(server, "--canary", "9") == 1
        assert "version 9 has no directory" in capsys.readouterr().err


def test_shadow_copies_are_compared(server: ServerProcess) -> None:
    assert versions(server, 10, "twin") == {"1": 10}
    wait_until(
        lambda: status_of(server, "twin")["shadow"] == {"equal": 10, "different": 0, "failed": 0, "skipped": 0},
        "the copies were not compared",
    )
    change(server, stable=1, canary=2, shadow=100, weight=0)
    versions(server, 10)
    wait_until(lambda: status_of(server)["shadow"]["different"] == 10, "no difference was found")
    text = server.get("/metrics", url=server.metrics_url).body.decode()
    assert 'naiad_rollout_shadow_total{model="scale",result="different"} 10' in text


def test_rollout_survives_a_reload_and_an_unload(server: ServerProcess) -> None:
    change(server, stable=1, canary=2, weight=0)
    assert server.post("/v2/repository/models/scale/load", {"parameters": {"force": True}}).status == 200
    assert versions(server, 3) == {"1": 3}
    assert server.post("/v2/repository/models/scale/unload").status == 200
    assert server.post("/v2/repository/models/scale/load").status == 200
    assert versions(server, 3) == {"1": 3}
    assert call(server, "DELETE", "/v2/models/scale/rollout")[0] == 200
    assert versions(server, 3) == {"2": 3}


def test_load_without_the_stable_version_fails(tmp_path: Path, start_server: StartServer) -> None:
    root = write_versions(tmp_path / "models", 1, 2, 3)
    (root / "scale" / "config.pbtxt").open("a").write("version_policy { all { } }\n")
    server = start_server(root, "--model-control-mode=explicit", "--load-model=scale")
    server.wait_ready()
    change(server, to=2)
    shutil.move(root / "scale" / "2", tmp_path / "2")
    status, document = call(server, "POST", "/v2/repository/models/scale/load")
    assert status == 400
    assert "version 2, stable as a client has set it, has no directory" in document["error"]
    assert versions(server, 3) == {"2": 3}
    change(server, to=3)
    assert server.post("/v2/repository/models/scale/load").status == 200
    assert versions(server, 3) == {"3": 3}


def test_file_is_followed_in_mode_poll(tmp_path: Path, start_server: StartServer) -> None:
    root = write_versions(tmp_path / "models", 1, 2, rollout="stable = 1\ncanary = 2\n")
    server = start_server(
        root, "--model-control-mode=poll", "--repository-poll-secs=1", "--repository-settle-secs=0.1"
    )
    server.wait_ready()
    assert versions(server, 3) == {"1": 3}
    (root / "scale" / "rollout.toml").write_text("stable = 1\ncanary = 2\nweight = 100\n")
    wait_until(lambda: versions(server, 1) == {"2": 1}, "the changed file was not applied")
    assert server.log_text().count("loading: scale:") == 2  # the versions themselves were not loaded again
    (root / "scale" / "rollout.toml").write_text("stable = 1\nweihgt = 3\n")
    server.wait_log("did you mean 'weight'")
    assert versions(server, 3) == {"2": 3}


def test_clients_begin_rollouts_in_mode_explicit_only(tmp_path: Path, start_server: StartServer) -> None:
    server = start_server(write_versions(tmp_path / "models", 1, 2))
    server.wait_ready()
    for fields in ({"to": 1}, {"stable": 1}):
        status, document = call(server, "POST", "/v2/models/scale/rollout", fields)
        assert status == 400
        assert "is not allowed without a rollout.toml in its directory" in document["error"]
    assert versions(server, 3) == {"2": 3}


def test_wrong_file_fails_the_load(tmp_path: Path, start_server: StartServer) -> None:
    root = write_versions(tmp_path / "models", 1, 2, rollout="stable = 7\n")
    server = start_server(root, "--exit-on-error=false")
    server.wait_started()
    assert "version 7, stable in rollout.toml, has no directory" in server.log_text()


def test_guard_rolls_all_processes_back(tmp_path: Path, start_server: StartServer) -> None:
    rollout = "stable = 1\ncanary = 2\nweight = 50\n[guard]\nmin_requests = 10\nmax_error_rate = 0.1\n"
    root = write_versions(tmp_path / "models", 1, 2, rollout=rollout)
    (root / "scale" / "2" / "model.py").write_text(FAILING)
    server = start_server(root, "--processes=2")
    server.wait_ready()

    def is_rolled_back() -> bool:
        for _ in range(4):
            with contextlib.suppress(InferenceServerException):
                versions(server, 1)
        return status_of(server)["rollout"]["weight"] == 0

    wait_until(is_rolled_back, "the canary was not rolled back")
    for _ in range(8):  # each over a connection of its own
        assert versions(server, 3) == {"1": 3}
    assert len([line for line in server.log_text().split("\n") if "was rolled back (error_rate)" in line]) == 1
    text = server.get("/metrics", url=server.metrics_url).body.decode()
    assert 'naiad_rollout_rollbacks_total{model="scale",reason="error_rate"} 1' in text
    assert 'naiad_rollout_weight_percent{model="scale",role="stable",version="1"} 100' in text


def test_steps_promote_the_canary(tmp_path: Path, start_server: StartServer) -> None:
    rollout = "stable = 1\ncanary = 2\n[steps]\nweights = [50, 100]\nevery_s = 0.3\n"
    root = write_versions(tmp_path / "models", 1, 2, rollout=rollout)
    server = start_server(root, "--processes=2")
    server.wait_ready()
    wait_until(lambda: status_of(server)["rollout"]["stable"] == 2, "the canary was not promoted")
    assert versions(server, 4) == {"2": 4}
    change(server, action="rollback")
    assert versions(server, 4) == {"1": 4}


def test_process_that_is_replaced_gets_the_rollout(tmp_path: Path, start_server: StartServer) -> None:
    root = write_versions(tmp_path / "models", 1, 2, rollout="stable = 2\naliases = { old = 1 }\n")
    server = start_server(root, "--processes=2")
    server.wait_ready()
    change(server, to=1)
    before = set(server.members())
    os.kill(min(before), signal.SIGKILL)
    wait_until(lambda: len(set(server.members()) - before) == 1 and server.is_ready(), "it was not replaced")
    for _ in range(8):
        assert versions(server, 2) == {"1": 2}


@pytest.mark.parametrize("processes", [1, 2])
def test_live_sequences_keep_their_version(tmp_path: Path, start_server: StartServer, processes: int) -> None:
    root = tmp_path / "models"
    model = write_running_sum(root, "total", "direct { }", max_batch_size=32, idle_us=60_000_000)
    (model / "2").mkdir()
    (model / "2" / "model.onnx").write_bytes((model / "1" / "model.onnx").read_bytes())
    (model / "rollout.toml").write_text("stable = 1\ncanary = 2\nweight = 50\n")
    server = start_server(root, f"--processes={processes}")
    server.wait_ready()

    def send(sequence: int, **flags: bool) -> tuple[str, float]:
        tensor = httpclient.InferInput("INPUT", [1, 1], "FP32")
        tensor.set_data_from_numpy(np.ones((1, 1), np.float32))
        with httpclient.InferenceServerClient(server.http_url) as client:
            result = client.infer("total", [tensor], sequence_id=sequence, **flags)
        return result.get_response()["model_version"], float(result.as_numpy("OUTPUT")[0, 0])

    began = {sequence: send(sequence, sequence_start=True)[0] for sequence in range(1, 13)}
    assert set(began.values()) == {"1", "2"}
    for total, fields in enumerate(({"weight": 100}, {"action": "rollback"}, {"to": 2, "allow": 2}), 2):
        change(server, "total", **fields)
        assert {each: send(each) for each in began} == {each: (began[each], float(total)) for each in began}
    assert {each: send(each, sequence_end=True)[0] for each in began} == began
    assert send(50, sequence_start=True)[0] == "2"


def test_calls_of_models_are_split(tmp_path: Path, start_server: StartServer) -> None:
    root = write_versions(tmp_path / "models", 1, 2, rollout="stable = 1\ncanary = 2\nweight = 50\n")
    source = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.call(request) for request in requests]

    def call(self, request):
        asked = pb_utils.InferenceRequest(
            model_name="scale", requested_output_names=["OUT"], inputs=request.inputs(), model_version=VERSION
        )
        response = asked.exec()
        return pb_utils.InferenceResponse(response.output_tensors())
"""
    config = """
      backend: "python" max_batch_size: 0
      input [ { name: "IN" data_type: TYPE_FP32 dims: [ 1 ] } ]
      output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] } ]
    """
    for name, version in (("caller", "-1"), ("champion", '"canary"')):
        write_model(root, name, config, {"1/model.py": source.replace("VERSION", version)})
    server = start_server(root)
    server.wait_ready()
    found = Counter(float(http_infer(server, model="caller").as_numpy("OUT")[0]) for _ in range(10))
    assert found == {1.0: 5, 2.0: 5}
    assert {float(http_infer(server, model="champion").as_numpy("OUT")[0]) for _ in range(4)} == {2.0}


def test_restricted_model_control_restricts_rollouts(tmp_path: Path, start_server: StartServer) -> None:
    root = write_versions(tmp_path / "models", 1, 2, rollout="stable = 1\ncanary = 2\n")
    server = start_server(root, "--http-restricted-api=model-repository:key=secret")
    server.wait_ready()
    for method, body in (("GET", None), ("POST", {"to": 2}), ("DELETE", None)):
        status, document = call(server, method, "/v2/models/scale/rollout", body)
        assert (status, document) == (403, {"error": "This API is restricted, expecting header 'key'"})
    assert versions(server, 2) == {"1": 2}


PAGE = (Path(__file__).parents[2] / "docs" / "rollouts.md").read_text()
BLOCKS = re.findall(r"^```(\w+)[^\n]*\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("block", [text for language, text in BLOCKS if language == "sh"])
def test_commands_of_the_page_succeed(server: ServerProcess, block: str) -> None:
    change(server, allow=[1, 2], to=1)
    for line in block.splitlines():
        words = shlex.split(line.replace("localhost:8000", server.http_url), comments=True)
        if words[0] == "curl":
            shown = subprocess.run(
                [*words, "-sf"], capture_output=True, check=True, text=True, env={**os.environ, "no_proxy": "*"}
            )
            assert json.loads(shown.stdout)["model"] == "scale"
        else:
            assert words[:2] == ["naiad", "rollout"]
            assert verb.run([*words[2:], "--url", f"http://{server.http_url}"]) == 0, line


def test_file_of_the_page_is_valid() -> None:
    (text,) = [text for language, text in BLOCKS if language == "toml"]
    found, problems = parse_toml(text)
    assert problems == []
    assert found is not None
    assert found.steps is not None
