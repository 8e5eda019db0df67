import logging
import resource

import pytest

from naiad.server.process.process_environment import raise_file_limit

INFINITY = resource.RLIM_INFINITY


@pytest.fixture
def limits(monkeypatch):
    state = {"now": (1024, 4096), "refuses": False}

    def set_limit(kind, pair):
        assert kind == resource.RLIMIT_NOFILE
        if state["refuses"]:
            raise ValueError("not allowed")
        state["now"] = pair

    monkeypatch.setattr(resource, "getrlimit", lambda kind: state["now"])
    monkeypatch.setattr(resource, "setrlimit", set_limit)
    return state


@pytest.mark.parametrize(
    ("before", "connections", "after", "is_logged"),
    [
        ((1024, 8192), 1000, (2024, 8192), []),
        ((1024, 4096), 16384, (4096, 4096), ["WARNING"]),
        ((1024, 8192), 16384, (8192, 8192), ["INFO"]),
        ((65536, 65536), 16384, (65536, 65536), []),
        ((1024, INFINITY), 16384, (17408, INFINITY), []),
        ((INFINITY, INFINITY), 16384, (INFINITY, INFINITY), []),
    ],
)
def test_limit_is_raised_as_needed_and_allowed(limits, caplog, before, connections, after, is_logged):
    caplog.set_level(logging.INFO)
    limits["now"] = before
    raise_file_limit(connections)
    assert limits["now"] == after
    assert [record.levelname for record in caplog.records] == is_logged
    assert ("lower --http-max-connections" in caplog.text) is bool(is_logged)


def test_rejected_limit_is_logged(limits, caplog):
    limits["refuses"] = True
    raise_file_limit(2000)
    assert limits["now"] == (1024, 4096)
    assert "stays at 1024: not allowed" in caplog.text


@pytest.mark.parametrize(("hard", "is_logged"), [(4096, ["WARNING"]), (8192, [])])
def test_default_limits_are_not_blamed_on_flags(limits, caplog, hard, is_logged):
    caplog.set_level(logging.INFO)
    limits["now"] = (1024, hard)
    raise_file_limit(16384, is_requested=False)
    assert [record.levelname for record in caplog.records] == is_logged
    assert "--http-max-connections" not in caplog.text
