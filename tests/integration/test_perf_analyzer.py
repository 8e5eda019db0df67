"""The real perf_analyzer against a real server."""

import json
from pathlib import Path

import pytest

from support.perf_analyzer import PerfAnalyzer, UnavailableError, find_perf_analyzer
from support.server_process import ServerProcess


@pytest.fixture(scope="module")
def perf_analyzer() -> PerfAnalyzer:
    try:
        return find_perf_analyzer()
    except UnavailableError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_it_completes_and_every_request_is_counted(
    server: ServerProcess, perf_analyzer: PerfAnalyzer, protocol: str
) -> None:
    url = server.http_url if protocol == "http" else server.grpc_url
    before = server.get("/v2/models/add_sub/stats").json["model_stats"][0]
    # How steady the machine is at the moment is no concern of this test: -s takes any three windows as stable.
    windows = ("-r", "10", "-p", "500", "-s", "999")
    throughputs = perf_analyzer.throughputs(
        "-m", "add_sub", "-i", protocol, "-u", url, "--concurrency-range", "1:4", *windows
    )
    assert set(throughputs) == {1, 2, 3, 4}
    assert all(rate > 0 for rate in throughputs.values())
    after = server.get("/v2/models/add_sub/stats").json["model_stats"][0]
    assert after["inference_stats"]["fail"]["count"] == before["inference_stats"]["fail"]["count"]
    assert after["inference_count"] - before["inference_count"] >= sum(throughputs.values()) * 0.5


def test_missing_model_is_reported(server: ServerProcess, perf_analyzer: PerfAnalyzer) -> None:
    with pytest.raises(AssertionError, match="Request for unknown model: 'nothing' is not found"):
        perf_analyzer.throughputs("-m", "nothing", "-i", "http", "-u", server.http_url, "-p", "100")


def test_streaming(server: ServerProcess, perf_analyzer: PerfAnalyzer) -> None:
    windows = ("-r", "10", "-p", "500", "-s", "999")
    throughputs = perf_analyzer.throughputs(
        "-m", "add_sub", "-i", "grpc", "--streaming", "-u", server.grpc_url, "--concurrency-range", "8:8", *windows
    )
    assert throughputs[8] > 0


def test_streaming_of_a_decoupled_model(server: ServerProcess, perf_analyzer: PerfAnalyzer, tmp_path: Path) -> None:
    elements = {"IN": [1, 2, 3], "DELAY": [0, 0, 0], "WAIT": [0]}
    data = tmp_path / "data.json"
    data.write_text(json.dumps({"data": [elements]}))
    shapes = ("--shape=IN:3", "--shape=DELAY:3")
    windows = ("-r", "10", "-p", "500", "-s", "999")
    throughputs = perf_analyzer.throughputs(
        *("-m", "repeat", "-i", "grpc", "--streaming", "-u", server.grpc_url, "--concurrency-range", "4:4"),
        *("--input-data", str(data), *shapes, *windows),
    )
    assert throughputs[4] > 0
    (row,) = server.get("/v2/models/repeat/stats").json["model_stats"]
    assert row["response_stats"]["2"]["success"]["count"] > 0
