"""The attack suite in its short form: every attack, over every protocol, with and without API keys."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from attack import attacks, server
from attack.registry import ATTACKS, Attack, Limits
from attack.runner import (
    UNAUTHENTICATED_BYTE_NS,
    UNAUTHENTICATED_CONNECTION_US,
    Campaign,
    campaign,
    exceeded,
    unauthenticated_budget_s,
)

COMBINATIONS = [
    pytest.param(each, protocol, id=f"{each.name}-{protocol}")
    for each in ATTACKS.values()
    for protocol in each.protocols
]


@pytest.fixture(scope="module", params=[False, True], ids=["open", "keys"])
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Campaign]:
    """A server that is replaced once an attack has harmed it."""
    work = tmp_path_factory.mktemp("attack")
    server.write_repository(work / "models")
    with campaign(work / "models", work, has_keys=request.param, is_short=True) as started:
        yield started


@pytest.mark.parametrize(("attacked", "protocol"), COMBINATIONS)
def test_attack_stays_within_its_limits(running: Campaign, attacked: Attack, protocol: str) -> None:
    outcome = running.run(attacked, protocol)
    assert not outcome.problems, outcome


def test_exceeded_limits_are_named() -> None:
    costs = {"cpu_s": 2.0, "peak_mib": 10.0, "kept_mib": 1.0, "p99_ms": 5.0, "block_ms": 60.0}
    assert exceeded(costs, Limits(cpu_s=1.0), rss_mib=100.0) == [
        "cpu_s 2.0, more than 1.0",
        "block_ms 60.0, more than 50.0",
    ]


def test_kept_memory_may_be_five_percent() -> None:
    costs = {"cpu_s": 0.0, "peak_mib": 0.0, "kept_mib": 24.0, "p99_ms": 5.0, "block_ms": 1.0}
    assert exceeded(costs, Limits(cpu_s=1.0), rss_mib=500.0) == []
    assert exceeded(costs, Limits(cpu_s=1.0), rss_mib=100.0) == ["kept_mib 24.0, more than 20.0"]


def test_unauthenticated_budget_is_that_of_the_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "security.md").read_text()
    assert f"no unauthenticated byte costs more than {UNAUTHENTICATED_BYTE_NS:,} ns" in page
    assert f"a connection more than {UNAUTHENTICATED_CONNECTION_US} us" in page
    assert unauthenticated_budget_s(2000, 1_000_000) == pytest.approx(2.0)


def test_every_attack_describes_itself() -> None:
    assert attacks.__all__
    assert len(ATTACKS) > 25
    for each in ATTACKS.values():
        assert each.what, each.name
        assert each.protocols, each.name
