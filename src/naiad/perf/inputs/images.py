"""Pictures as inputs: decoded, resized to the input's shape and scaled, or as the bytes of their files."""

from pathlib import Path
from typing import Any

import numpy as np

from naiad.core.datatype import DataType
from naiad.core.tensor import Array
from naiad.perf.inputs.conversion import array_of_array, is_float, strings
from naiad.perf.inputs.signature import InputError, ModelTensor, Signature
from naiad.perf.inputs.step import Step
from naiad.perf.plan import InputSettings

SUFFIXES = (".jpg", ".jpeg", ".png")
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}


def read_image(path: Path, signature: Signature, settings: InputSettings) -> Step:
    """Return a picture as the sample of a model with one input. Raises InputError.

    An input of strings, or of UINT8 with one dimension, gets the bytes of the file. Others get the pixels, resized to
    the height and width of the input; floating-point ones are multiplied by `settings.image_scale`.
    """
    tensor = signature.single_input(str(path), "a picture")
    dims = tensor.dims
    where = f"{path}, input '{tensor.name}'"
    if tensor.datatype is DataType.BYTES:
        return Step({tensor.name: strings([path.read_bytes()]).reshape(tensor.shape_of(1, None, where))}, str(path))
    if tensor.datatype is DataType.UINT8 and len(dims) == 1:
        content = np.frombuffer(path.read_bytes(), np.uint8)
        return Step({tensor.name: content.reshape(tensor.shape_of(content.size, None, where))}, str(path))
    return Step({tensor.name: _pixels(path, tensor, settings.image_scale, where)}, str(path))


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
