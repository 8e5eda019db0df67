"""Proves a package again: its bytes, its answers as naiad serves it, and what its figures mean on this machine."""

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from naiad.core.errors import cause_of
from naiad.files.json_records import read_record
from naiad.tools.optimize.converters.conversion_plan import installed_packages
from naiad.tools.optimize.correctness.runners.isolated import CandidateLimits, IsolatedRunner
from naiad.tools.optimize.correctness.runners.model_runner import RenamedRunner, RunnerError
from naiad.tools.optimize.package.evidence import Evidence, read_evidence
from naiad.tools.optimize.package.manifest import DamagedPackageError
from naiad.tools.optimize.package.package_files import EVIDENCE, Contents, opened
from naiad.tools.optimize.package.short_profile import SECONDS, ShortProfile, measure
from naiad.tools.optimize.package.writing import ENVIRONMENT, PROFILE, RESULT
from naiad.tools.optimize.results.verdict import Verdict
from naiad.tools.optimize.steps.environment import describe

_NO_MATTER = ("memory_mib", "system")
"""Parts of the environment that figures of one model do not depend on."""


@dataclass(frozen=True, slots=True)
class Verification:
    """What holds of a package on this machine."""

    path: Path
    problems: Sequence[str] = ()
    """Files that differ from the manifest; then nothing was loaded."""
    model: str = ""
    candidate: str = ""
    created: str = ""
    digest: str = ""
    """SHA-256 of the manifest's content, which stands for the whole package."""
    files: int = 0
    samples: int = 0
    error: str = ""
    """Why the model did not load or answer."""
    verdict: Verdict | None = None
    differences: Sequence[str] = ()
    """Of processor, cores and versions; figures are comparable if there are none."""
    packaged: ShortProfile | None = None
    measured: ShortProfile | None = None
    served: Mapping[str, Any] = field(default_factory=dict)
    """Figures under load at the time of the optimization, as in result.json; empty if it was not served."""

    @property
    def holds(self) -> bool:
        """Whether every byte is as packaged and the model answers as its source."""
        return not self.problems and not self.error and self.verdict is not None and self.verdict.is_accepted


def verify(
    path: Path, *, is_quick: bool = False, limits: CandidateLimits | None = None, profile_s: float = SECONDS
) -> Verification:
    """Check the bytes, load the model in a process of its own, judge its answers, and measure it; `is_quick` leaves
    out the measurement.

    Code of the model runs, as it does when it is served. Raises NoPackageError, OSError.
    """
    try:
        with opened(path) as contents, tempfile.TemporaryDirectory(prefix="naiad-verify-") as home:
            folder = Path(home, contents.manifest.model)
            contents.copy(folder)
            return _Verifying(contents, folder).run(0.0 if is_quick else profile_s, limits)
    except DamagedPackageError as error:
        return Verification(path, error.problems)


_TOO_MUCH = (OverflowError, RecursionError)
"""What a number or the nesting in a JSON file may lead to."""


class _Verifying:
    def __init__(self, contents: Contents, folder: Path) -> None:
        """Read the evidence. Raises DamagedPackageError."""
        self._contents = contents
        self._folder = folder
        evidence = folder / EVIDENCE
        try:
            self._evidence: Evidence = read_evidence(evidence)
            self._environment = json.loads((evidence / ENVIRONMENT).read_text(encoding="utf-8"))
            self._packaged = read_record(ShortProfile, json.loads((evidence / PROFILE).read_text(encoding="utf-8")))
            result = json.loads((evidence / RESULT).read_text(encoding="utf-8"))
            self._served = _served(result, contents.manifest.candidate)
        except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, *_TOO_MUCH) as error:
            raise DamagedPackageError(contents.path, [f"its evidence is not complete: {cause_of(error)}"]) from error

    def run(self, profile_s: float, limits: CandidateLimits | None) -> Verification:
        manifest = self._contents.manifest
        verdict, measured, reason = None, None, ""
        try:
            runner = IsolatedRunner(self._folder.parent, manifest.model, limits)
            try:
                expectation = self._evidence.expectation
                model = RenamedRunner(runner, expectation.inputs, expectation.outputs)
                verdict = self._evidence.judge(model, manifest.candidate)
                if profile_s and verdict.is_accepted:
                    measured = measure(model, self._evidence.requests(), profile_s)
            finally:
                runner.close()
        except RunnerError as error:
            reason = str(error)
        return Verification(
            self._contents.path,
            model=manifest.model,
            candidate=manifest.candidate,
            created=manifest.created,
            digest=manifest.digest,
            files=len(manifest.files),
            samples=len(self._evidence.samples),
            error=reason,
            verdict=verdict,
            differences=compare_environments(self._environment, describe(installed_packages(), self._environment)),
            packaged=self._packaged,
            measured=measured,
            served=self._served,
        )


def compare_environments(packaged: Mapping[str, str], here: Mapping[str, str]) -> list[str]:
    """Return what differs in processor, cores and versions, in a sentence each."""
    return [
        f"{name} is {here.get(name, 'not installed')} here, {value} when packaged"
        for name, value in packaged.items()
        if name not in _NO_MATTER and here.get(name) != value
    ]


def _served(result: Mapping[str, Any], candidate: str) -> Mapping[str, Any]:
    served = [each["served"] for each in result["outcomes"] if each["candidate"]["name"] == candidate]
    return served[0] or {}
