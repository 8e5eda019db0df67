"""The journal: what continues, what is refused, and damage."""

import os
from pathlib import Path

import pytest

from naiad.core.errors import ErrorCode, InferError
from naiad.tools.predict.job_checkpoint import JobCheckpoint, JobPosition, difference, file_facts
from naiad.tools.predict.sinks.sink import PartFile

FACTS = {"model": "m", "input files": {"a.csv": [1, 2]}}


def opened(folder: Path, facts=FACTS, *, restart: bool = False) -> JobCheckpoint:
    return JobCheckpoint(folder / "out.csv", facts, restart=restart)


def test_the_last_whole_line_counts(tmp_path: Path) -> None:
    first = opened(tmp_path)
    assert first.position == JobPosition()
    first.record(JobPosition(5, 1, {"rows.csv": 10}))
    first.record(JobPosition(9, 1, {"rows.csv": 20}))
    first.close()
    journal = tmp_path / "out.csv.partial" / "journal.jsonl"
    journal.write_bytes(journal.read_bytes() + b'{"rows": 12, "fai')
    second = opened(tmp_path)
    assert second.position == JobPosition(9, 1, {"rows.csv": 20})
    second.record(JobPosition(13, 1, {}))
    second.close()
    third = opened(tmp_path)
    assert third.position.rows == 13
    third.close()


def test_a_journal_without_a_line_begins_again(tmp_path: Path) -> None:
    folder = tmp_path / "out.csv.partial"
    folder.mkdir()
    (folder / "journal.jsonl").write_bytes(b'{"version": 1, "fac')
    (folder / "rows.csv").write_bytes(b"old")
    opened(tmp_path).close()
    assert not (folder / "rows.csv").exists()


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({**FACTS, "model": "n"}, 'model was "m" and is "n"'),
        ({**FACTS, "input files": {"a.csv": [1, 3]}}, "input files: a.csv has changed"),
        ({**FACTS, "input files": {}}, "input files: a.csv is missing"),
        ({**FACTS, "input files": {"a.csv": [1, 2], "b.csv": [1, 2]}}, "input files: b.csv is new"),
        ({**FACTS, "keys": ["id"]}, 'keys was not given and is ["id"]'),
    ],
)
def test_other_facts_are_refused(tmp_path: Path, facts, reason: str) -> None:
    first = opened(tmp_path)
    first.record(JobPosition(1234))
    first.close()
    with pytest.raises(InferError) as caught:
        opened(tmp_path, facts)
    assert reason in caught.value.message
    assert "1,234 rows" in caught.value.message
    assert "--restart" in caught.value.message
    again = opened(tmp_path, facts, restart=True)
    assert again.position == JobPosition()
    again.close()


def test_the_order_of_files_counts() -> None:
    before, after = {"files": {"a": [1], "b": [2]}}, {"files": {"b": [2], "a": [1]}}
    assert difference(before, after) == "files: their order has changed"
    assert difference(before, before) == ""


@pytest.mark.parametrize("text", [b"nonsense\n", b'{"version": 2, "facts": {}}\n', b'{"version": 1}\n'])
def test_foreign_journals_are_refused(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "out.csv.partial").mkdir()
    (tmp_path / "out.csv.partial" / "journal.jsonl").write_bytes(text)
    with pytest.raises(InferError, match="journal"):
        opened(tmp_path)


def test_two_processes_never_write_one_output(tmp_path: Path) -> None:
    first = opened(tmp_path)
    with pytest.raises(InferError) as caught:
        opened(tmp_path, restart=True)
    assert caught.value.code is ErrorCode.UNAVAILABLE
    first.close()
    opened(tmp_path).close()


def test_files_are_cut_to_the_recorded_size(tmp_path: Path) -> None:
    part = PartFile(tmp_path, "rows", {})
    part.write(b"12345")
    part.sync()
    part.close()
    part = PartFile(tmp_path, "rows", {"rows": 3})
    part.write(b"x")
    part.close()
    assert (tmp_path / "rows").read_bytes() == b"123x"
    with pytest.raises(InferError, match="--restart"):
        PartFile(tmp_path, "rows", {"rows": 9})


def test_publishing_may_be_repeated(tmp_path: Path) -> None:
    checkpoint = opened(tmp_path)
    rejected, finished = checkpoint.folder / "rejected", checkpoint.folder / "rows"
    rejected.write_text("r")
    finished.write_text("f")
    for _ in range(2):
        checkpoint.folder.mkdir(exist_ok=True)
        checkpoint.publish(finished, rejected, tmp_path / "out.csv.rejected.jsonl")
    checkpoint.close()
    assert (tmp_path / "out.csv").read_text() == "f"
    assert sorted(os.listdir(tmp_path)) == ["out.csv", "out.csv.rejected.jsonl"]
    checkpoint = opened(tmp_path)
    checkpoint.publish(checkpoint.folder / "rows", None, tmp_path / "out.csv.rejected.jsonl")
    checkpoint.close()
    assert os.listdir(tmp_path) == ["out.csv"]


def test_caches_of_a_model_do_not_count(tmp_path: Path) -> None:
    for name in ("1/model.py", "1/__pycache__/model.pyc", ".git/x", "config.pbtxt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    found = [str(Path(name).relative_to(tmp_path)) for name in file_facts([tmp_path])]
    assert found == ["1/model.py", "config.pbtxt"]
