"""Pictures in requests and files, to the tensor of an input whose owner has turned this on (`config.pictures`).

A picture is its file in base64, the standard alphabet or the one for URLs: a string, or `{"b64": "..."}`. `{"path":
"..."}` names a file, if the caller of this can read one. Decoding is bounded before it begins: by the bytes of the
file, and by the pixels that the head of the file states, so that a small file cannot become a large picture.
"""

import base64
import binascii
import io
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from naiad.config.model_config_pb2 import ModelConfig
from naiad.config.tensors.pictures import Pictures, picture_shape
from naiad.core.datatype import DataType
from naiad.core.errors import ErrorCode, InferError, excerpt, invalid_argument, unsupported
from naiad.core.tensor import Array, TensorSpec
from naiad.protocol.json.tree import shown

MAX_FILE_BYTES = 32 << 20
"""Of one picture, compressed."""
MAX_PIXELS = 1 << 25
"""Of one picture, before it is scaled: 33 million, 100 MB while it is decoded."""
MAX_TENSOR_BYTES = 1 << 30
"""Of one picture, where the caller has no limit."""
_FORMATS = ("JPEG", "PNG", "WEBP", "BMP")
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
_DEEP_MODES = ("I", "I;16", "I;16B", "I;16L", "F")

ReadFile = Callable[[str], bytes]
"""Returns the content of a file that a request names. Raises InferError."""


def no_files(path: str) -> bytes:
    """Refuse a file: the owner of the model has named no folder."""
    raise invalid_argument(
        f"path '{excerpt(path)}': the server reads no files for this model; send the picture as "
        '{"b64": "..."}, or have the owner of the model add folder=/PATH to its parameter pictures'
    )


class PictureReader:
    """Makes the tensors of one input from pictures."""

    def __init__(self, pictures: Pictures, spec: TensorSpec, config: ModelConfig) -> None:
        """`spec` has the batch dimension. Raises InferError(INVALID_ARG) if the input takes no pictures."""
        self.name = spec.name
        self.folder = pictures.folder
        self._pictures = pictures
        self._datatype = spec.datatype
        declared = next((each for each in config.input if each.name == spec.name), None)
        try:
            self._shape = picture_shape(pictures, spec, declared)
        except ValueError as error:
            raise invalid_argument(f"model '{config.name}': parameter 'pictures': {error}") from None

    @staticmethod
    def takes(value: Any) -> bool:
        """Return whether a JSON value is a picture, or a list that begins with one."""
        if isinstance(value, list) and value:
            value = value[0]
        return isinstance(value, str) or bool(_members(value).keys() & {"b64", "path"})

    def tensor(
        self, values: Sequence[Any], read_file: ReadFile, max_bytes: int
    ) -> tuple[TensorSpec, bytes | memoryview]:
        """Return the tensor of the pictures of a request, a row each; together they have at most `max_bytes`.

        Raises InferError with the number of a wrong picture.
        """
        if not self._shape.has_rows and len(values) != 1:
            raise invalid_argument(f"input '{excerpt(self.name)}' takes one picture at a time, got {len(values)}")
        rows: list[Array] = []
        left_bytes = max_bytes
        for number, value in enumerate(values):
            try:
                rows.append(self.row(value, read_file, left_bytes))
            except _TooLargeError:
                raise invalid_argument(
                    f"the pictures of input '{excerpt(self.name)}' have more than {max_bytes} bytes as a tensor: "
                    "send fewer at a time, or use --http-max-input-size to increase the limit"
                ) from None
            except InferError as error:
                message = f"row {number} of input '{excerpt(self.name)}': {error.message}"
                raise error.with_message(message) from None
            left_bytes -= rows[-1].nbytes
            if rows[-1].shape != rows[0].shape:
                raise invalid_argument(
                    f"row {number} of input '{excerpt(self.name)}' has the shape {list(rows[-1].shape)}, row 0 has "
                    f"{list(rows[0].shape)}: pictures of one request have equal sizes"
                )
        array = np.stack(rows) if self._shape.has_rows else rows[0]
        return TensorSpec(self.name, self._datatype, array.shape), array.reshape(-1).view(np.uint8).data

    def row(self, value: Any, read_file: ReadFile, max_bytes: int = MAX_TENSOR_BYTES) -> Array:
        """Return one picture, without a batch dimension. Raises InferError, before it decodes too large a picture."""
        if isinstance(value, bytes):
            return self._decoded(value, max_bytes)
        if isinstance(value, str):
            return self._decoded(_of_base64(value), max_bytes)
        members = _members(value)
        if members.keys() == {"b64"} and isinstance(members["b64"], str):
            return self._decoded(_of_base64(members["b64"]), max_bytes)
        if members.keys() == {"path"} and isinstance(members["path"], str):
            return self._decoded(read_file(members["path"]), max_bytes)
        raise invalid_argument(f'got {shown(value)}, expected a picture: {{"b64": "..."}} or {{"path": "..."}}')

    def _decoded(self, content: bytes, max_bytes: int) -> Array:
        if len(content) > MAX_FILE_BYTES:
            raise invalid_argument(f"the picture has {len(content)} bytes; at most {MAX_FILE_BYTES} are decoded")
        pixels = self._pixels(content, max_bytes)
        if self._datatype is not DataType.UINT8:
            pixels = self._scaled(pixels)
        if self._shape.layout == "NCHW":
            pixels = pixels.transpose(2, 0, 1)
        return np.ascontiguousarray(pixels)

    def _scaled(self, pixels: Array) -> Array:
        settings = self._pictures
        values = pixels.astype(np.float32)
        if settings.scale != 255:
            values *= np.float32(settings.scale / 255)
        if settings.mean:
            values -= np.asarray(settings.mean, np.float32)
        if settings.std:
            values /= np.asarray(settings.std, np.float32)
        return values.astype(self._datatype.numpy)

    def _pixels(self, content: bytes, max_bytes: int) -> Array:
        """Return [height, width, channels] UINT8."""
        try:
            from PIL import Image
        except ModuleNotFoundError:
            raise unsupported("pictures need Pillow on the server: pip install 'naiad[pictures]'") from None
        try:
            with Image.open(io.BytesIO(content), formats=_FORMATS) as picture:
                self._check(picture.width, picture.height, picture.mode, max_bytes)
                return self._resized(picture.convert(_MODES[self._shape.channels]))
        except InferError:
            raise
        except (Image.DecompressionBombError, Image.DecompressionBombWarning):
            raise _too_many_pixels("more than 89 million") from None
        except Exception as error:  # damaged files raise many kinds of errors in Pillow
            raise invalid_argument(
                f"not readable as a picture ({excerpt(str(error) or type(error).__name__)}); expected a complete "
                f"{', '.join(_FORMATS)} file"
            ) from None

    def _check(self, width: int, height: int, mode: str, max_bytes: int) -> None:
        if width * height > MAX_PIXELS:
            raise _too_many_pixels(f"{width} x {height}")
        if mode in _DEEP_MODES:
            raise invalid_argument(f"the picture has more than 8 bits for each pixel and channel (mode {mode})")
        wanted = (self._shape.height, self._shape.width)
        pixels = math.prod(own if own > 0 else given for own, given in zip(wanted, (height, width), strict=True))
        if pixels * self._shape.channels * self._datatype.item_bytes > max_bytes:
            raise _TooLargeError(ErrorCode.INVALID_ARG, f"the picture has more than {max_bytes} bytes as a tensor")
        if self._pictures.resize == "refuse" and any(
            want not in (-1, got) for want, got in zip(wanted, (height, width), strict=True)
        ):
            raise invalid_argument(
                f"the picture has {height} x {width} pixels (height x width), expected {wanted[0]} x {wanted[1]}; "
                "resize=stretch or resize=crop in the parameter pictures scales it"
            )

    def _resized(self, picture: Any) -> Array:
        from PIL import Image, ImageOps

        height, width = self._shape.height, self._shape.width
        if self._pictures.resize != "refuse" and (picture.height, picture.width) != (height, width):
            if self._pictures.resize == "crop":
                picture = ImageOps.fit(picture, (width, height), Image.Resampling.BILINEAR)
            else:
                picture = picture.resize((width, height), Image.Resampling.BILINEAR)
        array = np.asarray(picture, np.uint8)
        return array.reshape(*array.shape[:2], self._shape.channels)


class _TooLargeError(InferError):
    """The tensors of the pictures of a request are too large together."""


def _too_many_pixels(found: str) -> InferError:
    return invalid_argument(f"the picture has {found} pixels; at most {MAX_PIXELS} are decoded")


def _members(value: Any) -> Mapping[str, Any]:
    if isinstance(value, tuple):
        return dict(value)  # an object in the tree of a request
    return value if isinstance(value, dict) else {}


def _of_base64(text: str) -> bytes:
    """Return the bytes of base64 with either alphabet, with or without padding, also in a data URL."""
    if text.startswith("data:"):
        text = text.partition(",")[2]
    text = text.rstrip("=").replace("-", "+").replace("_", "/")
    if len(text) > MAX_FILE_BYTES * 4 // 3 + 4:
        raise invalid_argument(
            f"the picture has about {len(text) * 3 // 4} bytes; at most {MAX_FILE_BYTES} are decoded"
        )
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError) as error:
        raise invalid_argument(f"a string is a picture in base64, and this one is not: {error}") from None
