"""A job in parts: equal to a local run when workers end; parts that always fail; too many failed rows."""

import json
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from naiad.core.errors import ErrorCode, InferError, unavailable
from naiad.tools.predict import PredictJob, predict
from naiad.tools.predict.distributed.part import JobPart
from naiad.tools.predict.distributed.part_flow import MAX_TRIES
from support.batch_parts import Doubling, Tensors, served
from support.part_pools import Losses, distributed

BAD = (11.0, 40.0)
"""Values of rows that the model rejects."""


def write_inputs(folder: Path) -> list[str]:
    """Write rows in each format of several rows; one line cannot be read."""
    rows = [[float(row), row / 3] for row in range(60)]
    lines = [json.dumps({"X": row, "id": f"r{row[0]:g}"}) for row in rows[:20]]
    (folder / "a.jsonl").write_text("\n".join([*lines[:7], "", "oops", *lines[7:]]) + "\n")
    cells = [f'{a},{b},"r, {a:g}"' if a % 3 else f"{a},{b},r{a:g}" for a, b in rows[20:]]
    (folder / "b.csv").write_bytes(
        b"\xef\xbb\xbf" + "\r\n".join(["X_0,X_1,id", *cells[:9], "", *cells[9:], 'é,1,"two\nlines"']).encode()
    )
    return [str(folder / "a.jsonl"), str(folder / "b.csv")]


def job(folder: Path, output: str, *inputs: str, **fields) -> PredictJob:
    return PredictJob("models", "m", list(inputs), str(folder / output), **fields)


def files(folder: Path, output: str) -> list[bytes]:
    """Return the contents of all files of a job."""
    return [each.read_bytes() for each in sorted(folder.glob(f"{output}*"))]


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".parquet"])
@pytest.mark.parametrize(
    "trouble", [Losses(0), Losses(MAX_TRIES - 1), Losses(1, "fetch")], ids=["none", "kill", "lost"]
)
def test_the_output_is_that_of_a_local_run(tmp_path: Path, suffix: str, trouble: Losses) -> None:
    inputs = write_inputs(tmp_path)
    with served(Doubling(BAD)):
        local = predict(job(tmp_path, f"one{suffix}", *inputs, keys=["id"]))
    trouble.lost.clear()
    with distributed(Doubling(BAD), trouble) as pools:
        summary = predict(job(tmp_path, f"two{suffix}", *inputs, keys=["id"], ray="local", workers=2))
    assert (summary.rows, summary.failed_rows) == (local.rows, local.failed_rows) == (62, 4)
    assert files(tmp_path, "two") == files(tmp_path, "one")
    assert len({part.row for part in pools[0].executed}) > 2


def test_numbers_have_one_text_in_all_blocks(tmp_path: Path) -> None:
    rows = np.full((64, 2), 1e20, np.float32)
    rows[40] = np.nan
    np.save(tmp_path / "in.npy", rows)
    for suffix in (".csv", ".npz"):
        outputs = ["Y"]
        with served(Doubling(max_batch_size=64)):
            predict(job(tmp_path, f"one{suffix}", f"{tmp_path}/in.npy", outputs=outputs))
        with distributed(Doubling(max_batch_size=4)):
            predict(job(tmp_path, f"two{suffix}", f"{tmp_path}/in.npy", outputs=outputs, ray="local", workers=1))
    assert files(tmp_path, "two") == files(tmp_path, "one")


def test_files_of_a_folder_are_parts(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number in range(9):
        (tmp_path / "in" / f"{number}.bin").write_bytes(b"\x01\x02")

    class Bytes(Doubling):
        inputs: ClassVar[Tensors] = {"X": (Doubling.outputs["NAME"][0], (1,))}

        async def infer(self, inputs, outputs):
            return {"Y": np.ones((len(inputs["X"]), 2), np.float32), "NAME": inputs["X"]}

    model = Bytes(max_batch_size=2)
    with served(model):
        predict(job(tmp_path, "one.jsonl", str(tmp_path / "in")))
    with distributed(model):
        predict(job(tmp_path, "two.jsonl", str(tmp_path / "in"), ray="local", workers=1))
    assert files(tmp_path, "two") == files(tmp_path, "one")
    with distributed(model, Losses(MAX_TRIES)):
        predict(job(tmp_path, "three.jsonl", str(tmp_path / "in"), ray="local", workers=1))
    rejected = [json.loads(line) for line in (tmp_path / "three.jsonl.rejected.jsonl").read_text().splitlines()]
    assert [each["file"] for each in rejected] == [str(tmp_path / "in" / f"{number}.bin") for number in range(9)]


def test_a_part_that_always_fails_is_set_aside(tmp_path: Path) -> None:
    inputs = write_inputs(tmp_path)

    def poison(call: str, part: JobPart) -> None:
        if call == "execute" and part.span.files.path.name == "b.csv" and part.span.first == 0:
            Losses(1)(call, part)

    with distributed(Doubling(), poison) as pools:
        summary = predict(job(tmp_path, "out.jsonl", *inputs, keys=["id"], ray="local", workers=2))
    aside = [part for part in pools[0].executed if part.span.files.path.name == "b.csv" and part.span.first == 0]
    assert len(aside) == MAX_TRIES
    rejected = [json.loads(line) for line in Path(summary.rejected).read_text().splitlines()]
    reason = f"rows 0 to {aside[0].span.count - 1} of b.csv: the worker has ended; set aside after 3 tries"
    assert summary.reasons[reason] == aside[0].span.count
    lost = [each for each in rejected if each["reason"] == reason]
    assert [each["row"] for each in lost] == list(range(aside[0].row, aside[0].row + aside[0].span.count))
    assert [each["file_row"] for each in lost] == list(range(aside[0].span.count))
    rows = [json.loads(line) for line in Path(summary.output).read_text().splitlines()]
    assert [row["row"] for row in rows] == list(range(62))
    assert {row["row"] for row in rows if row["Y"] is None} == {each["row"] for each in rejected}


def test_damaged_rows_fail_alike_everywhere(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "in.parquet"
    table = arrow.table({"X": arrow.array([[row, 1.0] for row in range(120)])})
    parquet.write_table(table, path, row_group_size=30, compression="snappy", use_dictionary=False)
    content = bytearray(path.read_bytes())
    place = parquet.ParquetFile(path).metadata.row_group(2).column(0).data_page_offset
    content[place : place + 60] = b"\xff" * 60
    path.write_bytes(content)
    with served(Doubling()):
        local = predict(job(tmp_path, "one.csv", str(path)))
    with distributed(Doubling()) as pools:
        summary = predict(job(tmp_path, "two.csv", str(path), ray="local", workers=2))
    assert {part.span.first for part in pools[0].executed} > {0, 4}, "parts begin within the damage"
    assert (local.rows, local.failed_rows) == (summary.rows, summary.failed_rows) == (120, 30)
    assert local.reasons == summary.reasons
    assert all(reason.startswith("rows to 89 of in.parquet: ") for reason in local.reasons)
    assert files(tmp_path, "two") == files(tmp_path, "one")


def test_all_parts_that_fail_end_the_job(tmp_path: Path) -> None:
    np.save(tmp_path / "in.npy", np.zeros((5000, 2), np.float32))
    with distributed(Doubling(max_batch_size=500), Losses(MAX_TRIES)), pytest.raises(InferError) as caught:
        predict(job(tmp_path, "out.csv", f"{tmp_path}/in.npy", ray="local", workers=1))
    assert (
        "all of the first 1,000 rows failed; the last one: rows 500 to 999 of in.npy: the worker has ended"
        in caught.value.message
    )


def test_an_unavailable_model_ends_the_job(tmp_path: Path) -> None:
    np.save(tmp_path / "in.npy", np.zeros((50, 2), np.float32))
    model = Doubling()
    model.failures = [unavailable("the server is away")] * 3
    with distributed(model), pytest.raises(InferError) as caught:
        predict(job(tmp_path, "out.csv", f"{tmp_path}/in.npy", ray="local", workers=1, timeout_s=0.01))
    assert caught.value.code in (ErrorCode.UNAVAILABLE, ErrorCode.DEADLINE_EXCEEDED)


def test_a_file_that_differs_between_machines_is_named(tmp_path: Path) -> None:
    inputs = write_inputs(tmp_path)

    def change(call: str, part: JobPart) -> None:
        if part.span.files.path.name == "b.csv":
            other = tmp_path / "other"
            other.write_text("X_0,X_1,id\n1,2,3\n")
            other.replace(inputs[1])

    with distributed(Doubling(), change):
        summary = predict(job(tmp_path, "out.jsonl", *inputs, ray="local", workers=1))
    reasons = {json.loads(line)["reason"] for line in Path(summary.rejected).read_text().splitlines()}
    assert any("all machines need the same files" in reason for reason in reasons)


def test_a_local_run_continues_a_distributed_one(tmp_path: Path) -> None:
    inputs = write_inputs(tmp_path)
    with served(Doubling(BAD)):
        predict(job(tmp_path, "one.csv", *inputs, keys=["id"]))

    def end(call: str, part: JobPart) -> None:
        if part.span.files.path.name == "b.csv":
            raise unavailable("the cluster is gone")

    with distributed(Doubling(BAD), end), pytest.raises(InferError, match="the cluster is gone"):
        predict(job(tmp_path, "two.csv", *inputs, keys=["id"], ray="local", workers=1))
    with served(Doubling(BAD)):
        summary = predict(job(tmp_path, "two.csv", *inputs, keys=["id"]))
    assert summary.resumed_rows > 0
    assert files(tmp_path, "two") == files(tmp_path, "one")


def test_progress_has_the_number_of_workers(tmp_path: Path) -> None:
    seen = []
    inputs = write_inputs(tmp_path)
    with distributed(Doubling()):
        predict(job(tmp_path, "out.csv", *inputs, ray="local", workers=3), seen.append)
    assert seen[-2].workers == 3
    assert (seen[-2].rows, seen[-2].fraction) == (62, 1.0)
