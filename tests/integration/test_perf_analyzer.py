"""The real perf_analyzer against a real server."""

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
    windows = ("-r", "3", "-p", "500", "-s", "999")
    throughputs = perf_analyzer.throughputs(
        "-m", "add_sub", "-i", protocol, "-u", url, "--concurrency-range", "1:4", *windows
    )
    assert set(throughputs) == {1, 2, 3, 4}
    assert all(rate > 0 for rate in throughputs.values())
    after = server.get("/v2/models/add_sub/stats").json["model_stats"][0]
    assert after["inference_stats"]["fail"]["count"] == before["inference_stats"]["fail"]["count"]
    assert after["inference_count"] - before["inference_count"] >= sum(throughputs.values()) * 0.5


def test_a_model_that_is_not_there_is_told(server: ServerProcess, perf_analyzer: PerfAnalyzer) -> None:
    with pytest.raises(AssertionError, match="Request for unknown model: 'nothing' is not found"):
        perf_analyzer.throughputs("-m", "nothing", "-i", "http", "-u", server.http_url, "-p", "100")
