"""The start-up report in the log."""

import logging
from collections.abc import Sequence

import pytest

from naiad.core.errors import not_found
from naiad.core.model import IndexEntry, ModelState
from naiad.options.options import RepositoryOptions
from naiad.options.sources.command_line import parse_options
from naiad.server.reporting.report import loading_text, log_models, log_ready
from support.one_engine import OneEngine


class Engine(OneEngine):
    def __init__(self, *rows: IndexEntry, others: Sequence[IndexEntry] = ()) -> None:
        self.rows = rows
        self.others = others

    def repository_index(self):
        return self.rows

    def survey_repository(self):
        return [*self.rows, *self.others]

    def served(self, name, version):
        raise not_found(f"'{name}' is not served")


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


@pytest.mark.parametrize("mode", ["none", "poll", "explicit"])
def test_empty_repositories_are_reported_with_expected_layout(caplog, mode: str) -> None:
    log_models(Engine(), RepositoryOptions(paths=("/a", "/b"), control_mode=mode))
    assert warnings(caplog) == [
        "there is no model in /a and /b; a repository has a directory for each, as in model/1/model.onnx"
    ]


def test_a_model_that_failed_is_a_model(caplog) -> None:
    log_models(Engine(IndexEntry("m", "1", ModelState.UNAVAILABLE, "no file")), RepositoryOptions(paths=("/a",)))
    assert not warnings(caplog)


def test_explicit_mode_starts_without_loaded_models(caplog) -> None:
    log_models(Engine(others=[IndexEntry("m")]), RepositoryOptions(paths=("/a",), control_mode="explicit"))
    assert not warnings(caplog)


@pytest.mark.parametrize(
    ("rule", "absent"), [("m,other", ""), ("any", ""), ("all", ""), ("none", ""), ("m, typo,lost", "lost, typo")]
)
def test_absent_names_in_ready_models_are_reported(caplog, rule: str, absent: str) -> None:
    engine = Engine(IndexEntry("m", "1", ModelState.READY), others=[IndexEntry("other")])
    log_models(engine, RepositoryOptions(paths=("/a",), ready_models=rule))
    expected = f"--ready-models={rule}: no repository has a model named {absent}; the server is not ready without it"
    assert warnings(caplog) == ([expected] if absent else [])


def test_loading_text_is_bounded_and_oldest_first() -> None:
    assert loading_text({}, 5.0) == "reading the model repository (5 s)"
    assert loading_text({"bert": 3.2, "densenet": 12.4}, 15.0) == "densenet (12 s), bert (3 s)"
    many = loading_text({f"m{number}" * 100: float(number) for number in range(9)}, 15.0)
    assert many.endswith(" and 4 more")
    assert len(many) < 1200


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (
            [],
            "ready: http://127.0.0.1:1, grpc 127.0.0.1:2, metrics http://127.0.0.1:3/metrics; "
            "try: curl http://127.0.0.1:1/v2/models/m",
        ),
        (
            ["--http-address=unix:/s", "--metrics-address=10.0.0.1"],
            "ready: unix:/s, grpc 127.0.0.1:2, metrics http://10.0.0.1:3/metrics; "
            "try: curl --unix-socket /s http://localhost/v2/models/m",
        ),
        (["--http-address=::1", "--allow-metrics=false", "--allow-grpc=false"], "ready: http://[::1]:1; try: curl "),
        (["--allow-http=false", "--allow-metrics=false"], "ready: grpc 127.0.0.1:2"),
        (["--grpc-port=8000", "--allow-metrics=false"], "ready: http://127.0.0.1:1, grpc 127.0.0.1:1; try: "),
    ],
)
def test_ready_line_has_usable_addresses(caplog, flags: list[str], text: str) -> None:
    caplog.set_level(logging.INFO)
    options = parse_options(["models", *flags])
    log_ready(options, {"http": 1, "grpc": 2, "metrics": 3}, is_ready=True, model="m")
    assert caplog.messages[0].startswith(text)


@pytest.mark.parametrize(
    ("flags", "page"),
    [
        (["--http-address=127.0.0.1"], "dashboard: http://127.0.0.1:1/"),
        (["--allow-dashboard=true"], "dashboard: http://127.0.0.1:1/"),
        ([], "dashboard: http://127.0.0.1:1/"),
        (["--allow-dashboard=false"], ""),
        (["--http-address=127.0.0.1", "--allow-dashboard=false"], ""),
        (["--http-address=unix:/s", "--allow-dashboard=true", "--metrics-address=::1"], ""),
        (["--allow-http=false", "--allow-dashboard=true"], ""),
    ],
)
def test_last_line_names_the_dashboard(caplog, flags: list[str], page: str) -> None:
    caplog.set_level(logging.INFO)
    log_ready(parse_options(["models", *flags]), {"http": 1, "grpc": 2, "metrics": 3}, is_ready=True, model="m")
    assert caplog.messages[1:] == ([page] if page else [])
