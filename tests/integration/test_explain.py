"""`naiad explain` against a running server and from a repository, and the hints in the log."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as httpclient

from naiad.cli.explain import explain
from naiad.core.model import DECISIONS
from naiad.telemetry.metrics.model_metrics import RELEASE_REASONS
from support.ensemble_models import tensor, write_ensemble
from support.model_repository import add_sub_config, write_identity, write_model, write_python_add_sub
from support.onnx_models import add_sub
from support.server_process import ServerProcess, serving

ADAPTIVE = 'dynamic_batching { }\nparameters { key: "adaptive_batching" value { string_value: "true" } }'
DELAYED = "dynamic_batching { max_queue_delay_microseconds: 300 }\ninstance_group { count: 1 kind: KIND_CPU }"


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("explain")
    for name, extra in (("delayed", DELAYED), ("adaptive", ADAPTIVE)):
        write_model(root, name, add_sub_config("onnxruntime", extra=extra), {"1/model.onnx": add_sub()})
    write_python_add_sub(root, "alone")
    write_identity(root, "slow", parameters={"execute_delay_ms": "20"})
    write_identity(root, "fast")
    write_ensemble(
        root,
        "pair",
        [tensor("A", dims="-1")],
        [tensor("B", dims="-1")],
        [("slow", {"INPUT0": "A"}, {"OUTPUT0": "t"}), ("fast", {"INPUT0": "t"}, {"OUTPUT0": "B"})],
    )
    return root


@pytest.fixture(scope="module")
def server(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("log") / "log", f"--model-repository={repository}") as running:
        yield running


def send(server: ServerProcess, model: str, count: int) -> None:
    inputs = [httpclient.InferInput(name, [1, 16], "FP32") for name in ("INPUT0", "INPUT1")]
    for given in inputs:
        given.set_data_from_numpy(np.ones((1, 16), np.float32))
    with httpclient.InferenceServerClient(server.http_url) as client:
        for _ in range(count):
            client.infer(model, inputs)


def test_a_fixed_delay_is_explained(server: ServerProcess, capsys: pytest.CaptureFixture[str]) -> None:
    send(server, "delayed", 40)
    assert explain.run(["delayed", "--url", server.http_url]) == 0
    text = capsys.readouterr().out
    assert text.startswith("delayed, version 1: dynamic scheduler\n")
    assert "until its oldest request has waited 300 us" in text
    assert "40 batches so far" in text
    assert "0 waiting, 0 executing, 1 instances" in text
    last = text[text.index("The last batches") :].splitlines()
    assert len(last) == 2 + 32
    assert "delay: its oldest request" in last[2]


def test_the_steps_of_an_ensemble_are_explained(server: ServerProcess, capsys: pytest.CaptureFixture[str]) -> None:
    given = httpclient.InferInput("A", [1, 4], "FP32")
    given.set_data_from_numpy(np.ones((1, 4), np.float32))
    with httpclient.InferenceServerClient(server.http_url) as client:
        for _ in range(3):
            client.infer("pair", [given])
        slow, fast = client.get_inference_statistics("pair")["model_stats"][0]["ensemble_steps"]
        member = client.get_inference_statistics("fast")["model_stats"][0]
        assert "ensemble_steps" not in member
        assert sum(member["release_reasons"].values()) == member["execution_count"]
    assert (slow["model"], slow["success"]["count"], fast["fail"]["count"]) == ("slow", 3, 0)
    assert slow["success"]["ns"] >= slow["compute"]["ns"] >= 3 * 20_000_000
    assert explain.run(["pair", "--url", server.http_url, "--json"]) == 0
    steps = json.loads(capsys.readouterr().out)["steps"]
    assert [(step["model"], step["requests"], step["failed"]) for step in steps] == [("slow", 3, 0), ("fast", 3, 0)]
    assert steps[0]["mean_us"] >= steps[0]["compute_mean_us"] >= 20_000
    assert explain.run(["pair", "--url", server.http_url]) == 0
    text = capsys.readouterr().out
    lines = text[text.index("Steps, on average") :].splitlines()
    assert [line.split()[:3] for line in lines[2:4]] == [["slow", "3", "0"], ["fast", "3", "0"]]


def test_what_was_learned_is_explained(server: ServerProcess, capsys: pytest.CaptureFixture[str]) -> None:
    send(server, "adaptive", 40)
    assert explain.run(["adaptive", "--url", f"http://{server.http_url}", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["scheduler"] == "adaptive"
    assert sum(found["adaptive"]["decisions"].values()) == found["batches"] == 40
    assert sum(found["batch_sizes"].values()) == 40
    assert {batch["decision"] for batch in found["recent_batches"]} <= set(explain.DECISIONS)
    assert explain.run(["adaptive", "--url", server.http_url, "--version", "1"]) == 0
    assert "a batch takes" in capsys.readouterr().out


def test_every_reason_and_decision_has_words() -> None:
    assert set(explain.REASONS) == {*RELEASE_REASONS, "ensemble"}
    assert set(explain.DECISIONS) == set(DECISIONS)


def test_model_that_never_batches_has_hint_in_log(server: ServerProcess) -> None:
    server.wait_log(r"model 'alone': requests are never batched, though 'max_batch_size' is 8: add 'dynamic_batching")


def test_serial_clients_get_hint_at_once(server: ServerProcess) -> None:
    send(server, "delayed", 1100)
    server.wait_log("model 'delayed' batches, but its last 1000 requests came one at a time")
    assert server.log_text().count("came one at a time") == 1


def test_a_configuration_is_explained_without_a_server(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert explain.run(["alone", "--model-repository", str(repository)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("alone, version 1: default scheduler\n")
    assert "! requests are never batched" in text
    assert "Now" not in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], ": Not found: Request for unknown model: 'nothing' is not found"),
        (["delayed", "--version", "7"], "version 7 is not found"),
        (["delayed", "--header", "nonsense"], "is not of the form 'NAME: VALUE'"),
    ],
)
def test_refusal_of_server_is_shown(
    server: ServerProcess, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert explain.run([*arguments, "--url", server.http_url]) == 1
    assert message in capsys.readouterr().err


def test_address_without_server_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        assert explain.run(["m", "--url", f"http://127.0.0.1:{free.getsockname()[1]}"]) == 1
    error = capsys.readouterr().err
    assert "no response from a server at http://127.0.0.1" in error
    assert "--model-repository" in error


def test_invalid_address_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert explain.run(["m", "--url", "file:///etc/passwd"]) == 1
    assert "is not the address of a server" in capsys.readouterr().err


def test_model_outside_repository_is_reported(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert explain.run(["nothing", "--model-repository", str(repository)]) == 1
    error = capsys.readouterr().err
    assert "no model 'nothing'" in error
    assert "adaptive, alone, delayed" in error


def test_model_that_cannot_load_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_model(tmp_path, "wrong", "max_batch_size: -1\n", {"1/model.onnx": add_sub()})
    assert explain.run(["wrong", "--model-repository", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert "model 'wrong' would not load" in error
    assert "config.pbtxt:2" in error
