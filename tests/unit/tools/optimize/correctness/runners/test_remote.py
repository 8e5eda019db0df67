"""Models on servers: what a comparison does with those that die, have no configuration, or answer otherwise."""

import numpy as np
import pytest

from naiad.cli.models.compare import run
from naiad.tools.optimize.correctness.runners.model_runner import RunnerError
from naiad.tools.optimize.correctness.runners.remote import RemoteModelLostError, RemoteRunner
from support.scripted_server import right, scripted_server


async def answer(number):
    return right()


@pytest.fixture
def samples(tmp_path):
    np.savez(tmp_path / "samples.npz", IN=np.random.default_rng(0).normal(size=(10, 4)).astype(np.float32))
    return tmp_path / "samples.npz"


def compared(samples, source, candidate, *arguments):
    places = (f"{server.url}/echo" for server in (source, candidate))
    return run([*places, "--data", str(samples), "--no-probes", *arguments])


def test_server_without_configuration_has_no_limit():
    with scripted_server(answer) as server:
        runner = RemoteRunner(f"http://{server.url}", "echo")
        assert (runner.max_batch, runner.optional_inputs) == (0, frozenset())
        assert runner.infer({"IN": np.zeros((1, 4), np.float32)})["OUT"].tolist() == [[1, 2, 3, 4]]
        runner.close()
        with pytest.raises(RunnerError, match="not here"):
            RemoteRunner(f"http://{server.url}", "other")


@pytest.mark.parametrize("place", ["source", "candidate"])
def test_server_that_dies_is_an_error(place, samples, capsys):
    async def die(number):
        if number >= 4:
            server.die()
        return right()

    with scripted_server(die) as server, scripted_server(answer) as other:
        pair = (server, other) if place == "source" else (other, server)
        assert compared(samples, *pair) == 2
    assert server.url in capsys.readouterr().err


def test_error_of_the_candidate_is_a_difference(samples, capsys):
    async def refuse(number):
        return right(data=[1.0]) if number == 3 else right()

    with scripted_server(answer) as server, scripted_server(refuse) as other:
        assert compared(samples, server, other) == 1
        assert "does not answer sample 3" in capsys.readouterr().out
        assert compared(samples, other, server) == 0


def test_lost_server_has_an_error_of_its_own():
    async def close(number):
        return None

    with scripted_server(close) as server:
        runner = RemoteRunner(f"http://{server.url}", "echo")
        with pytest.raises(RemoteModelLostError, match=server.url):
            runner.infer({"IN": np.zeros((1, 4), np.float32)})
        runner.close()


def test_json_has_no_infinity(samples, capsys):
    async def infinite(number):
        return right(data=[1.0, 2.0, 3.0, float("inf")])

    with scripted_server(answer) as server, scripted_server(infinite) as other:
        assert compared(samples, server, other, "--json") == 1
    assert '"found": "Infinity"' in capsys.readouterr().out


def test_failure_of_the_tool_is_no_difference(samples, monkeypatch, capsys):
    monkeypatch.setattr("naiad.tools.optimize.comparing.judge", lambda *arguments: 1 / 0)
    with scripted_server(answer) as server:
        assert compared(samples, server, server) == 2
    assert "ZeroDivisionError" in capsys.readouterr().err
