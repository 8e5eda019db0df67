"""Reads traffic that a server has recorded with `--record-traffic`, to replay it."""

import json
import re
from binascii import a2b_base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from naiad.core.datatype import DataType
from naiad.core.errors import excerpt
from naiad.core.parameters import ParameterValue
from naiad.core.tensor import TensorSpec
from naiad.telemetry.traffic import FORMAT_VERSION, OK

_T = TypeVar("_T")


class RecordingError(ValueError):
    """A file is not a recording. The message begins with `file:line: `."""


@dataclass(slots=True)
class RecordedRequest:
    """One request as a server has received it."""

    arrival_ns: int
    """Since the arrival of the first request of the recording."""
    outcome: str
    """`OK`, or the name of an error code, such as `INVALID_ARG`."""
    transport: str
    """How it came: `http`, `http_stream`, `generate`, `grpc` or `grpc_stream`; "" in a file without it."""
    model: str
    version: str
    """As the client sent it; "" for the newest ready version."""
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[str, ...]
    """Empty: every output of the model."""
    parameters: Mapping[str, ParameterValue]
    sequence_id: int | str
    """0 for no sequence."""
    sequence_start: bool
    sequence_end: bool
    priority: int
    timeout_us: int
    payloads: tuple[bytes | None, ...] | None
    """Raw tensor bytes for each input, None for one in shared memory. None: recorded without --record-payloads."""


def read_recording(paths: Iterable[str | Path]) -> list[RecordedRequest]:
    """Return the requests of recordings in the order of arrival.

    Each path stands for all files that a server has written for it: `PATH`, `PATH.1`, and with several processes
    `PATH.process1` and so on. Raises RecordingError, and OSError if a file cannot be read.
    """
    files = dict.fromkeys(file for path in paths for file in _files_of(Path(path)))
    requests = [request for file in files for request in _read_file(file)]
    requests.sort(key=lambda request: request.arrival_ns)
    first_ns = requests[0].arrival_ns if requests else 0
    for request in requests:
        request.arrival_ns -= first_ns
    return requests


def _files_of(path: Path) -> Sequence[Path]:
    pattern = re.compile(re.escape(path.name) + r"(\.process\d+)?(\.1)?")
    files = [each for each in path.parent.glob("*") if pattern.fullmatch(each.name)]
    if not files:
        raise RecordingError(f"{path}: no such file; give the path that the server got with --record-traffic")
    return sorted(file.resolve() for file in files)


def _read_file(path: Path) -> Iterator[RecordedRequest]:
    """Yield the requests of one file, with their arrival on the wall clock."""
    offset_ns: int | None = None
    # An incomplete line, which only the end of the file or a new start of the server may follow.
    torn: RecordingError | None = None
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                values = json.loads(line)
            except ValueError as error:
                problem = RecordingError(f"{path}:{number}: not a line of JSON ({error}); delete the line")
                if torn is not None or offset_ns is None:
                    raise torn or problem from None
                torn = problem
                continue
            members = _Members(values, f"{path}:{number}")
            if "naiad_traffic" in members.values:
                torn = None
                offset_ns = _offset_ns(members)
            elif torn is not None:
                raise torn
            elif offset_ns is None:
                raise members.problem("is not the first line of a recording; give a file of --record-traffic")
            else:
                yield _request_of(members, offset_ns)
    if torn is not None and line.endswith(b"\n"):
        raise torn


class _Members:
    """A line of a recording."""

    def __init__(self, values: object, where: str) -> None:
        """Raises RecordingError for another value than an object."""
        self.where = where
        if not isinstance(values, dict):
            raise self.problem(f"expected an object, got {excerpt(repr(values))}")
        self.values: dict[str, Any] = values

    def problem(self, text: str) -> RecordingError:
        """Return an error that names the line."""
        return RecordingError(f"{self.where}: {text}")

    def get(self, name: str, kind: type[_T], default: _T | None = None) -> _T:
        """Return a member of a type; without `default` it must be there. Raises RecordingError."""
        value = self.values.get(name, default)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
            raise self.problem(f"'{name}' is {excerpt(repr(value))}; expected {kind.__name__}")
        return value


def _offset_ns(members: _Members) -> int:
    """Return the difference of the wall clock and the monotonic clock of the lines that follow."""
    version = members.get("naiad_traffic", int)
    if version != FORMAT_VERSION:
        raise members.problem(f"'naiad_traffic' is {version}; this release reads version {FORMAT_VERSION}")
    return members.get("wall_ns", int) - members.get("monotonic_ns", int)


def _request_of(members: _Members, offset_ns: int) -> RecordedRequest:
    inputs = [_Members(each, members.where) for each in members.get("inputs", list)]
    sequence_id = members.values.get("sequence_id")
    return RecordedRequest(
        arrival_ns=members.get("arrival_ns", int) + offset_ns,
        outcome=members.get("outcome", str, OK),
        transport=members.get("transport", str, ""),
        model=members.get("model", str),
        version=members.get("version", str, ""),
        inputs=tuple(map(_spec_of, inputs)),
        outputs=tuple(members.get("outputs", list, [])),
        parameters=members.get("parameters", dict, {}),
        sequence_id=sequence_id if isinstance(sequence_id, str) else members.get("sequence_id", int, 0),
        sequence_start=members.get("sequence_start", bool, False),
        sequence_end=members.get("sequence_end", bool, False),
        priority=members.get("priority", int, 0),
        timeout_us=members.get("timeout_us", int, 0),
        payloads=_payloads_of(members, len(inputs)),
    )


def _spec_of(members: _Members) -> TensorSpec:
    shape: list[Any] = members.get("shape", list)
    if not all(type(size) is int for size in shape):
        raise members.problem(f"'shape' is {excerpt(str(shape))}; expected integers")
    datatype = members.get("datatype", str)
    try:
        return TensorSpec(members.get("name", str), DataType(datatype), tuple(shape))
    except ValueError:
        text = f"'datatype' is '{excerpt(datatype)}'; expected one of KServe v2, such as FP32"
        raise members.problem(text) from None


def _payloads_of(members: _Members, input_count: int) -> tuple[bytes | None, ...] | None:
    if "data" not in members.values:
        return None
    data: list[Any] = members.get("data", list)
    if len(data) != input_count:
        raise members.problem(f"'data' has {len(data)} elements; expected one for each of {input_count} inputs")
    try:
        return tuple(None if each is None else a2b_base64(each["b64"], strict_mode=True) for each in data)
    except (TypeError, KeyError, ValueError) as error:
        raise members.problem(f"'data' is not a list of {{\"b64\": <base64>}} ({error})") from None
