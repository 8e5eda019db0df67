"""Sum and difference of two vectors."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """The smallest model: only `execute` is required."""

    def execute(self, requests: list[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        """Answer every request of the batch, in order."""
        responses = []
        for request in requests:
            a, b = (tensor.as_numpy() for tensor in request.inputs())
            responses.append(
                pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", a + b), pb_utils.Tensor("OUTPUT1", a - b)])
            )
        return responses
