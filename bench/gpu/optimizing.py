"""`naiad optimize` on this machine: candidates of lower precision are made, judged by its gate, and measured."""

import csv
import sys
from pathlib import Path

from bench.gpu import networks
from bench.gpu.room import OK, Room

_FIGURES = (
    "precision",
    "status",
    "worst_relative",
    "latency_us",
    "throughput_per_s",
    "throughput_gain",
    "memory_mib",
)


def measure(room: Room) -> None:
    """Optimize a network that torch.export has written."""
    import numpy as np
    import torch

    module = networks.module_of(networks.resnet(tiny=room.is_dry_run), room.work, "resnet")
    side = room.size(224, 32)
    image = torch.randn(2, 3, side, side)
    rows = torch.export.Dim("rows", min=1, max=16)
    source = room.work / "network.pt2"
    torch.export.save(torch.export.export(module, (image,), dynamic_shapes=({0: rows},)), source)
    samples = room.work / "samples.npz"
    np.savez(samples, image=np.random.default_rng(9).standard_normal((8, 3, side, side), np.float32))
    report = room.work / "report"
    command = [sys.executable, "-m", "naiad", "optimize", str(source), "--data", str(samples), "--seconds", "0.5"]
    command += ["--precisions", "fp32,fp16,bf16", "--formats", "torch_export,aot_inductor"]
    command += [
        "--finalists",
        "2",
        "--tuning-seconds",
        "6",
        "--report",
        str(report),
        "-w",
        str(room.work / "workspace"),
    ]
    command += ["--output", str(room.work / "best")]
    with room.check("naiad optimize"):
        # A whole run takes minutes on a CPU, and tests/frameworks has it.
        status, text = room.run([*command, *room.size([], ["--list"])], "optimize")
        _report(room, report, status, text)


def _report(room: Room, report: Path, status: int, text: str) -> None:
    table = report / "candidates.csv"
    rows = list(csv.DictReader(table.read_text().splitlines())) if table.exists() else []
    for candidate in rows:
        figures = {name: candidate[name] for name in _FIGURES if candidate.get(name)}
        room.row(f"candidate {candidate['candidate']}", OK, candidate["reason"], **figures)
    room.judge("naiad optimize", status == 0, "" if status == 0 else text[-400:], status=status, candidates=len(rows))
