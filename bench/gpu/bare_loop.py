"""A bare loop of PyTorch in a process of its own, which runs whenever it receives an order.

A line on its input is an order in JSON, a line on its output the answer: `{"source": file, "dtype", "matmul", "rows",
"shape", "is_tokens", "device", "seconds"}`. The loop takes numpy arrays and returns numpy arrays, one batch after
the other, as a server has to.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from bench.gpu import networks

_modules: dict[str, Any] = {}


def rate(order: dict[str, Any]) -> dict[str, Any]:
    """Load a network, and return its rows per second with one batch."""
    import torch

    path = Path(order["source"])
    if path.stem not in _modules:
        _modules[path.stem] = networks.module_of(path.read_text(), path.parent, f"loop_{path.stem}").to(
            order["device"]
        )
    if "rows" not in order:
        return {}  # only loaded
    module, shape = _modules[path.stem], (order["rows"], *order["shape"])
    # The modules of several precisions share this process, and these are settings of the process.
    torch.set_float32_matmul_precision(order["matmul"])
    torch.backends.cudnn.allow_tf32 = order["matmul"] == "high"
    random = np.random.default_rng(1)
    batch = (
        random.integers(0, 500, shape, np.int32) if order["is_tokens"] else random.standard_normal(shape, np.float32)
    )

    def call() -> None:
        module(torch.from_numpy(batch).to(order["device"])).cpu().numpy()

    with torch.inference_mode():
        for _ in range(2):
            call()
        began, count = time.perf_counter(), 0
        while count < 3 or time.perf_counter() - began < order["seconds"]:
            call()
            count += 1
        return {"per_s": count * order["rows"] / (time.perf_counter() - began)}


def main() -> None:
    """Obey until the input ends."""
    for line in sys.stdin:
        try:
            answer = rate(json.loads(line))
        except Exception as error:  # any library may raise anything; the row has it
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
