"""Words about child processes."""

import sys

import pytest

from naiad.tools.process.child import status_text, with_this_path


@pytest.mark.parametrize(("status", "text"), [(0, "status 0"), (3, "status 3"), (-9, "SIGKILL"), (-99, "signal 99")])
def test_status_is_a_number_or_a_signal(status: int, text: str) -> None:
    assert status_text(status) == text


def test_environment_has_the_path_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["", "/a", "/b"])
    assert with_this_path({"X": "1", "PYTHONPATH": "/old"}) == {"X": "1", "PYTHONPATH": "/a:/b"}
