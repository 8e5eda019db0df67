"""The start-up report in the log."""

import logging

import pytest

from naiad.core.errors import not_found
from naiad.core.model import IndexEntry, ModelState
from naiad.options.options import RepositoryOptions
from naiad.server.report import log_models


class Engine:
    def __init__(self, *rows: IndexEntry) -> None:
        self.rows = rows

    def repository_index(self):
        return self.rows

    def served(self, name, version):
        raise not_found(f"'{name}' is not served")


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


@pytest.mark.parametrize("mode", ["none", "poll"])
def test_empty_repositories_are_reported_with_expected_layout(caplog, mode: str) -> None:
    log_models(Engine(), RepositoryOptions(paths=("/a", "/b"), control_mode=mode))
    assert warnings(caplog) == [
        "there is no model in /a and /b; a repository has a directory for each, as in model/1/model.onnx"
    ]


def test_a_model_that_failed_is_a_model(caplog) -> None:
    log_models(Engine(IndexEntry("m", "1", ModelState.UNAVAILABLE, "no file")), RepositoryOptions(paths=("/a",)))
    assert not warnings(caplog)


def test_explicit_mode_starts_without_models(caplog) -> None:
    log_models(Engine(), RepositoryOptions(paths=("/a",), control_mode="explicit"))
    assert not warnings(caplog)
