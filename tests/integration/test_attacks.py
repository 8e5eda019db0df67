"""The attack suite in its short form: every attack, over every protocol, with and without API keys.

Frames and blocks of header fields are read by the same HTTP/2 connection behind both ports, before any key: those
attacks go against REST without keys and against gRPC with keys. `make attack` has all four. With keys, CI tries
some of the attacks, each over one protocol; without, it sends a hostile document over one form of HTTP, since both
give bodies to the same decoder. `make test-long` tries all.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from attack import attacks, server
from attack.registry import ATTACKS, GRPC, HTTP1, HTTP2, Attack, Limits
from attack.runner import (
    UNAUTHENTICATED_BYTE_NS,
    UNAUTHENTICATED_CONNECTION_US,
    Campaign,
    campaign,
    exceeded,
    unauthenticated_budget_s,
)

_OF_CONNECTION = {attacks.frames.__name__, attacks.header_blocks.__name__}
_OF_BODY = {attacks.documents.__name__, attacks.memory.__name__}


def protocols(attacked: Attack, *, has_keys: bool) -> Sequence[str]:
    """Return the protocols over which an attack is tried."""
    if attacked.run.__module__ in _OF_CONNECTION:
        return (GRPC,) if has_keys else (HTTP2,)
    return attacked.protocols


def is_in_ci(attacked: Attack, protocol: str, *, has_keys: bool) -> bool:
    """Return whether CI tries it: with keys one in three of the attacks, and one in six of those on frames.

    Without keys, bodies over HTTP/1.1 and HTTP/2 in turn, and all else.
    """
    others, number = protocols(attacked, has_keys=has_keys), list(ATTACKS).index(attacked.name)
    if not has_keys:
        other_http = (HTTP1, HTTP2)[number % 2]
        return not (attacked.run.__module__ in _OF_BODY and {HTTP1, HTTP2} <= set(others) and protocol == other_http)
    is_chosen = number % (6 if attacked.run.__module__ in _OF_CONNECTION else 3) == 0
    return is_chosen and protocol == others[number % len(others)]


COMBINATIONS = [
    pytest.param(
        has_keys,
        each,
        protocol,
        id=f"{'keys' if has_keys else 'open'}-{each.name}-{protocol}",
        marks=[] if is_in_ci(each, protocol, has_keys=has_keys) else [pytest.mark.long],
    )
    for has_keys in (False, True)
    for each in ATTACKS.values()
    for protocol in protocols(each, has_keys=has_keys)
]


@pytest.fixture(scope="module")
def campaigns(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[bool, Campaign]]:
    """A server without keys and one with keys, started by its first attack, replaced when one has harmed it."""
    work = tmp_path_factory.mktemp("attack")
    server.write_repository(work / "models")
    with contextlib.ExitStack() as ends:
        yield {
            has_keys: ends.enter_context(campaign(work / "models", work, has_keys=has_keys, is_short=True))
            for has_keys in (False, True)
        }


# Not a parameter of the fixture: pytest would end it after each combination of parameters, and with it the server.
@pytest.mark.parametrize(("has_keys", "attacked", "protocol"), COMBINATIONS)
def test_attack_stays_within_its_limits(
    campaigns: Mapping[bool, Campaign], has_keys: bool, attacked: Attack, protocol: str
) -> None:
    campaigns[not has_keys].close()
    outcome = campaigns[has_keys].run(attacked, protocol)
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
    assert [each for each in ATTACKS.values() if each.run.__module__ in _OF_CONNECTION]
