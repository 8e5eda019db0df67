"""A run that continues an interrupted one has the same rows in front of it, or is refused."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from naiad.core.errors import InferError
from naiad.tools.predict import PredictJob, predict, row_flow
from naiad.tools.predict.files import row_reader
from naiad.tools.predict.files.input_files import InputFiles
from naiad.tools.predict.job_checkpoint import JobCheckpoint, JobPosition
from support.batch_parts import Doubling, served


class Ending(Doubling):
    """Ends the run at a row."""

    last = 8

    async def infer(self, inputs, outputs):
        if (inputs["X"] >= self.last).any():
            raise RuntimeError("the machine is gone")
        return await super().infer(inputs, outputs)


def refuse(files: InputFiles, *rest: object) -> None:
    raise PermissionError(13, "Permission denied", str(files.path))


@pytest.fixture(name="job")
def job_of_three_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PredictJob:
    monkeypatch.setattr(row_flow, "CHECKPOINT_S", 0.0)
    for number, name in enumerate("abc"):
        lines = [json.dumps({"X": [4 * number + row, 0]}) for row in range(4)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    return PredictJob("models", "m", [str(tmp_path / "*.jsonl")], str(tmp_path / "out.csv"), outputs=("Y",))


@pytest.fixture(name="locked")
def file_that_cannot_be_read() -> Iterator[None]:
    """The first file has the same size and time when its owner allows to read it again."""
    real = row_reader.open_source
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            row_reader,
            "open_source",
            lambda files, *rest: (refuse if files.path.name == "a.jsonl" else real)(files, *rest),
        )
        yield


def test_file_that_becomes_readable_moves_no_rows(job: PredictJob, request: pytest.FixtureRequest) -> None:
    real = row_reader.open_source
    request.getfixturevalue("locked")
    with served(Ending()):
        for _ in range(2):
            with pytest.raises(RuntimeError, match="the machine is gone"):
                predict(job)
    with pytest.MonkeyPatch.context() as patch, served(Doubling()):
        patch.setattr(row_reader, "open_source", real)
        with pytest.raises(InferError, match=r"files that cannot be read was .*a\.jsonl.* --restart"):
            predict(job)


@pytest.mark.usefixtures("locked")
def test_reasons_of_files_are_written_once(job: PredictJob, monkeypatch: pytest.MonkeyPatch) -> None:
    real = JobCheckpoint.record

    def end_before_the_last(checkpoint: JobCheckpoint, position: JobPosition) -> None:
        if position.finished:
            raise RuntimeError("the machine is gone")
        real(checkpoint, position)

    with served(Doubling()):
        with monkeypatch.context() as patch:
            patch.setattr(JobCheckpoint, "record", end_before_the_last)
            for _ in range(2):
                with pytest.raises(RuntimeError, match="the machine is gone"):
                    predict(job)
        assert predict(job).rows == 8
    lines = Path(f"{job.output}.rejected.jsonl").read_text().splitlines()
    assert [Path(json.loads(line)["file"]).name for line in lines] == ["a.jsonl"]


@pytest.mark.usefixtures("locked")
def test_kill_before_the_output_appears_hides_no_file(job: PredictJob, monkeypatch: pytest.MonkeyPatch) -> None:
    def end(*arguments: object) -> None:
        raise RuntimeError("the machine is gone")

    with served(Doubling()):
        with monkeypatch.context() as patch:
            patch.setattr(JobCheckpoint, "publish", end)
            with pytest.raises(RuntimeError, match="the machine is gone"):
                predict(job)
        summary = predict(job)
    assert [Path(each).name for each in summary.set_aside] == ["a.jsonl"]
    assert (summary.rows, summary.resumed_rows) == (8, 8)
