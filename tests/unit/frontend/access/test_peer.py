"""Where clients are: for logs, and for what they share."""

from types import SimpleNamespace

import pytest

from naiad.frontend.access.peer import network_of


def client(peer: object, own: object = ("192.0.2.1", 8000)) -> SimpleNamespace:
    names = {"peername": peer, "sockname": own}
    return SimpleNamespace(transport=SimpleNamespace(get_extra_info=names.get))


@pytest.mark.parametrize(
    ("peer", "network"),
    [
        (("127.0.0.1", 5000), "local"),
        (("::1", 5000, 0, 0), "local"),
        (("192.0.2.1", 5000), "local"),
        (("198.51.100.7", 5000), "198.51.100.7"),
        (("::ffff:198.51.100.7", 5000, 0, 0), "198.51.100.7"),
        (("2001:db8:1:2:3:4:5:6", 5000, 0, 0), "2001:db8:1:2::/64"),
        (("2001:db8:1:2:ffff::1", 5000, 0, 0), "2001:db8:1:2::/64"),
        (("fe80::1%eth0", 5000, 0, 2), "fe80::/64"),
        (("name", 5000), "name"),
        (None, ""),
    ],
)
def test_clients_of_one_network_are_one(peer: object, network: str) -> None:
    assert network_of(client(peer)) == network


def test_clients_of_a_unix_socket_are_local() -> None:
    assert network_of(client("", "/run/naiad.sock")) == "local"


def test_client_without_a_connection_has_no_network() -> None:
    assert network_of(None) == ""
