"""The distance of two points, by calling the models `add_sub` and `error` of this repository."""

import asyncio

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """A model that calls others; the requests of a batch are worked on side by side."""

    async def execute(self, requests: list[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        """Answer every request of the batch, in order."""
        return await asyncio.gather(*(self._answer(request) for request in requests))

    async def _answer(self, request: pb_utils.InferenceRequest) -> pb_utils.InferenceResponse:
        a, b = (pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in ("A", "B"))
        subtract = pb_utils.InferenceRequest(
            model_name="add_sub",
            inputs=[pb_utils.Tensor("INPUT0", a), pb_utils.Tensor("INPUT1", b)],
            requested_output_names=["OUTPUT1"],
            request_id=request.request_id(),
            trace=request.trace(),
        )
        response = await subtract.async_exec()
        if response.has_error():
            return pb_utils.InferenceResponse(error=response.error())  # with the code of the model that failed
        difference = pb_utils.get_output_tensor_by_name(response, "OUTPUT1").as_numpy()
        total = np.square(difference).sum(axis=1, keepdims=True)
        if not total.any():  # what is called may depend on what came back
            return pb_utils.InferenceResponse([pb_utils.Tensor("DISTANCE", total)])
        root = pb_utils.InferenceRequest(
            model_name="error",
            inputs=[pb_utils.Tensor("IN", total)],
            requested_output_names=["OUT"],
            request_id=request.request_id(),
            trace=request.trace(),
        )
        response = await root.async_exec()
        if response.has_error():
            return pb_utils.InferenceResponse(error=response.error())
        distance = pb_utils.get_output_tensor_by_name(response, "OUT").as_numpy()
        return pb_utils.InferenceResponse([pb_utils.Tensor("DISTANCE", distance)])
