"""Inputs that take pictures: the parameter `pictures` of a model, with which the owner turns them on.

    parameters { key: "pictures" value { string_value: "x,resize=crop,mean=0.5/0.5/0.5,std=0.5/0.5/0.5" } }

The first word is the input; without more words pictures must have its size. `protocol.pictures` makes the tensors.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Literal

from naiad.config.forms.findings import Findings
from naiad.config.model_config_pb2 import ModelConfig, ModelInput
from naiad.config.naiad_parameters import PICTURES
from naiad.core.datatype import BY_CONFIG_NUMBER, DataType
from naiad.core.errors import excerpt, invalid_argument
from naiad.core.tensor import TensorSpec

EXPECTED = (
    "INPUT[,resize=refuse|stretch|crop][,size=HEIGHTxWIDTH][,scale=1|255][,mean=M/M/M][,std=S/S/S][,folder=/PATH]"
)
_RESIZES = ("refuse", "stretch", "crop")
_CHANNELS = (1, 3, 4)
_DATATYPES = (DataType.UINT8, DataType.FP16, DataType.FP32, DataType.FP64)
_MAX_SIDE = 16384
_NAMED: dict[int, str] = {ModelInput.FORMAT_NCHW: "NCHW", ModelInput.FORMAT_NHWC: "NHWC"}

Layout = Literal["NCHW", "NHWC"]


@dataclass(frozen=True, slots=True)
class Pictures:
    """How pictures become the tensor of one input."""

    input: str
    resize: str = "refuse"
    """`refuse` another size, `stretch` it, or `crop`: the shorter side is scaled, and the middle is kept."""
    size: tuple[int, int] | None = None
    """Height and width, where the input is free."""
    scale: float = 1.0
    """Floating-point inputs: the value of a pixel of 255, before mean and std."""
    mean: Sequence[float] = ()
    """Of each channel, in the unit of `scale`."""
    std: Sequence[float] = ()
    folder: str = ""
    """Below it clients may name files; empty: they may not."""


@dataclass(frozen=True, slots=True)
class PictureShape:
    """A picture as an input takes it."""

    layout: Layout
    channels: int
    height: int
    """-1: that of the picture."""
    width: int
    has_rows: bool
    """Whether the first dimension is the batch."""


def read_pictures(config: ModelConfig) -> Pictures | None:
    """Return the parameter of a valid configuration; None without one. Raises InferError(INVALID_ARG)."""
    if PICTURES not in config.parameters:
        return None
    try:
        return parse_pictures(config.parameters[PICTURES].string_value)
    except ValueError as error:
        raise invalid_argument(f"model '{config.name}': parameter '{PICTURES}': {error}") from None


def parse_pictures(text: str) -> Pictures:
    """Return what a parameter or flag says. Raises ValueError."""
    name, *words = [word.strip() for word in text.split(",")]
    if not name or "=" in name:
        raise ValueError(f"'{excerpt(text)}' begins with no input; expected {EXPECTED}")
    values: dict[str, str] = {}
    for word in words:
        key, is_pair, value = word.partition("=")
        if not is_pair or key in values or key not in ("resize", "size", "scale", "mean", "std", "folder"):
            raise ValueError(f"'{excerpt(word)}' is unknown or twice; expected {EXPECTED}")
        values[key] = value
    resize = values.get("resize", "refuse")
    if resize not in _RESIZES:
        raise ValueError(f"resize is '{excerpt(resize)}'; expected {', '.join(_RESIZES)}")
    if values.get("scale", "1") not in ("1", "255"):
        raise ValueError(f"scale is '{excerpt(values['scale'])}'; expected 1 or 255, the value of a pixel of 255")
    folder = values.get("folder", "")
    if "folder" in values and not PurePath(folder).is_absolute():
        raise ValueError(f"folder is '{excerpt(folder)}'; expected an absolute path")
    std = _numbers("std", values)
    if 0 in std:
        raise ValueError("std has a 0; expected a number for each channel, not 0")
    scale = float(values.get("scale", "1"))
    return Pictures(name, resize, _size(values), scale, _numbers("mean", values), std, folder)


def _size(values: dict[str, str]) -> tuple[int, int] | None:
    if "size" not in values:
        return None
    sides = values["size"].split("x")
    if len(sides) != 2 or not all(
        side.isascii() and side.isdecimal() and 0 < int(side[:6]) <= _MAX_SIDE for side in sides
    ):
        raise ValueError(f"size is '{excerpt(values['size'])}'; expected HEIGHTxWIDTH, such as 224x224")
    return int(sides[0]), int(sides[1])


def _numbers(key: str, values: dict[str, str]) -> tuple[float, ...]:
    try:
        return tuple(float(each) for each in values[key].split("/")) if key in values else ()
    except ValueError:
        raise ValueError(f"{key} is '{excerpt(values[key])}'; expected numbers such as 0.485/0.456/0.406") from None


def picture_shape(pictures: Pictures, spec: TensorSpec, declared: ModelInput | None = None) -> PictureShape:
    """Return how an input, with its batch dimension, takes a picture. Raises ValueError if it takes none."""
    name = excerpt(spec.name)
    if spec.datatype not in _DATATYPES:
        raise ValueError(f"input '{name}' is {spec.datatype.value}; pictures need UINT8, FP16, FP32 or FP64")
    layout = _layout(spec, declared)
    dims = spec.shape[-3:]
    channels, height, width = dims if layout == "NCHW" else (dims[2], dims[0], dims[1])
    if pictures.size is not None:
        if height not in (-1, pictures.size[0]) or width not in (-1, pictures.size[1]):
            raise ValueError(
                f"size is {pictures.size[0]}x{pictures.size[1]}, and input '{name}' has {height}x{width}"
            )
        height, width = pictures.size
    if pictures.resize != "refuse" and -1 in (height, width):
        raise ValueError(f"resize={pictures.resize} needs size=HEIGHTxWIDTH: input '{name}' takes any size")
    for key, numbers in (("mean", pictures.mean), ("std", pictures.std)):
        if numbers and len(numbers) != channels:
            raise ValueError(f"{key} has {len(numbers)} numbers, and input '{name}' has {channels} channels")
        if numbers and spec.datatype is DataType.UINT8:
            raise ValueError(f"{key} is for floating-point inputs, and input '{name}' is UINT8")
    return PictureShape(layout, channels, height, width, len(spec.shape) == 4)


def _layout(spec: TensorSpec, declared: ModelInput | None) -> Layout:
    named = _NAMED.get(int(declared.format)) if declared is not None else None
    found: list[Layout] = []
    if len(spec.shape) == 3 or (len(spec.shape) == 4 and spec.shape[0] in (-1, 1)):
        if spec.shape[-3] in _CHANNELS and named != "NHWC":
            found.append("NCHW")
        if spec.shape[-1] in _CHANNELS and named != "NCHW":
            found.append("NHWC")
    if len(found) != 1:
        raise ValueError(
            f"input '{excerpt(spec.name)}' has the shape {list(spec.shape)}; a picture needs 3 dimensions, of which "
            "the first or the last is 1, 3 or 4 channels; if both could be, write format: FORMAT_NCHW or FORMAT_NHWC"
        )
    return found[0]


def check_pictures(findings: Findings, *, complete: bool) -> None:
    """Check the parameter."""
    config = findings.config
    if PICTURES not in config.parameters:
        return
    text = config.parameters[PICTURES].string_value
    try:
        pictures = parse_pictures(text)
        declared = next((each for each in config.input if each.name == pictures.input), None)
        if declared is None:
            if complete:
                names = ", ".join(f"'{each.name}'" for each in config.input)
                raise ValueError(f"the model has no input '{excerpt(pictures.input)}'; it has {names or 'none'}")
        elif complete:
            batch = (-1,) if config.max_batch_size > 0 else ()
            spec = TensorSpec(declared.name, BY_CONFIG_NUMBER[declared.data_type], (*batch, *declared.dims))
            picture_shape(pictures, spec, declared)
    except ValueError as error:
        findings.parameter_error(PICTURES, str(error), text=text, expected=EXPECTED)
