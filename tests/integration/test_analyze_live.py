"""Variants of configurations, applied to and measured on real servers."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from naiad.client import InferError
from naiad.tools.analyze.live import LiveInstrument, OwnServer, RunningServer, journal_path, restore_from_journal
from naiad.tools.analyze.point_measurement import ServerLostError
from naiad.tools.analyze.space import Point
from naiad.tools.analyze.variants import make_variant
from naiad.tools.perf.perf_plan import InputSettings, ModelLoad, Protocol, ServerTarget
from support.ensemble_models import tensor, write_ensemble
from support.model_repository import write_identity, write_model, write_python_add_sub
from support.server_process import SOURCE, ServerProcess
from support.waiting import wait_until

SECONDS = 0.3
IDENTITY = ModelLoad("identity", inputs=InputSettings(shapes={"INPUT0": (4,)}))
FAILS_AT_TWO = """
import json
import os
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, arguments):
        self.size = json.loads(arguments["model_config"])["max_batch_size"]
        if self.size == 2:
            raise MemoryError("no room for batches of two")

    def execute(self, requests):
        if self.size == 3:
            return [pb_utils.InferenceResponse(error=pb_utils.TritonError("three is odd")) for _ in requests]
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("O", pb_utils.get_input_tensor_by_name(r, "I").as_numpy())])
            for r in requests
        ]
"""

CONFIG = """
backend: "python" max_batch_size: 8
input [ { name: "I" data_type: TYPE_FP32 dims: [ 1 ] } ] output [ { name: "O" data_type: TYPE_FP32 dims: [ 1 ] } ]
"""
SLEEPS_AT_TWO = """
import json
import time


class TritonPythonModel:
    def initialize(self, arguments):
        if json.loads(arguments["model_config"])["max_batch_size"] == 2:
            time.sleep(2)

    def execute(self, requests):
        raise AssertionError
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "models"
    write_identity(root)
    write_identity(root, "other")
    return root


@pytest.fixture
def server(repository, start_server) -> ServerProcess:
    """A server with explicit control that has loaded `identity`."""
    running = start_server(repository, "--model-control-mode=explicit", "--load-model=identity")
    running.wait_ready()
    return running


def running_server(server: ServerProcess) -> RunningServer:
    return RunningServer(service(server), f"http://{server.metrics_url}/metrics", server.process.pid)


def service(server: ServerProcess) -> ServerTarget:
    return ServerTarget(f"http://{server.http_url}", Protocol.HTTP)


def served(server: ServerProcess, name: str = "identity") -> dict:
    return server.get(f"/v2/models/{name}/config").json


def point(instrument: LiveInstrument, settings: dict, name: str = "identity", **load) -> Point:
    variant = make_variant(instrument.configs[name], settings, f"{name}_config_0")
    return Point((variant,), **(load or {"concurrency": 2}))


def test_variants_are_served_then_restored(server, tmp_path):
    before = served(server)
    settings = {"max_batch_size": 4, "instance_group.count": 2, "dynamic_batching.max_queue_delay_microseconds": 50}

    async def analyze() -> None:
        journal = tmp_path / "journal.json"
        async with LiveInstrument(running_server(server), [IDENTITY], journal=journal) as instrument:
            measured = await instrument.measure(point(instrument, settings), SECONDS)
            config = served(server)
            assert (config["max_batch_size"], config["instance_group"][0]["count"]) == (4, 2)
            assert config["dynamic_batching"]["max_queue_delay_microseconds"] == 50
            assert journal.exists()
            assert not measured.error
            metrics = measured.metrics["identity"]
            assert metrics["perf_throughput"].value > 10
            assert 0 < metrics["perf_latency_p50"].value <= metrics["perf_latency_p99"].value
            assert {"perf_server_queue", "cpu_utilization", "cpu_used_ram"} <= metrics.keys()
            rated = await instrument.measure(point(instrument, {}, request_rate=100.0), SECONDS)
            assert served(server) == before
            assert rated.rows["identity"].mode == "request_rate"
        assert not journal.exists()

    asyncio.run(analyze())
    assert served(server) == before


@pytest.mark.long
def test_restored_after_an_exception_and_a_cancellation(server, tmp_path):
    before = served(server)

    async def analyze(error: type[BaseException]) -> None:
        async with LiveInstrument(running_server(server), [IDENTITY], journal=tmp_path / "j") as instrument:
            await instrument.measure(point(instrument, {"max_batch_size": 2}), SECONDS)
            if error is asyncio.CancelledError:
                endless = asyncio.create_task(instrument.measure(point(instrument, {"max_batch_size": 3}), 60))
                await asyncio.sleep(0.5)
                endless.cancel()
                await endless
            raise error

    for error in (ZeroDivisionError, asyncio.CancelledError):
        with pytest.raises(error):
            asyncio.run(analyze(error))
        assert served(server) == before


def test_cancelled_load_is_undone(server, repository, tmp_path):
    write_model(repository, "sleepy", CONFIG, {"1/model.py": SLEEPS_AT_TWO})
    server.post("/v2/repository/models/sleepy/load")

    async def analyze() -> None:
        async with LiveInstrument(
            running_server(server), [ModelLoad("sleepy")], journal=tmp_path / "j"
        ) as instrument:
            async with asyncio.timeout(0.3):
                await instrument.measure(point(instrument, {"max_batch_size": 2}, "sleepy"), SECONDS)

    with pytest.raises(TimeoutError):
        asyncio.run(analyze())
    assert served(server, "sleepy")["max_batch_size"] == 8


@pytest.mark.long
def test_formats_of_a_model_share_its_name(server, tmp_path):
    async def analyze() -> None:
        running = RunningServer(service(server), f"http://{server.metrics_url}/metrics")
        models = [IDENTITY, ModelLoad("other", inputs=IDENTITY.inputs)]
        async with LiveInstrument(running, models[:1], varied=["other"], journal=tmp_path / "j") as instrument:
            format_of = make_variant(instrument.configs["other"], {"max_batch_size": 2}, "other_config_0", "identity")
            measured = await instrument.measure(Point((format_of,), concurrency=2), SECONDS)
            assert measured.rows["identity"].model == "other"
            assert measured.metrics["identity"].keys() >= {"perf_throughput", "cpu_used_ram"}
            assert "cpu_utilization" not in measured.metrics["identity"]
        async with LiveInstrument(running, models, journal=tmp_path / "j") as instrument:
            variants = [make_variant(each, {"max_batch_size": 3}, "v") for each in instrument.configs.values()]
            measured = await instrument.measure(Point(tuple(variants), concurrency=4, batch_size=3), SECONDS)
            assert not measured.error
            assert {name: row.batch_size for name, row in measured.rows.items()} == {"identity": 3, "other": 3}

    asyncio.run(analyze())
    assert served(server)["max_batch_size"] == 8


@pytest.mark.long
def test_requests_longer_than_the_measurement_count(repository):
    write_identity(repository, "slow", parameters={"execute_delay_ms": "700"})

    async def analyze() -> None:
        model = ModelLoad("slow", inputs=IDENTITY.inputs)
        async with LiveInstrument(OwnServer([repository]), [model]) as instrument:
            measured = await instrument.measure(point(instrument, {}, "slow", concurrency=1), 0.2)
            assert not measured.error
            assert measured.rows["slow"].request_count > 0

    asyncio.run(analyze())


def test_unloaded_models_are_unloaded_again(server, tmp_path):
    async def analyze() -> None:
        model = ModelLoad("other", inputs=IDENTITY.inputs)
        async with LiveInstrument(running_server(server), [model], journal=tmp_path / "j") as instrument:
            assert not (await instrument.measure(point(instrument, {"max_batch_size": 2}, "other"), SECONDS)).error

    asyncio.run(analyze())
    assert server.get("/v2/models/other/ready").status == 400
    assert server.get("/v2/models/identity/ready").status == 200


@pytest.mark.long
def test_override_from_before_comes_back(server, tmp_path):
    config = served(server) | {"max_batch_size": 6}
    server.post("/v2/repository/models/identity/load", {"parameters": {"config": json.dumps(config)}})
    assert served(server)["max_batch_size"] == 6

    async def analyze() -> None:
        async with LiveInstrument(running_server(server), [IDENTITY], journal=tmp_path / "j") as instrument:
            await instrument.measure(point(instrument, {"max_batch_size": 2}), SECONDS)

    asyncio.run(analyze())
    assert served(server)["max_batch_size"] == 6


KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from naiad.tools.analyze.live import LiveInstrument, RunningServer
from naiad.tools.analyze.space import Point
from naiad.tools.analyze.variants import make_variant
from naiad.tools.perf.perf_plan import InputSettings, ModelLoad, Protocol, ServerTarget

async def analyze(url, journal, number):
    models = [ModelLoad(name, inputs=InputSettings(shapes={"INPUT0": (4,)})) for name in ("identity", "other")]
    server = RunningServer(ServerTarget(url, Protocol.HTTP))
    async with LiveInstrument(server, models, journal=Path(journal)) as instrument:
        variants = [make_variant(config, {"max_batch_size": 2}, name) for name, config in instrument.configs.items()]
        measured = await instrument.measure(Point(tuple(variants), concurrency=2), 0.3)
        assert not measured.error, measured.error
        os.kill(os.getpid(), int(number))
        await asyncio.sleep(60)

asyncio.run(analyze(*sys.argv[1:]))
"""


def end_analysis(server: ServerProcess, journal: Path, number: int) -> int:
    """Run an analysis that gets a signal between override and restoration; return its status."""
    command = [sys.executable, "-c", KILLED, service(server).url, str(journal), str(int(number))]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    return subprocess.run(command, env=environment, stderr=subprocess.DEVNULL, check=False, timeout=60).returncode


def test_interrupt_restores(server, tmp_path):
    assert end_analysis(server, tmp_path / "j", signal.SIGINT) == -signal.SIGINT
    assert served(server)["max_batch_size"] == 8
    assert server.get("/v2/models/other/ready").status == 400
    assert not (tmp_path / "j").exists()


@pytest.fixture
def killed(server, tmp_path) -> Path:
    """The journal of an analysis that was killed between override and restoration."""
    journal = journal_path(tmp_path / "journals", service(server).url)
    assert end_analysis(server, journal, signal.SIGKILL) == -signal.SIGKILL
    assert served(server)["max_batch_size"] == 2
    assert journal.exists()
    return journal


def test_journal_restores_what_a_killed_analysis_left(server, killed):
    assert sorted(asyncio.run(restore_from_journal(killed, service(server)))) == ["identity", "other"]
    assert served(server)["max_batch_size"] == 8
    assert server.get("/v2/models/other/ready").status == 400
    assert not killed.exists()


@pytest.mark.long
def test_next_analysis_replays_the_journal(server, killed):
    async def analyze() -> None:
        async with LiveInstrument(running_server(server), [IDENTITY], journal=killed) as instrument:
            assert instrument.configs["identity"].max_batch_size == 8

    asyncio.run(analyze())
    assert not killed.exists()


def test_journal_in_use_is_refused(server, killed):
    content = json.loads(killed.read_text())
    killed.write_text(json.dumps(content | {"pid": os.getppid()}))

    async def analyze() -> None:
        await LiveInstrument(running_server(server), [IDENTITY], journal=killed).open()

    with pytest.raises(InferError, match="another analysis"):
        asyncio.run(analyze())
    assert served(server)["max_batch_size"] == 2


def test_foreign_file_is_no_journal(server, tmp_path):
    (tmp_path / "j").write_text('{"version": 7}')
    with pytest.raises(InferError, match="no journal"):
        asyncio.run(restore_from_journal(tmp_path / "j", service(server)))


@pytest.mark.long
def test_failing_variants_keep_the_search_going(tmp_path):
    write_model(tmp_path / "models", "odd", CONFIG, {"1/model.py": FAILS_AT_TWO})

    async def analyze() -> list:
        server = OwnServer([tmp_path / "models"])
        async with LiveInstrument(server, [ModelLoad("odd")]) as instrument:
            points = [point(instrument, {"max_batch_size": size}, "odd") for size in (1, 2, 3, 4)]
            points.append(point(instrument, {"max_batch_size": 4}, "odd", concurrency=1, batch_size=5))
            pid = server.pid
            measured = [await instrument.measure(each, SECONDS) for each in points]
            assert server.pid == pid
            return measured

    errors = [each.error for each in asyncio.run(analyze())]
    assert (errors[0], errors[3]) == ("", "")
    assert "no room for batches of two" in errors[1]
    assert "three is odd" in errors[2]
    assert "exceed max_batch_size 4" in errors[4]


def test_own_server_is_started_again_once(repository):
    async def analyze() -> None:
        server = OwnServer([repository])
        async with LiveInstrument(server, [IDENTITY]) as instrument:
            first = server.pid
            os.kill(first, signal.SIGKILL)
            measured = await instrument.measure(point(instrument, {"max_batch_size": 2}), SECONDS)
            assert "the server died" in measured.error
            assert not (await instrument.measure(point(instrument, {"max_batch_size": 4}), SECONDS)).error
            assert server.pid != first
            os.kill(server.pid, signal.SIGKILL)
            assert (await instrument.measure(point(instrument, {"max_batch_size": 8}), SECONDS)).error
            os.kill(server.pid, signal.SIGKILL)
            with pytest.raises(ServerLostError, match="is lost"):
                await instrument.measure(point(instrument, {"max_batch_size": 8}), SECONDS)
        server.log.unlink()  # kept for a server that has failed

    asyncio.run(analyze())


def test_own_server_ends_with_the_analysis(repository, tmp_path):
    script = """
        import asyncio, os, signal
        from naiad.tools.analyze.live import LiveInstrument, OwnServer
        from naiad.tools.perf.perf_plan import ModelLoad

        async def analyze():
            server = OwnServer([{repository!r}])
            await LiveInstrument(server, [ModelLoad("identity")]).open()
            print(server.pid, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

        asyncio.run(analyze())
    """
    command = [sys.executable, "-c", textwrap.dedent(script).format(repository=str(repository))]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "TMPDIR": str(tmp_path)}
    pid = int(subprocess.run(command, env=environment, capture_output=True, check=False, timeout=60).stdout)

    def has_ended() -> bool:
        with contextlib.suppress(FileNotFoundError):
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        return True

    wait_until(has_ended, "the server outlives its analysis")


def test_server_that_does_not_start_shows_its_output(repository):
    server = OwnServer([repository], ["--no-such-flag"])
    try:
        with pytest.raises(ServerLostError, match="no-such-flag"):
            asyncio.run(LiveInstrument(server, [IDENTITY]).open())
    finally:
        server.log.unlink()


def test_lost_server_names_the_journal(server, tmp_path):
    async def analyze() -> None:
        async with LiveInstrument(running_server(server), [IDENTITY], journal=tmp_path / "j") as instrument:
            assert not (await instrument.measure(point(instrument, {"max_batch_size": 4}), SECONDS)).error
            server.process.kill()
            server.wait_exit()
            await instrument.measure(point(instrument, {"max_batch_size": 2}), SECONDS)

    with pytest.raises(ServerLostError, match="naiad analyze --restore"):
        asyncio.run(analyze())
    assert (tmp_path / "j").exists()


def test_missing_model_and_polling_server_are_errors(server, repository, start_server):
    polling = start_server(repository)
    polling.wait_ready()

    async def analyze(running: ServerProcess, name: str) -> None:
        async with LiveInstrument(running_server(running), [ModelLoad(name, inputs=IDENTITY.inputs)]) as instrument:
            await instrument.measure(point(instrument, {"max_batch_size": 2}), SECONDS)

    with pytest.raises(InferError, match="absent"):
        asyncio.run(analyze(server, "absent"))
    with pytest.raises(InferError, match="model-control-mode=explicit"):
        asyncio.run(analyze(polling, "identity"))


@pytest.mark.long
def test_ensemble_follows_its_members(tmp_path, start_server):
    root = tmp_path / "models"
    for name in ("a", "b"):
        write_python_add_sub(root, name)
    inputs = {name: name for name in ("INPUT0", "INPUT1")}
    steps = [
        ("a", inputs, {"OUTPUT0": "sum", "OUTPUT1": "difference"}),
        ("b", {"INPUT0": "sum", "INPUT1": "difference"}, {"OUTPUT0": "OUTPUT0", "OUTPUT1": "OUTPUT1"}),
    ]
    ensemble = [tensor(name) for name in inputs], [tensor(name) for name in ("OUTPUT0", "OUTPUT1")]
    write_ensemble(root, "chain", *ensemble, steps)
    server = start_server(root, "--model-control-mode=explicit", "--load-model=chain")
    server.wait_ready()
    before = {name: served(server, name) for name in ("chain", "a", "b")}

    async def analyze() -> None:
        async with LiveInstrument(running_server(server), [ModelLoad("chain")], journal=tmp_path / "j") as instrument:
            configs = instrument.configs
            assert set(configs) == {"chain", "a", "b"}
            for sizes in ({"a": 2, "b": 4}, {"a": 32, "b": 16}, {"b": 3}):
                variants = [
                    make_variant(configs[each], {"max_batch_size": size}, each) for each, size in sizes.items()
                ]
                measured = await instrument.measure(Point(tuple(variants), concurrency=2), SECONDS)
                assert not measured.error
                limits = {name: served(server, name)["max_batch_size"] for name in configs}
                assert limits == {"a": 8, **sizes, "chain": min({"a": 8, **sizes}.values())}

    asyncio.run(analyze())
    assert {name: served(server, name) for name in before} == before


def test_ensemble_above_follows_a_member(tmp_path, start_server):
    root = tmp_path / "models"
    write_python_add_sub(root, "member")
    ends = {name: name for name in ("INPUT0", "INPUT1")}, {name: name for name in ("OUTPUT0", "OUTPUT1")}
    write_ensemble(root, "inner", *([tensor(name) for name in names] for names in ends), [("member", *ends)])
    write_ensemble(root, "outer", *([tensor(name) for name in names] for names in ends), [("inner", *ends)])
    server = start_server(root, "--model-control-mode=explicit", "--load-model=outer")
    server.wait_ready()
    names = ("member", "inner", "outer")
    before = {name: served(server, name) for name in names}

    async def analyze() -> None:
        async with LiveInstrument(
            running_server(server), [ModelLoad("member")], journal=tmp_path / "j"
        ) as instrument:
            assert set(instrument.configs) == {"member"}
            for size, expected in ((2, 2), (4, 4), (32, 8)):
                measured = await instrument.measure(point(instrument, {"max_batch_size": size}, "member"), SECONDS)
                assert not measured.error
                assert [served(server, name)["max_batch_size"] for name in names] == [size, expected, expected]

    asyncio.run(analyze())
    assert {name: served(server, name) for name in names} == before
