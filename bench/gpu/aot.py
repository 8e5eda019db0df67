"""An AOTInductor package: compiled in this process for the GPU, served, and compared."""

import os
import time
from pathlib import Path
from typing import Any

from bench.gpu import networks
from bench.gpu.correctness import CLOSE, compare
from bench.gpu.room import Room
from bench.gpu.serving import config, perf, write_model


def measure(room: Room) -> None:
    """Compile, compare, and measure."""
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
    text = config(
        "pytorch", room.kind, {"INPUT__0": ("FP32", image.shape[1:])}, {"OUTPUT__0": ("FP32", (classes,))}, rows=8
    )
    version = write_model(repository, "package", text)
    with room.check("compiled"):
        _compile(room, module, image, version / "model.pt2")
    with room.serve(repository, NVIDIA_TF32_OVERRIDE="0") as served, room.check("answers"):
        compare(room, served, "package", {"INPUT__0": image.numpy()}, answer, 10 * CLOSE)
        found = perf(served.running, "package", rows=rows, concurrency=2)
        room.row("throughput", "ok", **found)


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
