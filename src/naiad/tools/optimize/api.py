"""`naiad.optimize`: optimizes a model from Python, with the argument names of Model Navigator."""

import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from naiad.tools.optimize import optimization, preprocessing
from naiad.tools.optimize.choices import Options
from naiad.tools.optimize.function import optimize_function
from naiad.tools.optimize.optimize_progress import Progress
from naiad.tools.optimize.optimize_result import OptimizationResult
from naiad.tools.optimize.optimize_source import Format, Source
from naiad.tools.optimize.samples.chunks import ChunkedSamples
from naiad.tools.optimize.samples.sample_reader import check_sample, from_factory
from naiad.tools.optimize.sources.saving import save
from naiad.tools.optimize.sources.source_opening import NamedSamples, open_source

_FORMATS: Mapping[str, Format] = {
    **{each.value: each for each in Format},
    "torch-exportedprogram": Format.TORCH_EXPORT,
    "tf-savedmodel": Format.SAVED_MODEL,
    "trt": Format.TENSORRT,
}
"""Names of formats: naiad's, and Model Navigator's where they differ."""
_WITHOUT_MEANING: Mapping[str, str] = {
    "runners": "each format is run by its backend of naiad; choose formats with target_formats",
    "optimization_profile": "measurements end by time and confidence: options=Options(profile_s=2.0)",
    "verify_func": "a tolerance or a metric decides: options=Options(correctness=Settings(budget=Budget(...)))",
    "custom_configs": "each format has its candidates already; choose some with options=Options(candidates=...)",
    "model_precision": "choose the precisions of candidates with options=Options(precisions=...)",
    "debug": "the log of each conversion is in the result",
}
_RENAMED = (Format.TORCH, Format.TORCHSCRIPT, Format.AOT_INDUCTOR)
"""Formats whose tensors may have any names."""


def optimize(  # noqa: PLR0913 - the names of Model Navigator
    model: Any,
    dataloader: Iterable[Any],
    *,
    sample_count: int = 100,
    batching: bool | None = True,
    input_names: Sequence[str] = (),
    output_names: Sequence[str] = (),
    target_formats: Iterable[Any] = (),
    target_device: Any = "cpu",
    workspace: Path | str = "naiad-optimize",
    verbose: bool = False,
    options: Options | None = None,
    name: str = "model",
    allow_pickle: bool = False,
    **without_meaning: Any,
) -> OptimizationResult:
    """Convert a model, compare the conversions with it, measure, and return all candidates and the winner.

    `model` is a model of PyTorch, ONNX, Keras, scikit-learn, XGBoost or LightGBM, the path of a model file, or a
    Python function. A model in memory is saved to `workspace` first, where finished steps are found again.

    `dataloader` has the inputs, without labels: a mapping by name, a sequence in the order of the inputs, or one
    array in each item. With `batching` the first axis of each array counts samples. `sample_count` is the most
    samples that are read. `input_names` and `output_names` name tensors that have no names. A function is called with
    keyword arguments for items that are mappings, otherwise with positional ones; it has no conversions and is only
    measured. With `options.preprocessing`, an item is a picture's file as UINT8, or one text. Files
    with pickles need `allow_pickle`, since loading them executes the code in them.

    Other arguments of Model Navigator have no meaning here and are refused unless they are empty. Raises ValueError
    for these, and for a model or data that cannot be read; RunnerError if the model does not answer the data.
    """
    _refuse(without_meaning, target_device)
    chosen = options or Options()
    formats = [_format(each) for each in target_formats]
    chosen = replace(chosen, formats=formats) if formats else chosen
    home = Path(workspace)
    steps = chosen.preprocessing
    are_batches = batching is not False and not steps
    samples = NamedSamples(_read(dataloader, home / "data", sample_count, are_batches), input_names)
    path = Path(model) if isinstance(model, (str, Path)) else save(model, home / "source", name)
    if path is None:
        return optimize_function(model, samples, home, name, batching, output_names, chosen.profile_s)
    # A pickle that was written here is of a model that runs in this process already.
    may_unpickle = allow_pickle or not isinstance(model, (str, Path))
    shown = None if steps else samples
    source = open_source(path, name=name, samples=shown, has_batch=batching, allow_pickle=may_unpickle)
    source = _renamed(source, output_names)
    inputs = (preprocessing.raw_input(steps),) if steps else source.inputs
    named = NamedSamples(samples, [spec.name for spec in inputs])
    check_sample(next(iter(named)), inputs, source.has_batch and not steps, "dataloader")
    return optimization.optimize(source, named, home, chosen, _Lines() if verbose else Progress())


def _refuse(arguments: Mapping[str, Any], target_device: Any) -> None:
    for name, value in arguments.items():
        if name not in _WITHOUT_MEANING:
            raise TypeError(f"optimize() got an unexpected keyword argument '{name}'")
        if value:
            raise ValueError(f"{name} has no meaning in naiad: {_WITHOUT_MEANING[name]}")
    device = str(getattr(target_device, "value", target_device))
    if device != "cpu":
        raise ValueError(f"target_device is '{device}'; candidates are measured on the CPU: target_device='cpu'")


def _format(value: Any) -> Format:
    text = str(getattr(value, "value", value)).lower()
    if text not in _FORMATS:
        raise ValueError(f"target_formats has '{text}'; expected some of {', '.join(sorted(_FORMATS))}")
    return _FORMATS[text]


def _read(dataloader: Iterable[Any], folder: Path, limit: int, are_batches: bool) -> ChunkedSamples:
    """Read the data once: it may be a generator. Data of an earlier call is replaced."""
    shutil.rmtree(folder, ignore_errors=True)
    try:
        return from_factory(lambda: dataloader, folder, (), has_batch=False, are_batches=are_batches, limit=limit)
    except ValueError as error:
        raise ValueError(f"dataloader: {error}") from error


def _renamed(source: Source, names: Sequence[str]) -> Source:
    own = [spec.name for spec in source.outputs]
    if not names or list(names) == own:
        return source
    if source.format not in _RENAMED or len(names) != len(own):
        raise ValueError(f"output_names are {', '.join(names)}; the model's outputs are {', '.join(own)}")
    pairs = zip(source.outputs, names, strict=True)
    return replace(source, outputs=tuple(replace(spec, name=name) for spec, name in pairs))


class _Lines(Progress):
    """Progress as lines on stderr."""

    def step(self, stage: str, name: str, index: int, count: int) -> None:
        """Print what begins."""
        print(f"{stage} {name} ({index + 1} of {count})", file=sys.stderr)

    def done(self, stage: str, name: str, message: str, *, was_cached: bool = False) -> None:
        """Print how it ended."""
        print(f"{stage} {name}: {message}{' (from an earlier run)' if was_cached else ''}", file=sys.stderr)
