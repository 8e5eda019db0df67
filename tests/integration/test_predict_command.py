"""`naiad predict` with real models and servers: formats, ensembles, Python models, failures, kills."""

import json
import re
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest

from naiad.core.errors import ErrorCode, InferError
from naiad.tools.predict import PredictJob, predict
from support import onnx_models
from support.ensemble_models import tensor, write_ensemble
from support.model_repository import write_model
from support.predict_command import ENVIRONMENT, command
from support.predict_command import predict as run_predict
from support.waiting import wait_until

ROWS = 100
A = np.arange(ROWS * 16, dtype=np.float32).reshape(ROWS, 16)
B = np.full((ROWS, 16), 2, np.float32)
_CHECKED = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        texts = [pb_utils.get_input_tensor_by_name(r, "TEXT").as_numpy() for r in requests]
        if any(b"bad" in each[0] for text in texts for each in text):
            raise ValueError("the batch has a bad text")
        lengths = [np.array([[len(each[0])] for each in text], np.int32) for text in texts]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("LENGTH", each)]) for each in lengths]
"""
_CHECKED_CONFIG = """
backend: "python"
max_batch_size: 8
dynamic_batching { }
input { name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] }
output { name: "LENGTH" data_type: TYPE_INT32 dims: [ 1 ] }
"""


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    """An archive for the add/sub models."""
    np.savez(tmp_path / "pairs.npz", INPUT0=A, INPUT1=B)
    return tmp_path / "pairs.npz"


def read(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("model", ["add_sub", "python_add_sub"])
def test_a_model_of_a_repository_predicts_all_rows(repository: Path, tmp_path: Path, pairs: Path, model: str) -> None:
    done = run_predict(repository, model, "--input", pairs, "--output", tmp_path / "out.npz")
    assert re.match(rf"{model}: {ROWS} rows, in .* rows/s\noutput: .*out.npz\n\nnext: python -c", done.stdout)
    with np.load(tmp_path / "out.npz") as found:
        assert np.array_equal(found["OUTPUT0"], A + B)
        assert np.array_equal(found["OUTPUT1"], A - B)
        assert found["row"].tolist() == list(range(ROWS))
        assert found["ok"].all()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["out.npz", "pairs.npz"]


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_server_predicts_the_same(server, repository: Path, tmp_path: Path, pairs: Path, protocol: str) -> None:
    url = f"{protocol}://{server.http_url if protocol == 'http' else server.grpc_url}"
    files = [tmp_path / "local.jsonl", tmp_path / "remote.jsonl"]
    for target, path in zip((str(repository), url), files, strict=True):
        summary = predict(PredictJob(target, "add_sub", [str(pairs)], str(path), outputs=["OUTPUT1"]))
        assert (summary.rows, summary.failed_rows, summary.rejected) == (ROWS, 0, "")
    assert files[0].read_bytes() == files[1].read_bytes()
    assert read(files[0])[3] == {"row": 3, "OUTPUT1": (A - B)[3].tolist()}


def test_an_ensemble_predicts(repository: Path, tmp_path: Path, pairs: Path) -> None:
    models = tmp_path / "models"
    models.mkdir()
    (models / "add_sub").symlink_to(repository / "add_sub")
    write_ensemble(
        models,
        "twice",
        [tensor("INPUT0"), tensor("INPUT1")],
        [tensor("SUM")],
        [
            ("add_sub", {"INPUT0": "INPUT0", "INPUT1": "INPUT1"}, {"OUTPUT0": "between"}),
            ("add_sub", {"INPUT0": "between", "INPUT1": "INPUT1"}, {"OUTPUT0": "SUM"}),
        ],
    )
    run_predict(models, "twice", "--input", pairs, "--output", tmp_path / "out.npz", "--quiet")
    with np.load(tmp_path / "out.npz") as found:
        assert np.array_equal(found["SUM"], A + B + B)


def test_failed_rows_are_explained(tmp_path: Path) -> None:
    write_model(tmp_path / "models", "length", _CHECKED_CONFIG, {"1/model.py": _CHECKED})
    texts = [f"text {row}" if row % 10 else f"bad {row}" for row in range(40)]
    lines = [json.dumps({"id": f"r{row}", "sentence": text}) for row, text in enumerate(texts)]
    lines[5] = "no JSON"
    (tmp_path / "in.jsonl").write_text("\n".join(lines))
    arguments = (tmp_path / "models", "length", "-i", tmp_path / "in.jsonl", "-o", tmp_path / "out.jsonl")
    more = ("--key", "id", "--column", "sentence=TEXT")
    done = run_predict(*arguments, *more, status=3)
    assert "5 rows failed; the reasons: " in done.stdout
    rejected = read(tmp_path / "out.jsonl.rejected.jsonl")
    assert [(each["row"], each["id"]) for each in rejected] == [
        (0, "r0"),
        (5, None),
        (10, "r10"),
        (20, "r20"),
        (30, "r30"),
    ]
    assert "the batch has a bad text" in str(rejected[0]["reason"])
    assert "not a JSON document" in str(rejected[1]["reason"])
    failed = {each["row"] for each in rejected}
    expected = [
        {
            "row": row,
            "id": None if row == 5 else f"r{row}",
            "LENGTH": None if row in failed else len(text),
        }
        for row, text in enumerate(texts)
    ]
    assert read(tmp_path / "out.jsonl") == expected
    done = run_predict(*arguments, *more, "--max-failed-rows", 2, status=1)
    assert "--max-failed-rows is 2" in done.stderr


def test_files_of_a_folder_are_rows(tmp_path: Path) -> None:
    write_model(tmp_path / "models", "length", _CHECKED_CONFIG, {"1/model.py": _CHECKED})
    (tmp_path / "files").mkdir()
    for number in range(5):
        (tmp_path / "files" / f"{number}.bin").write_bytes(bytes(number + 1))
    run_predict(tmp_path / "models", "length", "-i", tmp_path / "files", "-o", tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_text() == "row,file,LENGTH\n" + "".join(
        f"{n},{n}.bin,{n + 1}\n" for n in range(5)
    )


def test_strings_and_labels_pass_csv(tmp_path: Path) -> None:
    config = """
backend: "onnxruntime"
max_batch_size: 8
"""
    write_model(tmp_path / "models", "cats", config, {"1/model.onnx": onnx_models.classifier()})
    rows = "".join(f"p{row}{',1' * (row % 3 + 1)}{',0' * (2 - row % 3)}\n" for row in range(20))
    (tmp_path / "in.csv").write_text(f"name,a,b,c\n{rows}")
    job = PredictJob(
        str(tmp_path / "models"),
        "cats",
        [f"{tmp_path}/in.csv"],
        f"{tmp_path}/out.csv",
        keys=["name"],
        outputs=["output_label"],
    )
    assert predict(job).failed_rows == 0
    lines = (tmp_path / "out.csv").read_text().splitlines()
    assert lines[:3] == ["row,name,output_label", "0,p0,cat", "1,p1,cat"]
    assert len(lines) == 21


@pytest.mark.parametrize("kill", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_run_continues(repository: Path, tmp_path: Path, kill: signal.Signals) -> None:
    """The model takes 500 ms for a row."""
    np.savez(tmp_path / "in.npz", INPUT0=np.arange(6 * 4, dtype=np.float32).reshape(6, 4))
    arguments = (repository, "slow_identity", "-i", tmp_path / "in.npz", "--rows-per-request", 1, "--concurrency", 1)
    running = subprocess.Popen(
        command(*arguments, "-o", tmp_path / "out.jsonl"), env=ENVIRONMENT, stderr=subprocess.PIPE, text=True
    )
    journal = tmp_path / "out.jsonl.partial" / "journal.jsonl"
    wait_until(lambda: journal.exists() and journal.read_bytes().count(b"\n") > 1, 60)
    running.send_signal(kill)
    _, errors = running.communicate(timeout=60)
    assert not (tmp_path / "out.jsonl").exists()
    if kill == signal.SIGINT:
        assert running.returncode == 130
        assert "the same command continues" in errors
    done = run_predict(*arguments, "-o", tmp_path / "out.jsonl")
    assert re.search(r"6 rows, [1-9]\d* of them in an earlier run", done.stdout)
    run_predict(*arguments, "-o", tmp_path / "whole.jsonl")
    assert (tmp_path / "out.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    assert not journal.exists()


def test_other_files_are_refused_until_restart(repository: Path, tmp_path: Path, pairs: Path) -> None:
    output = tmp_path / "out.jsonl"
    job = PredictJob(str(repository), "add_sub", [str(pairs)], str(output), timeout_s=60)

    class Stop(Exception):
        """Ends a run after its first rows."""

    def stop(progress: object) -> None:
        if getattr(progress, "rows", 0):
            raise Stop

    with pytest.raises(Stop):
        predict(job, stop)
    np.savez(pairs, INPUT0=A[:50], INPUT1=B[:50])
    with pytest.raises(InferError, match=r"pairs.npz has changed; add --restart") as caught:
        predict(job)
    assert caught.value.code is ErrorCode.INVALID_ARG
    done = run_predict(repository, "add_sub", "-i", pairs, "-o", output, "--restart")
    assert "50 rows, in" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "status", "reason"),
    [
        (("add_sub", "-o", "out.txt"), 2, "expected .jsonl, .csv, .npz, .parquet"),
        (("add_sub", "-o", "none/out.csv"), 2, "there is no folder none"),
        (("add_sub", "-o", "out.csv", "--column", "x"), 2, "write COLUMN=INPUT"),
        (("add_sub", "-o", "out.csv", "--concurrency", "-1"), 2, "--concurrency is -1"),
        (("add_sub", "-o", "out.csv", "--outputs", "NONE"), 1, "has no output 'NONE'; it has 'OUTPUT0', 'OUTPUT1'"),
        (("add_sub", "-o", "out.csv", "--rows-per-request", "99"), 1, "has max_batch_size 32"),
        (("repeat", "-o", "out.csv"), 1, "decoupled"),
        (("add_sub", "-o", "out.npz", "--key", "INPUT0"), 1, "write .csv or .jsonl"),
        (("identity", "-o", "out.csv", "--column", "x=INPUT0"), 1, "no column 'x'"),
        (("none", "-o", "out.csv"), 1, "none"),
    ],
)
def test_mistakes_name_their_fix(
    repository: Path, tmp_path: Path, pairs: Path, monkeypatch, arguments, status: int, reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run_predict(repository, arguments[0], "-i", pairs, *arguments[1:], status=status)
    assert reason in done.stderr
    assert not list(tmp_path.glob("out*"))


def test_a_server_that_is_away_is_named(tmp_path: Path, pairs: Path) -> None:
    done = run_predict("grpc://127.0.0.1:9", "m", "-i", pairs, "-o", tmp_path / "out.csv", status=1)
    assert "no connection to grpc://127.0.0.1:9" in done.stderr
