"""Data of numpy files and directories: `.npy` for a single input, `.npz` and directories with an entry for each."""

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from naiad.core.datatype import DataType
from naiad.core.tensor import Array
from naiad.perf.inputs.conversion import array_of_array, array_of_raw, strings
from naiad.perf.inputs.images import SUFFIXES, read_image
from naiad.perf.inputs.signature import InputError, ModelTensor, Signature
from naiad.perf.inputs.step import Step, Stream
from naiad.perf.plan import InputSettings


def read_numpy(path: Path, signature: Signature) -> Stream:
    """Return the samples of an `.npy` or `.npz` file. Raises InputError.

    An array with one dimension more than the input holds samples along the first. Arrays of an `.npz` file that have
    the names of outputs are what responses must equal.
    """
    loaded = _load(path)
    if not isinstance(loaded, dict):
        tensor = signature.single_input(str(path), "an .npy file")
        return _steps(str(path), signature, {tensor.name: _samples(tensor, loaded, str(path))}, {})
    signature.check_names(
        [name for name in loaded if name in signature.inputs or name not in signature.outputs], str(path)
    )
    groups = [
        {
            name: _samples(tensor, loaded[name], f"{path}, array '{name}'")
            for name, tensor in tensors.items()
            if name in loaded
        }
        for tensors in (signature.inputs, {k: v for k, v in signature.outputs.items() if k not in signature.inputs})
    ]
    return _steps(str(path), signature, *groups)


def read_directory(path: Path, signature: Signature, settings: InputSettings) -> Stream:
    """Return the samples of a directory. Raises InputError.

    It has a file for each input: `NAME` with raw little-endian values, or for strings one on each line, or
    `NAME.npy`; and perhaps files for outputs, which responses must equal. Or it has pictures, for a single input.
    """
    inputs, outputs = (
        {name: found for name, tensor in tensors.items() if (found := _column(path, tensor)) is not None}
        for tensors in (signature.inputs, signature.outputs)
    )
    if inputs:
        return _steps(str(path), signature, inputs, outputs)
    pictures = sorted(each for each in path.iterdir() if each.suffix.lower() in SUFFIXES)
    if not pictures:
        names = ", ".join(f"'{name}'" for name in signature.inputs)
        raise InputError(
            f"{path}: expected a file for each input ({names}), with raw values or as .npy, or pictures "
            f"({', '.join(SUFFIXES)})"
        )
    return [read_image(each, signature, settings) for each in pictures]


def _column(directory: Path, tensor: ModelTensor) -> list[Array] | None:
    """Return the samples of a tensor; None without a file."""
    raw, saved = directory / tensor.name, directory / f"{tensor.name}.npy"
    if saved.is_file():
        loaded = _load(saved)
        if isinstance(loaded, dict):
            raise InputError(f"{saved}: expected one array, got an archive of arrays; name it .npz and give its path")
        return _samples(tensor, loaded, str(saved))
    if not raw.is_file():
        return None
    data = _read(raw)
    if tensor.datatype is not DataType.BYTES:
        return [array_of_raw(tensor, data, None, str(raw))]
    lines = data.splitlines()
    return [strings(lines).reshape(tensor.shape_of(len(lines), None, str(raw)))]


def _samples(tensor: ModelTensor, array: Array, where: str) -> list[Array]:
    if array.ndim == len(tensor.dims):
        return [array_of_array(tensor, array, where)]
    if array.ndim != len(tensor.dims) + 1 or not len(array):
        raise InputError(
            f"{where}: expected shape {list(tensor.dims)} for one sample, or with one dimension more for several, "
            f"got {list(array.shape)}"
        )
    return [array_of_array(tensor, sample, f"{where} sample {i}") for i, sample in enumerate(array)]


def _steps(
    source: str, signature: Signature, inputs: Mapping[str, list[Array]], outputs: Mapping[str, list[Array]]
) -> Stream:
    signature.check_names(list(inputs), source)
    counts = {name: len(samples) for name, samples in {**outputs, **inputs}.items()}
    if len(set(counts.values())) > 1:
        found = ", ".join(f"'{name}' has {count}" for name, count in counts.items())
        raise InputError(f"{source}: expected as many samples of each tensor; {found}")
    return [
        Step(
            {name: samples[number] for name, samples in inputs.items()},
            f"{source} sample {number}",
            {name: samples[number] for name, samples in outputs.items()},
        )
        for number in range(next(iter(counts.values())))
    ]


def _load(path: Path) -> Array | dict[str, Array]:
    try:
        loaded: Any = np.load(path, allow_pickle=False)
        return loaded if isinstance(loaded, np.ndarray) else dict(loaded)
    except (ValueError, EOFError, OSError, zipfile.BadZipFile) as error:
        raise InputError(
            f"{path}: not a file of numpy arrays ({error}); strings need a dtype of S or U, since object arrays are "
            "not read"
        ) from None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
