"""Why a server did not start: one readable line per problem, and the command that shows more."""

import fnmatch
import os
import re
import shlex
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from naiad.config.problem import errors_of, nearest
from naiad.core.errors import ErrorCode, InferError
from naiad.core.model import UNLOADED, IndexEntry, ModelState
from naiad.options.options import RepositoryOptions
from naiad.repository.check import ModelReport, check_path
from naiad.repository.cloud.url import is_cloud_url
from naiad.repository.stores.stores import DUPLICATE
from naiad.server.process.runner import FailedStartError

_MAX_PROBLEMS = 20
_CODE = re.compile(rf"^({'|'.join(code.words for code in ErrorCode)}): ")
_PYTHON_PLACE = re.compile(r" At: (\S+)\((\d+)\): .*")
_MISSING_MODULE = re.compile(r"No module named '([\w.]+)'")


def failed_start(
    rows: Sequence[IndexEntry], options: RepositoryOptions, known_backends: Collection[str], gpu_count: int
) -> FailedStartError:
    """Return the error of a start with failed models; reads the repositories."""
    failed = {row.name for row in rows if _has_failed(row)}
    # The findings of `naiad check` have file, line and the expected value; other failures need a load.
    reports = list(_check(options, known_backends, gpu_count))
    checked = {report.name for report in reports if report.name in failed and not report.is_ok}
    problems = [str(each) for report in reports if report.name in checked for each in errors_of(report.problems)]
    problems += [_problem(row) for row in rows if _has_failed(row) and row.name not in checked]
    names = {str(row.name) for row in rows}
    for name in options.load_models:
        if name != "*" and not fnmatch.filter(names, name):
            problems.append(_absent(name, options, [report.name for report in reports]))
    if len(problems) > _MAX_PROBLEMS:
        problems[_MAX_PROBLEMS:] = [f"and {len(problems) - _MAX_PROBLEMS} more"]
    commands = " and ".join(f"naiad check {shlex.quote(path)} --load" for path in dict.fromkeys(options.paths))
    hint = f"For more: {commands}. To serve the other models: --exit-on-error=false. For tracebacks: --log-verbose=1."
    return FailedStartError(problems, hint)


def _has_failed(row: IndexEntry) -> bool:
    return row.state is ModelState.UNAVAILABLE and row.reason not in ("", UNLOADED)


def _absent(name: str, options: RepositoryOptions, known: Collection[str]) -> str:
    near = nearest(name, known)
    hint = f"did you mean '{near}'?" if near else "expected the name of a model's directory"
    return f"--load-model={name}: there is no such model in {' or '.join(options.paths)}; {hint}"


def _check(options: RepositoryOptions, known_backends: Collection[str], gpu_count: int) -> Iterator[ModelReport]:
    """Yield what `naiad check` reports about the models on disk."""
    for path in options.paths:
        if is_cloud_url(path):
            continue
        try:
            yield from check_path(
                Path(path), known_backends=known_backends, strict=not options.auto_complete, gpu_count=gpu_count
            )
        except (InferError, OSError):
            continue  # the reasons of the failed loads remain


def _problem(row: IndexEntry) -> str:
    text = _CODE.sub("", " ".join(row.reason.split())).replace(f"{os.getcwd()}/", "")
    text = _PYTHON_PLACE.sub(r" (\1:\2)", text)
    text = text.removeprefix(f"model '{row.name}' version {row.version}: ").removeprefix(f"model '{row.name}': ")
    if text == DUPLICATE:
        text += "; rename one of them, or serve one only"
    missing = _MISSING_MODULE.search(text)
    if missing:
        text += f"; expected an installed package: pip install {missing[1]}, or remove the import"
    return f"{row.name}{row.version and f' version {row.version}'}: {text}"
