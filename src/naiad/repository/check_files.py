"""Whether the files of a model are where its configuration says: versions, model files, labels, samples."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from naiad.config.autofill import FORMATS
from naiad.config.model_config_pb2 import ModelConfig
from naiad.config.parsed_config import map_path
from naiad.config.suggestion import nearest
from naiad.config.version_policy import NO_VERSION
from naiad.repository.model_report import ModelReport
from naiad.repository.versions import RESERVED, parse_version


def find_versions(report: ModelReport) -> dict[int, Path]:
    """Return the version directories by number; warn of those whose names are not quite numbers."""
    found: dict[int, Path] = {}
    for child in children_of(report.path):
        version = parse_version(child.name)
        if version is not None and child.is_dir():
            found[version] = child
        elif version is not None:
            report.add(f"version '{child.name}' is a file", child, expected="a directory", severity="warning")
        elif child.is_dir() and child.name not in RESERVED:
            _warn_of_version_name(report, child)
    return dict(sorted(found.items()))


def _warn_of_version_name(report: ModelReport, directory: Path) -> None:
    digits = "".join(char for char in directory.name if char.isdigit()).lstrip("0")
    holds_model = not names_in(directory).isdisjoint(known.filename for known in FORMATS)
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
    """Check that the policy finds versions: those that it names, and one at least."""
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
    loose = sorted(names.intersection(known.filename for known in FORMATS))
    if version_dirs:
        expected = "a policy that selects one of the versions " + ", ".join(map(str, version_dirs))
    elif loose:
        expected = f"{loose[0]} in a version directory: {report.path / '1' / loose[0]}"
    else:
        expected = f"a version directory: {report.path / '1'}"
    report.add(NO_VERSION.format(model_name=report.name), report.path, expected=expected)


def check_model_file(report: ModelReport, version_dir: Path) -> None:
    """Check that a version has the model file."""
    config = report.config
    wanted = config.default_model_filename or _usual_filename(config.backend)
    # Backends without a known file name (identity, third parties) may need no file.
    if not wanted or config.HasField("ensemble_scheduling"):
        return
    names = names_in(version_dir)
    if wanted in names or (version_dir / wanted).exists():
        return
    own = report.parsed is not None and report.parsed.config.default_model_filename == wanted
    if not own and wanted not in (known.filename for known in FORMATS):
        return  # Triton's name for the file of a custom backend, which may need none
    suggestion = nearest(wanted, names) or _same_suffix(wanted, names)
    report.add(
        f"version {version_dir.name} of model '{report.name}' has no model file '{wanted}'",
        "default_model_filename" if own else version_dir,
        text=wanted,
        expected=f"{version_dir / wanted}; the directory has {', '.join(sorted(names)) or 'no files'}",
        suggestion=suggestion,
    )


def _usual_filename(backend: str) -> str:
    return next((known.filename for known in FORMATS if known.backend == backend), "")


def _same_suffix(wanted: str, names: set[str]) -> str:
    """Return the only file of the wanted kind, which is then probably the model under another name."""
    alike = [name for name in names if Path(name).suffix == Path(wanted).suffix]
    return alike[0] if len(alike) == 1 else ""


def check_side_files(report: ModelReport) -> None:
    """Check that the files which the configuration names are there."""
    for field_path, folder, name in _named_files(report.config):
        directory = report.path / folder
        if name and not (directory / name).is_file() and ".." not in name.split("/"):
            report.add(
                f"failed to open text file for read {directory / name}: No such file or directory",
                field_path,
                text=name,
                expected=f"a file of {directory}",
                suggestion=nearest(name, names_in(directory)),
            )


def _named_files(config: ModelConfig) -> Iterator[tuple[str, str, str]]:
    """Yield field path, folder below the model's directory and name of every file that a configuration names."""
    for index, output in enumerate(config.output):
        yield f"output[{index}].label_filename", "", output.label_filename
    for index, sample in enumerate(config.model_warmup):
        for name in sorted(sample.inputs):
            path = map_path(f"model_warmup[{index}].inputs", name)
            yield f"{path}.input_data_file", "warmup", sample.inputs[name].input_data_file
    for index, state in enumerate(config.sequence_batching.state):
        for position, initial in enumerate(state.initial_state):
            path = f"sequence_batching.state[{index}].initial_state[{position}].data_file"
            yield path, "initial_state", initial.data_file


def children_of(directory: Path) -> list[Path]:
    """Return what is in a directory, sorted."""
    try:
        return sorted(directory.iterdir())
    except OSError:
        # An unreadable directory looks empty, and what is missing in it is reported.
        return []


def names_in(directory: Path) -> set[str]:
    """Return the names of what is in a directory."""
    return {child.name for child in children_of(directory)}
