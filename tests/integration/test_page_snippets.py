"""What the pages show beside their models is run as it stands: shell, clients, a backend of one's own."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as triton_http

from support.model_repository import write_model
from support.server_process import ServerProcess, serving

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(\w*)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TENSOR = '[ {{ name: "{name}" data_type: TYPE_FP32 dims: {dims} {more} }} ]'


def block(page: str, language: str, contains: str) -> str:
    """Return the one block of a page in this language that contains a text."""
    found = [
        text for lang, _, text in BLOCK.findall((ROOT / page).read_text()) if lang == language and contains in text
    ]
    assert len(found) == 1, (page, contains, len(found))
    return found[0]


def titled(page: str) -> dict[str, str]:
    """Return the blocks of a page that have a title, by it."""
    texts = {}
    for _, rest, text in BLOCK.findall((ROOT / page).read_text()):
        title = re.search(r'title="([^"]+)"', rest)
        if title:
            texts[title[1]] = text
    return texts


def tensors(given: str, answered: str, dims: str = "[ -1 ]", more: str = "") -> str:
    """Return the part of a configuration that names an input and an output of FP32."""
    return (
        f"input {TENSOR.format(name=given, dims=dims, more='')}\n"
        f"output {TENSOR.format(name=answered, dims=dims, more=more)}\n"
    )


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a repository `models`, made as the pages say, and packages of the server beside it."""
    home = tmp_path_factory.mktemp("home")
    subprocess.run(["bash", "-ec", block("docs/quickstart.md", "sh", "cat > models/add_sub")], cwd=home, check=True)
    (home / "cat.jpg").write_bytes(bytes(1234))
    shown = titled("docs/generate.md") | titled("docs/http-bodies.md") | titled("docs/python-models.md")
    for title, text in shown.items():
        (home / title).parent.mkdir(parents=True, exist_ok=True)
        (home / title).write_text(text)
    models = home / "models"
    write_model(models, "repeat", block("docs/streaming.md", "", 'backend: "repeat"'))
    write_model(models, "identity", 'backend: "identity"\n' + tensors("INPUT0", "OUTPUT0"))
    labels = tensors("INPUT0", "OUTPUT0", "[ 3 ]", 'label_filename: "labels.txt"')
    write_model(
        models,
        "classifier",
        f'backend: "identity"\nmax_batch_size: 8\n{labels}',
        {"labels.txt": "cat\ndog\nhouse cat\n"},
    )
    write_model(models, "model", 'backend: "identity"\n' + tensors("image", "logits", "[ 1, 3, 224, 224 ]"))
    _write_backend(home)
    return home


def _write_backend(home: Path) -> None:
    package = home / "packages"
    entry_points = package / "naiad_doubler-1.0.dist-info"
    entry_points.mkdir(parents=True)
    (package / "naiad_doubler.py").write_text(block("docs/backends.md", "python", "class DoublerBackend"))
    (entry_points / "METADATA").write_text("Metadata-Version: 2.1\nName: naiad-doubler\nVersion: 1.0\n")
    toml = block("docs/backends.md", "toml", "doubler")
    (entry_points / "entry_points.txt").write_text(
        toml.replace('[project.entry-points."naiad.backends"]', "[naiad.backends]").replace('"', "")
    )
    config = 'backend: "doubler"\n' + tensors("INPUT0", "OUTPUT0")
    write_model(home / "models", "doubler", config, {"1/factor.txt": "3"})


@pytest.fixture(scope="module")
def served(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(
        tmp_path_factory.mktemp("server") / "log",
        f"--model-repository={home / 'models'}",
        "--allow-client-shm=true",
        environment={"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(home / "packages")])},
    ) as running:
        yield running


def adapted(text: str, served: ServerProcess) -> str:
    """Return a snippet with the ports of the server under test."""
    return text.replace("localhost:8001", served.grpc_url).replace("localhost:8000", served.http_url)


def run_python(text: str, served: ServerProcess) -> str:
    """Run a snippet in an interpreter of its own and return what it prints."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", adapted(text, served)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={**os.environ, "PYTHONPATH": ""},
    )
    assert (done.stderr, done.returncode) == ("", 0)
    return done.stdout


def run_shell(text: str, served: ServerProcess) -> str:
    done = subprocess.run(
        ["bash", "-ec", adapted(text, served).replace("curl ", "curl -sS --max-time 60 ")],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.stderr, done.returncode) == ("", 0)
    return done.stdout


@pytest.mark.parametrize(
    ("page", "contains", "printed"),
    [
        ("README.md", "InferenceServerClient", "(1, 3, 224, 224)\n"),
        ("docs/quickstart.md", "InferenceServerClient", "[[2. 2. 2. 2. 2. 2. 2. 2. 2. 2. 2. 2. 2. 2. 2. 2.]]\n"),
        ("docs/streaming.md", "start_stream", "[4] [0]\n[2] [1]\n[0] [2]\n"),
        ("docs/http-bodies.md", "class_count", "[[b'3.250000:1:dog' b'2.000000:2:house cat']]\n"),
        ("docs/shared-memory.md", "create_shared_memory_region", ""),
        ("docs/ports.md", 'InferenceServerClient("localhost:8000")', "True\n"),
        ("docs/http-bodies.md", "b64encode", "[2.0, 2.0, 2.0]\n"),
        ("docs/http-bodies.md", "Inference-Header-Content-Length", "[1, 16] [0. 2. 4.]\n"),
    ],
)
def test_python_prints_what_the_page_says(served: ServerProcess, page: str, contains: str, printed: str) -> None:
    assert run_python(block(page, "python", contains), served) == printed


def test_stream_of_infer_is_line_for_each_response(served: ServerProcess) -> None:
    lines = run_python(block("docs/generate.md", "python", "x-ndjson"), served).splitlines()
    assert [f'"data":[{value}]' in line for value, line in zip([4, 2, 0], lines, strict=False)] == [True] * 3


def test_the_quickstart_asks_with_curl(served: ServerProcess) -> None:
    answer = run_shell(block("docs/quickstart.md", "sh", "v2/models/add_sub/infer"), served)
    assert '"data":[2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]' in answer.replace(".0", "")


def test_json_may_be_nested_or_flat(served: ServerProcess) -> None:
    answer = json.loads(run_shell(block("docs/http-bodies.md", "sh", '"id": "42"'), served))
    assert (answer["id"], len(answer["outputs"]), answer["outputs"][0]["data"][15]) == ("42", 1, 17)


def test_a_picture_is_a_body(served: ServerProcess, home: Path) -> None:
    text = block("docs/http-bodies.md", "sh", "image/jpeg").replace("cat.jpg", str(home / "cat.jpg"))
    assert json.loads(run_shell(text, served))["outputs"][0]["data"] == [1234]


def test_the_quickstart_watches(served: ServerProcess) -> None:
    text = block("docs/quickstart.md", "sh", "8002/metrics").replace("localhost:8002", served.metrics_url)
    answer = run_shell(text, served)
    assert '"name":"add_sub"' in answer
    assert "nv_inference_request_success" in answer


def test_generate_answers_with_one_object(served: ServerProcess) -> None:
    answer = run_shell(block("docs/generate.md", "sh", "llm/generate "), served)
    assert answer.strip() == block("docs/generate.md", "json", "text_output").strip()


def test_generate_streams_words(served: ServerProcess) -> None:
    answer = run_shell(block("docs/generate.md", "sh", "generate_stream"), served)
    assert answer.strip() == block("docs/generate.md", "text", 'data: {"id"').strip()


def test_one_instance_works_on_many_requests(served: ServerProcess) -> None:
    def ask(value: float) -> float:
        with triton_http.InferenceServerClient(served.http_url) as client:
            given = triton_http.InferInput("X", [1, 1], "FP32")
            given.set_data_from_numpy(np.array([[value]], np.float32))
            return float(client.infer("waits", [given]).as_numpy("Y").item())

    with ThreadPoolExecutor(32) as pool:
        assert list(pool.map(ask, range(32))) == list(range(32))
    counts = served.get("/v2/models/waits/stats").json["model_stats"][0]
    # Each execution lasts 50 ms: as many answers come in a wait as there are requests in a batch.
    assert (counts["inference_count"], counts["execution_count"] < 16) == (32, True)


def test_a_backend_of_ones_own_serves(served: ServerProcess) -> None:
    with triton_http.InferenceServerClient(served.http_url) as client:
        given = triton_http.InferInput("INPUT0", [2], "FP32")
        given.set_data_from_numpy(np.array([1, 2], np.float32))
        assert client.infer("doubler", [given]).as_numpy("OUTPUT0").tolist() == [3, 6]


def test_log_settings_change(served: ServerProcess) -> None:
    with triton_http.InferenceServerClient(served.http_url) as client:
        exec(compile(block("docs/tracing.md", "python", "update_log_settings"), "page", "exec"), {"client": client})
        assert client.get_log_settings()["log_verbose_level"] == 1
    assert '"log_info":false' in run_shell(block("docs/tracing.md", "sh", "log_info"), served)


def test_a_model_is_tested_without_a_server(home: Path) -> None:
    text = block("docs/python-models.md", "python", "def test_adds")
    done = subprocess.run(
        [sys.executable, "-c", f"{text}\ntest_adds()"],
        cwd=home,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    assert (done.stderr, done.returncode) == ("", 0)


@pytest.mark.parametrize("line", block("docs/configuration.md", "sh", "naiad check").splitlines()[:3])
def test_commands_of_the_reference_work(home: Path, line: str) -> None:
    done = subprocess.run(
        ["bash", "-ec", line.replace("naiad", f"{sys.executable} -m naiad", 1)],
        cwd=home,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(home / "packages")])},
    )
    assert (done.stderr, done.returncode) == ("", 0)
