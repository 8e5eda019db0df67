"""Preparation of a picture for PP-OCR's text detector."""

import numpy as np
import triton_python_backend_utils as pb_utils
from PIL import Image

SHORT_SIDE = 736
LONG_SIDE = 2000
MULTIPLE = 32


def page(image: np.ndarray) -> np.ndarray:
    """Return FP32[1,3,H,W] from UINT8[h,w,3]; small pictures are enlarged, large ones reduced."""
    height, width = image.shape[:2]
    ratio = min(max(1.0, SHORT_SIDE / min(height, width)), LONG_SIDE / max(height, width))
    sides = [max(MULTIPLE, round(side * ratio / MULTIPLE) * MULTIPLE) for side in (width, height)]
    resized = np.asarray(Image.fromarray(image).resize(sides, Image.Resampling.BILINEAR), np.float32)
    return np.ascontiguousarray(resized[..., ::-1].transpose(2, 0, 1)[None] / 127.5 - 1.0)


class TritonPythonModel:
    """Turns pictures into pages."""

    def execute(self, requests):
        """Return the page of every request."""
        responses = []
        for request in requests:
            image = pb_utils.get_input_tensor_by_name(request, "IMAGE").as_numpy()
            if 0 in image.shape:
                error = pb_utils.TritonError(f"IMAGE has the shape {list(image.shape)}: send a picture with pixels")
                responses.append(pb_utils.InferenceResponse([], error=error))
                continue
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("PAGE", page(image))]))
        return responses
