"""Runs with `since`: each file once, with any clocks, after kills and beside other runs."""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from naiad.core.errors import InferError
from naiad.tools.predict import PredictJob, Summary, predict, row_flow
from naiad.tools.predict.files import row_reader
from naiad.tools.predict.files.input_files import InputFiles
from naiad.tools.predict.job_checkpoint import JobCheckpoint
from naiad.tools.predict.prediction import _Run
from naiad.tools.predict.since.selection import RecordedSelection
from support.batch_parts import Doubling, served


def write(folder: Path, name: str, *values: int | str, time_s: int | None = None) -> Path:
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


def next_job(interrupted: PredictJob, name: str = "2.csv", **fields: Any) -> PredictJob:
    """Return the job of the next run."""
    output = Path(interrupted.output).with_name(name)
    return replace(interrupted, output=str(output), **fields)


def test_the_next_run_continues_an_output_first(tmp_path: Path, interrupted: PredictJob) -> None:
    with served(Doubling()):
        summary = predict(next_job(interrupted))
    assert summary.earlier is not None
    assert (summary.earlier.rows, summary.earlier.resumed_rows > 0, summary.rows) == (9, True, 1)
    assert (summary.earlier.skipped_files, summary.skipped_files) == (0, 2), "a later file is new"
    assert (predicted(tmp_path, "1.csv"), predicted(tmp_path, "2.csv")) == ([*range(8), 9], [10])
    assert not list((tmp_path / "out").glob("*.partial"))


def test_an_output_that_is_continued_may_be_all(tmp_path: Path, interrupted: PredictJob) -> None:
    (tmp_path / "in" / "c.jsonl").unlink()
    with served(Doubling()):
        summary = predict(next_job(interrupted))
    assert (summary.output, summary.rows, summary.is_nothing_new) == (interrupted.output, 9, False)
    assert not (tmp_path / "out" / "2.csv").exists()


@pytest.mark.parametrize("change", ["flags", "files", "removed"])
def test_the_next_run_begins_a_changed_one_again(tmp_path: Path, interrupted: PredictJob, change: str) -> None:
    if change == "files":
        write(tmp_path, "a.jsonl", 70, time_s=2)
    if change == "removed":
        (tmp_path / "in" / "a.jsonl").unlink()
    with served(Doubling()):
        summary = predict(next_job(interrupted, outputs=("Y",) if change == "flags" else ()))
    first = {"flags": [*range(8), 9], "files": [70, 9], "removed": [9]}[change]
    assert (predicted(tmp_path, "1.csv"), predicted(tmp_path, "2.csv")) == (first, [10])
    assert summary.earlier is not None
    assert summary.earlier.resumed_rows == 0
    assert not list((tmp_path / "out").glob("*.partial"))


def test_a_restart_takes_the_files_of_another_output(tmp_path: Path, interrupted: PredictJob) -> None:
    with served(Doubling()):
        assert predict(next_job(interrupted, restart=True)).earlier is None
    assert predicted(tmp_path) == [*range(8), 9, 10]
    assert sorted(each.name for each in (tmp_path / "out").glob("[!.]*")) == ["2.csv", "m.since.json"]


def test_an_unfinished_output_is_no_input(tmp_path: Path, interrupted: PredictJob) -> None:
    """Neither its finished rows, nor the reasons that are there before it, nor itself."""
    (tmp_path / "out" / "m.since.json").unlink()
    (tmp_path / "out" / "1.csv.partial" / "journal.jsonl").unlink()
    job = replace(interrupted, inputs=[f"{tmp_path}/**/*.jsonl"], output=f"{tmp_path}/out/2.jsonl")
    write(tmp_path, "b.jsonl", 9, "no number", time_s=1)
    with served(Doubling()):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Path, "replace", refused_for("2.jsonl"))
            with pytest.raises(RuntimeError):
                predict(job)
        assert (tmp_path / "out" / "2.jsonl.rejected.jsonl").exists()
        summary = predict(replace(job, output=f"{tmp_path}/out/3.jsonl"))
        assert (summary.rows, summary.failed_rows, summary.output) == (11, 1, job.output)
        assert predict(replace(job, output=f"{tmp_path}/out/3.jsonl")).is_nothing_new


def refused_for(name: str) -> Callable[[Path, Path], object]:
    """Return a rename that ends the run before a file gets this name."""
    real = Path.replace

    def rename(path: Path, target: Path) -> object:
        return gone() if Path(target).name == name else real(path, target)

    return rename


@pytest.mark.parametrize("is_begun", [True, False])
def test_another_file_of_the_name_proves_nothing(
    tmp_path: Path, request: pytest.FixtureRequest, is_begun: bool
) -> None:
    """A run by hand writes the output of a run that did not end, from one of its files."""
    if is_begun:
        request.getfixturevalue("interrupted")
    else:
        write(tmp_path, "a.jsonl", *range(8))
        write(tmp_path, "b.jsonl", 9)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_Run, "_move", gone)
            with pytest.raises(RuntimeError):
                run(tmp_path, "1.csv")
    by_hand = PredictJob("models", "m", [f"{tmp_path}/in/b.jsonl"], f"{tmp_path}/out/1.csv", restart=True)
    with served(Doubling()):
        predict(by_hand)
    with pytest.raises(InferError, match=r"--output .*1\.csv exists"):
        run(tmp_path, "1.csv")
    run(tmp_path, "2.csv")
    assert predicted(tmp_path, "1.csv") == [9]
    assert predicted(tmp_path, "2.csv")[:9] == [*range(8), 9]


def test_an_output_that_may_have_appeared_is_named(tmp_path: Path) -> None:
    """As a record in a store is read on another machine, which has neither the output nor its finished rows."""
    write(tmp_path, "a.jsonl", 1, 2)
    state = str(tmp_path / "state.json")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RecordedSelection, "commit", gone)
        with pytest.raises(RuntimeError):
            run(tmp_path, "1.csv", state=state)
    (tmp_path / "out").rename(tmp_path / "elsewhere")
    (tmp_path / "out").mkdir()
    for there in (None, "row,Y\n"):
        if there:
            (tmp_path / "out" / "1.csv").write_text(there)
        with pytest.raises(InferError, match=r"the run that writes .*1\.csv was ended .* --restart"):
            run(tmp_path, "2.csv", state=state)
    again = run(tmp_path, "2.csv", state=state, restart=True)
    assert (again.rows, predicted(tmp_path, "2.csv")) == (2, [1, 2])


def test_finished_rows_of_another_job_stay(tmp_path: Path) -> None:
    """A run ended before it wrote a row, and another job without `since` did not end either."""
    write(tmp_path, "a.jsonl", 1)
    write(tmp_path, "b.jsonl", 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_Run, "_move", gone)
        with pytest.raises(RuntimeError):
            run(tmp_path, "1.csv")
        patch.undo()
        patch.setattr(JobCheckpoint, "publish", gone)
        by_hand = PredictJob("models", "m", [f"{tmp_path}/in/b.jsonl"], f"{tmp_path}/out/1.csv")
        with served(Doubling()), pytest.raises(RuntimeError):
            predict(by_hand)
    assert (run(tmp_path, "2.csv").rows, predicted(tmp_path, "2.csv")) == (2, [1, 2])
    with served(Doubling()):
        assert predict(by_hand).resumed_rows == 1


@pytest.fixture(name="locked")
def file_that_cannot_be_read() -> Iterator[pytest.MonkeyPatch]:
    real = row_reader.open_source

    def open_or_refuse(files: InputFiles, *rest: Any) -> object:
        if files.path.name == "b.jsonl":
            raise PermissionError(13, "Permission denied", str(files.path))
        return real(files, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_reader, "open_source", open_or_refuse)
        yield patch


@pytest.mark.parametrize("place", [(JobCheckpoint, "publish"), (RecordedSelection, "commit")])
def test_a_kill_leaves_a_file_set_aside_new(
    tmp_path: Path, place: tuple[type, str], locked: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "a.jsonl", 1)
    bad = write(tmp_path, "b.jsonl", 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(*place, gone)
        with pytest.raises(RuntimeError):
            run(tmp_path, "1.csv")
    repeated = run(tmp_path, "1.csv")
    assert (repeated.rows, list(repeated.set_aside)) == (1, [str(bad)])
    locked.undo()
    run(tmp_path, "2.csv")
    assert (predicted(tmp_path, "1.csv"), predicted(tmp_path, "2.csv")) == ([1], [2])


@pytest.mark.parametrize("place", [(JobCheckpoint, "publish"), (RecordedSelection, "commit")])
def test_a_file_that_becomes_readable_is_predicted(
    tmp_path: Path, place: tuple[type, str], locked: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "a.jsonl", 1)
    write(tmp_path, "b.jsonl", 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(*place, gone)
        with pytest.raises(RuntimeError):
            run(tmp_path, "1.csv")
    locked.undo()
    run(tmp_path, "2.csv")
    assert sorted(predicted(tmp_path)) == [1, 2]


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
