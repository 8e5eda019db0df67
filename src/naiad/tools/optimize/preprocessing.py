"""Pre-processing as a part of every candidate: the steps are put before each converted ONNX graph.

Graphs are converted and calibrated with the tensors that the steps make of the samples. What is judged, measured,
served and packaged has the steps in it and takes the samples themselves: pictures as files, or text.
"""

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from naiad.core.datatype import DataType
from naiad.core.tensor import Array, TensorSpec
from naiad.tools.optimize.candidate import Candidate, Conversion, Precision, Status
from naiad.tools.optimize.choices import Options
from naiad.tools.optimize.converters.conversion_plan import installed_packages
from naiad.tools.optimize.converters.conversions import Converter, model_file
from naiad.tools.optimize.converters.onnx.merge import CONFIG, LIBRARY, check_steps
from naiad.tools.optimize.correctness.candidate_repository import write_repository
from naiad.tools.optimize.correctness.runners.isolated import IsolatedRunner
from naiad.tools.optimize.optimize_result import SOURCE
from naiad.tools.optimize.optimize_source import Format, Samples, Source
from naiad.tools.optimize.samples.chunks import write_chunks
from naiad.tools.optimize.samples.sample_reader import digest, from_path

Steps = Sequence[Mapping[str, Any]]

_PICTURES = (".jpg", ".jpeg", ".png")
_PACKAGE = "onnxruntime-extensions"


def read_steps(file: Path) -> list[dict[str, Any]]:
    """Return the steps in a JSON file; the path of a vocabulary is relative to it. Raises ValueError, OSError."""
    try:
        steps = check_steps(json.loads(file.read_text(encoding="utf-8")))
    except (ValueError, AttributeError, TypeError, RecursionError) as error:
        raise ValueError(f"--preprocessing {file}: {error}; write a JSON list of steps") from error
    for step in steps:
        if step["step"] == "tokenize" and isinstance(step["vocabulary"], str):
            step["vocabulary"] = str(file.parent / step["vocabulary"])
    return steps


def raw_input(steps: Steps) -> TensorSpec:
    """Return the only input of a graph with these steps."""
    if steps[0]["step"] == "tokenize":
        return TensorSpec("text", DataType.BYTES, (1,))
    return TensorSpec("image", DataType.UINT8, (-1,))


def read_samples(path: Path, steps: Steps) -> Samples:
    """Return the pictures of a folder, the lines of a .txt file, or arrays as `from_path`. Raises ValueError."""
    if raw_input(steps).datatype is DataType.BYTES and path.suffix == ".txt":
        lines = path.read_text(encoding="utf-8").splitlines()
        return _Texts([line for line in lines if line])
    if path.is_dir():
        pictures = sorted(each for each in path.iterdir() if each.suffix.lower() in _PICTURES)
        if pictures:
            return _Pictures(pictures)
    return from_path(path, (raw_input(steps),), has_batch=False)


def prepare(graph: Source, samples: Samples, workspace: Path, options: Options) -> tuple[Source, Samples]:
    """Return the source with the steps before its graph, and the tensors that the steps make of the samples.

    Raises ValueError if the source is no ONNX file, if onnxruntime-extensions is not installed, or if the steps do
    not fit the graph; RunnerError if they do not answer a sample.
    """
    if graph.format is not Format.ONNX:
        raise ValueError(f"preprocessing needs an ONNX file, the source is {graph.format.value}; export it to ONNX")
    if _PACKAGE not in installed_packages():
        raise ValueError(f"preprocessing needs {_PACKAGE}: pip install {_PACKAGE}")
    steps = _with_vocabulary(check_steps(options.preprocessing))
    converter = Converter.open(graph, samples, workspace, {}, options.converter_limits)
    original = Candidate(SOURCE, Format.ONNX, Precision.FP32, "onnxruntime")
    plain = converter.convert(original)
    alone, whole = _merged(converter, plain, steps, is_alone=True), merge(converter, plain, steps)
    for each in (plain, alone, whole):
        if each.status is not Status.CONVERTED:
            raise ValueError(f"preprocessing does not fit {graph.path}: {each.reason}")
    source = replace(
        graph,
        path=model_file(whole.folder),
        inputs=(raw_input(steps),),
        outputs=tuple(replace(spec, shape=(1, *spec.shape[1:])) for spec in graph.outputs),
        has_batch=False,
        operator_library=LIBRARY,
    )
    folder = workspace / "samples" / f"{digest(samples)[:24]}-{alone.folder.parent.name}"
    return source, write_chunks(_tensors(alone, graph, samples, options), folder)


def merge(converter: Converter, conversion: Conversion, steps: Steps) -> Conversion:
    """Return a conversion with the steps before its graph; without steps, or if it has failed, as it is."""
    if not steps or conversion.status is not Status.CONVERTED:
        return conversion
    return _merged(converter, conversion, _with_vocabulary(steps))


def _merged(converter: Converter, conversion: Conversion, steps: Steps, *, is_alone: bool = False) -> Conversion:
    candidate = conversion.candidate
    merging = replace(
        candidate,
        name=f"{candidate.name}-{'steps' if is_alone else 'merged'}",
        settings={"module": check_steps.__module__, "steps": steps, "is_alone": is_alone},
        after=candidate.name,
        needs=("onnx", _PACKAGE),
    )
    made = converter.convert(merging, conversion)
    return replace(made, candidate=candidate, backend_parameters=conversion.backend_parameters)


def _with_vocabulary(steps: Steps) -> Steps:
    """Return the steps with the words of the vocabulary, so that conversions are cached by its content."""
    if steps[0]["step"] != "tokenize" or not isinstance(steps[0]["vocabulary"], str):
        return steps
    return [{**steps[0], "vocabulary": Path(steps[0]["vocabulary"]).read_text(encoding="utf-8").splitlines()}]


def _tensors(alone: Conversion, graph: Source, samples: Samples, options: Options) -> Iterator[Mapping[str, Array]]:
    with tempfile.TemporaryDirectory(prefix="naiad-steps-") as home:
        repository = write_repository(alone, Path(home), CONFIG)
        runner = IsolatedRunner(repository, alone.candidate.name, options.runner_limits)
    try:
        names = {own.name: spec.name for own, spec in zip(runner.outputs, graph.inputs, strict=True)}
        for sample in samples:
            found = runner.infer(sample)
            yield {name: found[own][0] if graph.has_batch else found[own] for own, name in names.items()}
    finally:
        runner.close()


@dataclass(frozen=True, slots=True)
class _Pictures:
    """Files of pictures, as bytes."""

    files: Sequence[Path]

    def __len__(self) -> int:
        return len(self.files)

    def __iter__(self) -> Iterator[Mapping[str, Array]]:
        for file in self.files:
            yield {"image": np.frombuffer(file.read_bytes(), np.uint8)}


@dataclass(frozen=True, slots=True)
class _Texts:
    """Lines of text."""

    lines: Sequence[str]

    def __len__(self) -> int:
        return len(self.lines)

    def __iter__(self) -> Iterator[Mapping[str, Array]]:
        for line in self.lines:
            yield {"text": np.array([line.encode()], object)}
