"""`naiad perf` as a command, against real servers: its reports, its statuses, and runs that end early."""

import csv
import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.model_repository import write_identity, write_model
from support.perf_analyzer import PerfAnalyzer, UnavailableError, find_perf_analyzer
from support.perf_command import ENVIRONMENT, address, command, perf, requests, rows
from support.server_process import ServerProcess
from support.waiting import wait_until

StartServer = Callable[..., ServerProcess]

IDENTITY = ("-m", "identity", "--shape", "INPUT0:4")
FAILING = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.count = 0

    def execute(self, requests):
        responses = []
        for request in requests:
            self.count += 1
            tensor = pb_utils.Tensor("OUT", pb_utils.get_input_tensor_by_name(request, "IN").as_numpy())
            error = pb_utils.TritonError("the twentieth") if self.count % 20 == 0 else None
            responses.append(pb_utils.InferenceResponse([tensor], error))
        return responses
"""
FAILING_CONFIG = """
backend: "python"
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] } ]
"""


def csv_rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_reports_are_written(server: ServerProcess, tmp_path: Path, protocol: str) -> None:
    files = {name: tmp_path / f"report.{name}" for name in ("csv", "json", "html")}
    done = perf(
        *IDENTITY, *address(server, protocol), "--concurrency-range", "1:2", "--request-count", "60",
        *("-f", str(files["csv"]), "--verbose-csv", "--json", str(files["json"]), "--html", str(files["html"])),
    )  # fmt: skip
    assert {row["Concurrency"] for row in csv_rows(files["csv"])} == {"1", "2"}
    for row in csv_rows(files["csv"]):
        assert float(row["Inferences/Second"]) > 0
        assert int(row["p50 latency"]) <= int(row["p99 latency"])
        assert "Avg latency" in row
    assert [(row["value"], row["request_count"], row["errors"]) for row in rows(files["json"])] == [
        (1, 60, []),
        (2, 60, []),
    ]
    assert "<svg" in files["html"].read_text()
    assert "Request concurrency: 2" in done.stdout
    assert f"next: a better configuration: naiad analyze identity --url {protocol}://" in done.stdout


def test_rates_are_measured(server: ServerProcess, tmp_path: Path) -> None:
    file = tmp_path / "rates.csv"
    rates = ("--request-rate-range", "100:200:100", "--request-count", "40")
    perf(*IDENTITY, *address(server, "grpc"), *rates, "-f", str(file))
    assert {row["Request Rate"] for row in csv_rows(file)} == {"100", "200"}


def test_unknown_model_is_named(server: ServerProcess) -> None:
    done = perf("-m", "nothing", *address(server, "grpc"), status=99)
    assert "unknown model" in done.stderr
    assert "'nothing'" in done.stderr


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_unreachable_server_is_named(protocol: str) -> None:
    done = perf(*IDENTITY, "-i", protocol, "-u", "127.0.0.1:9", status=99)
    assert f"no connection to {protocol}://127.0.0.1:9" in done.stderr


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--concurrency-range", "8:2"], "below its start of 8"),
        (["--concurrency-rang", "x"], "--concurrency-range is 'x'"),
        (["--nonsense"], "--nonsense"),
        (["--fail-over", "much"], "--fail-over"),
    ],
)
def test_bad_flags_end_with_three(flags: list[str], words: str) -> None:
    assert words in perf(*IDENTITY, *flags, status=3).stderr


def test_data_that_does_not_fit_is_named(server: ServerProcess) -> None:
    assert "INPUT0" in perf("-m", "identity", *address(server, "http"), status=99).stderr


@contextmanager
def running(server: ServerProcess, *flags: str) -> Iterator["subprocess.Popen[str]"]:
    """A run that is measuring, and would go on for hours."""
    arguments = (*IDENTITY, *address(server, "http"), "--request-count", "1000000000", *flags)
    pipe = subprocess.PIPE

    def count() -> int:
        (model,) = server.get("/v2/models/identity/stats").json["model_stats"]
        return int(model["inference_count"])

    before = count()
    with subprocess.Popen(command(*arguments), stdout=pipe, stderr=pipe, text=True, env=ENVIRONMENT) as process:
        try:
            wait_until(lambda: count() > before + 100, "the run has not begun")
            yield process
        finally:
            process.kill()


def test_server_that_dies_ends_the_run(tmp_path: Path, start_server: StartServer) -> None:
    write_identity(tmp_path)
    server = start_server(tmp_path)
    server.wait_ready()
    with running(server, "--json", str(tmp_path / "result.json"), "-f", str(tmp_path / "result.csv")) as process:
        server.process.kill()
        output, errors = process.communicate(timeout=60)
    assert process.returncode == 99
    assert "has answered no request" in errors
    assert "Errors: " in output
    (row,) = rows(tmp_path / "result.json")
    assert row["interrupted"] == "server"
    assert row["request_count"] > 0
    assert len(csv_rows(tmp_path / "result.csv")) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_reports_what_was_measured(server: ServerProcess, tmp_path: Path, number: signal.Signals) -> None:
    export = tmp_path / "requests.json"
    with running(server, "--json", str(tmp_path / "result.json"), "--profile-export-file", str(export)) as process:
        process.send_signal(number)
        output, errors = process.communicate(timeout=60)
    assert process.returncode == 99
    assert "interrupted" in errors
    assert "Concurrency: 1, throughput: " in output
    (row,) = rows(tmp_path / "result.json")
    assert row["interrupted"] == "interrupt"
    assert len(requests(export)) == row["request_count"] > 0


def test_failures_do_not_end_the_run(tmp_path: Path, start_server: StartServer) -> None:
    write_model(tmp_path, "failing", FAILING_CONFIG, {"1/model.py": FAILING})
    server = start_server(tmp_path)
    server.wait_ready()
    load = ("--concurrency-range", "4", "--request-count", "400", "--json", str(tmp_path / "result.json"))
    for protocol in ("http", "grpc"):
        done = perf("-m", "failing", *address(server, protocol), *load, status=1)  # 5 % are more than --max-errors
        (row,) = rows(tmp_path / "result.json")
        (error,) = row["errors"]
        assert (row["request_count"], error["count"]) == (380, 20)
        assert "the twentieth" in error["message"]
        assert "Errors: 20 x " in done.stdout


def test_wrong_outputs_are_counted(server: ServerProcess, tmp_path: Path) -> None:
    data = {"data": [{"INPUT0": [1, 2]}, {"INPUT0": [3, 4]}]}
    data["validation_data"] = [{"OUTPUT0": [1, 2]}, {"OUTPUT0": [3, 5]}]
    (tmp_path / "data.json").write_text(json.dumps(data))
    where = ("-m", "identity", *address(server, "http"), "--input-data", str(tmp_path / "data.json"))
    perf(*where, "--shape", "INPUT0:2", "--request-count", "30", "--json", str(tmp_path / "result.json"), status=1)
    (row,) = rows(tmp_path / "result.json")
    assert (row["request_count"], [each["kind"] for each in row["errors"]]) == (15, ["validation"])


def test_regression_ends_with_one(server: ServerProcess, tmp_path: Path) -> None:
    baseline = tmp_path / "baseline.json"
    run = (*IDENTITY, *address(server, "http"), "--request-count", "60", "--json")
    perf(*run, str(baseline))
    content = json.loads(baseline.read_text())
    for name in ("value", "low", "high"):
        content["rows"][0]["throughput"][name] *= 1000
    baseline.write_text(json.dumps(content))
    after = tmp_path / "after.json"
    assert "throughput" in perf(*run, str(after), "--baseline", str(baseline), status=1).stdout
    perf(*run, str(after), "--baseline", str(baseline), "--fail-over", "1000000%")


@pytest.fixture(scope="module")
def perf_analyzer() -> PerfAnalyzer:
    try:
        return find_perf_analyzer()
    except UnavailableError as error:
        pytest.skip(str(error))


def structure(value: Any) -> Any:
    """Return what kinds of values there are, of an array that of its first."""
    if isinstance(value, dict):
        return {name: structure(each) for name, each in value.items()}
    return [structure(each) for each in value[:1]] if isinstance(value, list) else type(value)


def test_profile_export_has_perf_analyzers_structure(
    server: ServerProcess, tmp_path: Path, perf_analyzer: PerfAnalyzer
) -> None:
    theirs, ours = tmp_path / "theirs.json", tmp_path / "ours.json"
    run = ("-m", "add_sub", *address(server, "grpc"), "--request-count", "5", "--profile-export-file")
    perf_analyzer.throughputs(*run, str(theirs))
    perf(*run, str(ours))
    assert structure(json.loads(ours.read_text())) == structure(json.loads(theirs.read_text()))
