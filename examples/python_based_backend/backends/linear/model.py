"""A Python-based backend: models are files with two numbers, `y = slope * x + intercept`."""

import json
import os

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Executes each model with `backend: "linear"`."""

    @staticmethod
    def auto_complete_config(config):
        """Give models their input and output, so that their configuration need not have them."""
        config.add_input({"name": "X", "data_type": "TYPE_FP32", "dims": [1]})
        config.add_output({"name": "Y", "data_type": "TYPE_FP32", "dims": [1]})
        config.set_max_batch_size(8)
        return config

    def initialize(self, args):
        """Read the file of the model, which is in its version directory."""
        config = json.loads(args["model_config"])
        filename = config["default_model_filename"] or "line.json"
        path = os.path.join(args["model_repository"], args["model_version"], filename)
        with open(path) as file:
            line = json.load(file)
        self.slope, self.intercept = np.float32(line["slope"]), np.float32(line["intercept"])

    def execute(self, requests):
        """Compute one answer for each request."""
        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            y = pb_utils.Tensor("Y", self.slope * x + self.intercept)
            responses.append(pb_utils.InferenceResponse([y]))
        return responses
