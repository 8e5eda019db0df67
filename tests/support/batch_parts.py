"""Parts of a batch prediction for tests: a model without a server, signatures, and files that are read back."""

import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.datatype import DataType
from naiad.core.errors import InferError, internal
from naiad.core.model import ModelMetadata
from naiad.core.tensor import Array, Shape, TensorSpec
from naiad.tools.predict import prediction
from naiad.tools.predict.files.input_files import find_files
from naiad.tools.predict.files.row_reader import Reader
from naiad.tools.predict.job_signature import RowSignature, read_signature
from naiad.tools.predict.prediction_job import PredictJob
from naiad.tools.predict.rows.chunk import Chunk

Tensors = Mapping[str, tuple[DataType, Shape]]
_OUTPUTS: Tensors = {"Y": (DataType.FP32, (1,))}


def metadata(inputs: Tensors, outputs: Tensors, *, max_batch_size: int = 8) -> tuple[ModelMetadata, ModelConfig]:
    """Return what a server says about a model; shapes are without the batch dimension."""
    batch: Shape = (-1,) if max_batch_size else ()
    specs = [
        [TensorSpec(name, kind, (*batch, *dims)) for name, (kind, dims) in tensors.items()]
        for tensors in (inputs, outputs)
    ]
    config = ModelConfig(name="m", max_batch_size=max_batch_size)
    for name, (_, dims) in inputs.items():
        config.input.add(name=name, dims=dims)
    return ModelMetadata("m", ("1",), "", *specs), config


def signature(
    inputs: Tensors, outputs: Tensors | None = None, *, max_batch_size: int = 8, **fields: Any
) -> RowSignature:
    """Return the signature of a model named `m`."""
    job = PredictJob("models", "m", ["in"], "out.jsonl", **fields)
    return read_signature(job, *metadata(inputs, outputs or _OUTPUTS, max_batch_size=max_batch_size))


def chunks(
    path: Path | str, model: RowSignature, *, rows: int = 3, max_bytes: int = 1 << 20, skip: int = 0, **fields: Any
) -> list[Chunk]:
    """Return what a job reads from files."""
    job = PredictJob("models", "m", [str(path)], "out.jsonl", **fields)
    reader = Reader(find_files(job.inputs, [Path(job.output)]), job, model)
    found = []
    try:
        assert reader.skip(skip) == skip
        while (chunk := reader.read(rows, max_bytes)) is not None:
            found.append(chunk)
    finally:
        reader.close()
    return found


def values(found: Iterable[Chunk], name: str) -> list[Any]:
    """Return the values of an input by row, as lists; None in failed rows."""
    rows: list[Any] = []
    for chunk in found:
        part: list[Any] = [None] * chunk.count
        for group in chunk.groups:
            for offset, row in zip(group.offsets, group.arrays.get(name, ()), strict=False):
                part[offset] = np.asarray(row).tolist()
        rows += part
    return rows


def reasons(found: Iterable[Chunk]) -> dict[int, str]:
    """Return row in its file -> why it failed."""
    return {chunk.first + offset: text for chunk in found for offset, text in chunk.failures.items()}


class Doubling:
    """A model without a server: Y = 2 * X, NAME = the text of the first element of X.

    It fails for the whole request if a row begins with a value of `bad`.
    """

    inputs: ClassVar[Tensors] = {"X": (DataType.FP32, (2,))}
    outputs: ClassVar[Tensors] = {"Y": (DataType.FP32, (2,)), "NAME": (DataType.BYTES, (1,))}

    def __init__(self, bad: Iterable[float] = (), *, max_batch_size: int = 4) -> None:
        self.bad = list(bad)
        self.max_batch_size = max_batch_size
        self.requests: list[int] = []
        """Rows of each request."""
        self.failures: list[InferError] = []
        """Of the next requests, with any content."""

    async def metadata(self) -> ModelMetadata:
        return metadata(self.inputs, self.outputs, max_batch_size=self.max_batch_size)[0]

    async def config(self) -> ModelConfig:
        return metadata(self.inputs, self.outputs, max_batch_size=self.max_batch_size)[1]

    async def infer(self, inputs: Mapping[str, Array], outputs: Iterable[str]) -> Mapping[str, Array]:
        rows = inputs["X"]
        self.requests.append(len(rows))
        if self.failures:
            raise self.failures.pop(0)
        if np.isin(rows[:, 0], self.bad).any():
            raise internal("the row is bad")
        names = np.array([[str(row[0]).encode()] for row in rows], object)
        found = {"Y": rows * 2, "NAME": names}
        return {name: found[name] for name in outputs}


def open_here(model: Doubling) -> Any:
    """Return what opens a model of this process instead of a repository's."""

    @contextlib.asynccontextmanager
    async def open_endpoint(job: PredictJob, *, follows_versions: bool = False) -> AsyncIterator[Doubling]:
        yield model

    return open_endpoint


@contextlib.contextmanager
def served(model: Doubling) -> Any:
    """Have jobs use a model of this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prediction, "open_endpoint", open_here(model))
        yield model
