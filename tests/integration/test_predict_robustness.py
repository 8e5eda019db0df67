"""`naiad predict`: batches without a configuration, files that cannot be read, progress when it is killed often."""

import json
from pathlib import Path

import numpy as np
import pytest

from naiad.core.errors import InferError
from naiad.tools.predict import PredictJob, job_output, predict
from naiad.tools.predict import row_flow as batch_pipeline
from support import onnx_models
from support.model_repository import write_model
from support.predict_command import predict as run_predict

CHECKED = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        texts = [pb_utils.get_input_tensor_by_name(r, "TEXT").as_numpy() for r in requests]
        if any(b"bad" in each[0] for text in texts for each in text):
            raise ValueError("a bad text")
        lengths = [np.array([[len(each[0])] for each in text], np.int32) for text in texts]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("LENGTH", each)]) for each in lengths]
"""
CHECKED_CONFIG = """
backend: "python"
max_batch_size: 8
input { name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] }
output { name: "LENGTH" data_type: TYPE_INT32 dims: [ 1 ] }
"""


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """A repository with an ONNX model without a configuration."""
    write_model(tmp_path / "models", "plain", None, {"1/model.onnx": onnx_models.identity()})
    return tmp_path / "models"


def values(count: int, start: int = 0) -> np.ndarray:
    return np.arange(start, start + 4 * count, dtype=np.float32).reshape(count, 4)


def test_model_without_a_configuration_gets_large_batches(plain: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", values(9000))
    sizes: list[int] = []
    execute = batch_pipeline.ChunkRequests._infer

    async def noted(self, group):
        sizes.append(len(group.offsets))
        return await execute(self, group)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch_pipeline.ChunkRequests, "_infer", noted)
        predict(PredictJob(str(plain), "plain", [str(tmp_path / "rows.npy")], str(tmp_path / "out.npz")))
    assert max(sizes) == 8192
    with np.load(tmp_path / "out.npz") as found:
        np.testing.assert_array_equal(found["OUTPUT0"], values(9000))


def test_bad_file_among_several_is_set_aside(plain: Path, tmp_path: Path) -> None:
    for number in range(3):
        np.save(tmp_path / f"{number}.npy", values(2, 100 * number))
    (tmp_path / "1.npy").write_bytes(b"no array")
    (tmp_path / "0a.npy").write_bytes(b"")
    done = run_predict(plain, "plain", "--input", tmp_path / "*.npy", "--output", tmp_path / "out.npz", status=3)
    with np.load(tmp_path / "out.npz") as found:
        np.testing.assert_array_equal(found["OUTPUT0"], np.concatenate([values(2), values(2, 200)]))
    rejected = [json.loads(line) for line in (tmp_path / "out.npz.rejected.jsonl").read_text().splitlines()]
    assert [(Path(each["file"]).name, each["row"]) for each in rejected] == [("0a.npy", None), ("1.npy", None)]
    assert all(each["reason"] and each["file"] not in each["reason"] for each in rejected)
    assert "not read: " in done.stdout
    assert "1.npy" in done.stdout


def test_bad_files_alone_end_the_job(plain: Path, tmp_path: Path) -> None:
    (tmp_path / "a.npy").write_bytes(b"no array")
    (tmp_path / "b.npy").write_bytes(b"no array")
    job = PredictJob(str(plain), "plain", [str(tmp_path / "*.npy")], str(tmp_path / "out.npz"))
    with pytest.raises(InferError, match=r"b\.npy"):
        predict(job)
    np.save(tmp_path / "b.npy", values(2))
    with pytest.raises(InferError, match=r"a\.npy"):
        predict(PredictJob(str(plain), "plain", job.inputs, job.output, max_failed_rows=0))
    assert predict(job).rows == 2


def test_rejected_row_of_a_folder_names_its_file(tmp_path: Path) -> None:
    write_model(tmp_path / "models", "checked", CHECKED_CONFIG, {"1/model.py": CHECKED})
    (tmp_path / "texts").mkdir()
    for name, text in (("a.txt", "good"), ("b.txt", "bad"), ("c.txt", "fine!")):
        (tmp_path / "texts" / name).write_text(text)
    output = tmp_path / "out.jsonl"
    summary = predict(PredictJob(str(tmp_path / "models"), "checked", [str(tmp_path / "texts")], str(output)))
    assert summary.failed_rows == 1
    (rejected,) = [json.loads(line) for line in Path(summary.rejected).read_text().splitlines()]
    assert (rejected["row"], rejected["file"]) == (1, str(tmp_path / "texts" / "b.txt"))


def test_first_rows_are_recorded_at_once(plain: Path, tmp_path: Path) -> None:
    """Each run stops at its second progress report, long before a second: all together finish the job."""
    np.save(tmp_path / "rows.npy", values(20))
    job = PredictJob(
        str(plain),
        "plain",
        [str(tmp_path / "rows.npy")],
        str(tmp_path / "out.npz"),
        rows_per_request=4,
        concurrency=1,
    )
    append = job_output.Output.append
    journal = tmp_path / "out.npz.partial" / "journal.jsonl"

    class Killed(BaseException):
        """Ends a run as a signal does: nothing is recorded after it."""

    def killed_at_second(self, chunk):
        if getattr(self, "has_appended", False):
            raise Killed
        self.has_appended = True
        return append(self, chunk)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(job_output.Output, "append", killed_at_second)
        patch.setattr(job_output.Output, "keep", lambda self: None)
        for run in range(1, 4):
            with pytest.raises(Killed):
                predict(job)
            assert json.loads(journal.read_text().splitlines()[-1])["rows"] == 4 * run
    assert predict(job).resumed_rows == 12
    with np.load(tmp_path / "out.npz") as found:
        np.testing.assert_array_equal(found["OUTPUT0"], values(20))
