"""What a file is: a model, a model of another format, or what a failed download has left.

One table, `KINDS`, has the known formats by first bytes and by suffix, with their backend and the first thing to try.
`kind_of` finds the format of a file or directory of any name. `model_file_problem` explains why a file is not the
model that it should be; `way_out` explains what to do with a format without a backend.
"""

import mmap
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from naiad.backend.onnx.protobuf_fields import CutOffError, read_fields
from naiad.config.backends import BUILT_IN, filenames_of
from naiad.config.model_config_pb2 import ModelConfig

_HEAD_BYTES = 512
_EXCERPT_CHARACTERS = 40
_PYTHON_MODEL = "load it in a model.py (page 'Python models')"
_AGAIN = "copy or download it again"


@dataclass(frozen=True, slots=True)
class FileKind:
    """One kind of file."""

    what: str
    """With its article, for messages."""
    advice: str
    """The first thing to try if there is no backend for it."""
    suffixes: Sequence[str] = ()
    magic: bytes = b""
    """A regular expression for its first bytes; empty if they do not identify it."""
    members: Sequence[bytes] = ()
    """Names, or the ends of names, of files in such a ZIP archive; one of them is enough."""
    marker: str = ""
    """Name of a file that directories of this kind have."""
    beside: Sequence[str] = ()
    """Names of further files that they all have."""
    backend: str = ""
    """The backend for such files, empty if there is none."""
    is_damage: bool = False
    """Whether such a file is never a model, under any name."""

    @property
    def is_served(self) -> bool:
        """Whether naiad has its backend."""
        return self.backend in BUILT_IN


_OF_TOKENIZER = ("config.json", "tokenizer.json")
ONNX = FileKind("an ONNX model", "name it model.onnx", (".onnx",), backend="onnxruntime")
PYTHON = FileKind("a Python file", "define a class TritonPythonModel in it", (".py",), backend="python")
_ANY = FileKind("a model", "")
KINDS: Sequence[FileKind] = (
    FileKind(
        "a git-lfs pointer",
        "run 'git lfs pull' where it was cloned",
        magic=rb"version https://git-lfs\.github\.com/",
        is_damage=True,
    ),
    FileKind(
        "an HTML page",
        "download the file itself: GitHub and Hugging Face have it under 'raw' and 'resolve', not under 'blob'",
        magic=rb"\s*<(?i:!doctype html|html|head)",
        is_damage=True,
    ),
    FileKind(
        "an XML error of an object store",
        "download it again with valid credentials",
        magic=rb"\s*(<\?xml[^>]*>\s*)?<Error>",
        is_damage=True,
    ),
    ONNX,
    PYTHON,
    FileKind(
        "a Python pickle (joblib, scikit-learn)",
        "scikit-learn: export it with skl2onnx.to_onnx(model, X), or serve the file itself with --allow-pickle if "
        f"you trust it; or {_PYTHON_MODEL}",
        (".joblib", ".pkl", ".pickle"),
        rb"\x80[\x02-\x05]",
        backend="sklearn",
    ),
    FileKind("a skops file", _PYTHON_MODEL, (".skops",), members=(b"schema.json",), backend="sklearn"),
    FileKind(
        "a PyTorch model",
        f"export it with torch.onnx.export, torch.jit.save (.pt) or torch.export.save (.pt2), or {_PYTHON_MODEL}",
        (".pt", ".pth", ".pt2"),
        members=(b"data.pkl", b"archive_format", b"serialized_exported_program.json"),
        backend="pytorch",
    ),
    FileKind(
        "a Keras model",
        f"export it with model.export('model.onnx', format='onnx'), or {_PYTHON_MODEL}",
        (".keras", ".h5", ".hdf5"),
        rb"\x89HDF\r\n\x1a\n",
        members=(b"model.weights.h5",),
        backend="tensorflow",
    ),
    FileKind(
        "a TensorFlow Lite model",
        f"convert it with python -m tf2onnx.convert --tflite FILE --output model.onnx, or {_PYTHON_MODEL}",
        (".tflite",),
        rb"....TFL3",
        backend="litert",
    ),
    FileKind(
        "a TensorFlow SavedModel",
        "serve the directory that has saved_model.pb",
        (".savedmodel",),
        marker="saved_model.pb",
        backend="tensorflow",
    ),
    FileKind(
        "a TensorFlow graph",
        f"convert it with python -m tf2onnx.convert, or {_PYTHON_MODEL}",
        (".pb", ".graphdef"),
        backend="tensorflow",
    ),
    FileKind(
        "an OpenVINO model",
        f"serve the ONNX model that it was made from, or {_PYTHON_MODEL}",
        (".xml",),
        rb"\s*(<\?xml[^>]*>\s*)?<net\b",
        backend="openvino",
    ),
    FileKind(
        "an XGBoost model",
        f"save it with booster.save_model('xgboost.json'), or {_PYTHON_MODEL}",
        (".ubj",),
        rb'\s*\{\s*"(learner|version)"|\{[iIlLU].{1,8}(learner|version)',
        backend="trees",
    ),
    FileKind("a LightGBM model", f"name it model.txt, or {_PYTHON_MODEL}", (), rb"tree\r?\n", backend="trees"),
    FileKind(
        "a treelite checkpoint",
        f"name it checkpoint.tl, or {_PYTHON_MODEL}",
        (".tl",),
        rb"[\x03-\x0f]\0{3}.\0{3}.\0{3}",
        backend="trees",
    ),
    FileKind(
        "an ExecuTorch program", f"with executorch, {_PYTHON_MODEL}", (".pte",), rb"....ET\d\d", backend="executorch"
    ),
    FileKind("a JAX function", "serve it with naiad", (".jaxexport",), backend="jax"),
    FileKind("an MLflow model", f"with mlflow.pyfunc, {_PYTHON_MODEL}", marker="MLmodel", backend="mlflow"),
    # Before the kinds of its other files.
    FileKind(
        "a directory of ONNX Runtime GenAI",
        f"with onnxruntime-genai, {_PYTHON_MODEL}",
        marker="genai_config.json",
        backend="onnx_genai",
    ),
    FileKind(
        "a Hugging Face model",
        f"export it with optimum-cli export onnx, or {_PYTHON_MODEL}",
        marker="model.safetensors",
        backend="huggingface",
    ),
    # After Hugging Face: a directory of the Hub may have both. Only models that generate have defaults for that.
    *(
        FileKind(what, _PYTHON_MODEL, marker=marker, beside=beside, backend=backend)
        for what, beside, backend in (
            ("an ONNX decoder with its tokenizer", (*_OF_TOKENIZER, "generation_config.json"), "onnx_decoder"),
            ("an ONNX export with its tokenizer", _OF_TOKENIZER, "onnx_text"),
        )
        for marker in ("model.onnx", "onnx/model.onnx")
    ),
    FileKind("a GGUF file", "serve it with naiad", (".gguf",), b"GGUF", backend="llamacpp"),
    FileKind(
        "a safetensors file (weights without a graph)",
        f"export the model with optimum-cli export onnx, or {_PYTHON_MODEL}",
        (".safetensors",),
        rb".{4}\0{4}\{",
    ),
    FileKind("a TensorRT engine", "name it model.plan", (".plan", ".engine"), b"[pf]trt", backend="tensorrt"),
    FileKind("a Core ML model", f"serve the model that it was made from, or {_PYTHON_MODEL}", (".mlmodel",)),
    FileKind("a gzip archive", "unpack it", (".gz", ".tgz"), rb"\x1f\x8b"),
    FileKind("a ZIP archive", "unpack it", (".zip",), rb"PK\x03\x04"),
    FileKind("JSON text", _AGAIN, (), rb"\s*[\[{]\s*[\[{\"\]}]"),
)

GENERAL_SUFFIXES = frozenset({"", ".json", ".txt", ".bin", ".model", ".xml"})
"""Suffixes of labels, settings and data too: the content decides."""
_ONNX_FIELDS = frozenset({*range(1, 9), 14, 20, 25, 26})
"""Field numbers of ModelProto."""
_ONNX_GRAPH = 7


def kind_of(path: Path) -> FileKind | None:
    """Return the kind of a file or directory, None for an unknown one.

    By the suffix; by the content where the suffix is unknown or also that of other files.
    """
    try:
        if path.is_dir():
            return next((kind for kind in KINDS if kind.marker and _has_files(path, kind)), None)
        suffix = path.suffix.lower()
        by_suffix = kind_of_suffix(suffix)
        if by_suffix is not None and suffix not in GENERAL_SUFFIXES:
            return by_suffix
        found = kind_of_content(path)
        if found is None and path.stat().st_size and not _onnx_problem(path, path.stat().st_size):
            return ONNX
        return found
    except OSError:
        # The load reports it.
        return kind_of_suffix(path.suffix)


def _has_files(directory: Path, kind: FileKind) -> bool:
    return all((directory / name).is_file() for name in (kind.marker, *kind.beside))


def kind_of_suffix(suffix: str) -> FileKind | None:
    """Return the kind of files with a suffix, None for an unknown one."""
    return next((kind for kind in KINDS if suffix.lower() in kind.suffixes), None)


def kind_of_content(path: Path) -> FileKind | None:
    """Return the kind of a file by its first bytes, None if they identify none. Raises OSError."""
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    if head.startswith(b"PK\x03\x04") and _is_zip(path):
        names = [name.encode() for name in _members(path)]
        by_member = [kind for kind in KINDS if any(name.endswith(tuple(kind.members)) for name in names)]
        if by_member:
            return by_member[0]
    return next((kind for kind in KINDS if kind.magic and re.match(kind.magic, head, re.DOTALL)), None)


def _is_zip(path: Path) -> bool:
    import zipfile  # most models are none

    return zipfile.is_zipfile(path)


def _members(path: Path) -> Sequence[str]:
    """Return the names of the files in a zip file. Raises OSError."""
    import zipfile

    try:
        with zipfile.ZipFile(path) as archive:
            return archive.namelist()
    except zipfile.BadZipFile as error:
        raise OSError(f"{path} is damaged: {error}") from None


def model_file_problem(config: ModelConfig, version_dir: Path) -> tuple[Path, str]:
    """Return the model file of a version, and what is wrong with it as for `file_problem`.

    Only of backends with usual file names: others may have any file.
    """
    usual = filenames_of(config.backend)
    path = version_dir / (config.default_model_filename or next(iter(usual), ""))
    if path.is_dir() and usual:
        path /= usual[0]
    return path, file_problem(path, Path(usual[0]).suffix) if usual else ""


def file_problem(path: Path, usual_suffix: str = "") -> str:
    """Return why a file is not the model that its suffix, or else `usual_suffix`, promises, with the fix.

    Empty if it looks right, and for a file that cannot be read. Reads a few bytes, regardless of the size.
    """
    expected = kind_of_suffix(path.suffix) or kind_of_suffix(usual_suffix) or _ANY
    try:
        size_bytes = path.stat().st_size
        if not path.is_file():
            return ""
        if not size_bytes:
            return f"the file is empty (0 bytes); {_AGAIN}"
        found = kind_of_content(path)
        if found is not None and (found.is_damage or expected is ONNX):
            return f"the file is {found.what} ({_shown(size_bytes)}), not {expected.what}; {found.advice}"
        return _structure_problem(path, expected, size_bytes)
    except OSError:
        # The load reports it.
        return ""


def _structure_problem(path: Path, expected: FileKind, size_bytes: int) -> str:
    """Return what is wrong with a file without known first bytes."""
    if expected is ONNX:
        return _onnx_problem(path, size_bytes)
    with path.open("rb") as file:
        is_zip = file.read(4) == b"PK\x03\x04"
    if is_zip and not _is_zip(path):
        return f"the file is cut off: its {_shown(size_bytes)} are the beginning of {expected.what}; {_AGAIN}"
    return ""


def _onnx_problem(path: Path, size_bytes: int) -> str:
    numbers: set[int] = set()
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data[4:8] == b"ORTM":
            return ""  # ONNX Runtime's own format
        try:
            for field in read_fields(data):
                numbers.add(field.number)
            if _ONNX_GRAPH in numbers:
                return ""
        except CutOffError as error:
            if numbers and numbers <= _ONNX_FIELDS:
                return f"the file of {_shown(size_bytes)} is cut off: {error}; {_AGAIN}"
        except ValueError:
            pass  # other bytes than protobuf
        head = data[:_EXCERPT_CHARACTERS]
    text = head.decode("ascii", errors="replace")
    what = f"text that begins with {text!r}" if text.isprintable() and "\ufffd" not in text else "of another format"
    return f"the file ({_shown(size_bytes)}) is {what}, not {ONNX.what}; {_AGAIN}, or export it again"


def way_out(path: Path) -> str:
    """Return what a file is that no backend serves, and what to do with it; empty for an unknown kind."""
    try:
        content = kind_of_content(path)
    except OSError:
        content = None
    kind = content if content is not None and content.is_damage else kind_of(path)
    return f"it is {kind.what}; {kind.advice}" if kind is not None else ""


def _shown(size_bytes: int) -> str:
    return f"{size_bytes:,} byte{'' if size_bytes == 1 else 's'}"
