"""Strings: they arrive as an object array of `bytes`; `str` and `bytes` may be returned."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Upper case and number of characters of texts."""

    def execute(self, requests: list[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        """Answer with two outputs of the input's shape."""
        responses = []
        for request in requests:
            tensor = pb_utils.get_input_tensor_by_name(request, "TEXT")
            assert tensor is not None
            array = tensor.as_numpy()
            texts = [text.decode() for text in array.ravel()]
            # Lines in the server's log carry the model and the ids of the requests; so does what is printed.
            pb_utils.Logger.log_info(f"{len(texts)} texts")
            upper = np.array([text.upper() for text in texts], dtype=object).reshape(array.shape)
            length = np.array([len(text) for text in texts], dtype=np.int32).reshape(array.shape)
            responses.append(
                pb_utils.InferenceResponse([pb_utils.Tensor("UPPER", upper), pb_utils.Tensor("LENGTH", length)])
            )
        return responses
