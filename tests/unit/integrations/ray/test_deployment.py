"""What a deployment checks before Serve starts it, how many replicas a queue needs, and paths below a prefix."""

import sys
from types import SimpleNamespace

import pytest

from naiad.core.errors import ErrorCode, InferError
from naiad.integrations.ray.deployment import autoscaling, deployment
from naiad.integrations.ray.queue_scaling import PENDING, QueueScaling
from naiad.integrations.ray.serve_replica import target_of


def context(pending, *, now: int = 2, requests: float = 1.0) -> SimpleNamespace:
    metrics = {PENDING: dict(enumerate(pending))} if pending is not None else {}
    return SimpleNamespace(
        current_num_replicas=now, target_num_replicas=now, total_num_requests=requests, aggregated_metrics=metrics
    )


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        (context([16, 16]), 4),
        (context([8, 8]), 2),
        (context([0, 0]), 1),
        (context([0, 0, 0, 0], now=4), 3),
        (context([0, 0], requests=0), 0),
        (context(None), 2),
    ],
)
def test_replicas_for_a_queue(found, wanted: float) -> None:
    assert QueueScaling(8.0)(found) == (wanted, {})


def test_settings_of_serve() -> None:
    settings = autoscaling(1, 4, 8)
    assert (settings["min_replicas"], settings["max_replicas"]) == (1, 4)
    module, _, name = settings["policy"]["policy_function"].partition(":")
    assert (module, name) == (QueueScaling.__module__, QueueScaling.__name__)
    assert isinstance(QueueScaling(**settings["policy"]["policy_kwargs"]), QueueScaling)


@pytest.mark.parametrize(("least", "most", "target"), [(2, 1, 8), (0, 0, 8), (-1, 2, 8), (1, 2, 0)])
def test_other_numbers_are_refused(least: int, most: int, target: float) -> None:
    with pytest.raises(InferError, match="expected"):
        autoscaling(least, most, target)


def test_without_serve_the_extra_is_named(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InferError, match=r"pip install 'naiad\[ray\]'") as caught:
        deployment("models")
    assert caught.value.code is ErrorCode.UNSUPPORTED


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--http-address=0.0.0.0"], "a replica of Ray Serve sets"),
        (["--processes", "2"], "a replica of Ray Serve sets"),
        (["--no-such-flag=1"], "no-such-flag"),
        (["--model-load-policy=now"], "now"),
    ],
)
def test_flags_are_checked_before_the_start(monkeypatch, flags, reason: str) -> None:
    serve = SimpleNamespace()
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(serve=serve))
    monkeypatch.setitem(sys.modules, "ray.serve", serve)
    with pytest.raises(InferError, match=reason):
        deployment("models", *flags)


@pytest.mark.parametrize(
    ("scope", "target"),
    [
        ({"path": "/v2/models/a b", "raw_path": b"/v2/models/a%20b"}, "/v2/models/a%20b"),
        ({"path": "/app/v2", "root_path": "/app", "query_string": b"x=1"}, "/v2?x=1"),
        ({"path": "/app", "root_path": "/app"}, "/"),
        ({"path": "/v2", "root_path": "/"}, "/v2"),
    ],
)
def test_paths_below_a_prefix(scope, target: str) -> None:
    assert target_of(scope) == target
