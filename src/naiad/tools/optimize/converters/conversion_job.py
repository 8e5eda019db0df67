"""What a converter gets: a file with the job, readable without the rest of naiad."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from naiad.files.json_records import read_record
from naiad.tools.optimize.samples.chunks import Arrays, ChunkedSamples

CALIBRATION_SAMPLES = 300
"""Samples that int8 calibration reads at most."""


@dataclass(frozen=True, slots=True)
class JobTensor:
    """An input or output."""

    name: str
    datatype: str
    """The protocol's name: FP32, BYTES, ..."""
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ConversionJob:
    """One conversion. Formats and precisions are the values of `Format` and `Precision`."""

    source_format: str
    source: str
    """The model file or folder: of the source, or of the candidate that this one is made from."""
    format: str
    precision: str
    settings: Mapping[str, Any]
    inputs: tuple[JobTensor, ...]
    outputs: tuple[JobTensor, ...]
    has_batch: bool
    ranges: Mapping[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]]
    """Smallest, typical and largest shape by input, with the batch dimension."""
    samples: str
    """A folder of `samples.chunks`."""
    output: str = ""
    """The folder for the model files."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Versions of the packages that the conversion needs."""

    def write(self, file: Path) -> None:
        """Write the job."""
        file.write_text(json.dumps(asdict(self), default=str), encoding="utf-8")

    @staticmethod
    def read(file: Path) -> "ConversionJob":
        """Return the job of a file."""
        return read_record(ConversionJob, json.loads(file.read_text(encoding="utf-8")))

    def batches(self, size: int = 1, limit: int = CALIBRATION_SAMPLES) -> Iterator[Arrays]:
        """Return samples as the model takes them: `size` stacked, if it has a batch dimension."""
        pending: list[Arrays] = []
        for count, sample in enumerate(ChunkedSamples(Path(self.samples))):
            if count >= limit:
                return
            if not self.has_batch:
                yield sample
                continue
            pending.append(sample)
            if len(pending) == size:
                yield {name: np.stack([each[name] for each in pending]) for name in sample}
                pending = []

    def example(self) -> Arrays:
        """Return one call's arrays, for tracing: two equal rows where the batch may vary, so that no axis is 1."""
        first = next(self.batches())
        if not self.has_batch or all(high[0] == 1 for _, _, high in self.ranges.values()):
            return first
        return {name: np.repeat(array, 2, axis=0) for name, array in first.items()}

    def dynamic_axes(self, name: str) -> list[int]:
        """Return the axes of an input that vary in the samples."""
        low, _, high = self.ranges[name]
        return [axis for axis, (least, most) in enumerate(zip(low, high, strict=True)) if least != most]
