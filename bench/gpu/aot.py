"""An AOTInductor package: compiled in this process for the GPU, loaded by PyTorch alone, served, and compared."""

import os
import sys
import time
from pathlib import Path
from typing import Any

from bench.gpu import networks
from bench.gpu.correctness import CLOSE, compare
from bench.gpu.room import Room
from bench.gpu.serving import config, perf, write_model

_LOAD = """
import sys, time
import torch

began = time.monotonic()
torch._inductor.aoti_load_package(sys.argv[1], device_index=int(sys.argv[2]))
print(f"loaded in {time.monotonic() - began:.1f} s")
"""


def measure(room: Room) -> None:
    """Compile, compare, and measure, in a worker and in the server: the load may end the process."""
    import torch

    os.environ["NVIDIA_TF32_OVERRIDE"] = "0"
    rows = 4
    image = torch.randn(rows, *room.size((3, 224, 224), (16,)))
    if room.is_dry_run:
        module: Any = torch.nn.Sequential(torch.nn.Linear(16, 10), torch.nn.ReLU()).eval()
    else:
        module = networks.module_of(networks.resnet(tiny=False), room.work, "resnet").to(room.device)
    with torch.inference_mode():
        answer = module(image.to(room.device)).cpu().numpy()
    repository = room.work / "models"
    classes = answer.shape[1]
    tensors = ({"INPUT__0": ("FP32", image.shape[1:])}, {"OUTPUT__0": ("FP32", (classes,))})
    package = write_model(repository, "package", config("pytorch", room.kind, *tensors, rows=8)) / "model.pt2"
    with room.check("compiled"):
        _compile(room, module, image, package)
    with room.check("loaded by PyTorch alone"):
        index = "0" if room.has_gpu else "-1"
        status, text = room.run([sys.executable, "-X", "faulthandler", "-c", _LOAD, str(package), index], "alone")
        room.judge("loaded by PyTorch alone", status == 0, text[-400:], status=status)
    more = 'parameters { key: "isolation" value { string_value: "process" } }'
    isolated = write_model(repository, "isolated", config("pytorch", room.kind, *tensors, rows=8, more=more))
    (isolated / "model.pt2").symlink_to(package)
    with room.serve(repository, NVIDIA_TF32_OVERRIDE="0") as served:
        for name in ("isolated", "package"):
            with room.check(name):
                compare(room, served, name, {"INPUT__0": image.numpy()}, answer, 10 * CLOSE)
                found = perf(served.running, name, rows=rows, concurrency=2)
                room.row(f"throughput of {name}", "ok", **found)


def _compile(room: Room, module: Any, image: Any, path: Path) -> None:
    import torch

    began = time.monotonic()
    dynamic = torch.export.Dim("rows", min=1, max=8)
    with torch.no_grad():
        exported = torch.export.export(module, (image.to(room.device),), dynamic_shapes=({0: dynamic},))
        torch._inductor.aoti_compile_and_package(exported, package_path=str(path))
    room.judge(
        "compiled", path.stat().st_size > 0, seconds=round(time.monotonic() - began, 1), mib=path.stat().st_size >> 20
    )
