"""What a client of the live stream may see: access rules decide, and without one the log stays on the machine."""

from types import SimpleNamespace

import pytest

from naiad.frontend.access.access import ApiKeyRule, RejectionResponse
from naiad.frontend.access.peer import is_local
from naiad.frontend.dashboard.live_feed import LiveFeed
from naiad.frontend.dashboard.live_route import LiveRoute
from naiad.frontend.router import Router
from naiad.options.network.access_options import digest_of, parse_api_keys
from naiad.wire.grpc import GrpcStatus


class _Rule:
    """Restricts one category to clients with a header field."""

    def __init__(self, category: str) -> None:
        self._category = category

    def concerns(self, category: str) -> bool:
        return category == self._category

    def rejection(self, category: str, field):
        if category != self._category or field(b"key") == b"right":
            return None
        return RejectionResponse(403, GrpcStatus.UNAVAILABLE, "a key is needed")


def reasons(peer: str, *, local_only: bool = True, restricted: str = "", key: bytes = b"") -> dict[str, str]:
    """Return why a client may not do something, by category."""
    route = LiveRoute(LiveFeed(SimpleNamespace()), local_only=local_only)
    route.router = Router([])
    if restricted:
        route.router.restrict(_Rule(restricted))
    names = {"peername": (peer, 5000), "sockname": ("10.0.0.5", 8000)}
    client = SimpleNamespace(transport=SimpleNamespace(get_extra_info=names.get))
    allowed = route.rights(SimpleNamespace(client=client, headers={b"key": key})).allowed
    return {name: row["reason"] for name, row in allowed.items() if not row["allowed"]}


def rights_with(authorization: bytes) -> dict[str, dict[str, object]]:
    """Return the rights of a client of the machine, on a server on which loads need a key."""
    keys = f"admin all {digest_of('secret').hex()}\nviewer statistics {digest_of('narrow').hex()}\n"
    route = LiveRoute(LiveFeed(SimpleNamespace()))
    route.router = Router([])
    route.router.restrict(ApiKeyRule(parse_api_keys(f"{keys}public inference,statistics,logging -")))
    headers = {b"authorization": authorization} if authorization else {}
    return dict(route.rights(SimpleNamespace(client=None, headers=headers)).allowed)


@pytest.mark.parametrize("authorization", [b"", b"Bearer wrong", b"Bearer narrow"])
def test_client_is_asked_for_a_missing_key(authorization: bytes) -> None:
    rights = rights_with(authorization)
    for name in ("model-repository", "rollout"):
        assert (rights[name]["allowed"], rights[name]["asks_for_key"]) == (False, True)
    assert rights["inference"] == {"allowed": True}


def test_key_that_has_the_right_is_enough() -> None:
    assert all(row == {"allowed": True} for row in rights_with(b"Bearer secret").values())


@pytest.mark.parametrize("peer", ["127.0.0.1", "::1", "10.0.0.5"])
def test_clients_of_the_machine_see_the_log(peer: str) -> None:
    assert reasons(peer) == {}


def test_peer_that_has_gone_is_of_no_machine() -> None:
    own = {"sockname": ("10.0.0.5", 8000)}
    assert not is_local(SimpleNamespace(transport=SimpleNamespace(get_extra_info=own.get)))
    unix = {"peername": "", "sockname": "/run/naiad.sock"}
    assert is_local(SimpleNamespace(transport=SimpleNamespace(get_extra_info=unix.get)))


def test_other_machines_do_not_see_the_log() -> None:
    found = reasons("10.0.0.6")
    assert list(found) == ["logging"]
    assert "--allow-dashboard=true" in found["logging"]
    assert reasons("10.0.0.6", local_only=False) == {}
    assert list(reasons("10.0.0.6", restricted="statistics")) == ["logging", "statistics"]


def test_rule_about_logging_decides_for_all_machines() -> None:
    assert reasons("10.0.0.6", restricted="logging", key=b"right") == {}
    assert reasons("127.0.0.1", restricted="logging") == {"logging": "a key is needed"}
