"""Conversions in subprocesses, cached by the content of what they are made from."""

import errno
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from naiad.core.tensor import TensorSpec
from naiad.core.version import PACKAGE_DIR, __version__
from naiad.files.digest import content_digest
from naiad.files.replacement import synchronize_files
from naiad.tools.optimize.candidate import Candidate, Conversion, Status
from naiad.tools.optimize.converters.conversion_child import FULL_DISK
from naiad.tools.optimize.converters.conversion_job import CALIBRATION_SAMPLES, ConversionJob, JobTensor
from naiad.tools.optimize.converters.conversion_plan import installed_packages
from naiad.tools.optimize.converters.operators import missing_operator
from naiad.tools.optimize.optimize_source import Samples, ShapeRange, Source
from naiad.tools.optimize.samples.chunks import ChunkedSamples, write_chunks
from naiad.tools.optimize.samples.sample_reader import digest, shape_ranges
from naiad.tools.process.child import with_this_path
from naiad.tools.process.running import EndedProcess, ProcessLimits, run

_RESULT = "conversion.json"
_PROBE_BYTES = 1 << 16
_LOG_CHARACTERS = 4000


@dataclass(frozen=True, slots=True)
class Converter:
    """Converts one source in a workspace."""

    source: Source
    samples: ChunkedSamples
    samples_digest: str
    ranges: Mapping[str, ShapeRange]
    workspace: Path
    limits: ProcessLimits = field(default_factory=ProcessLimits)

    @staticmethod
    def open(
        source: Source,
        samples: Samples,
        workspace: Path,
        ranges: Mapping[str, ShapeRange] | None = None,
        limits: ProcessLimits | None = None,
    ) -> "Converter":
        """Return a converter that has the samples for tracing and calibration in its workspace."""
        used = digest(samples)
        chunks = write_chunks(samples, workspace / "samples" / used[:24], CALIBRATION_SAMPLES)
        ranges = ranges or shape_ranges(samples, has_batch=source.has_batch)
        return Converter(source, chunks, used, ranges, workspace, limits or ProcessLimits())

    def convert_all(
        self, candidates: Sequence[Candidate], interpreters: Mapping[str, Path] | None = None
    ) -> Iterator[Conversion]:
        """Convert all candidates in order; `interpreters` by name, for those with an environment of their own."""
        done: dict[str, Conversion] = {}
        for candidate in candidates:
            python = (interpreters or {}).get(candidate.name)
            done[candidate.name] = self.convert(candidate, done.get(candidate.after), python)
            yield done[candidate.name]

    def convert(
        self, candidate: Candidate, after: Conversion | None = None, python: Path | None = None
    ) -> Conversion:
        """Convert, or return what an earlier call with the same content and versions has made.

        A failure is a `Conversion`, not an exception. `after` is the conversion that this candidate is made from.
        """
        nothing = self.workspace / "conversions"
        if candidate.not_run:
            return Conversion(candidate, Status.NOT_RUN, nothing, reason=candidate.not_run)
        if candidate.after and (after is None or after.status in (Status.FAILED, Status.NOT_RUN)):
            why = f"made from '{candidate.after}', which has {after.status.value if after else 'not been made'}"
            return Conversion(candidate, Status.FAILED, nothing, reason=why)
        job = self._job(candidate, after, python)
        folder = nothing / f"{candidate.name}-{self._key(job)[:24]}"
        cached = _read(folder, candidate, self.limits)
        if cached is None:
            _Attempt(job, folder, self.limits, python).run()
            cached = _read(folder, candidate, self.limits)
        if cached is None:
            raise FileNotFoundError(f"{folder}: removed while it was written")
        return cached

    def _job(self, candidate: Candidate, after: Conversion | None, python: Path | None) -> ConversionJob:
        path, made_of = self.source.path, self.source.format
        if after is not None and candidate.after:
            path, made_of = model_file(after.folder), after.candidate.format
        packages = installed_packages(python)
        return ConversionJob(
            made_of.value,
            str(path.absolute()),
            candidate.format.value,
            candidate.precision.value,
            json.loads(json.dumps(candidate.settings)),
            _tensors(self.source.inputs),
            _tensors(self.source.outputs),
            self.source.has_batch,
            {name: (each.minimum, each.typical, each.maximum) for name, each in self.ranges.items()},
            str(self.samples.folder.absolute()),
            environment={name: packages.get(name, "") for name in (*candidate.needs, "numpy")},
        )

    def _key(self, job: ConversionJob) -> str:
        """Return a hash of the contents; the places of files do not count."""
        sha = hashlib.sha256(f"{__version__} {self.samples_digest} {model_digest(Path(job.source))}".encode())
        values = (job.source_format, job.format, job.precision, job.settings, job.inputs, job.outputs, job.has_batch)
        sha.update(json.dumps([*values, job.ranges, job.environment], sort_keys=True, default=str).encode())
        return sha.hexdigest()


def model_file(folder: Path) -> Path:
    """Return the file of a version folder that is the model: model.onnx, model.xml, ..."""
    found = sorted(each for each in folder.iterdir() if each.suffix not in (".bin", ".data"))
    if not found:
        raise FileNotFoundError(f"{folder}: no model file")
    return found[0]


@dataclass(frozen=True, slots=True)
class _Attempt:
    """One run of a subprocess, in a temporary folder that gets its name when all is complete."""

    job: ConversionJob
    folder: Path
    limits: ProcessLimits
    python: Path | None

    def run(self) -> None:
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".unfinished-", dir=self.folder.parent) as temporary:
            unfinished = Path(temporary, "attempt")
            (unfinished / "files").mkdir(parents=True)
            record = self._convert(unfinished, Path(temporary))
            if record["reason"]:
                shutil.rmtree(unfinished / "files")
                (unfinished / "files").mkdir()
            (unfinished / _RESULT).write_text(json.dumps(record), encoding="utf-8")
            synchronize_files(unfinished)
            shutil.rmtree(self.folder, ignore_errors=True)  # a failure under other limits
            unfinished.rename(self.folder)

    def _convert(self, unfinished: Path, temporary: Path) -> dict[str, Any]:
        job_file, result_file, log = unfinished / "job.json", temporary / "result.json", unfinished / "log.txt"
        replace(self.job, output=str(unfinished / "files")).write(job_file)
        python = str(self.python or sys.executable)
        command = [python, "-m", "naiad.tools.optimize.converters.conversion_child", str(job_file), str(result_file)]
        ended = run(command, self.limits, log, self._environment(temporary))
        text = log.read_text(encoding="utf-8", errors="replace")[-_LOG_CHARACTERS:]
        result = _result(result_file)
        reason = _failure(ended, result, text)
        if reason:
            _check_space(unfinished, result, text)
        if not reason and not any((unfinished / "files").iterdir()):
            reason = "the converter wrote no file"
        return {
            "reason": reason,
            "backend_parameters": result.get("backend_parameters", {}),
            "duration_s": ended.duration_s,
            "peak_mib": ended.peak_mib,
            "command": [*command[:3], str(self.folder / "job.json"), str(result_file)],
            "log": text,
            "limits": [self.limits.time_s, self.limits.memory_mib],
        }

    def _environment(self, temporary: Path) -> dict[str, str]:
        variables = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "TMPDIR": str(temporary)}
        if self.job.format != "tensorrt":  # Its builder measures on the GPU.
            variables["CUDA_VISIBLE_DEVICES"] = ""
        if self.python is None:
            return with_this_path(variables)
        # Only naiad: the packages beside it are of another environment.
        own = temporary / "naiad-only"
        own.mkdir()
        (own / "naiad").symlink_to(PACKAGE_DIR)
        variables["PYTHONPATH"] = str(own)
        return variables


def _result(file: Path) -> Mapping[str, Any]:
    """Return what the child has written; nothing if it has ended before, or could not write all of it."""
    try:
        found: Mapping[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return found


def _check_space(folder: Path, result: Mapping[str, Any], log: str) -> None:
    """Raise OSError(ENOSPC) if a conversion has failed for want of space: that says nothing of the candidate.

    A library may not say so, and the log is empty if it is on the same disk, so that writing is tried.
    """
    place = result.get("full_disk", "")
    if not place and os.strerror(errno.ENOSPC) not in log:
        probe = folder / "probe"
        try:
            probe.write_bytes(bytes(_PROBE_BYTES))
        except OSError as error:
            if error.errno not in FULL_DISK:
                raise
        else:
            return
        finally:
            probe.unlink(missing_ok=True)
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), place or str(folder.parent.parent))


def _failure(ended: EndedProcess, result: Mapping[str, Any], log: str) -> str:
    """Return why the conversion failed, "" if it did not."""
    if ended.exceeded:
        return f"the converter was ended: {ended.exceeded}"
    if "reason" in result:
        reason, operator = str(result["reason"]), missing_operator(log)
        known = "has no counterpart" in reason or not operator
        return reason if known else f"operator {operator} has no counterpart: {reason}"
    if not result:
        how = f"signal {-ended.status}" if ended.status < 0 else f"exit status {ended.status}"
        return f"the converter crashed ({how})"
    return ""


def _read(folder: Path, candidate: Candidate, limits: ProcessLimits) -> Conversion | None:
    """Return a finished conversion; None if there is none, or it failed under other limits."""
    try:
        record = json.loads((folder / _RESULT).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    if record["reason"] and record["limits"] != [limits.time_s, limits.memory_mib]:
        return None
    return Conversion(
        candidate,
        Status.FAILED if record["reason"] else Status.CONVERTED,
        folder / "files",
        record["duration_s"],
        record["peak_mib"],
        record["command"],
        record["reason"],
        record["log"],
        record["backend_parameters"],
    )


def _tensors(specs: Sequence[TensorSpec]) -> tuple[JobTensor, ...]:
    return tuple(JobTensor(spec.name, spec.datatype.value, spec.shape) for spec in specs)


def model_digest(path: Path) -> str:
    """Return a hash of a model file with its weights, or of the names and contents of a folder."""
    return content_digest(path, [] if path.is_dir() else _beside(path))


def _beside(path: Path) -> list[Path]:
    """Return the files with the weights of a model file: OpenVINO's .bin, ONNX's external data."""
    names = (path.with_suffix(".bin"), path.with_name(f"{path.name}.data"), path.with_name(f"{path.name}_data"))
    return [each for each in names if each.is_file()]
