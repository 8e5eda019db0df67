"""CPU cost of gathering and scattering one request in `TensorInstance`, without what the framework does.

    python -m bench.micro_tensor_instance

Prints microseconds per request for add/sub (two FP32[16] inputs and outputs) at several batch sizes, with arrays and
with fixed buffers; medians of several rounds. The framework is a function that returns ready arrays.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bench.in_memory import cpu_us, vectors_config
from naiad.backend.api import ModelContext
from naiad.backend.assembler import StagedRun
from naiad.backend.tensor_instance import TensorInstance
from naiad.core.batch import Batch
from naiad.core.datatype import DataType
from naiad.core.request import InferRequest, RequestHeader
from naiad.core.tensor import Array, TensorSpec

BATCHES = 2_000
NAMES = ("INPUT0", "INPUT1")


class ReadyBuffers(StagedRun):
    """Buffers, and nothing done with them."""

    def __init__(self, rows: int) -> None:
        self.inputs = [memoryview(bytearray(rows * 64)) for _ in NAMES]
        self.outputs = [np.zeros((rows, 16), np.float32) for _ in NAMES]

    def run(self) -> None:
        """Do nothing."""


class ReadyInstance(TensorInstance):
    """Returns arrays made beforehand."""

    def __init__(self, context: ModelContext, *, stages: bool, rows: int) -> None:
        super().__init__(context)
        self._stages = stages
        self._arrays = [np.zeros((rows, 16), np.float32) for _ in NAMES]

    def run(self, inputs: dict[str, Array], output_names: Sequence[str]) -> Sequence[Array]:
        return self._arrays

    def stage(self, inputs: Sequence[TensorSpec], output_names: Sequence[str]) -> ReadyBuffers | None:
        return ReadyBuffers(inputs[0].shape[0]) if self._stages else None


def measure(count: int, *, stages: bool, distinct_headers: bool = False) -> float:
    specs = [TensorSpec(name, DataType.FP32, (1, 16)) for name in NAMES]
    headers = [RequestHeader(model_name="m", inputs=specs) for _ in range(count if distinct_headers else 1)]
    body = memoryview(bytes(200))
    requests = [
        InferRequest(headers[number % len(headers)], (body[1:65], body[101:165]), lambda request, response: None)
        for number in range(count)
    ]
    instance = ReadyInstance(
        ModelContext("m", 1, vectors_config("", 16), Path(), Path(), 1), stages=stages, rows=count
    )
    batch = Batch(requests, count)

    def many() -> None:
        for _ in range(BATCHES):
            instance.execute(batch)

    return cpu_us(many, BATCHES * count)


if __name__ == "__main__":
    print(f"{'batch':>8}{'arrays':>10}{'staged':>10}{'mixed headers':>16}   (us per request)")
    for size in (1, 2, 4, 8, 32):
        plain = measure(size, stages=False)
        staged = measure(size, stages=True)
        mixed = measure(size, stages=False, distinct_headers=True)
        print(f"{size:>8}{plain:>10.2f}{staged:>10.2f}{mixed:>16.2f}")
