"""Checks the contents of model files without a load: damage, Python syntax, packages that are missing."""

import ast
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from naiad.config.backends import PACKAGES, PYTHON_RUNTIME, canonical_name, filenames_of, install_command
from naiad.config.problem import Problem
from naiad.files.digest import file_sha256
from naiad.repository.model_check import ModelReport
from naiad.repository.stores.bare_files import bare_backend
from naiad.repository.stores.model_file import model_file_problem

_ENVIRONMENT = "EXECUTION_ENV_PATH"
_DIGEST = "sha256"
"""The parameter that permits one pickle."""
_WORKER_MODULES = frozenset({"triton_python_backend_utils", "c_python_backend_utils"})
"""Modules that only worker processes have."""


def check_contents(
    reports: Sequence[ModelReport], *, allow_pickle: bool = False, runtime_of: Callable[[str], str] = lambda _: ""
) -> None:
    """Add the problems of the model files to the reports; `allow_pickle` as of the server.

    `runtime_of` returns the runtime of a backend: `model.py` for Python files in its place, which need no package.
    """
    for report in reports:
        directories = [report.path / str(version) for version in report.versions]
        if not directories and bare_backend(report.path):
            directories = [report.path.parent]
        if directories and not report.config.HasField("ensemble_scheduling"):
            _check_package(report, runtime_of)
        for directory in directories:
            _check_file(report, directory, allow_pickle=allow_pickle)


def _check_package(report: ModelReport, runtime_of: Callable[[str], str]) -> None:
    """Check that the framework of the backend is installed."""
    backend = report.config.backend
    package = PACKAGES.get(backend, "")
    if not package or runtime_of(backend) == PYTHON_RUNTIME or _is_installed(package):
        return
    if _ENVIRONMENT in report.config.parameters:
        report.not_tried.append(f"whether the environment of {_ENVIRONMENT} has the package '{package}'")
        return
    report.add(
        f"backend '{backend}' needs the package '{package}', which is not installed",
        report.path,
        expected=install_command(backend),
    )


def _check_file(report: ModelReport, directory: Path, *, allow_pickle: bool) -> None:
    path, problem = model_file_problem(report.config, directory)
    if not problem and canonical_name(report.config.backend) == "sklearn":
        problem = _pickle_problem(report, directory, allow_pickle=allow_pickle)
    if problem:
        report.add(problem, path)
    elif path.suffix == ".py" and path.is_file():
        if _ENVIRONMENT in report.config.parameters:
            report.not_tried.append(f"syntax and imports of {path}, which runs in the environment of {_ENVIRONMENT}")
        else:
            report.problems += _source_problems(path, (directory, report.path))


def _pickle_problem(report: ModelReport, directory: Path, *, allow_pickle: bool) -> str:
    """Return why a server refuses the pickle of an estimator; empty if there is none or it is permitted."""
    wanted = report.config.default_model_filename
    candidates = [directory / name for name in ([wanted] if wanted else filenames_of("sklearn"))]
    path = next((each for each in candidates if each.is_file()), None)
    if path is None or path.suffix == ".skops":
        return ""
    parameters = report.config.parameters
    digest = parameters[_DIGEST].string_value.strip().lower() if _DIGEST in parameters else ""
    if not digest:
        needs = f"start the server with --allow-pickle, or set the parameter '{_DIGEST}' (sha256sum {path.name})"
        return "" if allow_pickle else f"{path.name} is a pickle, and loading a pickle executes its code: {needs}"
    try:
        found = file_sha256(path)
    except OSError:
        return ""  # the load reports it
    return "" if found == digest else f"the SHA-256 digest of {path.name} is not the parameter '{_DIGEST}'"


def _source_problems(path: Path, import_paths: Sequence[Path]) -> list[Problem]:
    """Return syntax errors of a Python file, and the modules that it imports first of all and that are missing."""
    try:
        tree = ast.parse(path.read_bytes(), str(path))
    except SyntaxError as error:
        line, column = error.lineno or 0, error.offset or 0
        message = f"{type(error).__name__}: {error.msg}"
        return [
            Problem(message=message, filename=str(path), line=line, column=column, text=(error.text or "").strip())
        ]
    except (ValueError, OSError) as error:  # a null byte; an unreadable file
        return [Problem(message=f"the file is not Python source: {error}", filename=str(path))]
    return [
        Problem(
            message=f"module '{name}' is not installed",
            filename=str(path),
            line=node.lineno,
            column=node.col_offset + 1,
            text=name,
            expected=f"its package in the environment of the server, or in one that {_ENVIRONMENT} names",
        )
        for node, name in _imports(tree)
        if name not in _WORKER_MODULES and not _is_local(name, import_paths) and not _is_installed(name)
    ]


def _imports(tree: ast.Module) -> Iterator[tuple[ast.stmt, str]]:
    """Yield the modules imported at the top level; what a `try` or a function imports may be missing."""
    for node in tree.body:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node, alias.name.partition(".")[0]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node, node.module.partition(".")[0]


def _is_local(name: str, directories: Sequence[Path]) -> bool:
    return any((place / name).is_dir() or any(place.glob(f"{name}.*")) for place in directories)


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):  # ValueError: a module without a specification, as __main__
        return False
