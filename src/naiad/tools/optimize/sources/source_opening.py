"""Opens a model file as a source: its format, and its tensors from the file, from samples, and from a run."""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from naiad.core.tensor import Array
from naiad.tools.optimize.converters.conversions import model_digest
from naiad.tools.optimize.optimize_source import Samples, Source
from naiad.tools.optimize.samples.sample_reader import from_path
from naiad.tools.optimize.sources.observation import ObservedInputs, observe, parse_tensor
from naiad.tools.optimize.sources.source_formats import detect, refuse_pickle
from naiad.tools.optimize.sources.tensor_reader import Reading, read_tensors
from naiad.tools.process.running import ProcessLimits

_LIMITS = ProcessLimits(time_s=300.0)
_NAME = re.compile(r"[^A-Za-z0-9_.-]+")


def open_source(
    path: Path,
    *,
    name: str = "",
    samples: Path | Samples | None = None,
    inputs: Sequence[str] = (),
    outputs: Sequence[str] = (),
    has_batch: bool | None = None,
    allow_pickle: bool = False,
    limits: ProcessLimits = _LIMITS,
) -> Source:
    """Return the source in a model file or in the folder of a SavedModel, with all its tensors.

    `inputs` and `outputs` are texts as `x:FP32:-1,3,224,224`, with the batch dimension; they narrow what the file
    says, or take its place. What neither has, a run of the model on `samples` shows. A lone array without a name in
    them is the first input. The file is read in a subprocess with `limits`; without `allow_pickle`, pickles are
    refused. Raises ValueError with file, problem and fix.
    """
    source_format = detect(path)
    if not allow_pickle:
        refuse_pickle(path, source_format)
    given, results = (tuple(map(parse_tensor, texts)) for texts in (inputs, outputs))
    read = from_path(samples, ()) if isinstance(samples, Path) else samples
    seen = ObservedInputs((), ()) if read is None else observe(read)
    reading = Reading(
        source_format,
        path,
        given or seen.inputs,
        results,
        has_batch,
        are_observed=not given,
        allow_pickle=allow_pickle,
    )
    tensors = read_tensors(reading, seen.examples, limits)
    name = name or _NAME.sub("_", path.stem) or "model"
    return Source(name, source_format, path, tensors.inputs, tensors.outputs, tensors.has_batch)


def source_digest(source: Source) -> str:
    """Return the SHA-256 of a source: its format, the contents of its files, and its tensors; in hexadecimal.

    Of a Python callable in memory, the path is the file of its content.
    """
    sha = hashlib.sha256(f"{source.format.value} {model_digest(source.path)} {source.has_batch}".encode())
    for spec in source.inputs + source.outputs:
        sha.update(f"{spec.name}:{spec.datatype.value}:{spec.shape};".encode())
    return sha.hexdigest()


@dataclass(frozen=True, slots=True)
class NamedSamples:
    """Samples whose arrays have numbers, `#0`, in place of names."""

    samples: Samples
    names: Sequence[str]

    def __len__(self) -> int:
        return len(self.samples)

    def __iter__(self) -> Iterator[Mapping[str, Array]]:
        names = {f"#{place}": name for place, name in enumerate(self.names)}
        for sample in self.samples:
            yield {names.get(name, name): array for name, array in sample.items()}
