"""Say what a server would say about models, without starting one and without importing a model framework.

Reads configuration files and names of files; the rules are `naiad.config`'s. What only the model itself can tell
(whether a file is a valid model, whether its inputs are those of the configuration) shows when it is loaded.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from naiad.config.autofill import FORMATS, autofill, normalize
from naiad.config.parsed_config import ParsedConfig
from naiad.config.pbtxt import parse_pbtxt
from naiad.config.problem import Problem
from naiad.config.suggestion import nearest
from naiad.config.validation import validate
from naiad.config.validation_ensemble import circle_message, find_ensemble_cycle
from naiad.config.validation_members import ensemble_member_problems
from naiad.config.version_policy import select_versions
from naiad.repository.check_files import (
    check_model_file,
    check_side_files,
    check_versions,
    children_of,
    find_versions,
    names_in,
)
from naiad.repository.model_report import ModelReport
from naiad.repository.store import CONFIG_FILE
from naiad.repository.versions import parse_version

_MAX_CONFIG_BYTES = 4 << 20
"""Four bytes, which a character of UTF-8 may take, for each that the parser reads."""
_CONFIG_SUFFIXES = (".pbtxt", ".pbtext", ".prototxt", ".textproto", ".pbtx")
MODEL_SUFFIXES = (".onnx", ".py")
"""Files that are served by themselves, without a model's directory."""


def check_path(
    path: Path, *, known_backends: Collection[str], strict: bool = False, gpu_count: int = 0
) -> list[ModelReport]:
    """Check a repository, the directory of one model, or a configuration file; one report per model.

    `strict` checks as a server with --disable-auto-complete-config: the configuration must be there and complete.
    """
    rules = _Rules(known_backends, strict, gpu_count)
    if path.is_file():
        return [_check_file(path, rules)]
    if not path.is_dir():
        report = ModelReport(path.name, path)
        report.add("no such file or directory", path, expected="a repository, a model or a config.pbtxt")
        return [report]
    if is_model_dir(path):
        return [_check_model(path, rules)]
    return _check_repository(path, rules)


def is_model_dir(path: Path) -> bool:
    """Tell a model's directory from a repository: it has a configuration, a model file or version directories."""
    names = names_in(path)
    if CONFIG_FILE in names or not names.isdisjoint(known.filename for known in FORMATS):
        return True
    if any(name.endswith(_CONFIG_SUFFIXES) for name in names):
        return True
    versions = [path / name for name in names if parse_version(name) is not None]
    return any(CONFIG_FILE not in names_in(version) and not _has_version_dir(version) for version in versions)


def _has_version_dir(path: Path) -> bool:
    return any(parse_version(child.name) is not None and child.is_dir() for child in children_of(path))


@dataclass(frozen=True, slots=True)
class _Rules:
    known_backends: Collection[str]
    strict: bool
    gpu_count: int


def _check_repository(root: Path, rules: _Rules) -> list[ModelReport]:
    names = sorted(child.name for child in children_of(root) if child.is_dir() and not child.name.startswith("."))
    if not names:
        report = ModelReport(root.name, root)
        report.add(
            "there is no model in this directory",
            root,
            expected="a directory for each model, as in model/1/model.onnx",
        )
        return [report]
    reports = [_check_model(root / name, rules) for name in names]
    _check_ensembles(reports)
    return reports


def _check_ensembles(reports: Sequence[ModelReport]) -> None:
    """Check ensembles against their members, and for ensembles that contain each other."""
    members = {report.name: report.config for report in reports}
    graph = {
        report.name: [step.model_name for step in report.config.ensemble_scheduling.step]
        for report in reports
        if report.config.HasField("ensemble_scheduling")
    }
    for report in reports:
        if report.name not in graph:
            continue
        report.problems += ensemble_member_problems(report.config, members, report.parsed)
        cycle = find_ensemble_cycle(graph, report.name)
        if cycle:
            step = graph[report.name].index(cycle[1])
            report.add(
                circle_message(cycle),
                f"ensemble_scheduling.step[{step}].model_name",
                text=cycle[1],
                expected="a model that does not contain this ensemble",
            )


# --- one model ------------------------------------------------------------------------------------------------------


def _check_file(path: Path, rules: _Rules) -> ModelReport:
    """Check a configuration file without the files that it names; in a bare model file there is nothing to check."""
    report = ModelReport(path.parent.resolve().name if path.name == CONFIG_FILE else path.stem, path)
    if path.suffix in MODEL_SUFFIXES:
        report.config = autofill(report.config, model_name=report.name, version_files=[f"model{path.suffix}"])
        return report
    _read_config(report, path)
    if report.parsed is not None:
        report.name = report.parsed.config.name or report.name
        _check_config(report, rules, version_files=(), has_directory=False)
    return report


def _check_model(model_dir: Path, rules: _Rules) -> ModelReport:
    report = ModelReport(model_dir.name, model_dir)
    names = names_in(model_dir)
    if CONFIG_FILE in names:
        _read_config(report, model_dir / CONFIG_FILE)
    else:
        _check_missing_config(report, names, rules.strict)
    version_dirs = find_versions(report)
    policy = report.parsed.config.version_policy if report.parsed else report.config.version_policy
    report.versions = select_versions(policy, list(version_dirs))
    first = version_dirs[report.versions[0]] if report.versions else None
    files = sorted(names_in(first)) if first else sorted(names) if not version_dirs else ()
    _check_config(report, rules, version_files=files, has_directory=True)
    check_versions(report, version_dirs, names)
    for version in report.versions:
        check_model_file(report, version_dirs[version])
    check_side_files(report)
    return report


def _read_config(report: ModelReport, path: Path) -> None:
    try:
        if path.stat().st_size > _MAX_CONFIG_BYTES:
            report.add(
                "the file is larger than any configuration", path, expected=f"at most {_MAX_CONFIG_BYTES} bytes"
            )
            return
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        column = error.start - error.object.rfind(b"\n", 0, error.start)
        message = f"byte 0x{error.object[error.start]:02x} is not UTF-8 text"
        report.problems.append(
            Problem(message=message, filename=str(path), line=line, column=column, expected="UTF-8")
        )
        return
    except OSError as error:
        report.add(f"the file cannot be read: {error.strerror}", path)
        return
    report.parsed = parse_pbtxt(text, str(path))
    report.problems += report.parsed.problems


def _check_missing_config(report: ModelReport, names: set[str], strict: bool) -> None:
    """Report a configuration file under another name, and in strict mode its absence."""
    others = sorted(name for name in names if name.endswith(_CONFIG_SUFFIXES) or nearest(name, [CONFIG_FILE]))
    if others:
        report.add(
            f"'{others[0]}' is not read as the configuration of model '{report.name}'",
            report.path / others[0],
            expected=f"a file named {CONFIG_FILE}",
            suggestion=CONFIG_FILE,
            severity="error" if strict else "warning",
        )
    elif strict:
        report.add(
            f"model '{report.name}' has no {CONFIG_FILE}, which is needed without auto-complete",
            report.path,
            expected=f"{CONFIG_FILE}, which `naiad config init` writes",
        )


def _check_config(report: ModelReport, rules: _Rules, *, version_files: Sequence[str], has_directory: bool) -> None:
    """Complete and check the configuration; what only follows from a mistake of the text is left out."""
    parsed = report.parsed or ParsedConfig(str(report.path))
    model_name = report.name if has_directory else ""
    filled = autofill(parsed.config, model_name=report.name, version_files=version_files)
    report.config = normalize(filled, gpu_count=rules.gpu_count, default_cpu_instances=1)
    problems = validate(
        report.config,
        model_name=model_name,
        parsed=parsed,
        known_backends=rules.known_backends,
        gpu_count=rules.gpu_count,
        complete=rules.strict and not parsed.problems,
    )
    report.problems += [problem for problem in problems if not _follows(problem, parsed.problems)]


def _follows(problem: Problem, mistakes: Sequence[Problem]) -> bool:
    """Tell whether `problem` is about a field that could not be read, or about one around or inside such a field."""
    return any(
        problem.path.startswith(mistake.path) or mistake.path.startswith(problem.path)
        for mistake in mistakes
        if problem.path and mistake.path
    )
