"""Pictures in base64 and in files of the owner's folder: decoded by the server, and by `naiad predict`."""

import io
import json
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from naiad.core.datatype import DataType
from support import onnx_models
from support.model_repository import write_model
from support.predict_command import predict
from support.server_process import ServerProcess

SIZE = (6, 5)


def pixels(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (*SIZE, 3), np.uint8)


def png(seed: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels(seed)).save(file, "PNG")
    return file.getvalue()


def expected(seed: int) -> list:
    return pixels(seed).transpose(2, 0, 1).tolist()


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with pictures, a link out of it, and a file that is none."""
    root = tmp_path_factory.mktemp("pictures")
    (root / "in" / "below").mkdir(parents=True)
    (root / "in" / "1.png").write_bytes(png(1))
    (root / "in" / "below" / "2.png").write_bytes(png(2))
    (root / "in" / "text.png").write_text("no picture")
    (root / "secret.png").write_bytes(png(3))
    (root / "in" / "link.png").symlink_to(root / "secret.png")
    return root / "in"


@pytest.fixture(scope="module")
def server(folder: Path, tmp_path_factory) -> Iterator[ServerProcess]:
    root = tmp_path_factory.mktemp("server")
    (root / "same.onnx").write_bytes(onnx_models.identity(DataType.UINT8, ("N", 3, *SIZE)))
    flag = f"--pictures=same:INPUT0,folder={folder}"
    running = ServerProcess(root / "log", str(root / "same.onnx"), flag)
    try:
        running.wait_ready()
        yield running
    finally:
        running.stop()


def test_pictures_in_base64_reach_the_model(server: ServerProcess) -> None:
    text = urlsafe_b64encode(png(1)).decode()
    answer = server.post("/v2/models/same/generate", {"INPUT0": text, "id": "1"})
    assert answer.status == 200, answer.body
    assert (answer.json["OUTPUT0"], answer.json["id"]) == (np.ravel(expected(1)).tolist(), "1")
    answer = server.post("/invocations", {"instances": [{"b64": text}] * 40})
    assert answer.json["predictions"] == [expected(1)] * 40


@pytest.mark.parametrize("path", ["1.png", "below/2.png", "below/../1.png"])
def test_files_below_the_folder_are_read(server: ServerProcess, path: str) -> None:
    answer = server.post("/invocations", [{"path": path}])
    assert answer.json["predictions"] == [expected(2 if "2" in path else 1)]


@pytest.mark.parametrize("path", ["../secret.png", "link.png", "/etc/passwd", "none.png", "below", "", "a\x00b"])
def test_files_elsewhere_are_refused_alike(server: ServerProcess, path: str) -> None:
    answer = server.post("/invocations", [{"path": path}])
    assert answer.status == 400
    assert "no such file below the folder of the model's pictures" in answer.json["error"]


def test_bad_picture_is_refused_with_its_row(server: ServerProcess) -> None:
    answer = server.post("/invocations", [{"path": "1.png"}, {"path": "text.png"}])
    assert answer.status == 400
    assert "row 1 of input 'INPUT0': not readable as a picture" in answer.json["error"]


def test_predict_reads_pictures(folder: Path, tmp_path: Path) -> None:
    model = {"1/model.onnx": onnx_models.identity(DataType.UINT8, ("N", 3, *SIZE))}
    parameter = 'parameters { key: "pictures" value { string_value: "INPUT0" } }\n'
    write_model(tmp_path / "models", "same", parameter, model)
    table, output = tmp_path / "data.csv", tmp_path / "out.jsonl"
    table.write_text(f"id,file\na,{folder}/1.png\nb,none.png\nc,here.png\nd,{folder}/text.png\n")
    (tmp_path / "here.png").write_bytes(png(2))
    flags = ("--column", "file=INPUT0", "--key", "id", "--output", output)
    predict(tmp_path / "models", "same", "--input", table, *flags, status=3)
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert [row["OUTPUT0"] for row in rows] == [expected(1), None, expected(2), None]
    reasons = [
        json.loads(line)["reason"] for line in (tmp_path / "out.jsonl.rejected.jsonl").read_text().splitlines()
    ]
    assert "none.png: no such file" in reasons[0]
    assert "not readable as a picture" in reasons[1]
    predict(tmp_path / "models", "same", "--input", folder / "below", "--output", tmp_path / "folder.jsonl")
    (row,) = (tmp_path / "folder.jsonl").read_text().splitlines()
    assert json.loads(row) == {"row": 0, "file": "2.png", "OUTPUT0": expected(2)}
