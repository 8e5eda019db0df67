"""An identity that multiplies: by a parameter of the model, or by one of the request."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Reads parameters from its configuration and from requests, and answers with one."""

    def initialize(self, args: dict[str, str]) -> None:
        """Read the configuration; all values in `args` are strings."""
        config = json.loads(args["model_config"])
        self.factor = float(config["parameters"]["factor"]["string_value"])

    def execute(self, requests: list[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        """Answer with the input times a factor, and tell which."""
        responses = []
        for request in requests:
            parameters = json.loads(request.parameters() or "{}")
            factor = float(parameters.get("factor", self.factor))
            (tensor,) = request.inputs()
            output = pb_utils.Tensor("OUT", tensor.as_numpy() * np.float32(factor))
            responses.append(pb_utils.InferenceResponse([output], parameters={"factor": factor}))
        return responses
