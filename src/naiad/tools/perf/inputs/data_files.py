"""Data of files: `.npy` for a single input, `.npz` and directories with an entry for each, and pictures.

Pictures are decoded, resized to the input's shape and scaled, or sent as the bytes of their files.
"""

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from naiad.core.datatype import DataType
from naiad.core.tensor import Array
from naiad.tools.perf.inputs.request_signature import InputStep, Signature, Stream
from naiad.tools.perf.perf_plan import InputSettings
from naiad.tools.values.conversion import array_of_array, array_of_raw, is_float, strings
from naiad.tools.values.tensor import InputError, ModelTensor


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
        InputStep(
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


# --- pictures -----------------------------------------------------------------------------------------------------

SUFFIXES = (".jpg", ".jpeg", ".png")
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}


def read_image(path: Path, signature: Signature, settings: InputSettings) -> InputStep:
    """Return a picture as the sample of a model with one input. Raises InputError.

    An input of strings, or of UINT8 with one dimension, gets the bytes of the file. Others get the pixels, resized to
    the height and width of the input; floating-point ones are multiplied by `settings.image_scale`.
    """
    tensor = signature.single_input(str(path), "a picture")
    dims = tensor.dims
    where = f"{path}, input '{tensor.name}'"
    if tensor.datatype is DataType.BYTES:
        return InputStep(
            {tensor.name: strings([path.read_bytes()]).reshape(tensor.shape_of(1, None, where))}, str(path)
        )
    if tensor.datatype is DataType.UINT8 and len(dims) == 1:
        content = np.frombuffer(path.read_bytes(), np.uint8)
        return InputStep({tensor.name: content.reshape(tensor.shape_of(content.size, None, where))}, str(path))
    return InputStep({tensor.name: _pixels(path, tensor, settings.image_scale, where)}, str(path))


def _pixels(path: Path, tensor: ModelTensor, scale: float, where: str) -> Array:
    layout = _layout(tensor, where)
    sizes = dict(zip(layout, tensor.dims, strict=True))
    channels = 3 if sizes.get("C") == -1 else sizes.get("C", 1)
    if channels not in _MODES:
        raise InputError(
            f"{where}: expected 1, 3 or 4 channels for a picture, got shape {list(tensor.dims)} as {layout}"
        )
    picture = _open(path).convert(_MODES[channels])
    width, height = (own if sizes[axis] == -1 else sizes[axis] for axis, own in zip("WH", picture.size, strict=True))
    pixels = np.asarray(picture.resize((width, height))).reshape(height, width, channels)
    ordered = np.moveaxis(pixels, 2, 0) if layout == "CHW" else pixels if layout == "HWC" else pixels[:, :, 0]
    return array_of_array(tensor, ordered * np.float32(scale) if is_float(tensor.datatype) else ordered, where)


def _layout(tensor: ModelTensor, where: str) -> str:
    dims = tensor.dims
    if len(dims) == 2:
        return "HW"
    if len(dims) == 3:
        if tensor.layout:
            return tensor.layout[1:]
        if dims[0] in _MODES:
            return "CHW"
        if dims[2] in _MODES:
            return "HWC"
    raise InputError(
        f"{where}: shape {list(dims)} is no picture; expected [channels, height, width] or [height, width, channels] "
        "with 1, 3 or 4 channels, or 'format' in the model's configuration"
    )


def _open(path: Path) -> Any:
    try:
        from PIL import Image, UnidentifiedImageError
    except ModuleNotFoundError:
        raise InputError(f"{path}: pictures need Pillow; pip install 'naiad[perf]'") from None
    try:
        picture = Image.open(path)
        picture.load()
    except (UnidentifiedImageError, OSError, ValueError, Image.DecompressionBombError) as error:
        raise InputError(f"{path}: not a picture that can be read: {error}") from None
    return picture
