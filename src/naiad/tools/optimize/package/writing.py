"""Writes a package: model files, configuration, and the evidence that the model answers as its source."""

import datetime
import json
import os
import shlex
import shutil
import tempfile
from pathlib import Path

from naiad.config.forms.pbtxt.text_format import format_config, parse_pbtxt
from naiad.core.errors import InferError
from naiad.files.json_records import to_json
from naiad.repository.stores.store import CONFIG_FILE, check_model_name
from naiad.tools.optimize.correctness.judgement_settings import Settings
from naiad.tools.optimize.correctness.runners.isolated import CandidateLimits, IsolatedRunner
from naiad.tools.optimize.correctness.runners.model_runner import RenamedRunner, Runner
from naiad.tools.optimize.correctness.tensor_names import match_names
from naiad.tools.optimize.optimize_result import OptimizationResult, Outcome
from naiad.tools.optimize.optimize_source import Samples
from naiad.tools.optimize.package.evidence import collect
from naiad.tools.optimize.package.manifest import MANIFEST, manifest_of
from naiad.tools.optimize.package.package_files import ARCHIVE_SUFFIX, EVIDENCE, is_package, write_archive
from naiad.tools.optimize.package.short_profile import SECONDS, measure

ENVIRONMENT, RESULT, VERDICT, PROFILE, SIGNATURE, COMMANDS = (
    "environment.json", "result.json", "verdict.json", "short_profile.json", "signature.json", "commands.txt",
)  # fmt: skip
_CACHES = shutil.ignore_patterns("__pycache__")


def check_target(target: Path) -> None:
    """Raise FileExistsError if something other than a package is at `target`."""
    if target.exists() and not is_package(target):
        raise FileExistsError(f"{target} exists and is no package; give another path")


def write(  # noqa: PLR0913 - what a package consists of
    result: OptimizationResult,
    samples: Samples,
    config: str,
    target: Path,
    labels: Path | None = None,
    *,
    source: Runner,
    settings: Settings | None = None,
    limits: CandidateLimits | None = None,
    profile_s: float = SECONDS,
) -> Path:
    """Write the winner of an optimization to a folder, or to a zip archive if `target` ends with `.zip`; return it.

    `source` answers the samples, `settings` are the settings of the verdict, `config` is the text of
    `config.pbtxt`, and `labels` is a file that it names. The model is loaded from the package and judged before the
    package has its name.
    An earlier package at `target` is replaced.

    Raises ValueError if no candidate passed, or if the packaged model does not answer as the source, FileExistsError
    if there is something else at `target`, RunnerError if the source or the model fails.
    """
    chosen = _winner(result)
    model, config = _named(config, result, chosen)
    check_target(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".unfinished-", dir=target.parent) as home:
        folder = Path(home, "repository", model)
        _write_model(chosen, folder, config, labels)
        (folder / EVIDENCE).mkdir()
        runner = IsolatedRunner(folder.parent, model, limits)
        try:
            _write_proof(
                result, chosen, samples, source, runner, settings or Settings(), folder / EVIDENCE, profile_s
            )
        finally:
            runner.close()
        _write_record(result, chosen, folder / EVIDENCE)
        for cache in list(folder.rglob("__pycache__")):
            shutil.rmtree(cache)
        created = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        manifest = manifest_of(folder, model, chosen.candidate.name, created)
        (folder / MANIFEST).write_text(manifest.to_json(), encoding="utf-8")
        _put(folder, target, Path(home))
    return target


def _winner(result: OptimizationResult) -> Outcome:
    chosen = result.chosen
    if chosen is None:
        raise ValueError(f"no candidate was chosen, so there is nothing to package: {result.why}")
    if not chosen.can_win or chosen.verdict is None or not chosen.verdict.is_accepted:
        reason = f": {chosen.reason}" if chosen.reason else ""
        raise ValueError(f"{chosen.candidate.name} has not passed and cannot be packaged{reason}")
    return chosen


def _named(config: str, result: OptimizationResult, chosen: Outcome) -> tuple[str, str]:
    """Return the model's name and its configuration; the name is the source's if the configuration has no other."""
    parsed = parse_pbtxt(config, CONFIG_FILE)
    errors = [str(problem) for problem in parsed.problems if problem.is_error]
    if errors:
        raise ValueError("\n".join(errors))
    name = parsed.config.name
    if name in ("", chosen.candidate.name):
        parsed.config.name = name = result.source.name
        config = format_config(parsed.config)
    try:
        check_model_name(name)
    except InferError as error:
        raise ValueError(error.message) from error
    return name, config


def _write_model(chosen: Outcome, folder: Path, config: str, labels: Path | None) -> None:
    if chosen.conversion is None:
        raise ValueError(f"{chosen.candidate.name} has no files to package: its conversion is missing")
    shutil.copytree(chosen.conversion.folder, folder / "1", ignore=_CACHES)
    (folder / CONFIG_FILE).write_text(config, encoding="utf-8")
    if labels is not None:
        shutil.copyfile(labels, folder / labels.name)


def _write_proof(
    result: OptimizationResult,
    chosen: Outcome,
    samples: Samples,
    source: Runner,
    runner: IsolatedRunner,
    settings: Settings,
    folder: Path,
    profile_s: float,
) -> None:
    # Some formats rename tensors; the source may leave its own unnamed.
    inputs, outputs = result.source.inputs or runner.inputs, result.source.outputs or runner.outputs
    names = (
        match_names(inputs, runner.inputs, "inputs"),
        match_names(outputs, runner.outputs, "outputs"),
    )
    model = RenamedRunner(runner, *names)
    evidence = collect(samples, source, model, settings, chosen.candidate, names)
    verdict = evidence.judge(model, chosen.candidate.name)
    if not verdict.is_accepted:
        reasons = "; ".join(failure.message for failure in verdict.failures)
        raise ValueError(f"{chosen.candidate.name} is not packaged, with its configuration it fails: {reasons}")
    evidence.write(folder)
    profile = measure(model, evidence.requests(), profile_s)
    (folder / PROFILE).write_text(to_json(profile), encoding="utf-8")
    tensors = {"inputs": runner.inputs, "outputs": runner.outputs}
    (folder / SIGNATURE).write_text(to_json(tensors), encoding="utf-8")


def _write_record(result: OptimizationResult, chosen: Outcome, folder: Path) -> None:
    (folder / RESULT).write_text(to_json(result), encoding="utf-8")
    (folder / VERDICT).write_text(to_json(chosen.verdict), encoding="utf-8")
    (folder / ENVIRONMENT).write_text(json.dumps(dict(result.environment), indent=1), encoding="utf-8")
    (folder / COMMANDS).write_text(_commands(result, chosen), encoding="utf-8")


def _commands(result: OptimizationResult, chosen: Outcome) -> str:
    lines = ["# optimization", shlex.join(result.command)]
    if chosen.conversion is not None and chosen.conversion.command:
        lines += ["# conversion", shlex.join(chosen.conversion.command)]
    if chosen.served is not None:
        lines += ["# measurement of the throughput", chosen.served.command]
    return "\n".join(lines) + "\n"


def _put(folder: Path, target: Path, home: Path) -> None:
    """Move the finished package to its place."""
    if target.suffix == ARCHIVE_SUFFIX:
        write_archive(folder, home / target.name)
        os.replace(home / target.name, target)
        return
    if target.exists():
        target.rename(home / "replaced")
    folder.rename(target)
