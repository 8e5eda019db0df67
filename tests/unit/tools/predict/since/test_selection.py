"""Runs with `since`: each file once, with any clocks, after kills and beside other runs."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from naiad.core.errors import InferError
from naiad.tools.predict import PredictJob, Summary, predict, row_flow
from naiad.tools.predict.job_checkpoint import JobCheckpoint
from naiad.tools.predict.prediction import _Run
from naiad.tools.predict.since.selection import RecordedSelection
from support.batch_parts import Doubling, served


def write(folder: Path, name: str, *values: int, time_s: int | None = None) -> Path:
    """Write a file of rows, with a time of change if one is given."""
    (folder / "in").mkdir(exist_ok=True)
    path = folder / "in" / name
    path.write_text("".join(json.dumps({"X": [value, 0]}) + "\n" for value in values))
    if time_s is not None:
        os.utime(path, (time_s, time_s))
    return path


def run(folder: Path, output: str, since: str = "last", **fields) -> Summary:
    (folder / "out").mkdir(exist_ok=True)
    job = PredictJob("models", "m", [f"{folder}/in/*.jsonl"], f"{folder}/out/{output}", since=since, **fields)
    with served(Doubling()):
        return predict(job)


def predicted(folder: Path, output: str = "*.csv") -> list[int]:
    """Return the values of all rows of outputs."""
    found: list[int] = []
    for path in sorted((folder / "out").glob(output)):
        found += [int(float(line.split(",")[1])) // 2 for line in path.read_text().splitlines()[1:]]
    return found


def test_each_run_has_the_new_files(tmp_path: Path) -> None:
    assert run(tmp_path, "0.csv").is_nothing_new, "there is no file yet"
    write(tmp_path, "a.jsonl", 1, 2)
    write(tmp_path, "b.jsonl", 3)
    assert run(tmp_path, "1.csv").rows == 3
    again = run(tmp_path, "2.csv")
    assert (again.is_nothing_new, again.skipped_files, again.rows) == (True, 2, 0)
    assert sorted(each.name for each in (tmp_path / "out").iterdir()) == [
        ".m.since.json.lock",
        "1.csv",
        "m.since.json",
    ]
    write(tmp_path, "c.jsonl", 4)
    summary = run(tmp_path, "3.csv")
    assert (summary.rows, summary.skipped_files) == (1, 2)
    assert predicted(tmp_path) == [1, 2, 3, 4]


def test_no_clock_decides(tmp_path: Path) -> None:
    write(tmp_path, "a.jsonl", 1, time_s=2_000_000_000)
    run(tmp_path, "1.csv")
    write(tmp_path, "late.jsonl", 2, time_s=1_000_000_000)
    write(tmp_path, "same.jsonl", 3, time_s=2_000_000_000)
    write(tmp_path, "future.jsonl", 4, time_s=4_000_000_000)
    run(tmp_path, "2.csv")
    write(tmp_path, "a.jsonl", 5, time_s=1_500_000_000)
    run(tmp_path, "3.csv")
    assert predicted(tmp_path) == [1, 4, 2, 3, 5], "a file that was replaced is new"
    (tmp_path / "in" / "a.jsonl").rename(tmp_path / "a.jsonl")
    assert run(tmp_path, "4.csv").is_nothing_new
    (tmp_path / "a.jsonl").rename(tmp_path / "in" / "a.jsonl")
    assert run(tmp_path, "4.csv").is_nothing_new, "a file that comes back is no new one"


def test_times_are_compared_without_a_record(tmp_path: Path) -> None:
    write(tmp_path, "a.jsonl", 1, time_s=1_772_359_199)
    write(tmp_path, "b.jsonl", 2, time_s=1_772_359_200)
    for _ in range(2):
        assert run(tmp_path, "1.csv", since="2026-03-01T10:00:00Z").skipped_files == 1
        assert predicted(tmp_path) == [2]
    assert run(tmp_path, "2.csv", since="2026-03-02T00:00:00Z").is_nothing_new
    assert sorted(each.name for each in (tmp_path / "out").iterdir()) == ["1.csv"]


def test_outputs_are_no_inputs_of_later_runs(tmp_path: Path) -> None:
    write(tmp_path, "a.jsonl", 1)
    inputs = [f"{tmp_path}/**/*.jsonl"]
    for number, rows in enumerate([1, 0, 0]):
        job = PredictJob("models", "m", inputs, f"{tmp_path}/out{number}.jsonl", since="last")
        with served(Doubling()):
            assert predict(job).rows == rows


def gone(*arguments: object) -> None:
    raise RuntimeError("the machine is gone")


@pytest.mark.parametrize("place", [(_Run, "_move"), (JobCheckpoint, "publish"), (RecordedSelection, "commit")])
@pytest.mark.parametrize("output", ["1.csv", "2.csv"], ids=["same", "next"])
def test_a_kill_leaves_each_file_predicted_once(tmp_path: Path, place: tuple[type, str], output: str) -> None:
    write(tmp_path, "a.jsonl", 1, 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(*place, gone)
        with pytest.raises(RuntimeError):
            run(tmp_path, "1.csv")
    write(tmp_path, "b.jsonl", 3)
    run(tmp_path, output)
    run(tmp_path, "3.csv")
    assert sorted(predicted(tmp_path)) == [1, 2, 3]
    assert not list((tmp_path / "out").glob("*.partial")), "what is not needed any more is removed"


class Ending(Doubling):
    """Ends the run at a value."""

    async def infer(self, inputs, outputs):
        if (inputs["X"] == 9).any():
            raise RuntimeError("the machine is gone")
        return await super().infer(inputs, outputs)


@pytest.fixture
def interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PredictJob:
    """A run that has ended in its second file; a third one came meanwhile."""
    monkeypatch.setattr(row_flow, "CHECKPOINT_S", 0.0)
    write(tmp_path, "a.jsonl", *range(8), time_s=1)
    write(tmp_path, "b.jsonl", 9, time_s=1)
    (tmp_path / "out").mkdir()
    job = PredictJob("models", "m", [f"{tmp_path}/in/*.jsonl"], f"{tmp_path}/out/1.csv", since="last")
    with served(Ending()), pytest.raises(RuntimeError):
        predict(job)
    write(tmp_path, "c.jsonl", 10)
    return job


def test_a_continued_run_keeps_its_files(tmp_path: Path, interrupted: PredictJob) -> None:
    with served(Doubling()):
        summary = predict(interrupted)
    assert (summary.rows, summary.resumed_rows > 0) == (9, True)
    run(tmp_path, "2.csv")
    assert predicted(tmp_path) == [*range(8), 9, 10]


def test_a_continued_run_whose_files_changed_begins_again(tmp_path: Path, interrupted: PredictJob) -> None:
    write(tmp_path, "a.jsonl", 70, time_s=2)
    with served(Doubling()):
        summary = predict(interrupted)
    assert (summary.rows, summary.resumed_rows) == (3, 0)
    assert predicted(tmp_path) == [70, 9, 10]


def test_files_that_cannot_be_read_stay_new(tmp_path: Path) -> None:
    write(tmp_path, "a.jsonl", 1)
    bad = tmp_path / "in" / "b.parquet"
    bad.write_text("no such thing")
    inputs = [f"{tmp_path}/in/*"]
    (tmp_path / "out").mkdir()
    job = PredictJob("models", "m", inputs, f"{tmp_path}/out/1.csv", since="last", outputs=("Y",))
    with served(Doubling()):
        assert list(predict(job).set_aside) == [str(bad)]
        with pytest.raises(InferError, match=r"b\.parquet: not readable"):
            predict(PredictJob("models", "m", inputs, f"{tmp_path}/out/2.csv", since="last", outputs=("Y",)))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            lambda folder: write(folder, "b.jsonl", 2),
            r"--output .*1\.csv exists, and --since last writes .* new files",
        ),
        (lambda folder: (folder / "out/m.since.json").write_text("{}"), "is no record of runs .* remove it"),
        (lambda folder: (folder / "out/m.since.json").write_text("[" * 10**5), "is no record of runs"),
        (
            lambda folder: (folder / "out/m.since.json").write_text(
                (folder / "out/m.since.json").read_text().replace('"m"', '"n"')
            ),
            "is for the model n, and this job has m; name another with --state",
        ),
        (
            lambda folder: (folder / "out/m.since.json").write_text(
                (folder / "out/m.since.json").read_text().replace("*.jsonl", "*.csv")
            ),
            r"is for the inputs .*\*\.csv, and this job has .*\*\.jsonl; name another with --state",
        ),
    ],
    ids=["output", "other", "deep", "model", "inputs"],
)
def test_mistakes_have_their_fix(tmp_path: Path, change: Callable[[Path], object], text: str) -> None:
    write(tmp_path, "a.jsonl", 1)
    run(tmp_path, "1.csv")
    change(tmp_path)
    with pytest.raises(InferError, match=text):
        run(tmp_path, "1.csv")


def test_state_needs_recorded_runs(tmp_path: Path) -> None:
    write(tmp_path, "a.jsonl", 1)
    with pytest.raises(InferError, match="only runs with since 'last' record"):
        run(tmp_path, "1.csv", since="", state=f"{tmp_path}/state.json")
    run(tmp_path, "1.csv", state=f"{tmp_path}/state.json")
    assert (tmp_path / "state.json").exists()


def test_two_runs_at_a_time_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "a.jsonl", 1)

    class Meanwhile(Doubling):
        async def infer(self, inputs, outputs):
            with pytest.raises(InferError, match=r"another process predicts with the state .*m\.since\.json"):
                RecordedSelection(job, [])
            return await super().infer(inputs, outputs)

    (tmp_path / "out").mkdir()
    job = PredictJob("models", "m", [f"{tmp_path}/in/*.jsonl"], f"{tmp_path}/out/1.csv", since="last")
    with served(Meanwhile()):
        assert predict(job).rows == 1
