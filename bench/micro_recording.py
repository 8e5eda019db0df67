"""CPU microseconds that `--record-traffic` adds to a request: the line, its queue and the thread that writes it.

    PYTHONPATH=src python bench/micro_recording.py

A request of two FP32[16] inputs, under load and with pauses in which caches and the processor cool down. Requests
with and without recording take turns; the figures are medians of the differences.
"""

import statistics
import tempfile
import time
from pathlib import Path

from naiad.core.datatype import DataType
from naiad.core.request import InferRequest, RequestHeader
from naiad.core.response import InferResponse, ResponseHeader
from naiad.core.tensor import TensorSpec
from naiad.telemetry.traffic import Recorder, RingFile, TrafficWriter

_SPECS = [TensorSpec(name, DataType.FP32, (1, 16)) for name in ("INPUT0", "INPUT1")]
_HEADER = RequestHeader(model_name="add_sub", inputs=_SPECS)
_RESPONSE = InferResponse(
    ResponseHeader("add_sub", "1", [TensorSpec("OUTPUT0", DataType.FP32, (1, 16))]), [bytes(64)]
)
_ROUNDS = 9


class _Frontend:
    protocol = transport = "http"

    def take(self, request: InferRequest, response: InferResponse) -> None:
        pass


def _cpu_us(recorder: Recorder | None, writer: TrafficWriter, count: int, pause_s: float) -> float:
    """Return the CPU time of the process for each request, until the last line is written."""
    take = _Frontend().take
    written = writer.written_count
    begin_ns = time.process_time_ns()
    for _ in range(count):
        request = InferRequest(_HEADER, [bytes(64), bytes(64)], take, arrival_ns=time.monotonic_ns())
        if recorder is not None:
            recorder.begin(request)
        request.on_response(request, _RESPONSE)
        if pause_s:
            time.sleep(pause_s)
    if recorder is not None:
        while writer.written_count - written < count:
            time.sleep(0.01)
    return (time.process_time_ns() - begin_ns) / count / 1e3


def main() -> None:
    """Print the figures."""
    for has_payloads in (False, True):
        with tempfile.TemporaryDirectory() as directory:
            writer = TrafficWriter(lambda: RingFile(str(Path(directory) / "traffic.jsonl"), 1 << 30))
            recorder = Recorder(writer, has_payloads=has_payloads)
            for name, count, pause_s in (("under load", 20_000, 0.0), ("one each 0.5 ms", 1_000, 0.0005)):
                costs = [
                    _cpu_us(recorder, writer, count, pause_s) - _cpu_us(None, writer, count, pause_s)
                    for _ in range(_ROUNDS)
                ]
                what = "with payloads" if has_payloads else "without payloads"
                print(f"{what}, {name}: {statistics.median(costs):.1f} us ({min(costs):.1f} to {max(costs):.1f})")
            assert not writer.dropped_count
            recorder.close()


if __name__ == "__main__":
    main()
