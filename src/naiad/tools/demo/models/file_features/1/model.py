"""Feature extraction of the Magika content-type model."""

import numpy as np
import triton_python_backend_utils as pb_utils

BLOCK_BYTES = 4096
HALF = 1024
PADDING = 256


def features(content: bytes) -> np.ndarray:
    """Return 2048 INT32 features: the beginning padded at its end, the end padded at its beginning."""
    head = np.frombuffer(content[:BLOCK_BYTES].lstrip()[:HALF], np.uint8)
    tail = np.frombuffer(content[-BLOCK_BYTES:].rstrip()[-HALF:], np.uint8)
    row = np.full(2 * HALF, PADDING, np.int32)
    row[: len(head)] = head
    row[2 * HALF - len(tail) :] = tail
    return row


class TritonPythonModel:
    """Turns file contents into features."""

    def execute(self, requests):
        """Return one row of features per file for every request."""
        responses = []
        for request in requests:
            contents = pb_utils.get_input_tensor_by_name(request, "content").as_numpy()
            rows = np.stack([features(content) for content in contents.ravel()])
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("bytes", rows)]))
        return responses
