"""A run of naiad perf against a real server."""

import asyncio
import json
import os
import signal
from dataclasses import replace

import numpy as np
import pytest

from naiad.client import Client, ConnectionFailedError, ErrorCode, InferError
from naiad.telemetry.traffic import FORMAT_VERSION
from naiad.tools.perf.measuring.level import PerfProgress
from naiad.tools.perf.perf_plan import (
    Concurrency,
    InputSettings,
    Load,
    Measuring,
    Mode,
    ModelLoad,
    Phase,
    Plan,
    Protocol,
    Ramp,
    RequestRate,
    Search,
    Sequences,
    ServerTarget,
    Stop,
)
from naiad.tools.perf.perf_session import Session, run
from naiad.tools.values.tensor import InputError
from support.model_repository import write_identity, write_model
from support.sequence_models import write_running_sum
from support.server_process import serving

SHORT = Measuring(window_ms=300, max_trials=1)
COUNTED = Measuring(Stop.REQUEST_COUNT, request_count=40)
IDENTITY = ModelLoad("identity", inputs=InputSettings(shapes={"INPUT0": (4,)}))

ONE_ROW = {"model": "identity", "inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 4]}]}
REPEATED = {
    "model": "repeat",
    "inputs": [
        {"name": "IN", "datatype": "INT32", "shape": [3]},
        {"name": "DELAY", "datatype": "UINT32", "shape": [3]},
        {"name": "WAIT", "datatype": "UINT32", "shape": [1]},
    ],
    "data": [{"b64": "AAAAAAEAAAACAAAA"}, {"b64": "AAAAAAAAAAAAAAAA"}, {"b64": "AAAAAA=="}],
}


@pytest.fixture(params=["http", "grpc"])
def service(request, server):
    if request.param == "http":
        return ServerTarget(f"http://{server.http_url}", Protocol.HTTP)
    return ServerTarget(f"grpc://{server.grpc_url}", Protocol.GRPC)


def http(server):
    return ServerTarget(f"http://{server.http_url}", Protocol.HTTP)


def measured(service, loads: Search | Load, *models, progress=None, **settings):
    settings.setdefault("measuring", SHORT)
    return asyncio.run(run(Plan(service, models or [IDENTITY], loads, **settings), progress))


def test_sweep_gives_a_row_per_load(service):
    result = measured(service, Search(1, 3, 2))
    assert [(row.mode, row.value) for row in result.rows] == [("concurrency", 1), ("concurrency", 3)]
    for row in result.rows:
        assert row.request_count > 10
        assert row.throughput.value == pytest.approx(row.request_count / row.duration_s)
        assert row.server.success_count >= row.request_count
        assert not row.errors
    assert result.environment["server"] == "triton"
    assert not result.exit_reason


@pytest.mark.parametrize("load", [RequestRate(200, is_poisson=True), Ramp((Phase(0.5, 0, 400),))])
def test_open_loops_are_measured(service, load):
    (row,) = measured(service, load).rows
    assert row.request_count > 20
    assert row.generator.late_p99_us > 0


def test_request_count_is_exact_on_the_server(server):
    model = replace(IDENTITY, name="identity_fp64", inputs=InputSettings(shapes={"INPUT0": (4,)}))
    (row,) = measured(http(server), Concurrency(4), model, measuring=COUNTED).rows
    assert row.request_count == row.server.success_count == 40


def test_processes_share_the_load(service):
    plan = {"processes": 2, "measuring": COUNTED}
    (row,) = measured(service, Concurrency(4), **plan).rows
    assert row.request_count == row.server.success_count == 40
    assert row.generator.processes == 2


@pytest.mark.long
def test_busy_generator_gets_more_processes(service, monkeypatch):
    monkeypatch.setattr("naiad.tools.perf.perf_session._BUSY_CPU_SHARE", -1.0)
    idle = iter((1.5, 0.5))
    monkeypatch.setattr("naiad.tools.perf.perf_session.IdleCores.mean", lambda _: next(idle))
    (row,) = measured(service, Concurrency(4), measuring=COUNTED).rows
    assert (row.generator.processes, row.request_count) == (2, 40)


@pytest.mark.long
def test_models_share_the_load_by_weight(server):
    models = [replace(IDENTITY, weight=3), replace(IDENTITY, name="identity_fp64")]
    rows = measured(http(server), Concurrency(4), *models, measuring=COUNTED).rows
    assert [(row.model, row.request_count) for row in rows] == [("identity", 30), ("identity_fp64", 10)]


def test_metrics_are_scraped(server):
    url = server.metrics_url if "://" in server.metrics_url else f"http://{server.metrics_url}"
    settings = {
        "measuring": replace(SHORT, window_ms=600),
        "metrics_url": f"{url}/metrics",
        "metrics_interval_ms": 100,
    }
    (row,) = measured(http(server), Concurrency(1), **settings).rows
    assert {"nv_cpu_utilization"} <= {series.name for series in row.metrics}
    assert max(len(series.values) for series in row.metrics) >= 3


def test_outputs_in_shared_memory_are_validated(tmp_path, start_server):
    write_identity(tmp_path)
    server = start_server(tmp_path, "--allow-client-shm=true")
    server.wait_ready()
    data = {"data": [{"INPUT0": [1, 2, 3, 4]}], "validation_data": [{"OUTPUT0": [1, 2, 3, 4]}]}
    (tmp_path / "data.json").write_text(json.dumps(data))
    inputs = InputSettings(sources=(str(tmp_path / "data.json"),), shapes={"INPUT0": (4,)}, shared_memory="system")
    model = replace(IDENTITY, inputs=inputs)
    (row,) = measured(http(server), Concurrency(3), model, measuring=COUNTED).rows
    assert (row.request_count, list(row.errors)) == (40, [])


def test_wrong_outputs_are_errors(server, tmp_path):
    data = {"data": [{"INPUT0": [1, 2]}], "validation_data": [{"OUTPUT0": [1, 3]}]}
    (tmp_path / "data.json").write_text(json.dumps(data))
    model = replace(IDENTITY, inputs=InputSettings(sources=(str(tmp_path / "data.json"),), shapes={"INPUT0": (2,)}))
    (row,) = measured(http(server), Concurrency(2), model, measuring=COUNTED).rows
    assert row.request_count == 0
    (error,) = row.errors
    assert (error.kind, error.count) == ("validation", 40)
    assert "OUTPUT0" in error.message


def test_requests_are_exported(service):
    exported = []

    def export(session, load, measurement):
        exported.append(load)
        assert len(measurement.kept) == 40
        for request in measurement.kept:
            (((spec, data),),) = request.outputs
            assert spec.name == "OUTPUT0"
            assert data == bytes(session.inputs[0].templates[request.template].data[0])

    plan = Plan(service, [IDENTITY], Concurrency(2), measuring=COUNTED, keeps_requests=True)
    asyncio.run(run(plan, export=export))
    assert exported == [Concurrency(2)]


@pytest.mark.parametrize("load", [Concurrency(3), RequestRate(300)])
def test_sequences_leave_nothing_behind(tmp_path, start_server, load):
    write_running_sum(tmp_path, "sum", "direct { }", max_batch_size=4, idle_us=600_000_000)
    server = start_server(tmp_path)
    server.wait_ready()
    model = ModelLoad("sum", sequences=Sequences(length=5, count=3))
    plan = Plan(http(server), [model], load, measuring=SHORT)

    async def main():
        async with Session(plan) as session:
            (row,) = await session.measure(load)
        # The model has four places for sequences: four new ones at once fit only if all old ones have ended.
        async with Client(plan.service.url) as client:
            for sequence_id in range(1, 5):
                value = np.zeros((1, 1), np.float32)
                await client.infer("sum", {"INPUT": value}, sequence_id=sequence_id, sequence_start=True, timeout_s=5)
            for sequence_id in range(1, 5):  # The end of the server would wait for them.
                await client.infer("sum", {"INPUT": value}, sequence_id=sequence_id, sequence_end=True, timeout_s=5)
        return row

    row = asyncio.run(main())
    assert not row.errors
    assert row.sequences_per_s > 0


def test_session_measures_repeatedly(service):
    async def main():
        async with Session(Plan(service, [IDENTITY], Concurrency(1), measuring=SHORT)) as session:
            return [(await session.measure(Concurrency(value)))[0].value for value in (2, 1, 2)]

    assert asyncio.run(main()) == [2, 1, 2]


def test_recorded_traffic_is_replayed(tmp_path, start_server):
    write_identity(tmp_path)
    write_running_sum(tmp_path, "sum", "direct { }")
    server = start_server(tmp_path, f"--record-traffic={tmp_path / 'recording'}")
    server.wait_ready()

    async def send():
        async with Client(f"grpc://{server.grpc_url}") as client:
            for number in range(4):
                await client.infer("identity", {"INPUT0": np.ones((1, 4), np.float32)})
                options = {"sequence_id": 9, "sequence_start": number == 0, "sequence_end": number == 3}
                await client.infer("sum", {"INPUT": np.ones((1, 1), np.float32)}, **options)

    asyncio.run(send())
    server.signal()
    assert server.wait_exit() == 0
    server = start_server(tmp_path)
    server.wait_ready()
    plan = Plan(http(server), [], Concurrency(1), replay_files=(str(tmp_path / "recording"),))
    rows = asyncio.run(run(plan)).rows
    assert sorted((row.mode, row.model, row.request_count) for row in rows) == [
        ("schedule", "identity", 4),
        ("schedule", "sum", 4),
    ]
    assert all(not row.errors and row.is_stable for row in rows)


@pytest.mark.long
def test_replay_keeps_the_transport_of_each_request(tmp_path, start_server):
    write_identity(tmp_path / "models")
    write_model(tmp_path / "models", "repeat", 'backend: "repeat"\n')
    ways = ["http", "grpc", "grpc_stream", "grpc", "grpc_stream", "http"]
    requests = [{"transport": way, **(REPEATED if way == "grpc_stream" else ONE_ROW)} for way in ways]
    begin = {"naiad_traffic": FORMAT_VERSION, "wall_ns": 0, "monotonic_ns": 0}
    lines = [begin, *({"arrival_ns": at * 10_000_000, **each} for at, each in enumerate(requests))]
    (tmp_path / "recording").write_text("".join(json.dumps(line) + "\n" for line in lines))

    again = tmp_path / "again"
    server = start_server(tmp_path / "models", f"--record-traffic={again}")
    server.wait_ready()
    other = ServerTarget(f"grpc://{server.grpc_url}", Protocol.GRPC)
    plan = Plan(http(server), [], Concurrency(1), replay_files=(str(tmp_path / "recording"),), replay_service=other)
    rows = asyncio.run(run(plan)).rows
    server.stop()
    assert [(row.model, row.request_count, list(row.errors)) for row in rows] == [
        ("identity", 4, []),
        ("repeat", 2, []),
    ]
    found = [each for each in map(json.loads, again.read_text().splitlines()) if "model" in each]
    found.sort(key=lambda each: each["arrival_ns"])
    assert [(each["transport"], each["model"]) for each in found] == [
        (each["transport"], each["model"]) for each in requests
    ]


def test_fixed_schedule_is_played(server, tmp_path):
    data = [{"INPUT0": [1, 2], "timestamp": moment} for moment in (200, 0, 100)]
    (tmp_path / "data.json").write_text(json.dumps({"data": data}))
    model = replace(IDENTITY, inputs=InputSettings(sources=(str(tmp_path / "data.json"),), shapes={"INPUT0": (2,)}))
    (row,) = measured(http(server), Concurrency(1), model, is_fixed_schedule=True).rows
    assert (row.mode, row.request_count) == ("schedule", 3)
    assert row.duration_s >= 0.2


def test_model_in_this_process_is_measured(repository):
    service = ServerTarget(str(repository), Protocol.IN_PROCESS)
    result = measured(service, Search(1, 4, 3), measuring=COUNTED)
    assert [(row.request_count, row.server.success_count) for row in result.rows] == [(40, 40), (40, 40)]
    assert result.environment["server"] == "naiad"


def test_decoupled_model_is_measured(server, tmp_path):
    service = ServerTarget(f"grpc://{server.grpc_url}", Protocol.GRPC, Mode.STREAM)
    step = {name: {"content": [0, 0, 0], "shape": [3]} for name in ("IN", "DELAY")}
    (tmp_path / "data.json").write_text(json.dumps({"data": [{**step, "WAIT": [0]}]}))
    model = ModelLoad("repeat", inputs=InputSettings(sources=(str(tmp_path / "data.json"),)))
    (row,) = measured(service, Concurrency(2), model, measuring=COUNTED).rows
    assert (row.request_count, list(row.errors)) == (40, [])
    assert row.response_throughput == pytest.approx(3 * row.throughput.value, rel=0.01)
    assert row.first_response is not None


@pytest.mark.long
def test_shapes_of_several_models_are_given_together(server):
    inputs = InputSettings(shapes={"INPUT0": (4,), "IN": (3,), "DELAY": (3,), "WAIT": (1,)}, sources=("zero",))
    models = [ModelLoad(name, inputs=inputs) for name in ("identity", "repeat")]
    service = ServerTarget(f"grpc://{server.grpc_url}", Protocol.GRPC, Mode.STREAM)
    rows = measured(service, Concurrency(2), *models, measuring=COUNTED).rows
    assert [(row.model, list(row.errors)) for row in rows] == [("identity", []), ("repeat", [])]


def test_unknown_model_is_named(service):
    with pytest.raises(InferError, match=rf"model 'nope' at {service.url}: .*unknown model") as raised:
        measured(service, Concurrency(1), ModelLoad("nope"))
    assert raised.value.code is ErrorCode.NOT_FOUND


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "grpc://127.0.0.1:9"])
def test_unreachable_server_is_named(url):
    protocol = Protocol.HTTP if url.startswith("http") else Protocol.GRPC
    with pytest.raises(ConnectionFailedError, match=f"no connection to {url}"):
        measured(ServerTarget(url, protocol), Concurrency(1))


def test_data_that_does_not_fit_is_refused(server):
    with pytest.raises(InputError, match="variable dimension"):
        measured(http(server), Concurrency(1), ModelLoad("identity"))


def test_server_that_dies_ends_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr("naiad.tools.perf.measuring.level._FAILURES_ONLY_S", 1.0)
    write_identity(tmp_path)
    with serving(tmp_path / "log", f"--model-repository={tmp_path}") as server:

        class KillServer(PerfProgress):
            def tick(self, tick):
                if tick.requests:
                    server.process.kill()

        result = measured(http(server), Search(1, 5), progress=KillServer(), measuring=Measuring())
    (row,) = result.rows
    assert row.interrupted == "server"
    assert row.request_count > 0
    assert [error.kind for error in row.errors] == ["connection"]
    assert result.exit_reason.startswith(f"the server at http://{server.http_url} has answered no request")


def test_interrupt_reports_what_was_measured(server):
    class Interrupt(PerfProgress):
        is_sent = False

        def tick(self, tick):
            if tick.requests and not self.is_sent:
                self.is_sent = True
                os.kill(os.getpid(), signal.SIGINT)

    result = measured(http(server), Search(1, 5), progress=Interrupt(), measuring=Measuring())
    (row,) = result.rows
    assert (row.interrupted, result.exit_reason) == ("interrupt", "interrupted")
    assert row.request_count > 0


@pytest.mark.long
def test_search_finds_highest_load_in_limit(tmp_path, start_server):
    write_identity(tmp_path, "slow", parameters={"execute_delay_ms": "250"})
    server = start_server(tmp_path)
    server.wait_ready()
    measuring = Measuring(Stop.REQUEST_COUNT, request_count=8, latency_limit_us=650_000)
    model = replace(IDENTITY, name="slow")
    # Requests take 0.25 s, one at a time: with two outstanding the mean is at most 0.5 s, with four nearly 1 s.
    result = measured(http(server), Search(1, 4, 1, is_binary=True), model, measuring=measuring)
    assert [row.value for row in result.rows] in ([1, 4, 2, 3], [1, 4, 2])
    assert result.found in (2, 3)
