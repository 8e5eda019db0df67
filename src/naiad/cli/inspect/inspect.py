"""`naiad inspect`: what model files contain and what would serve them."""

import argparse
import ast
import importlib.util
import pickletools
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import orjson

from naiad.backend.loading import load_backend
from naiad.cli.config import INSTALL, build_config
from naiad.cli.inspect.archives import read_keras, read_skops, read_torch
from naiad.cli.inspect.file_report import Inspection, TensorRow
from naiad.cli.inspect.protobuf_models import read_graph_def, read_onnx, read_saved_model
from naiad.cli.inspect.text_models import read_forest, read_hugging_face, read_mlflow, read_openvino, read_safetensors
from naiad.cli.inspect.tflite import read_tflite
from naiad.cli.parser import Parser, fail
from naiad.config.backends import BUILT_IN, PACKAGES, install_command
from naiad.core.datatype import BY_CONFIG_NUMBER
from naiad.core.errors import InferError, invalid_argument
from naiad.files.below import files_below
from naiad.repository.stores.model_file import file_problem, kind_of, way_out

_MAX_BYTES = 256 << 20
_HARMLESS = ("sklearn.", "numpy.", "scipy.", "joblib.", "collections.", "copyreg.", "builtins.object")


def read_pickle(path: Path, found: Inspection) -> None:
    """List the globals of a pickle. Raises OSError."""
    data = path.read_bytes()[:_MAX_BYTES]
    if data[:1] == b"\x78":
        data = zlib.decompressobj().decompress(data, _MAX_BYTES)
    names: set[str] = set()
    try:
        for name in _globals(data):
            names.add(name)
    except Exception as error:  # joblib puts the bytes of arrays into the pickle; damaged ones fail with anything
        found.unread.append(f"the names after the first array or damage: {error}")
    found.operators.update(names)
    foreign = sorted(name for name in names if not name.startswith(_HARMLESS))
    found.problems.append(
        "loading a pickle executes its code; it names "
        + (", ".join(foreign) if foreign else "only scikit-learn, numpy, scipy and joblib as far as it is read")
        + "; serve it with --allow-pickle only if you trust it"
    )


def _globals(data: bytes) -> Iterator[str]:
    """Yield what a pickle imports: `module.name`."""
    memo: list[object] = []
    pushed: list[object] = []
    for operation, argument, _ in pickletools.genops(data):
        if operation.name == "GLOBAL":
            yield str(argument).replace(" ", ".")
        elif operation.name == "STACK_GLOBAL":
            yield ".".join(map(str, pushed[-2:]))
        elif operation.name in ("BINGET", "LONG_BINGET") and isinstance(argument, int) and argument < len(memo):
            pushed.append(memo[argument])
        if operation.name == "MEMOIZE":
            memo.append(pushed[-1] if pushed else None)
        elif operation.stack_after and not operation.name.endswith("GET"):
            pushed.append(argument)


def read_source(path: Path, found: Inspection) -> None:
    """Name the classes of a Python file. Raises OSError, ValueError."""
    try:
        tree = ast.parse(path.read_bytes())
    except SyntaxError as error:
        raise ValueError(f"line {error.lineno}: {error.msg}") from error
    found.details["classes"] = ", ".join(node.name for node in tree.body if isinstance(node, ast.ClassDef))
    found.unread.append("inputs and outputs: they follow from executing the file")


_PICKLE = "a Python pickle (joblib, scikit-learn)"
_READERS: Mapping[str, Callable[[Path, Inspection], None]] = {
    "an ONNX model": read_onnx,
    "a Python file": read_source,
    _PICKLE: read_pickle,
    "a skops file": read_skops,
    "a PyTorch model": read_torch,
    "a Keras model": read_keras,
    "a TensorFlow Lite model": read_tflite,
    "a TensorFlow SavedModel": read_saved_model,
    "a TensorFlow graph": read_graph_def,
    "an OpenVINO model": read_openvino,
    "an XGBoost model": read_forest,
    "a LightGBM model": read_forest,
    "a treelite checkpoint": read_forest,
    "a Hugging Face model": read_hugging_face,
    "an MLflow model": read_mlflow,
    "a safetensors file (weights without a graph)": read_safetensors,
}
_EXECUTING = ("a Python file", _PICKLE)
"""Formats whose load executes code of the file."""
_NOT_YET = "not as it is; see the problem"


def inspect(path: Path) -> Inspection:
    """Return what is known of a file or directory. Raises InferError(INVALID_ARG) for one that does not exist."""
    if not path.exists():
        raise invalid_argument(f"{path}: no such file or directory; name a model file or a model's directory")
    given = path
    path = _model_file(path.absolute())
    found = Inspection(str(path), size_bytes=_size_bytes(path))
    kind = kind_of(path)
    if kind is None:
        found.format = "unknown"
        found.problems.append(
            f"it is no model; to check a repository: naiad check {given}"
            if path.is_dir()
            else "neither the name nor the content is that of a known format, such as model.onnx"
        )
        return found
    found.format = kind.what.partition(" ")[2]
    if problem := file_problem(path):
        found.problems.append(problem)
        return found
    if kind.what in _READERS:
        try:
            _READERS[kind.what](path, found)
        except (OSError, ValueError, LookupError, TypeError, AttributeError, zipfile.BadZipFile) as error:
            found.problems.append(f"the file cannot be read completely: {error}")
    if kind.is_served:
        _ask_backend(given, kind.backend, found, kind.what)
    else:
        found.served = f"by no backend: {way_out(path)}"
    return found


def _model_file(path: Path) -> Path:
    """Return the file of the newest version in the directory of a model, or the path itself."""
    if not path.is_dir() or kind_of(path) is not None:
        return path
    versions = sorted((each for each in path.iterdir() if each.name.isdecimal()), key=lambda each: int(each.name))
    files = [each for each in versions[-1].iterdir() if kind_of(each) is not None] if versions else []
    return files[0] if len(files) == 1 else path


def _ask_backend(path: Path, backend: str, found: Inspection, what: str) -> None:
    """Add what the backend of a file or a model's directory would serve, if its framework is installed."""
    found.backend = backend
    try:
        _check_package(backend)
        load_backend(backend, BUILT_IN[backend])
    except InferError as error:
        found.served = f"after {error.message[error.message.index(INSTALL) :]}" if INSTALL in error.message else ""
        found.problems += [] if found.served else [error.message]
        found.unread.append("names, shapes and batching as they are served: the framework is not installed")
        return
    found.served = f"yes: naiad serve {path}"
    if what == _PICKLE:
        found.served += " --allow-pickle"
    if what in _EXECUTING or found.details.get("contents") == "an AOTInductor package":
        found.unread.append("names, shapes and batching as they are served: that would execute code of the file")
        return
    try:
        config, note = build_config(path)
    except InferError as error:
        found.served = _NOT_YET
        found.problems.append(error.message)
        return
    if INSTALL in note:
        found.served = f"after {note[note.index(INSTALL) :]}"
        return
    if note or not config.input:
        if note:
            found.served = _NOT_YET
            found.problems.append(note)
        return
    rows = [-1] if config.max_batch_size else []
    found.inputs, found.outputs = (
        [TensorRow(each.name, _datatype(each.data_type), [*rows, *each.dims]) for each in tensors]
        for tensors in (config.input, config.output)
    )
    found.batching = f"yes, max_batch_size {config.max_batch_size}" if rows else "no"


def _check_package(backend: str) -> None:
    package = PACKAGES.get(backend, "")
    if package and importlib.util.find_spec(package) is None:
        raise invalid_argument(
            f"backend '{backend}' needs the package '{package}', which is not installed: {install_command(backend)}"
        )


def _datatype(number: int) -> str:
    found = BY_CONFIG_NUMBER.get(number)
    return found.name if found is not None else str(number)


def _size_bytes(path: Path) -> int:
    return sum(each.stat().st_size for each in files_below(path))


_DESCRIPTION = """\
Print format, producer, inputs, outputs, batching, size, parameters and operators of model files, the backend that
serves each, and its problems. Nothing in a file is executed; of a pickle the names that it imports are listed.
Without the framework of a file, its own description is read as far as it goes.
The exit status is 1 if a file has a problem, 2 for an invalid command line.
"""


def run(argv: Sequence[str]) -> int:
    """Print the findings and return the exit status."""
    options = make_parser().parse_args(argv)
    try:
        found = [inspect(path) for path in options.paths]
    except InferError as error:
        return fail("naiad inspect", error.message)
    if options.json:
        print(orjson.dumps([each.as_dict() for each in found], option=orjson.OPT_INDENT_2).decode())
    else:
        print("\n".join(each.as_text() for each in found))
    return 1 if any(each.problems for each in found) else 0


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the verb's arguments."""
    parser = Parser(prog="naiad inspect", description=_DESCRIPTION, epilog="example: naiad inspect model.onnx")
    parser.add_argument("paths", metavar="FILE", nargs="+", type=Path, help="a model file, or a model's directory")
    parser.add_argument("--json", action="store_true", help="print a JSON list")
    return parser
