"""The page "From FastAPI": its commands and code in an empty environment, and its app beside naiad."""

import json
import os
import re
import shlex
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from support.page_blocks import Block, section_blocks
from support.ports import free_port
from support.server_process import serving
from support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
PAGE = "from-fastapi.md"
MAX_COMMANDS = 6
MAX_CODE_LINES = 15
INSTALLED = [path for path in sys.path if path.endswith("site-packages")]
FLOWERS = [[5.1, 3.5, 1.4, 0.2], [6.7, 3.0, 5.2, 2.3], [5.9, 2.8, 4.3, 1.3]]


def commands_of(blocks: list[Block]) -> list[str]:
    lines = [line for block in blocks if block.language == "sh" for line in block.text.splitlines()]
    return [command.strip() for line in lines for command in re.split(r"&&|;", line) if command.strip()]


def code_lines(blocks: list[Block]) -> list[str]:
    code = [block.text for block in blocks if block.language not in ("sh", "json")]
    return [line for text in code for line in text.splitlines() if line.strip()]


def write_files(blocks: list[Block], directory: Path) -> None:
    for block in blocks:
        if block.title:
            (directory / block.title).write_text(block.text)


def post(url: str, content: object) -> Any:
    request = urllib.request.Request(url, json.dumps(content).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


def test_first_answer_is_short() -> None:
    blocks = section_blocks(PAGE, "First answer")
    assert 0 < len(commands_of(blocks)) <= MAX_COMMANDS
    assert 0 < len(code_lines(blocks)) <= MAX_CODE_LINES


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "packages",
    [
        # What the page installs is there already, so that pip installs naiad alone.
        pytest.param({"PYTHONPATH": os.pathsep.join(INSTALLED)}, id="beside these tests"),
        # Installs scikit-learn, ONNX Runtime and skl2onnx.
        pytest.param({}, id="empty", marks=pytest.mark.long),
    ],
)
@pytest.mark.long
def test_first_answer_in_environment_of_its_own(packages: Mapping[str, str], tmp_path: Path) -> None:
    blocks = section_blocks(PAGE, "First answer")
    write_files(blocks, tmp_path)
    *preparation, serve, ask = commands_of(blocks)
    port = free_port()
    # Two changes: naiad is that of this checkout, and the ports are free ones.
    preparation = [command.replace("'naiad[onnx]'", f"'{ROOT}[onnx]'") for command in preparation]
    serve += f" --http-port={port} --grpc-port=0 --metrics-port=0 --http-address=127.0.0.1"
    shell = "set -e\n" + "\n".join(preparation) + f"\nexec {serve}\n"
    kept = {name: text for name, text in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    # Python compiles the few modules that are used when it imports them.
    environment = {**kept, **packages, "PIP_NO_COMPILE": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    log = tmp_path / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["bash", "-c", shell], cwd=tmp_path, env=environment, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        wait_until(lambda: '"ready: ' in log.read_text() or process.poll() is not None, "never ready", 540)
        assert process.poll() is None, log.read_text()
        words = shlex.split(ask.replace("localhost:8000", f"127.0.0.1:{port}"))
        answer = json.loads(subprocess.run(words, check=True, capture_output=True, timeout=60).stdout)
    finally:
        process.terminate()
        process.wait(60)
    (shown,) = (json.loads(block.text) for block in blocks if block.language == "json")
    assert answer["output_label"] == shown["output_label"] == 0
    assert answer["output_probability"] == pytest.approx(shown["output_probability"], abs=1e-3)
    assert set(answer) == set(shown)


@pytest.fixture
def app(tmp_path: Path) -> Iterator[str]:
    """The URL of the app of the page, with a pickled pipeline in `tmp_path`."""
    # Here, because every process of the tests imports every file.
    import joblib
    from sklearn import datasets, linear_model, pipeline, preprocessing

    iris = datasets.load_iris()
    model = pipeline.make_pipeline(preprocessing.StandardScaler(), linear_model.LogisticRegression())
    joblib.dump(model.fit(iris.data, iris.target_names[iris.target]), tmp_path / "iris.joblib")
    write_files(section_blocks(PAGE, "Move an app"), tmp_path)
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "app:app", "--host=127.0.0.1", f"--port={port}"]
    log = tmp_path / "app.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=tmp_path, stdout=output, stderr=subprocess.STDOUT)
    try:
        wait_until(lambda: "Uvicorn running" in log.read_text() or process.poll() is not None, "no app", 60)
        assert process.poll() is None, log.read_text()
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(60)


def test_app_and_naiad_return_equal_json(app: str, tmp_path: Path) -> None:
    with serving(tmp_path / "log", str(tmp_path / "predict.py")) as server:
        server.wait_ready()
        url = f"http://{server.http_url}/v2/models/predict/generate"
        for flower in FLOWERS:
            before = post(f"{app}/predict", {"measurements": flower})
            after = post(url, {"measurements": flower})
            assert after == {**before, "model_name": "predict", "model_version": "1"}
        batch = post(url, {"measurements": [*FLOWERS[0], *FLOWERS[1], *FLOWERS[2]]})
        assert batch["species"] == ["setosa", "virginica", "versicolor"]
        assert server.post("/v2/models/predict/generate", {"measurements": [1.0]}).status == 400
