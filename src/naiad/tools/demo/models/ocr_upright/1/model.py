"""Turns lines of text that PP-OCR's direction network classifies as upside down."""

import numpy as np
import triton_python_backend_utils as pb_utils

SURE = 0.9


def upright(lines: np.ndarray, widths: np.ndarray, directions: np.ndarray) -> np.ndarray:
    """Return FP32[n,3,48,W] with upside-down lines turned by 180 degrees; the padding stays at the end."""
    turned = lines.copy()
    for number in np.nonzero(directions[:, 1] > SURE)[0]:
        width = widths[number]
        turned[number, :, :, :width] = lines[number, :, ::-1, :width][:, :, ::-1]
    return turned


class TritonPythonModel:
    """Turns lines."""

    def execute(self, requests):
        """Return the lines of every request, upright."""
        responses = []
        for request in requests:
            names = ("LINES", "WIDTHS", "DIRECTIONS")
            given = (pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in names)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("UPRIGHT", upright(*given))]))
        return responses
