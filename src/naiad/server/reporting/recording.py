"""The recorder of a server with --record-traffic."""

from naiad.core.errors import ErrorCode, InferError
from naiad.options.recording import RecordingOptions
from naiad.telemetry.metrics.metrics import Registry
from naiad.telemetry.traffic.recorder import Recorder
from naiad.telemetry.traffic.ring import RingFile
from naiad.telemetry.traffic.writer import TrafficWriter


def open_recorder(options: RecordingOptions, registry: Registry) -> Recorder | None:
    """Return the recorder, whose file is open, and show its metrics; None without the flag.

    Raises InferError if the file cannot be written.
    """
    if not options.path:
        return None
    try:
        ring = RingFile(options.path, options.size_bytes)
    except OSError as error:
        raise InferError(
            ErrorCode.INVALID_ARG,
            f"--record-traffic={options.path}: {error.filename}: {error.strerror}; choose a new file in a directory "
            "that can be written",
        ) from None
    writer = TrafficWriter(ring)
    registry.add_callback(
        "naiad_traffic_records_total", "counter", "Requests in the recording", lambda: writer.written_count
    )
    registry.add_callback(
        "naiad_traffic_records_dropped_total",
        "counter",
        "Requests that are missing in the recording",
        lambda: writer.dropped_count,
    )
    return Recorder(writer, has_payloads=options.has_payloads)
