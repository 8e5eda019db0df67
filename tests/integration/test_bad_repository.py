"""Everything that can be wrong with a repository: each is refused with path and reason, and what serves goes on."""

import base64
import hashlib
import io
import json
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support import onnx_models
from support.model_repository import write_identity, write_model
from support.model_zoo import NO_RESPONSES
from support.server_process import ServerProcess, serving

BODY = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [1.0]}]}
PYTHON = """
backend: "python"
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] %s } ]
%s
"""
MODEL = NO_RESPONSES.encode()

Write = Callable[[Path], object]


def python(root: Path, name: str, more: str = "", output: str = "", files: dict[str, bytes] | None = None) -> Path:
    return write_model(root, name, PYTHON % (output, more), {"1/model.py": MODEL, **(files or {})})


def archive(*members: tuple[str, str]) -> bytes:
    """Return a packed environment of links and files: (name, target of a link or "")."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as opened:
        for name, target in members:
            member = tarfile.TarInfo(name)
            if target:
                member.type, member.linkname = tarfile.SYMTYPE, target
            opened.addfile(member)
    return buffer.getvalue()


def environment(root: Path, content: bytes, name: str = "env.tar.gz") -> None:
    path = f"{{ string_value: '$$TRITON_MODEL_DIRECTORY/{name}' }}"
    python(
        root,
        "bad",
        f"parameters {{ key: 'EXECUTION_ENV_PATH' value: {path} }}",
        files={name: content} if content else {},
    )


def warm_up(file: str) -> str:
    field = f"{{ data_type: TYPE_FP32 dims: [ 1 ] input_data_file: '{file}' }}"
    return f"model_warmup [ {{ name: 'w' batch_size: 1 inputs {{ key: 'IN' value: {field} }} }} ]"


def agent(key: str, value: str) -> str:
    parameters = f"parameters {{ key: '{key}' value: '{value}' }}"
    return f"model_repository_agents {{ agents [ {{ name: 'checksum' {parameters} }} ] }}"


def unreadable(root: Path) -> None:
    """A directory where a file should be: unreadable even for a user with all permissions."""
    model = write_model(root, "bad", None, {"1/model.onnx": onnx_models.add_sub()})
    (model / "config.pbtxt").mkdir()


ONNX = onnx_models.add_sub()
CASES: dict[str, tuple[Write, list[str]]] = {
    "no version": (lambda r: (r / "bad").mkdir(), ["Could not determine backend for model 'bad'", "models/bad"]),
    "leading zeros": (
        lambda r: write_model(r, "bad", None, {"001/model.onnx": ONNX}) and (r / "bad" / "1").rmdir(),
        ["at least one version", "models/bad"],
    ),
    "a version that is a file": (
        lambda r: write_model(r, "bad", None) and ((r / "bad" / "1").rmdir(), (r / "bad" / "1").touch()),
        ["Could not determine backend for model 'bad'", "models/bad"],
    ),
    "missing file": (lambda r: write_model(r, "bad", "backend: 'onnxruntime'"), ["bad/1", "model.onnx"]),
    "empty file": (lambda r: write_model(r, "bad", None, {"1/model.onnx": b""}), ["bad/1/model.onnx", "cannot be"]),
    "half a file": (
        lambda r: write_model(r, "bad", None, {"1/model.onnx": ONNX[: len(ONNX) // 2]}),
        ["bad/1/model.onnx", "cannot be"],
    ),
    "a directory for a file": (
        lambda r: (r / "bad" / "1" / "model.onnx").mkdir(parents=True) or None,
        ["bad/1/model.onnx"],
    ),
    "unreadable configuration": (unreadable, ["bad/config.pbtxt"]),
    "half a configuration": (
        lambda r: write_model(r, "bad", "input [ { name: 'IN' ", {"1/model.onnx": ONNX}),
        ["bad/config.pbtxt:2"],
    ),
    "a configuration that is no text": (
        lambda r: (write_model(r, "bad", None, {"1/model.onnx": ONNX}) / "config.pbtxt").write_bytes(b"\xff\x00"),
        ["bad/config.pbtxt", "UTF-8"],
    ),
    "a model file elsewhere": (
        lambda r: write_model(r, "bad", "default_model_filename: '../../good/config.pbtxt' backend: 'onnxruntime'"),
        ["bad/config.pbtxt:2", "'../../good/config.pbtxt' must stay within"],
    ),
    "a Python model that is none": (
        lambda r: python(r, "bad", files={"1/model.py": b"x = ("}),
        ["model 'bad'", "model.py, line 1", "was never closed"],
    ),
    "labels elsewhere": (
        lambda r: python(r, "bad", output="label_filename: '../good/config.pbtxt'"),
        ["bad/config.pbtxt:5", "'../good/config.pbtxt' must stay within"],
    ),
    "labels that are missing": (lambda r: python(r, "bad", output="label_filename: 'l.txt'"), ["l.txt", "OUT"]),
    "warm-up data elsewhere": (lambda r: python(r, "bad", warm_up("../config.pbtxt")), ["../config.pbtxt"]),
    "warm-up data that is missing": (lambda r: python(r, "bad", warm_up("w.bin")), ["bad/warmup/w.bin"]),
    "a wrong digest": (lambda r: python(r, "bad", agent("MD5:1/model.py", "0" * 32)), ["bad/1/model.py", "0" * 32]),
    "a digest of what is elsewhere": (lambda r: python(r, "bad", agent("MD5:../x", "0")), ["MD5:../x", "models/bad"]),
    "an unknown agent": (
        lambda r: python(r, "bad", "model_repository_agents { agents [ { name: 'decrypt' } ] }"),
        ["unknown repository agent 'decrypt'"],
    ),
    "an environment that is missing": (lambda r: environment(r, b""), ["bad/env.tar.gz", "does not exist"]),
    "an archive that is none": (lambda r: environment(r, b"no archive"), ["bad/env.tar.gz", "cannot be unpacked"]),
    "an archive that is cut short": (
        lambda r: environment(r, archive(("bin/python", ""))[:-20]),
        ["bad/env.tar.gz", "cannot be unpacked"],
    ),
    "an archive with absolute paths": (
        lambda r: environment(r, archive(("/tmp/naiad-escaped", ""))),
        ["bad/env.tar.gz", "/tmp/naiad-escaped", "elsewhere"],
    ),
    "an archive with ..": (
        lambda r: environment(r, archive(("bin/../../naiad-escaped", ""))),
        ["bad/env.tar.gz", "naiad-escaped", "elsewhere"],
    ),
    "an archive with a link that leads out": (
        lambda r: environment(r, archive(("lib", "/etc"), ("lib/x", ""))),
        ["bad/env.tar.gz", "'lib/x' lies below a member that is no directory"],
    ),
    "an environment without an interpreter": (
        lambda r: environment(r, archive(("lib/x", ""))),
        ["no bin/python"],
    ),
    "a requirement that cannot be met": (
        lambda r: environment(r, b"./there-is-no-such-package-here\n", "requirements.txt"),
        ["bad/requirements.txt"],
    ),
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("bad") / "models"
    write_identity(root, "good")
    write_identity(root, ".git")
    return root


@pytest.fixture(scope="module")
def server(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(
        tmp_path_factory.mktemp("log") / "log",
        f"--model-repository={root}",
        "--model-control-mode=explicit",
        "--load-model=good",
        "--allow-client-model-files=true",
        # Without an index pip refuses a package at once; with one it would ask for it again and again.
        environment={"NAIAD_CACHE": str(tmp_path_factory.mktemp("cache")), "PIP_NO_INDEX": "1"},
    ) as running:
        yield running


def load(server: ServerProcess, name: str, **parameters: object) -> tuple[int, str]:
    answer = server.post(f"/v2/repository/models/{name}/load", {"parameters": parameters})
    return answer.status, answer.json["error"] if answer.body else ""


def assert_undisturbed(server: ServerProcess) -> None:
    assert server.post("/v2/models/good/infer", BODY).status == 200
    assert "Traceback" not in server.log_text()


@pytest.mark.parametrize("case", CASES)
def test_files(server: ServerProcess, root: Path, tmp_path: Path, case: str) -> None:
    write, words = CASES[case]
    if (root / "bad").exists():
        (root / "bad").rename(tmp_path / "old")
    write(root)
    for _ in range(2):  # the second time says the same
        status, text = load(server, "bad")
        assert status in (400, 500)
        for word in words:
            assert word in text
    assert not Path("/tmp/naiad-escaped").exists()
    assert_undisturbed(server)
    assert server.post("/v2/repository/models/bad/unload").status == 200


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("..", "must not be a path"),
        ("a%2Fb", "model 'a%2Fb' is not found in"),
        ("..%2Fgood", "model '..%2Fgood' is not found in"),
        ("a%5Cb", "must not be a path"),
        (".git", "model '.git' is not found in"),
        ("a%0Ab", "'a\\nb' has characters that cannot be printed"),
        ("a%00b", "must not be a path"),
        ("a%7F", "cannot be printed"),
        ("%E2%80%AE", "cannot be printed"),
        ("n" * 300, "has 300 characters"),
    ],
)
def test_names(server: ServerProcess, name: str, words: str) -> None:
    status, text = load(server, name)
    assert status in (400, 404)
    if not text.startswith("Not Found: "):  # a path that reaches no route is as good as refused
        assert words in text
    assert_undisturbed(server)


def test_directories_whose_names_are_none(tmp_path: Path, start_server: Callable[..., ServerProcess]) -> None:
    root = tmp_path / "models"
    write_identity(root, "good")
    write_identity(root, "a\nb")
    write_identity(root, ".hidden")
    write_identity(root, "dots.are.good")
    server = start_server(root, "--exit-on-error=false")
    server.wait_started()
    rows = {row["name"]: row for row in server.post("/v2/repository/index").json}
    assert set(rows) == {"good", "a\nb", "dots.are.good"}
    assert rows["dots.are.good"]["state"] == "READY"
    assert "cannot be printed" in rows["a\nb"]["reason"]
    assert "a\nb" not in server.log_text()


@pytest.mark.parametrize(
    "path", ["../x", "/../etc/x", "1/../../x", "1\\..\\x", "config.pbtxt", "", "1/x\0y", "1", "1/model.py/x"]
)
def test_overrides_that_escape(server: ServerProcess, path: str) -> None:
    content = base64.b64encode(MODEL).decode()
    files = {f"file:{path}": content, "file:1/model.py": content}
    status, text = load(server, "brought", config=json.dumps({"backend": "python"}), **files)
    assert status == 400
    assert "file:" in text
    assert_undisturbed(server)


def test_the_digest_that_is_right(server: ServerProcess, root: Path) -> None:
    """So that the refusals above are about what they say."""
    python(root, "right", agent("MD5:1/model.py", hashlib.md5(MODEL).hexdigest()))
    assert load(server, "right") == (200, "")
