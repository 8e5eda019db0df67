"""Options of the recording of traffic."""

from dataclasses import dataclass

from naiad.options.flag import Kind, option

_MIN_SIZE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class RecordingOptions:
    """Where requests are recorded, and how much of them."""

    path: str = option(
        "",
        "record-traffic",
        "naiad: record arrival time, shapes, parameters and outcome of every inference request in this file, which "
        "naiad perf --replay reads. Headers are never recorded.",
        summary="Record requests in this file, to replay them.",
    )
    size_bytes: int = option(
        64 << 20,
        "record-traffic-size",
        "naiad: maximum size of the recording in bytes. It consists of two files, the given one and <path>.1; the "
        "older one is replaced when the newer one has half of the size.",
        minimum=_MIN_SIZE_BYTES,
    )
    has_payloads: bool = option(
        False,
        "record-payloads",
        "naiad: also record the data of input tensors, which may be personal data.",
        kind=Kind.SWITCH,
    )

    @property
    def problem(self) -> str:
        """An error for flags that do not fit together; empty if they do."""
        if self.path or not self.has_payloads:
            return ""
        return "--record-payloads needs --record-traffic as well: the file to record in"
