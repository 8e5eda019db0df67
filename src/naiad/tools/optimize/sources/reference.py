"""What executes the source itself, so that candidates can be compared with it."""

import shutil
import tempfile
from pathlib import Path

from naiad.tools.optimize.candidate import Candidate, Conversion, Precision, Status
from naiad.tools.optimize.converters import source_files
from naiad.tools.optimize.converters.conversion_job import ConversionJob
from naiad.tools.optimize.correctness.candidate_repository import write_repository
from naiad.tools.optimize.correctness.runners.isolated import CandidateLimits, IsolatedRunner
from naiad.tools.optimize.correctness.runners.model_runner import CallableRunner, Runner
from naiad.tools.optimize.optimize_source import BACKENDS, Format, Source
from naiad.tools.optimize.sources.source_answers import CachedAnswers
from naiad.tools.optimize.sources.source_declaration import declaration
from naiad.tools.optimize.sources.source_opening import source_digest


def reference_runner(
    source: Source, workspace: Path, samples_digest: str = "", limits: CandidateLimits | None = None
) -> Runner:
    """Return a runner of the source, which is loaded for the first request.

    A model file is executed by naiad's backend in a process of its own, with limits. Its answers are in the workspace
    for the next run, under the digests of the source and the samples. A Python callable is called in this process,
    and its answers are not kept, since its content is not known. `infer` raises RunnerError.
    """
    if source.load is not None:
        return CallableRunner(source.load())
    key = source_digest(source)
    folder = workspace / "reference" / key[:24]
    answers = workspace / "answers" / f"{key[:24]}-{samples_digest[:24]}"
    return CachedAnswers(lambda: _isolated(source, folder, limits), answers)


def _isolated(source: Source, folder: Path, limits: CandidateLimits | None) -> Runner:
    """Run the source's file; a pickle was allowed when the source was opened."""
    candidate = Candidate("source", source.format, Precision.FP32, BACKENDS[source.format])
    write_files(source, folder)
    conversion = Conversion(candidate, Status.CONVERTED, folder)
    # The process has read the links in the repository when the model is loaded.
    with tempfile.TemporaryDirectory(prefix="naiad-reference-") as home:
        repository = write_repository(conversion, Path(home), declaration(conversion, source))
        return IsolatedRunner(repository, "source", limits, may_unpickle=source.format is Format.TORCH)


def write_files(source: Source, folder: Path) -> None:
    """Copy the source to the name that its backend looks for; an interrupted copy does not get the folder's name."""
    if folder.is_dir():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".unfinished-", dir=folder.parent) as temporary:
        files = Path(temporary, "files")
        files.mkdir()
        made = source.format.value
        path = str(source.path.absolute())
        source_files.convert(
            ConversionJob(made, path, made, "fp32", {}, (), (), source.has_batch, {}, "", str(files))
        )
        shutil.move(files, folder)
