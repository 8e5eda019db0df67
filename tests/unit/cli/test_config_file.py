"""The file of --config, and `naiad config show`."""

from pathlib import Path

import pytest

from naiad.cli.config import show
from naiad.options.sources.command_line import OptionError, parse_options

FILE = """\
# A server.
model-repository = ["/a", "/b"]
http_port = 9000
drain-seconds = 5
allow-metrics = false
disable-auto-complete-config = true
http-restricted-api = "model-repository:X-Key=secret"
id = 'edge'
"""


@pytest.fixture(autouse=True)
def _directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(text: str) -> None:
    Path("server.toml").write_text(text)


def test_file_sets_options() -> None:
    write(FILE)
    options = parse_options(["--config", "server.toml"], {})
    assert options.repository.paths == ("/a", "/b")
    assert (options.http.port, options.drain_s, options.metrics.allow) == (9000, 5.0, False)
    assert (options.repository.auto_complete, options.server_id) == (False, "edge")


def test_command_line_replaces_the_file() -> None:
    write(FILE)
    options = parse_options(["/c", "--config=server.toml", "--http-port=1", "--allow-metrics=true"], {})
    assert options.repository.paths == ("/c",)
    assert (options.http.port, options.metrics.allow, options.drain_s) == (1, True, 5.0)


def test_file_replaces_variables() -> None:
    write('model-repository = "/a"\nallow-http = true\n')
    variables = {"AIP_MODE": "PREDICTION", "AIP_PREDICT_ROUTE": "/p", "AIP_HEALTH_ROUTE": "/h"}
    options = parse_options(["--config=server.toml"], {**variables, "AIP_STORAGE_URI": "/x"})
    assert options.repository.paths == ("/a",)
    assert (options.http.allow, options.grpc.allow, options.vertex_ai.allow) == (True, False, True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("id = 'a'\nhtp-port = 1\n", "server.toml:2: unknown key 'htp-port'; did you mean 'http-port'?"),
        ("zzz = 1\n", "server.toml:1: unknown key 'zzz'; see naiad serve --help-all for the names"),
        (
            '\nhttp-port = "9000"\n',
            'server.toml:2: http-port = "9000" is a string; expected an integer, such as http-port = 1',
        ),
        ("http-port = true\n", "server.toml:1: http-port = true is a boolean; expected an integer"),
        ("allow-http = 1\n", "allow-http = 1 is an integer; expected true or false, such as allow-http = true"),
        ("drain-seconds = []\n", "drain-seconds = [] is a list; expected a number, such as drain-seconds = 1.5"),
        ("load-model = [1]\n", 'load-model = 1 is an integer; expected a list of strings, such as load-model = ["a"'),
        ("id = 1\n", 'server.toml:1: id = 1 is an integer; expected a string, such as id = "a"'),
        ("id = 2020-01-01\n", "id = 2020-01-01 is a date; expected a string"),
        ("http-port = 99999\n", "server.toml:1: http-port: '99999' is too large; the maximum is 65535"),
        ("log-format = 'xml'\n", "server.toml:1: log-format: 'xml' is not one of 'default', 'ISO8601', 'json'"),
        ("id = 'a'\nid = 'b'\n", "server.toml:2: a key is given twice; remove one of them"),
        ("http-port = 1\nhttp_port = 2\n", "server.toml:2: 'http_port' is given twice, also as 'http-port'"),
        ("id = 'a'\n[http]\nport = 1\n", "server.toml:2: [http] is a table; write its keys without a table"),
        ("id = a\n", "server.toml:1: Invalid value; expected TOML: key = value, with strings in quotes"),
        ("id\n", "server.toml:1:"),
        ("config = 'x'\n", "server.toml:1: a file cannot name another file"),
        ("cache-config = 'local'\n", "server.toml:1: cache-config: 'local' has no setting"),
    ],
)
def test_mistake_names_file_line_and_fix(text: str, message: str) -> None:
    write(text)
    with pytest.raises(OptionError) as caught:
        parse_options(["/m", "--config=server.toml"], {})
    assert message in str(caught.value)


def test_unreadable_file_is_named() -> None:
    with pytest.raises(OptionError, match=r"--config missing\.toml: No such file or directory; give a TOML file"):
        parse_options(["--config=missing.toml"], {})
    Path("server.toml").write_bytes(b"id = '\xff'")
    with pytest.raises(OptionError, match="write the file in UTF-8"):
        parse_options(["--config=server.toml"], {})
    with pytest.raises(OptionError, match="--config is given twice"):
        parse_options(["--config=a", "--config=b"], {})


def test_show_names_the_source_of_each_value(capsys: pytest.CaptureFixture[str]) -> None:
    write(FILE)
    arguments = ["--config=server.toml", "--grpc-port=1", "--allow-vertex-ai=true", "--cache-config=local,size=9"]
    variables = {"AIP_HTTP_PORT": "5", "AIP_PREDICT_ROUTE": "/p", "AIP_HEALTH_ROUTE": "/h"}
    assert show(arguments, variables) == 0
    printed = capsys.readouterr().out
    rows = {line.partition("  #")[0].rstrip(): line.rpartition("# ")[2] for line in printed.splitlines()}
    assert rows['model-repository = ["/a", "/b"]'] == "server.toml:2"
    assert rows["http-port = 9000"] == "server.toml:3"
    assert rows["grpc-port = 1"] == "command line"
    assert rows["vertex-ai-port = 5"] == "AIP_HTTP_PORT"
    assert rows["metrics-port = 8002"] == "default"
    assert rows["# metrics-address"] == "default: the HTTP address"
    assert rows["disable-auto-complete-config = true"] == "server.toml:6"
    assert rows['cache-config = ["local,size=9"]'] == "command line"
    assert "secret" not in printed


def test_shown_values_are_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    write(FILE.replace("secret", "***"))
    before = parse_options(["--config=server.toml", "--http-port=5"], {})
    assert show(["--config=server.toml", "--http-port=5"], {}) == 0
    write(capsys.readouterr().out)
    assert parse_options(["--config=server.toml"], {}) == before.__class__(
        **{**{name: getattr(before, name) for name in before.__slots__}, "config_file": "server.toml"}
    )


def test_show_reports_what_keeps_a_server_from_starting(capsys: pytest.CaptureFixture[str]) -> None:
    assert show(["--http-port=8001", "--http-header-forward-pattern=("], {}) == 1
    printed = capsys.readouterr()
    assert "http-port = 8001" in printed.out
    assert "--http-header-forward-pattern" in printed.err


def test_show_needs_no_repository(capsys: pytest.CaptureFixture[str]) -> None:
    assert show(["--http-port=9000"], {}) == 0
    printed = capsys.readouterr()
    assert "http-port = 9000" in printed.out
    assert "# model-repository" in printed.out
    assert not printed.err
