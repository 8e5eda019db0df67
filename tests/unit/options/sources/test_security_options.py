"""Flags of access control and TLS."""

import pytest

from naiad.options.options import ServerOptions
from naiad.options.sources.command_line import OptionError, parse_options


def parse(*arguments: str) -> ServerOptions:
    return parse_options(["--model-repository=/m", *arguments])


def test_tls_is_off_by_default() -> None:
    options = parse()
    assert not options.http_tls.is_on
    assert not options.grpc_tls.is_on


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_tls_flags_are_of_one_protocol(protocol: str) -> None:
    options = parse(f"--{protocol}-use-ssl=true", f"--{protocol}-server-cert=/c", f"--{protocol}-server-key=/k")
    tls, other = (options.http_tls, options.grpc_tls) if protocol == "http" else (options.grpc_tls, options.http_tls)
    assert (tls.is_on, tls.use_ssl_mutual, tls.server_cert, tls.server_key) == (True, False, "/c", "/k")
    assert not other.is_on


def test_mutual_asks_for_tls() -> None:
    options = parse(
        "--grpc-use-ssl-mutual=true", "--grpc-server-cert=/c", "--grpc-server-key=/k", "--grpc-root-cert=/r"
    )
    assert options.grpc_tls.is_on
    assert options.grpc_tls.root_cert == "/r"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--grpc-use-ssl=true"], "--grpc-use-ssl needs --grpc-server-cert and --grpc-server-key"),
        (["--http-use-ssl=true", "--http-server-cert=/c"], "--http-use-ssl needs --http-server-key"),
        (
            ["--grpc-use-ssl-mutual=1", "--grpc-server-cert=/c", "--grpc-server-key=/k"],
            "--grpc-use-ssl-mutual needs --grpc-root-cert",
        ),
    ],
)
def test_tls_without_its_files_is_rejected(arguments: list[str], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        parse(*arguments)


def test_tls_files_without_tls_are_ignored_with_warning() -> None:
    options = parse("--grpc-server-cert=/c", "--grpc-root-cert=/r", "--http-server-key=/k")
    assert not options.grpc_tls.is_on
    assert set(options.no_effect) == {"--grpc-server-cert", "--grpc-root-cert", "--http-server-key"}


def test_root_without_mutual_is_ignored_with_a_word() -> None:
    options = parse("--grpc-use-ssl=true", "--grpc-server-cert=/c", "--grpc-server-key=/k", "--grpc-root-cert=/r")
    assert options.no_effect == ("--grpc-root-cert",)


def test_restrictions_are_by_category() -> None:
    options = parse(
        "--http-restricted-api=model-config,trace:admin-key=a=b",
        "--http-restricted-api=health:h=1",
        "--grpc-restricted-protocol=inference:user=u",
    )
    http = options.access.http_restricted
    assert {name: (header.name, header.value) for name, header in http.items()} == {
        "model-config": ("admin-key", "a=b"),
        "trace": ("admin-key", "a=b"),
        "health": ("h", "1"),
    }
    assert options.access.grpc_restricted["inference"].name == "triton-grpc-protocol-user"


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("--http-restricted-api=models:a=b", "unknown restricted api 'models'"),
        ("--grpc-restricted-protocol=infer:a=b", "unknown restricted protocol 'infer'"),
        ("--http-restricted-api=health", "format is"),
        ("--http-restricted-api=health:key", "format is"),
        ("--http-restricted-api=health:key=", "format is"),
        ("--http-restricted-api=:key=v", "format is"),
        ("--http-header-forward-pattern=(", "is not a regular expression"),
    ],
)
def test_malformed_restrictions_and_patterns_are_rejected(argument: str, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        parse(argument)


def test_category_in_two_groups_is_rejected() -> None:
    with pytest.raises(OptionError, match="'health' can not be specified in multiple config groups"):
        parse("--http-restricted-api=health:a=b", "--http-restricted-api=trace,health:c=d")


def test_origins_are_collected() -> None:
    options = parse("--http-cors-origin=https://a.example", "--http-cors-origin=http://localhost:3000")
    assert options.access.http_cors_origins == ("https://a.example", "http://localhost:3000")
    assert parse().access.http_cors_origins == ()


@pytest.mark.parametrize("origin", ["a.example", "https://a.example/", "https://a.example/x", "https://", ""])
def test_what_no_browser_sends_is_no_origin(origin: str) -> None:
    with pytest.raises(OptionError, match="is not an origin"):
        parse(f"--http-cors-origin={origin}")
