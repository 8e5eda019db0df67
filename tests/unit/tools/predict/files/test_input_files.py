"""Inputs of a job: what is below an output that is not complete is none of them, in a folder and in a store."""

from pathlib import Path

import pytest

from naiad.core.errors import InferError
from naiad.repository.cloud.objects.objects import ObjectStore
from naiad.repository.cloud.objects.stored_object import StoredObject
from naiad.tools.predict.files.input_files import WrittenFiles, find_files
from naiad.tools.predict.files.row_formats import OUTPUT_SUFFIXES
from naiad.tools.predict.stores.object_path import ObjectPath
from naiad.tools.predict.stores.store_place import StorePlace


@pytest.mark.parametrize("suffix", OUTPUT_SUFFIXES)
def test_partial_output_of_another_job_is_no_input(tmp_path: Path, suffix: str) -> None:
    for name in ("in.jsonl", f"out/1{suffix}.partial/rows.jsonl", "my.partial/more.jsonl"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}\n")
    written = tmp_path / "out" / "2.jsonl"
    found = find_files([f"{tmp_path}/**/*.jsonl"], [written])
    assert [each.path.name for each in found] == ["in.jsonl", "more.jsonl"]
    partial = tmp_path / "out" / f"1{suffix}.partial"
    with pytest.raises(InferError, match=r"--input .*rows\.jsonl is a file that a job writes"):
        find_files([str(partial / "rows.jsonl")], [written])
    with pytest.raises(InferError, match="the folder has no files"):
        find_files([str(partial)], [written])


@pytest.mark.parametrize("suffix", OUTPUT_SUFFIXES)
def test_partial_output_in_a_store_is_no_input(suffix: str) -> None:
    place = StorePlace("s3://bucket/below", 1.0)
    ours = WrittenFiles(["s3://bucket/below/2.jsonl"])
    keys = [f"1{suffix}.partial/job.json", f"1{suffix}.partial/0a/0-1-0-ff.rows", "2.jsonl", "x.partial/3.jsonl"]
    assert [ours.has(ObjectPath(place, StoredObject(key, 1, ""))) for key in keys] == [True, True, True, False]


def test_a_written_object_is_no_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also at an address with brackets; a folder that has only such objects may have others later."""
    monkeypatch.setattr(ObjectStore, "find", lambda self, key: StoredObject(key, 1, "1"))
    monkeypatch.setattr(ObjectStore, "top_objects", lambda self: [StoredObject("x.csv", 1, "1")])
    for above in ("s3://[::1]:9000/b", "s3://b/in"):
        with pytest.raises(InferError, match=r"x\.csv is an object that a job writes"):
            find_files([f"{above}/x.csv"], [f"{above}/x.csv"], may_be_none=True)
        assert find_files([f"{above}/", f"{above}/*.csv"], [f"{above}/x.csv"], may_be_none=True) == []
        with pytest.raises(InferError, match="there is no object below it"):
            find_files([f"{above}/"], [f"{above}/x.csv"])


def test_file_that_two_inputs_name_is_refused(tmp_path: Path) -> None:
    for name in ("part-1.csv", "part-2.csv", "a.png"):
        (tmp_path / name).touch()
    (tmp_path / "other.csv").symlink_to("part-2.csv")
    once = find_files([f"{tmp_path}/part-2.csv", f"{tmp_path}/part-1.csv"], [])
    assert [each.path.name for each in once] == ["part-2.csv", "part-1.csv"]
    for inputs in (("part-*.csv", "part-1.csv"), ("part-2.csv", "other.csv"), ("a.png", "*.png")):
        with pytest.raises(InferError, match="twice, and its rows would be in the output twice"):
            find_files([f"{tmp_path}/{each}" for each in inputs], [])
