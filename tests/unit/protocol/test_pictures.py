"""Pictures in requests: base64 of both alphabets, sizes, colours, limits, files that are no pictures."""

import io
import json
import struct
import zlib
from base64 import b64encode, urlsafe_b64encode

import numpy as np
import pytest
from PIL import Image

from naiad.config.model_config_pb2 import DataType as Kind
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import InferError, invalid_argument
from naiad.core.slices import finish
from naiad.core.tensor import to_array
from naiad.protocol import pictures
from naiad.protocol.generate import columns_of, decode_generate, inputs_of

PIXELS = np.random.default_rng(0).integers(0, 256, (8, 6, 3), np.uint8)


def png(pixels=PIXELS, form="PNG", **more) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, form, **more)
    return file.getvalue()


def configured(text="x", dims=(3, 8, 6), kind=Kind.TYPE_UINT8, batch=8) -> ModelConfig:
    config = ModelConfig(name="m", max_batch_size=batch)
    config.input.add(name="x", data_type=kind, dims=dims)
    config.parameters["pictures"].string_value = text
    return config


def decode(body, config=None, limit=1 << 24) -> np.ndarray:
    config = config or configured()
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    header, _, data = finish(decode_generate("m", "", text, inputs_of(config), limit, columns_of(config)))
    return to_array(header.inputs[0], data[0])


def refusal(body, config=None, limit=1 << 24) -> str:
    with pytest.raises(InferError) as failure:
        decode(body, config, limit)
    return failure.value.message


TEXT = b64encode(png()).decode()


@pytest.mark.parametrize(
    "body",
    [
        {"x": {"b64": TEXT}},
        {"x": TEXT},
        {"x": [TEXT]},
        {"x": urlsafe_b64encode(png()).decode().rstrip("=")},
        {"x": f"data:image/png;base64,{TEXT}"},
        [{"b64": TEXT}],
        [{"x": {"b64": TEXT}}],
        [TEXT],
        {"instances": [{"b64": TEXT}]},
        {"inputs": {"x": [TEXT]}},
        {"dataframe_split": {"columns": ["x"], "data": [[TEXT]]}},
        {"x": PIXELS.transpose(2, 0, 1)[None].tolist()},
    ],
)
def test_forms_of_a_picture_are_equal(body):
    assert (decode(body) == PIXELS.transpose(2, 0, 1)).all()


def test_rows_and_parameters_stand_together():
    body = {"instances": [{"x": TEXT}] * 3, "id": "7", "threshold": 0.5}
    assert decode(body).shape == (3, 3, 8, 6)


def test_values_are_scaled_as_the_owner_says():
    config = configured("x,mean=0.5/0.25/0,std=0.5/1/2", kind=Kind.TYPE_FP32)
    expected = (PIXELS / 255 - [0.5, 0.25, 0]) / [0.5, 1, 2]
    np.testing.assert_allclose(decode([TEXT], config)[0].transpose(1, 2, 0), expected, atol=1e-6)
    raw = decode([TEXT], configured("x,scale=255", (8, 6, 3), Kind.TYPE_FP16))
    assert raw.dtype == np.float16
    assert (raw[0] == PIXELS).all()


def test_colours_follow_the_channels():
    grey = np.asarray(Image.fromarray(PIXELS).convert("L"))
    assert (decode([TEXT], configured(dims=(8, 6, 1)))[0, :, :, 0] == grey).all()
    palette = io.BytesIO()
    Image.fromarray(PIXELS).convert("P").save(palette, "PNG")
    assert decode([b64encode(palette.getvalue()).decode()]).shape == (1, 3, 8, 6)


@pytest.mark.parametrize("resize", ["stretch", "crop"])
def test_sizes_follow_the_rule(resize):
    left = np.zeros((20, 40, 3), np.uint8)
    left[:, 20:] = 200
    found = decode([b64encode(png(left)).decode()], configured(f"x,resize={resize}", (10, 10, 3)))[0]
    assert found.shape == (10, 10, 3)
    assert found[:, :4].max() == 0
    assert found[:, 6:].min() == 200
    edge = np.zeros((20, 40, 3), np.uint8)
    edge[:, :8] = 255  # outside of the middle
    found = decode([b64encode(png(edge)).decode()], configured(f"x,resize={resize}", (10, 10, 3)))[0]
    assert (found.max() == 0) == (resize == "crop")
    assert "8 x 6 pixels (height x width), expected 9 x 6" in refusal([TEXT], configured(dims=(9, 6, 3)))


def test_free_sizes_come_from_the_picture():
    config = configured(dims=(3, -1, -1))
    assert decode([TEXT], config).shape == (1, 3, 8, 6)
    other = b64encode(png(PIXELS[:5])).decode()
    assert "row 1 of input 'x' has the shape [3, 5, 6], row 0 has [3, 8, 6]" in refusal([TEXT, other], config)


def bomb(width: int, height: int) -> str:
    """Return the head of a PNG that states a size."""
    head = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunk = struct.pack(">I", 13) + head + struct.pack(">I", zlib.crc32(head))
    return b64encode(b"\x89PNG\r\n\x1a\n" + chunk + png()[33:]).decode()


@pytest.mark.parametrize(("width", "height"), [(8000, 8000), (12000, 12000), (30000, 30000), (1 << 30, 1 << 30)])
def test_picture_of_too_many_pixels_is_not_decoded(width, height):
    assert "pixels; at most 33554432 are decoded" in refusal([bomb(width, height)], configured("x,resize=crop"))


def test_bytes_are_bounded(monkeypatch):
    plain = b64encode(png(np.zeros((200, 200, 3), np.uint8))).decode()
    config = configured(dims=(3, -1, -1), kind=Kind.TYPE_FP32)
    assert decode([plain], config, 480_000).shape == (1, 3, 200, 200)
    for rows, limit in ((1, 479_999), (2, 480_000)):
        assert f"have more than {limit} bytes as a tensor" in refusal([plain] * rows, config, limit)
    monkeypatch.setattr(pictures, "MAX_FILE_BYTES", 100)
    assert "bytes; at most 100 are decoded" in refusal([TEXT])


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("not base64!", "this one is not"),
        (b64encode(b"text").decode(), "not readable as a picture"),
        (b64encode(png()[:60]).decode(), "not readable as a picture"),
        (b64encode(png(form="TIFF")).decode(), "expected a complete JPEG, PNG, WEBP, BMP file"),
        ({"b64": 1}, "expected a picture"),
        ({"b64": TEXT, "path": "a"}, "expected a picture"),
        ({"path": "a.png"}, "the server reads no files for this model"),
        (b64encode(png(np.zeros((8, 6), np.uint16))).decode(), "more than 8 bits"),
    ],
)
def test_wrong_pictures_are_refused_with_their_row(value, reason):
    message = refusal({"instances": [{"x": TEXT}, {"x": value}]})
    assert reason in message
    assert "row 1 of input 'x'" in message


def test_nothing_changes_for_models_without_the_parameter():
    config = configured()
    del config.parameters["pictures"]
    assert "picture" not in refusal({"x": TEXT}, config)
    assert "picture" not in refusal([{"b64": TEXT}], config)


def test_model_without_rows_takes_one_picture():
    config = configured(batch=0)
    assert decode([TEXT], config).shape == (3, 8, 6)
    assert "takes one picture at a time, got 2" in refusal([TEXT, TEXT], config)


def test_files_are_read_by_the_caller():
    config = configured()

    def read(path: str) -> bytes:
        if path != "a.png":
            raise invalid_argument("no")
        return png()

    reader = columns_of(config).pictures
    assert (reader.row({"path": "a.png"}, read) == PIXELS.transpose(2, 0, 1)).all()
