"""What `naiad predict` prints at its end, and its exit status."""

from dataclasses import replace

import pytest

from naiad.cli.models import predict
from naiad.tools.predict import PredictJob, Summary

WHOLE = Summary(4, 0, 1.0, "new.csv", "")
NOTHING = Summary(0, 0, 0.0, "new.csv", "", is_nothing_new=True)
SOME_FAILED = Summary(4, 1, 1.0, "old.csv", "old.csv.rejected.jsonl")
ALL_FAILED = Summary(4, 4, 1.0, "old.csv", "old.csv.rejected.jsonl")
NOT_READ = Summary(4, 0, 1.0, "old.csv", "old.csv.rejected.jsonl", set_aside={"b.csv": "Permission denied"})


@pytest.mark.parametrize(
    ("summary", "earlier", "status"),
    [
        (WHOLE, None, 0),
        (NOTHING, None, 0),
        (SOME_FAILED, None, 3),
        (NOT_READ, None, 3),
        (ALL_FAILED, None, 1),
        (WHOLE, SOME_FAILED, 3),
        (WHOLE, NOT_READ, 3),
        (WHOLE, ALL_FAILED, 3),
        (ALL_FAILED, ALL_FAILED, 1),
    ],
)
def test_the_earlier_output_counts_too(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    summary: Summary,
    earlier: Summary | None,
    status: int,
) -> None:
    ended = replace(summary, earlier=earlier)
    monkeypatch.setattr(predict, "predict", lambda job, progress: ended)
    monkeypatch.setattr(predict, "read_job", lambda flags: PredictJob("models", "m", ["in.csv"], "new.csv"))
    assert predict.run(["models", "m", "--input", "in.csv", "--output", "new.csv"]) == status
    printed = capsys.readouterr().out
    assert ("the output of an earlier run, which did not end:" in printed) == (earlier is not None)
    if earlier is not None:
        assert printed.index("old.csv") < printed.rindex("next: ")
    assert ("not read: b.csv: Permission denied" in printed) == (NOT_READ in (summary, earlier))
