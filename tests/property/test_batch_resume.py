"""A job that is killed at any write, and continued, makes the files of an uninterrupted run, in the same order."""

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from naiad.core.errors import InferError, unavailable
from naiad.files.journal import Journal
from naiad.tools.predict import PredictJob, job_checkpoint, predict, row_flow
from naiad.tools.predict.distributed.part import JobPart
from naiad.tools.predict.sinks.sink import PartFile
from support.batch_parts import Doubling, served
from support.long_run import examples
from support.part_pools import Losses, distributed


class Killed(BaseException):
    """The process has ended: from then on nothing is written."""


class Fuse:
    """Kills at the write with a number, after a part of it."""

    def __init__(self, at: int, share: float) -> None:
        self.at = at
        self.share = share
        self.writes = 0

    @property
    def is_burnt(self) -> bool:
        return self.writes > self.at

    def before(self) -> bool:
        """Count a write; return whether it is the last one. Raises Killed after it."""
        if self.is_burnt:
            raise Killed
        self.writes += 1
        return self.is_burnt

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a step that happens as a whole, or not at all."""

        def step(*arguments: Any, **named: Any) -> Any:
            if self.before():
                raise Killed
            return function(*arguments, **named)

        return step

    def write(self, function: Callable[[PartFile, bytes], None]) -> Callable[[PartFile, bytes], None]:
        """Return a write that may end in the middle."""

        def step(part: PartFile, data: bytes) -> None:
            if self.before():
                function(part, data[: int(len(data) * self.share)])
                part._file.flush()
                raise Killed
            function(part, data)

        return step


@contextmanager
def fused(fuse: Fuse) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_flow, "CHECKPOINT_S", 0.0)
        patch.setattr(PartFile, "write", fuse.write(PartFile.write))
        patch.setattr(PartFile, "sync", fuse.around(PartFile.sync))
        patch.setattr(Journal, "append", fuse.around(Journal.append))
        patch.setattr(Path, "replace", fuse.around(Path.replace))
        patch.setattr(job_checkpoint.shutil, "rmtree", fuse.around(shutil.rmtree))
        yield


def run(job: PredictJob, model: Doubling, fuse: Fuse) -> bool:
    """Run a job; return whether it has come to its end."""
    with served(model), fused(fuse):
        try:
            predict(job)
        except Killed:
            return False
    return True


def write_rows(folder: Path, rows: int, files: int, broken: set[int]) -> None:
    """Write rows to several files; some lines are no JSON."""
    lines = ["oops" if row in broken else json.dumps({"X": [row, row / 3], "id": f"r{row}"}) for row in range(rows)]
    for number, part in enumerate(np.array_split(np.arange(rows), files)):
        (folder / f"{number}.jsonl").write_text("".join(lines[row] + "\n" for row in part))


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".npz", ".parquet"])
@settings(max_examples=examples(15), deadline=None)
@given(data=st.data())
def test_any_kill_leaves_an_equal_output(suffix: str, data: st.DataObject) -> None:
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    rows = data.draw(st.integers(1, 25))
    broken = data.draw(st.sets(st.integers(0, rows - 1), max_size=4))
    model = Doubling(
        data.draw(st.sets(st.integers(0, rows - 1), max_size=3)), max_batch_size=data.draw(st.integers(1, 5))
    )
    # Shares of the writes of a whole run: their number depends on how far the reader is ahead.
    kills = data.draw(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=8))
    outputs = ("Y",) if suffix == ".npz" else ()
    keys = () if suffix == ".npz" else ("id",)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "in").mkdir()
        write_rows(folder / "in", rows, data.draw(st.integers(1, 3)), broken)
        jobs = [
            PredictJob(
                "models", "m", [f"{folder}/in/*.jsonl"], f"{folder}/{each}{suffix}", outputs=outputs, keys=keys
            )
            for each in ("whole", "parts")
        ]
        whole = Fuse(1 << 30, 0)
        assert run(jobs[0], model, whole)
        for at, share in kills:
            if run(jobs[1], model, Fuse(int(at * whole.writes), share)):
                break
        else:
            assert run(jobs[1], model, Fuse(1 << 30, 0))
        expected, found = (sorted(folder.glob(f"{each}*")) for each in ("whole", "parts"))
        assert [each.name.replace("parts", "whole") for each in found] == [each.name for each in expected]
        assert [each.read_bytes() for each in found] == [each.read_bytes() for each in expected]
        if suffix == ".jsonl":
            numbers = [json.loads(line)["row"] for line in (folder / "parts.jsonl").read_text().splitlines()]
            assert numbers == list(range(rows))


@settings(max_examples=examples(15), deadline=None)
@given(data=st.data())
def test_local_and_distributed_runs_continue_each_other(data: st.DataObject) -> None:
    rows = data.draw(st.integers(1, 40))
    bad = data.draw(st.sets(st.integers(0, rows - 1), max_size=3))
    suffix = data.draw(st.sampled_from([".jsonl", ".csv"]))
    ends = data.draw(st.lists(st.tuples(st.integers(0, rows), st.integers(1, 3)), max_size=4))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "in").mkdir()
        write_rows(folder / "in", rows, data.draw(st.integers(1, 3)), set())
        whole, parts = (
            PredictJob("models", "m", [f"{folder}/in/*.jsonl"], f"{folder}/{each}{suffix}", keys=("id",))
            for each in ("whole", "parts")
        )
        with served(Doubling(bad)):
            predict(whole)
        for last, workers in ends:
            losses = Losses(data.draw(st.integers(0, 2)), data.draw(st.sampled_from(["execute", "fetch"])))

            def trouble(call: str, part: JobPart, last: int = last, losses: Losses = losses) -> None:
                if part.row >= last:
                    raise unavailable("the cluster is gone")
                losses(call, part)

            with distributed(Doubling(bad, max_batch_size=data.draw(st.integers(1, 5))), trouble):
                try:
                    predict(replace(parts, ray="local", workers=workers))
                except InferError:
                    continue
                break
        else:
            with served(Doubling(bad)):
                predict(parts)
        expected, found = (sorted(folder.glob(f"{each}*")) for each in ("whole", "parts"))
        assert [each.read_bytes() for each in found] == [each.read_bytes() for each in expected]
