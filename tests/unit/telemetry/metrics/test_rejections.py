"""Counts of rejected requests: labels are bounded by the models of the server and the reasons."""

import pytest

from naiad.core.errors import ErrorCode, FailureReason, InferError, Rejection, internal, invalid_argument, unavailable
from naiad.telemetry.metrics import response_metrics
from naiad.telemetry.metrics.response_metrics import Rejections, rejection_of_status


@pytest.fixture
def counts() -> Rejections:
    counts = Rejections()
    counts.is_known = lambda name: name.startswith("m")
    return counts


def rows(counts: Rejections) -> dict[tuple[str, str], int]:
    return {(labels["model"], labels["reason"]): count for labels, count in counts.rows() if count}


def test_every_reason_is_shown_from_the_start() -> None:
    assert [labels["reason"] for labels, _ in Rejections().rows()] == [reason.value for reason in Rejection]


def test_names_of_clients_are_not_labels(counts: Rejections) -> None:
    for number in range(100):
        counts.count_error(invalid_argument("no"), f"x{number}")
        counts.count(Rejection.UNKNOWN_MODEL, "m")
    counts.count_error(invalid_argument("no"), "m")
    assert rows(counts) == {("", "invalid"): 100, ("", "unknown_model"): 100, ("m", "invalid"): 1}


def test_rows_are_bounded(counts: Rejections, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_metrics, "_MAX_ROWS", len(Rejection) + 2)
    for number in range(5):
        counts.count(Rejection.TIMEOUT, f"m{number}")
    assert rows(counts) == {("m0", "timeout"): 1, ("m1", "timeout"): 1, ("", "timeout"): 3}


def test_failures_of_models_are_not_rejections(counts: Rejections) -> None:
    counts.count_error(internal("it broke"), "m")
    counts.count_error(InferError(ErrorCode.UNAVAILABLE, "it hung", reason=FailureReason.BACKEND), "m")
    assert rows(counts) == {}


def test_reason_survives_another_message(counts: Rejections) -> None:
    counts.count_error(unavailable("full", Rejection.QUEUE_FULL).with_message("in ensemble 'e', full"), "m")
    assert rows(counts) == {("m", "queue_full"): 1}


@pytest.mark.parametrize(
    ("status", "reason"),
    [(408, Rejection.TIMEOUT), (503, Rejection.MEMORY), (413, Rejection.INVALID), (400, Rejection.INVALID)],
)
def test_reason_of_early_rejection(status: int, reason: Rejection) -> None:
    assert rejection_of_status(status) is reason
