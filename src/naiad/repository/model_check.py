"""Checks models as a server would load them, without starting one and without importing a model framework.

It reads configuration files and names of files; the rules are in `naiad.config`. `check_contents` reads model files.
Facts of the model itself (whether its inputs match the configuration) need a load. `ModelReport` has
the findings about one model; the first functions check its files: versions, model files, labels, samples.
"""

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from naiad.config.autofill import NO_VERSION, autofill, normalize, select_versions
from naiad.config.backends import FILENAMES, RUNTIMES, canonical_name, filenames_of
from naiad.config.forms.pbtxt.lexer import ParsedConfig
from naiad.config.forms.pbtxt.text_format import parse_pbtxt
from naiad.config.model_config_pb2 import ModelConfig
from naiad.config.problem import Problem, Severity, nearest
from naiad.config.validate.ensemble import cycle_message, ensemble_member_problems, find_ensemble_cycle
from naiad.config.validate.file_names import is_outside, name_problem, tensor_files
from naiad.config.validate.model import validate
from naiad.core.errors import InferError
from naiad.repository.check_rollout import check_rollout
from naiad.repository.stores.bare_files import (
    bare_backend,
    check_file_name,
    files_of_folder,
    model_name,
    usual_file_in,
)
from naiad.repository.stores.model_file import kind_of, way_out
from naiad.repository.stores.store import (
    CONFIG_FILE,
    CONFIG_SUFFIXES,
    MAX_CONFIG_BYTES,
    RESERVED,
    LocalStore,
    check_model_name,
    parse_version,
    read_file_text,
)


@dataclass(slots=True)
class ModelReport:
    """The findings about one model."""

    name: str
    path: Path
    config: ModelConfig = field(default_factory=ModelConfig)
    versions: Sequence[int] = ()
    problems: list[Problem] = field(default_factory=list)
    parsed: ParsedConfig | None = None
    not_tried: list[str] = field(default_factory=list)
    """Checks that were left out, with the reason."""

    @property
    def is_ok(self) -> bool:
        """True when a server would try to load the model."""
        return not any(problem.is_error for problem in self.problems)

    def add(
        self,
        message: str,
        place: Path | str = "",
        *,
        expected: str = "",
        suggestion: str = "",
        text: str = "",
        severity: Severity = "error",
    ) -> None:
        """Add a problem: `place` is a path on disk, or the path of a field of the configuration."""
        position = None
        filename = str(place)
        if isinstance(place, str) and self.parsed is not None:
            position, filename = self.parsed.position(place), self.parsed.filename
        self.problems.append(
            Problem(
                message=message,
                path=place if isinstance(place, str) else "",
                filename=filename or str(self.path),
                line=position.line if position else 0,
                column=position.column if position else 0,
                text=text,
                expected=expected,
                suggestion=suggestion,
                severity=severity,
            )
        )


def find_versions(report: ModelReport) -> dict[int, Path]:
    """Return the version directories by number; warn about names that are almost numbers."""
    found: dict[int, Path] = {}
    for child in children_of(report.path):
        version = parse_version(child.name)
        if version is not None and child.is_dir():
            found[version] = child
        elif version is not None:
            fact = dangling_link(child) or "is a file"
            report.add(f"version '{child.name}' {fact}", child, expected="a directory", severity="warning")
        elif child.is_dir() and child.name not in RESERVED:
            _warn_of_version_name(report, child)
    return dict(sorted(found.items()))


def _warn_of_version_name(report: ModelReport, directory: Path) -> None:
    digits = "".join(char for char in directory.name if char.isdigit()).lstrip("0")
    holds_model = not names_in(directory).isdisjoint(FILENAMES)
    if not holds_model and not directory.name.lstrip("-").isdigit():
        return
    report.add(
        f"directory '{directory.name}' of model '{report.name}' is not a version and is ignored",
        directory,
        text=directory.name,
        expected="a number without sign or leading zeros",
        suggestion=digits or "1",
        severity="warning",
    )


def check_versions(report: ModelReport, version_dirs: Mapping[int, Path], names: set[str]) -> None:
    """Check that the policy selects versions: the named ones, and at least one."""
    policy = report.config.version_policy
    for position, version in enumerate(policy.specific.versions):
        if version not in version_dirs:
            report.add(
                f"version {version} is specified for model '{report.name}', but the version directory is not present",
                f"version_policy.specific.versions[{position}]",
                text=str(version),
                expected="one of " + (", ".join(map(str, version_dirs)) or "no version: there is none"),
                severity="warning",
            )
    nothing_asked = any(problem.path.startswith("version_policy") and problem.is_error for problem in report.problems)
    if report.versions or nothing_asked:
        return
    loose = sorted(names.intersection(FILENAMES))
    if version_dirs:
        expected = "a policy that selects one of the versions " + ", ".join(map(str, version_dirs))
    elif loose:
        target = report.path / "1"
        move = f"mkdir {target} && mv {report.path / loose[0]} {target}/"
        expected = f"{loose[0]} in a version directory: {move}"
    else:
        expected = f"a version directory: {report.path / '1'}"
    report.add(NO_VERSION.format(model_name=report.name), report.path, expected=expected)


def check_model_file(report: ModelReport, version_dir: Path) -> None:
    """Check that a version has the model file."""
    config = report.config
    wanted = config.default_model_filename or next(iter(filenames_of(config.backend)), "")
    # Backends without a known file name (identity, third parties) may need no file.
    if not wanted or config.HasField("ensemble_scheduling"):
        return
    if name_problem(wanted) or (version_dir / wanted).exists():
        return
    names = names_in(version_dir)
    own = report.parsed is not None and report.parsed.config.default_model_filename == wanted
    if not own and not names.isdisjoint(RUNTIMES.get(canonical_name(config.backend), ())):
        return  # code instead of a file: a class of PyTorch
    if not own and wanted not in FILENAMES:
        return  # Triton's name for the file of a custom backend, which may need none
    if wanted in names:
        return  # reported as a link without target
    suggestion = nearest(wanted, names) or _same_suffix(wanted, names)
    may_need_none = not filenames_of(config.backend)
    report.add(
        f"version {version_dir.name} of model '{report.name}' has no model file '{wanted}'",
        "default_model_filename" if own else version_dir,
        text=wanted,
        expected=f"{version_dir / wanted}; the directory has {', '.join(sorted(names)) or 'no files'}",
        suggestion=suggestion,
        severity="warning" if may_need_none else "error",
    )


_MAX_LINKS = 20


def check_links(report: ModelReport, version_dirs: Mapping[int, Path]) -> None:
    """Report links without target: an error in a version that is served, a warning elsewhere."""
    served = [version_dirs[version] for version in report.versions]
    places = [(report.path, "warning"), *((place, "error") for place in served)]
    found = [
        (child, fact, severity)
        for place, severity in places
        for child in children_of(place)
        if (fact := dangling_link(child)) and child.name != CONFIG_FILE and parse_version(child.name) is None
    ]
    for child, fact, severity in found[:_MAX_LINKS]:
        expected = "a file or a directory; copy the files that links lead to, too"
        report.add(f"'{child.name}' {fact}", child, expected=expected, severity=cast("Severity", severity))


def dangling_link(path: Path) -> str:
    """Return what is wrong with a link whose target is missing, empty for anything else."""
    if not path.is_symlink() or path.exists():
        return ""
    return f"is a link to '{os.readlink(path)}', which does not exist"


def _warn_of_misplaced_configs(report: ModelReport, names: set[str], version_dirs: Mapping[int, Path]) -> None:
    for version_dir in version_dirs.values():
        if CONFIG_FILE in names_in(version_dir):
            other = "" if CONFIG_FILE not in names else f", which is the one that counts: {report.path / CONFIG_FILE}"
            report.add(
                f"{CONFIG_FILE} of a version directory is not read",
                version_dir / CONFIG_FILE,
                expected=f"one {CONFIG_FILE} in the directory of the model{other}",
                severity="warning",
            )


def _same_suffix(wanted: str, names: set[str]) -> str:
    """Return the only file of the wanted kind, which is probably the model under another name."""
    alike = [name for name in names if Path(name).suffix == Path(wanted).suffix]
    return alike[0] if len(alike) == 1 else ""


def check_side_files(report: ModelReport) -> None:
    """Check that the files in the configuration exist."""
    for field_path, folder, name in tensor_files(report.config):
        directory = report.path / folder
        if not name or name_problem(name) or is_outside(name):
            continue  # reported with the configuration
        if not (directory / name).is_file():
            report.add(
                f"failed to open text file for read {directory / name}: No such file or directory",
                field_path,
                text=name,
                expected=f"a file of {directory}",
                suggestion=nearest(name, names_in(directory)),
            )


def children_of(directory: Path) -> list[Path]:
    """Return the children of a directory, sorted."""
    try:
        return sorted(directory.iterdir())
    except OSError:
        # An unreadable directory looks empty, and its missing files are reported.
        return []


def names_in(directory: Path) -> set[str]:
    """Return the names of what is in a directory."""
    return {child.name for child in children_of(directory)}


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
    is_model = is_model_dir(path)
    if not is_model and bare_backend(path):
        return [_check_file(path, rules)]
    if files := files_of_folder(path):
        return [_check_file(file, rules) for file in files.values()]
    file = None if is_model else usual_file_in(path)
    if file is not None:
        return [_check_file(file, rules, name=_name_of(path))]
    return [_check_model(path, rules)] if is_model else _check_repository(path, rules)


def _name_of(directory: Path) -> str:
    """Return the name of a directory, also of `.`, which has none in its path."""
    return Path(os.path.abspath(directory)).name


def is_model_dir(path: Path) -> bool:
    """Distinguish a model's directory from a repository and from bare models: it has a configuration or version
    directories.
    """
    names = names_in(path)
    if any(name == CONFIG_FILE or name.endswith(CONFIG_SUFFIXES) for name in names):
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
    names = _names_of_models(root)
    if not names:
        report = ModelReport(root.name, root)
        report.add(
            "there is no model in this directory",
            root,
            expected="a directory for each model, as in model/1/model.onnx",
        )
        for file in children_of(root):
            if explanation := file.is_file() and way_out(file):
                report.add(f"this file cannot be served: {explanation}", file)
        return [report]
    reports = [_check_model(root / name, rules) for name in names]
    _check_ensembles(reports)
    return reports


def _names_of_models(root: Path) -> Sequence[str]:
    try:
        return LocalStore(root).list_models()
    except InferError:
        return ()  # as `children_of`


def _check_ensembles(reports: Sequence[ModelReport]) -> None:
    """Check ensembles against their members, and for cycles of ensembles."""
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
                cycle_message(cycle),
                f"ensemble_scheduling.step[{step}].model_name",
                text=cycle[1],
                expected="a model that does not contain this ensemble",
            )


# --- one model ------------------------------------------------------------------------------------------------------


def _check_file(path: Path, rules: _Rules, *, name: str = "") -> ModelReport:
    """Check a configuration file without the files in it; a bare model has no configuration."""
    own_name = path.parent.resolve().name if path.name == CONFIG_FILE else model_name(Path(os.path.abspath(path)))
    report = ModelReport(name or own_name, path)
    is_config = path.name == CONFIG_FILE  # regardless of its content, which may look like something else
    if not is_config and (backend := bare_backend(path)):
        try:
            check_file_name(path)
        except InferError as error:
            return ModelReport(ascii(report.name), Path(ascii(str(path))), problems=[Problem(message=error.message)])
        preset = ModelConfig(backend=backend, default_model_filename=path.name)
        report.config = autofill(preset, model_name=report.name)
        return report
    if not is_config and kind_of(path) is not None:
        report.add(f"this file cannot be served: {way_out(path)}", path)
        return report
    _read_config(report, path)
    if report.parsed is not None:
        report.name = report.parsed.config.name or report.name
        _check_config(report, rules, version_files=(), has_directory=False)
    return report


def _check_model(model_dir: Path, rules: _Rules) -> ModelReport:
    report = ModelReport(_name_of(model_dir), model_dir)
    try:
        check_model_name(report.name)
        os.scandir(model_dir).close()
    except InferError as error:
        report.add(error.message, model_dir)
        return report
    except OSError as error:
        report.add(f"the directory cannot be read: {error.strerror}", model_dir)
        return report
    names = names_in(model_dir)
    if CONFIG_FILE in names:
        _read_config(report, model_dir / CONFIG_FILE)
    else:
        _check_missing_config(report, names, rules.strict)
    version_dirs = find_versions(report)
    policy = report.parsed.config.version_policy if report.parsed else report.config.version_policy
    report.versions = select_versions(policy, list(version_dirs))
    config = report.parsed.config if report.parsed else report.config
    rollout, problems = check_rollout(model_dir, names, version_dirs, config)
    report.problems += problems
    if rollout is not None:
        report.versions = sorted({*report.versions, *rollout.versions.intersection(version_dirs)})
    first = version_dirs[report.versions[0]] if report.versions else None
    files = sorted(names_in(first)) if first else sorted(names) if not version_dirs else ()
    _check_config(report, rules, version_files=files, has_directory=True)
    check_versions(report, version_dirs, names)
    check_links(report, version_dirs)
    _warn_of_misplaced_configs(report, names, version_dirs)
    for version in report.versions:
        check_model_file(report, version_dirs[version])
    check_side_files(report)
    return report


def _read_config(report: ModelReport, path: Path) -> None:
    unread = ParsedConfig(str(path))
    unread.is_unread = True
    report.parsed = unread
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            report.add(
                "the file is larger than any configuration", path, expected=f"at most {MAX_CONFIG_BYTES} bytes"
            )
            return
        text = read_file_text(path)
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
    others = sorted(name for name in names if name.endswith(CONFIG_SUFFIXES) or nearest(name, [CONFIG_FILE]))
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
    """Complete and check the configuration; consequences of mistakes in the text are left out."""
    parsed = report.parsed or ParsedConfig(str(report.path))
    model_name = report.name if has_directory else ""
    filled = autofill(parsed.config, model_name=report.name, version_files=version_files)
    report.config = normalize(filled, gpu_count=rules.gpu_count, default_cpu_instances=1)
    if parsed.is_unread:
        return
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
    """Return whether `problem` is about an unreadable field, or about one around or inside such a field."""
    return any(
        problem.path.startswith(mistake.path) or mistake.path.startswith(problem.path)
        for mistake in mistakes
        if problem.path and mistake.path
    )
