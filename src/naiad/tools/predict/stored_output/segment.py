"""Segments: what consecutive rows add to the files of an output, as an object that is written once.

The name says which rows it has. Segments of one job may overlap, because a part of it may have been executed twice by
workers of which one was believed to be gone: each is true, and `chain` chooses those that follow each other.
"""

import json
import re
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from naiad.core.errors import internal
from naiad.tools.predict.files.row_writer import WrittenRows
from naiad.tools.predict.stores.store_place import StorePlace

MAX_SEGMENT_BYTES = 1 << 32
MAX_SEGMENTS = 1_000_000
"""Of one job; their names are in memory."""
_SUFFIX = "rows"
_NAME = re.compile(rf"(\d+)-(\d+)-(\d+)-[0-9a-f]+\.{_SUFFIX}")
_AHEAD = 3


@dataclass(frozen=True, slots=True)
class Segment:
    """Rows that are stored. Picklable."""

    first: int
    """Number of the first row among all rows of the job."""
    rows: int
    failed_rows: int
    name: str


@dataclass(frozen=True, slots=True)
class SegmentFolder:
    """The segments of one job. Picklable: workers write theirs themselves. Methods raise InferError."""

    place: StorePlace

    def put(self, first: int, written: WrittenRows) -> Segment:
        """Store rows."""
        name = f"{first:015d}-{written.rows}-{written.failed_rows}-{secrets.token_hex(4)}.{_SUFFIX}"
        self.place.objects.write(name, encoded(written), {})
        return Segment(first, written.rows, written.failed_rows, name)

    def get(self, segment: Segment) -> WrittenRows:
        """Return stored rows."""
        found = self.place.objects.read(segment.name, MAX_SEGMENT_BYTES)
        if found is None:
            raise internal(f"{self.place.url}/{segment.name} was removed while the job ran; add --restart")
        return decoded(found[0], f"{self.place.url}/{segment.name}")

    def all(self, segments: Sequence[Segment]) -> Iterator[WrittenRows]:
        """Return stored rows in order, the next ones on their way meanwhile."""
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(_AHEAD, thread_name_prefix="segments") as pool:
            waiting = [pool.submit(self.get, each) for each in segments[:_AHEAD]]
            for number in range(len(segments)):
                written = waiting.pop(0).result()
                waiting += [pool.submit(self.get, each) for each in segments[number + _AHEAD : number + _AHEAD + 1]]
                yield written

    def names(self) -> list[str]:
        """Return what is there."""
        return [each.key for each in self.place.objects.top_objects()]


def chain(names: Iterable[str]) -> list[Segment]:
    """Return segments that follow each other from the first row on, as far as there are some."""
    found: dict[int, Segment] = {}
    for name in sorted(names):
        match = _NAME.fullmatch(name)
        if match is None:
            continue
        segment = Segment(int(match[1]), int(match[2]), int(match[3]), name)
        if segment.first not in found or segment.rows > found[segment.first].rows:
            found[segment.first] = segment
    chained: list[Segment] = []
    row = 0
    while row in found and found[row].rows:
        chained.append(found[row])
        row += found[row].rows
    return chained


def encoded(written: WrittenRows) -> bytes:
    """Return rows as the content of an object: a line of JSON, then what they add to each file."""
    sizes = {name: len(content) for name, content in written.growth.items()}
    head = {"rows": written.rows, "failed_rows": written.failed_rows, "sizes": sizes}
    return b"".join([json.dumps(head).encode(), b"\n", *written.growth.values()])


def decoded(content: bytes, where: str) -> WrittenRows:
    """Return the rows of an object. Raises InferError(INTERNAL) for another content."""
    line, _, rest = content.partition(b"\n")
    try:
        head = json.loads(line)
        growth: dict[str, bytes] = {}
        for name, size in head["sizes"].items():
            growth[str(name)], rest = rest[:size], rest[size:]
            if len(growth[name]) != size:
                raise ValueError(name)
        if rest:
            raise ValueError("more than its head says")
        return WrittenRows(int(head["rows"]), int(head["failed_rows"]), growth)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise internal(f"{where} is damaged; add --restart to begin again") from None
