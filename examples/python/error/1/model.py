"""Errors: of one request, and of a whole batch."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """A square root that refuses negative numbers and breaks on NaN."""

    def execute(self, requests: list[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        """Answer good requests in spite of bad ones beside them."""
        return [self.answer(request) for request in requests]

    def answer(self, request: pb_utils.InferenceRequest) -> pb_utils.InferenceResponse:
        """Answer one request."""
        (tensor,) = request.inputs()
        array = tensor.as_numpy()
        if np.isnan(array).any():
            # An exception fails every request of the batch; its place in this file is in the answer and in the log.
            raise pb_utils.TritonModelException("NaN has no root")
        if (array < 0).any():
            error = pb_utils.TritonError("IN must not be negative", pb_utils.TritonError.INVALID_ARG)
            return pb_utils.InferenceResponse(error=error)
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.sqrt(array))])
