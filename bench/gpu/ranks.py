"""A tensor-parallel Python model over nccl: as many ranks as GPUs, one if there is one; gloo with --rehearse."""

import numpy as np

from bench.gpu.machine import gpus
from bench.gpu.room import Room
from bench.gpu.serving import config, write_model

_SUM = """
import torch
import torch.distributed as dist
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        kind, number = args["model_instance_kind"], args["model_instance_device_id"]
        self.device = f"cuda:{number}" if kind == "GPU" else "cpu"

    def execute(self, requests):
        responses = []
        for request in requests:
            x = torch.from_numpy(pb_utils.get_input_tensor_by_name(request, "X").as_numpy()).to(self.device)
            part = x * (dist.get_rank() + 1)
            dist.all_reduce(part)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", part.cpu().numpy())]))
        return responses
"""


def measure(room: Room) -> None:
    """Compare with the sum over the ranks."""
    ranks = len(gpus()) if room.has_gpu else 2
    parameters = {"tensor_parallel_size": str(ranks), "torch_distributed": "nccl" if room.has_gpu else "gloo"}
    more = "\n".join(
        f'parameters {{ key: "{name}" value {{ string_value: "{value}" }} }}' for name, value in parameters.items()
    )
    text = config("python", room.kind, {"X": ("FP32", (8,))}, {"Y": ("FP32", (8,))}, rows=4, more=more)
    write_model(room.work / "models", "total", text, {"model.py": _SUM})
    with room.serve(room.work / "models") as served, room.check("sum over ranks"):
        load_s = served.load("total")
        rows = np.random.default_rng(8).standard_normal((2, 8), np.float32)
        found = served.infer("total", {"X": rows})["Y"]
        is_right = bool(np.allclose(found, rows * sum(range(1, ranks + 1)), rtol=1e-5))
        room.judge(
            "sum over ranks", is_right, ranks=ranks, backend=parameters["torch_distributed"], load_s=round(load_s, 1)
        )
