"""The JSON that perf_analyzer's `--profile-export-file` writes: every request with its times and tensors.

The file grows by an experiment with each load, so that a sweep keeps one load in memory. Times are ns of the wall
clock. A tensor is a flat list, and its only element where it has one, as perf_analyzer writes it; tensors in shared
memory are left out. Requests that failed have no response time and are left out, too.
"""

import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from naiad.core.datatype import DataType
from naiad.core.tensor import Array, Buffer, TensorSpec, to_array
from naiad.core.version import __version__
from naiad.tools.perf.inputs.templates import TemplateSet
from naiad.tools.perf.perf_plan import Load, Protocol, ServerTarget
from naiad.tools.perf.records import KeptRequest, Measurement
from naiad.tools.perf.statistics.row import mode_and_value


class ProfileExport:
    """Writes the file; a context manager, whose end completes it."""

    def __init__(self, path: Path, service: ServerTarget, endpoint: str = "") -> None:
        """Raises OSError for a file that cannot be written."""
        self._endpoint = endpoint
        self._kind = "triton_c_api" if service.protocol is Protocol.IN_PROCESS else "triton"
        self._file = path.open("w")
        self._file.write('{"experiments":[')
        self._separator = ""
        self.unkept = 0
        """Requests that are missing, because the memory for them was full."""

    def __enter__(self) -> Self:
        """Return the export."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Complete the file."""
        rest = json.dumps({"version": __version__, "service_kind": self._kind, "endpoint": self._endpoint})
        self._file.write(f"],{rest[1:]}\n")
        self._file.close()

    def add(self, models: Sequence[TemplateSet], load: Load, measurement: Measurement) -> None:
        """Write the requests of a load. Raises OSError."""
        wall_ns = time.time_ns() - time.monotonic_ns()
        mode, value = mode_and_value(load)
        experiment = json.dumps({"mode": mode, "value": int(value) if value.is_integer() else value})
        self._file.write(f'{self._separator}{{"experiment":{experiment},"requests":[')
        for index, text in enumerate(_requests(measurement, models, wall_ns)):
            self._file.write(f",\n{text}" if index else text)
        begin_ns, end_ns = measurement.begin_ns, measurement.end_ns
        boundaries = [wall_ns + each for each in measurement.boundaries_ns if begin_ns <= each <= end_ns]
        self._file.write(f'],"window_boundaries":{json.dumps(boundaries)}}}')
        self._separator = ","
        self.unkept += measurement.unkept


def _requests(measurement: Measurement, models: Sequence[TemplateSet], wall_ns: int) -> Iterator[str]:
    inputs: dict[tuple[int, int], str] = {}
    for request in sorted(measurement.kept, key=_start_ns):
        if not measurement.begin_ns <= request.response_ns[-1] <= measurement.end_ns:
            continue
        key = request.model, request.template
        if key not in inputs:
            template = models[request.model].templates[request.template]
            inputs[key] = _tensors(zip(template.header.inputs, template.data, strict=False))
        sequence = f'"sequence_id":{request.sequence_id},' if request.sequence_id else ""
        times = ",".join(str(wall_ns + each) for each in request.response_ns)
        outputs = ",".join(_tensors(each) for each in request.outputs)
        yield (
            f'{{"timestamp":{wall_ns + request.start_ns},{sequence}"request_inputs":{inputs[key]},'
            f'"response_timestamps":[{times}],"response_outputs":[{outputs}]}}'
        )


def _start_ns(request: KeptRequest) -> int:
    return request.start_ns


def _tensors(tensors: "Iterator[tuple[TensorSpec, Buffer]] | Sequence[tuple[TensorSpec, Buffer]]") -> str:
    values = {spec.name: _elements(spec, data) for spec, data in tensors if len(data) or not spec.element_count}
    return json.dumps(values, separators=(",", ":"), allow_nan=False)


def _elements(spec: TensorSpec, data: Buffer) -> object:
    array: Array = to_array(spec, data).ravel()
    if spec.datatype is DataType.BYTES:
        elements: list[object] = [each.decode(errors="replace") for each in array]
    else:
        if array.dtype.kind not in "biu":
            array = array.astype(np.float64)
            # JSON has no NaN and no infinity.
            if not np.isfinite(array).all():
                is_missing = ~np.isfinite(array)
                array = array.astype(object)
                array[is_missing] = None
        elements = array.tolist()
    return elements[0] if len(elements) == 1 else elements
