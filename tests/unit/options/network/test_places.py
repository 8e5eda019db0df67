import pytest

from naiad.cli.serve import format_help_all
from naiad.options.network.addresses import (
    are_overheard,
    check_address,
    covers,
    host_of,
    is_one_port,
    owner_of_tls,
    unix_path,
    unsupported_reason,
)
from naiad.options.options import ServerOptions
from naiad.options.sources.command_line import OptionError, parse_options

TLS = ["--{0}-use-ssl=true", "--{0}-server-cert=c", "--{0}-server-key=k"]
MUTUAL = [*TLS, "--{0}-use-ssl-mutual=true", "--{0}-root-cert=r"]


def options(*arguments: str) -> ServerOptions:
    return parse_options(["models", *arguments])


def flags(templates: list[str], protocol: str) -> list[str]:
    return [template.format(protocol) for template in templates]


def grpc_on_http(*arguments: str) -> str:
    found = options(*arguments)
    return unsupported_reason(found.grpc_place, found.http_place)


def rest_on_grpc(*arguments: str) -> str:
    found = options(*arguments)
    return unsupported_reason(found.http_place, found.grpc_place)


# --- addresses


@pytest.mark.parametrize(
    "address", ["0.0.0.0", "::", "[::1]", "::1", "fe80::1%eth0", "localhost", "my-host.example", "unix:/run/a.sock"]
)
def test_addresses_that_can_be_listened_on(address):
    assert check_address(address) == address


@pytest.mark.parametrize(
    ("address", "word"),
    [
        ("127.0.0.1:8000", "port"),
        ("[::1]:8000", "not an address"),
        ("unix:relative", "absolute"),
        ("unix:", "absolute"),
        ("unix:/" + "x" * 120, "107 bytes"),
        ("/run/a.sock", "unix:/path"),
        ("1:2:3", "IPv6"),
    ],
)
def test_addresses_that_cannot(address, word):
    with pytest.raises(ValueError, match=word):
        check_address(address)
    with pytest.raises(OptionError, match="--http-address"):
        options(f"--http-address={address}")


def test_forms_of_one_address():
    assert host_of("[::1]") == "::1"
    assert unix_path("unix:///run/a") == unix_path("unix:/run/a") == "/run/a"


@pytest.mark.parametrize(
    ("wide", "narrow", "expected"),
    [
        ("0.0.0.0", "0.0.0.0", True),
        ("0.0.0.0", "127.0.0.1", True),
        ("::", "unix:/a", True),
        ("[::1]", "::1", True),
        ("127.0.0.1", "0.0.0.0", False),
        ("127.0.0.1", "127.0.0.2", False),
        ("unix:/a", "127.0.0.1", False),
        ("unix:/a", "unix:///a", True),
        ("unix:/a", "unix:/b", False),
        ("127.0.0.1", "unix:/a", False),
    ],
)
def test_covers(wide, narrow, expected):
    assert covers(wide, narrow) is expected


@pytest.mark.parametrize("mode", ["6", "888", "1777", "rw"])
def test_socket_modes_that_are_none(mode):
    with pytest.raises(OptionError, match="--unix-socket-mode"):
        options(f"--unix-socket-mode={mode}")


def test_socket_mode_is_octal():
    assert options().unix_socket_mode == 0o600
    assert options("--unix-socket-mode=660").unix_socket_mode == 0o660
    assert "--unix-socket-mode <octal>" in format_help_all()


# --- one port


@pytest.mark.parametrize(
    "arguments",
    [
        ["--http-port=9", "--grpc-port=9"],
        ["--http-address=[::1]", "--grpc-address=::1", "--http-port=9", "--grpc-port=9"],
        ["--http-address=unix:/a", "--grpc-address=unix:///a"],
    ],
)
def test_equal_places_are_one_port(arguments):
    found = options(*arguments)
    assert is_one_port(found.http_place, found.grpc_place)
    assert grpc_on_http(*arguments) == rest_on_grpc(*arguments) == ""


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--http-port=0", "--grpc-port=0"],
        ["--http-port=9", "--grpc-port=9", "--allow-grpc=false"],
        ["--http-address=unix:/a", "--grpc-address=unix:/b"],
        ["--http-address=unix:/a", "--http-port=8001"],
    ],
)
def test_other_places_are_not(arguments):
    found = options(*arguments)
    assert not is_one_port(found.http_place, found.grpc_place)


def test_metrics_have_a_place_of_their_own():
    with pytest.raises(OptionError, match="--http-port and --metrics-port are both 9"):
        options("--http-port=9", "--grpc-port=9", "--metrics-port=9")
    with pytest.raises(OptionError, match="--http-address and --metrics-address are both /a"):
        options("--http-address=unix:/a", "--metrics-address=unix:/a")


def test_metrics_stay_local_with_unix_socket():
    assert options("--http-address=unix:/a").metrics_place.address == "127.0.0.1"
    assert options("--http-address=10.0.0.1").metrics_place.address == "10.0.0.1"


def test_one_port_has_tls_of_either_protocol():
    one = ["--http-port=9", "--grpc-port=9"]
    found = options(*one, *flags(TLS, "grpc"))
    assert owner_of_tls(found.http_place, found.grpc_place).name == "grpc"
    found = options(*one, *flags(TLS, "http"))
    assert owner_of_tls(found.http_place, found.grpc_place).name == "http"
    options(*one, *flags(TLS, "http"), *flags(TLS, "grpc"))
    with pytest.raises(OptionError, match="must be the same"):
        options(*one, *flags(TLS, "http"), *flags(MUTUAL, "grpc"))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], True),
        (flags(TLS, "http"), True),
        ([*flags(TLS, "http"), *flags(TLS, "grpc")], False),
        ([*flags(TLS, "http"), "--allow-grpc=false"], False),
        ([*flags(TLS, "http"), "--grpc-address=unix:/a"], False),
        ([*flags(TLS, "http"), "--http-port=9", "--grpc-port=9"], False),
        (["--http-port=9", "--grpc-port=9"], True),
        (["--http-address=unix:/a", "--grpc-address=unix:/a"], False),
    ],
)
def test_what_can_be_read_on_its_way(arguments, expected):
    found = options(*arguments)
    assert are_overheard(found.http_place, found.grpc_place) is expected


# --- protocols of each port


def test_each_port_serves_both_by_default():
    assert grpc_on_http() == rest_on_grpc() == ""


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--allow-grpc=false"], "--allow-grpc=false"),
        (["--grpc-address=127.0.0.1"], "--grpc-address"),
        (flags(TLS, "grpc"), "--grpc-use-ssl"),
        ([*flags(MUTUAL, "grpc"), *flags(TLS, "http")], "--grpc-use-ssl"),
        (["--http-restricted-api=model-repository:key=secret"], "restrictions of http"),
    ],
)
def test_grpc_is_not_served_where_it_bypasses_flags(arguments, word):
    assert word in grpc_on_http(*arguments)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--allow-http=false"], "--allow-http=false"),
        (["--http-address=unix:/a"], "--http-address"),
        (flags(TLS, "http"), "--http-use-ssl"),
        (["--grpc-restricted-protocol=inference:key=secret"], "restrictions of grpc"),
    ],
)
def test_rest_is_not_served_where_it_bypasses_flags(arguments, word):
    assert word in rest_on_grpc(*arguments)


def test_equally_restricted_ports_serve_both():
    arguments = [
        *flags(MUTUAL, "grpc"),
        *flags(MUTUAL, "http"),
        "--http-restricted-api=inference:key=a",
        "--grpc-restricted-protocol=inference:key=b",
    ]
    assert grpc_on_http(*arguments) == rest_on_grpc(*arguments) == ""
