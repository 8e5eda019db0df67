import numpy as np
import pytest

from naiad.tools.measure.intervals import latency_without_times
from naiad.tools.measure.result import ClientFigures
from naiad.tools.perf.records import GeneratorFacts
from naiad.tools.perf.statistics.row import generator_figures, is_remote, limited_by

SERVICE = latency_without_times(np.full(100, 10_000_000))  # 10 ms


def facts(cpu=0.2, late_us=(), ceiling=10_000.0, unsent=0):
    late = np.array(late_us, np.int64) * 1000
    return GeneratorFacts(1, 10.0, cpu * 10, cpu, late, ceiling, unsent)


def limit(generator, asked=0, rate=100.0, network_us=0.0, remote=False):
    return limited_by(generator, asked, rate, SERVICE, ClientFigures(0, 0, network_us), remote)


@pytest.mark.parametrize(
    ("generator", "asked", "rate", "expected"),
    [
        (facts(), 0, 100, "server"),
        (facts(cpu=0.95), 0, 100, "generator"),
        (facts(), 0, 9_500, "generator"),
        (facts(late_us=[0] * 90 + [1500] * 10), 100, 100, "generator"),
        (facts(late_us=[900] * 100), 100, 100, "load"),
        (facts(), 100, 100, "load"),
        (facts(), 100, 95, "load"),  # within the deviation of random gaps in 10 s
        (facts(), 100, 85, "server"),
        (facts(unsent=50), 100, 100, "server"),
    ],
)
def test_limit_follows_generator_and_load(generator, asked, rate, expected):
    assert limit(generator, asked, rate) == expected


def test_network_limits_only_between_hosts():
    assert limit(facts(), network_us=8_000, remote=True) == "network"
    assert limit(facts(), network_us=2_000, remote=True) == "server"
    assert limit(facts(), network_us=8_000) == "server"


def test_lateness_is_summed_up():
    found = generator_figures(facts(late_us=range(0, 2000, 20)), "load")
    assert (found.late_p50_us, found.late_p99_us, found.late_share) == (980, 1960, 0.49)
    assert generator_figures(facts(), "load").late_share == 0


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://localhost:8000", False),
        ("grpc://127.0.0.1:8001", False),
        ("http://[::1]:8000", False),
        ("10.0.0.1:8000", True),
        ("grpc://gpu.example:8001", True),
        ("unix:///run/naiad.sock", False),
        ("/models", False),
    ],
)
def test_loopback_is_not_remote(url, expected):
    assert is_remote(url) is expected
