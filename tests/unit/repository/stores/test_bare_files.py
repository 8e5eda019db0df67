"""Which files a folder of bare model files has, and which folders are something else."""

from pathlib import Path

import pytest

from naiad.core.errors import InferError
from naiad.options.bare_models import BareModelOptions
from naiad.repository.model_check import check_path
from naiad.repository.open_repository import open_path
from naiad.repository.stores.bare_files import BareFilesStore, bare_file, files_of_folder, nothing_to_serve
from naiad.repository.stores.store import LocalStore, SingleModelStore

MODEL = "class TritonPythonModel: ...\n"


def write(root: Path, **files: str) -> Path:
    for name, content in files.items():
        path = root / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


def test_files_are_models_of_their_names(tmp_path):
    write(
        tmp_path,
        a_dot_onnx="",
        c_dot_py=MODEL,
        tools_dot_py="import os\n",
        labels_dot_txt="",
        config_dot_json="{}",
        notes__x_dot_md="",
    )
    store = open_path(tmp_path, bare=BareModelOptions(max_batch_size=7))
    assert isinstance(store, BareFilesStore)
    assert store.list_models() == ["a", "c"]
    entry = store.open_model("c")
    assert (entry.preset.backend, entry.preset.default_model_filename) == ("python", "c.py")
    assert entry.default_max_batch_size == 7
    with pytest.raises(InferError, match="model 'tools' is not found"):
        store.open_model("tools")
    write(tmp_path, b_dot_onnx="")
    assert store.sight("b") is not None
    assert store.sight("tools") is None


@pytest.mark.parametrize(
    ("files", "kind"),
    [
        ({"m__1__model_dot_onnx": "", "a_dot_onnx": ""}, LocalStore),
        ({"m__config_dot_pbtxt": "", "a_dot_onnx": ""}, LocalStore),
        ({"m__model_dot_onnx": "", "a_dot_onnx": ""}, LocalStore),
        ({"config_dot_pbtxt": "", "a_dot_onnx": ""}, SingleModelStore),
        ({"1__model_dot_onnx": "", "a_dot_onnx": ""}, SingleModelStore),
        ({"model_dot_py": MODEL, "a_dot_onnx": ""}, SingleModelStore),
        ({"model_dot_onnx": ""}, SingleModelStore),
        ({"model_dot_onnx": "", "a_dot_onnx": ""}, BareFilesStore),
        ({"tools_dot_py": "import os\n"}, LocalStore),
    ],
)
def test_kind_of_a_directory(tmp_path, files, kind):
    assert type(open_path(write(tmp_path, **files))) is kind


def test_ignored_files_of_a_repository_are_logged(tmp_path, caplog):
    open_path(write(tmp_path, m__1__model_dot_onnx="", a_dot_onnx=""))
    assert f"{tmp_path}: not served, because {tmp_path.name} has directories of models: a.onnx" in caplog.text


def test_two_files_of_one_name_are_refused(tmp_path):
    write(tmp_path, a_dot_onnx="", a_dot_py=MODEL)
    with pytest.raises(InferError, match=r"a\.onnx and a\.py are both model 'a'; rename one of them"):
        files_of_folder(tmp_path)


def test_message_about_nothing_names_other_formats(tmp_path):
    write(tmp_path, iris_dot_joblib="x", notes_dot_txt="x")
    message = nothing_to_serve([str(tmp_path), "/nowhere"])
    assert message.startswith(f"there is no model in {tmp_path} and /nowhere; a repository has a directory for each")
    assert "iris.joblib: it is a Python pickle (joblib, scikit-learn); scikit-learn: export it with" in message
    assert "notes" not in message


def test_name_that_is_no_text_is_refused(tmp_path):
    path = tmp_path / "net\udcff.onnx"
    path.touch()
    with pytest.raises(InferError, match=r"the name of '.*net\\udcff.onnx' has bytes that are not UTF-8; rename it"):
        bare_file(path)
    (report,) = check_path(path, known_backends=("onnxruntime",))
    assert "not UTF-8; rename it" in str(report.problems[0]).encode().decode()
