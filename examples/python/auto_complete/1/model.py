"""A model that tells its own inputs, outputs and batching."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """The negative of a vector."""

    @staticmethod
    def auto_complete_config(auto_complete_model_config: pb_utils.ModelConfig) -> pb_utils.ModelConfig:
        """Complete the configuration; runs before the model is loaded, in a process of its own."""
        auto_complete_model_config.add_input({"name": "IN", "data_type": "TYPE_FP32", "dims": [-1]})
        auto_complete_model_config.add_output({"name": "OUT", "data_type": "TYPE_FP32", "dims": [-1]})
        auto_complete_model_config.set_max_batch_size(16)
        auto_complete_model_config.set_dynamic_batching()
        return auto_complete_model_config

    def execute(self, requests: list[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        """Answer every request with its negative."""
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUT", -request.inputs()[0].as_numpy())])
            for request in requests
        ]
