"""What of the waiting requests could make a batch: the dynamic batcher's record of it, and the rule by shape.

Where requests are padded to few lengths, those of one length are looked for among all that wait. The oldest request
still goes first, so that none is passed over for ever.
"""

from collections.abc import Collection, Iterable, Sequence

from naiad.core.request import InferRequest
from naiad.scheduler.queue import Lane

SCAN_LIMIT = 1024
"""Waiting requests that are looked through for others of the same shape."""


class Gathered:
    """The requests that fit one batch, and where it could be sent."""

    __slots__ = ("cut", "mark", "mark_rows", "requests", "rows")

    def __init__(self) -> None:
        self.requests: list[InferRequest] = []
        self.rows = 0
        """Rows of all of them, unless the batch was cut."""
        self.mark = 0
        """How many of the requests make a preferred batch; 0 for none."""
        self.mark_rows = 0
        self.cut = ""
        """Why the batch cannot grow although requests wait: full, shape, strategy, or nothing."""

    def oldest_ns(self) -> int:
        """Return the arrival of its oldest request, of which there is one at least."""
        requests = self.requests
        return requests[0].arrival_ns if len(requests) == 1 else min([request.arrival_ns for request in requests])


def gather_by_shape(lanes: Iterable[Lane], preferred: Collection[int], max_rows: int) -> Sequence[Gathered]:
    """Return what fits one batch for each shape that waits, in the order of their first requests.

    The batcher's rules 1, 2, 3 and 5 hold for each; `preferred` has one size at least.
    """
    groups: dict[object, Gathered] = {}
    largest_preferred = max(preferred)
    seen_count = 0
    for lane in lanes:
        for request in lane.in_order():
            if request.lane is not lane:
                continue
            group = groups.get(request.shape_key)
            if group is None:
                group = groups[request.shape_key] = Gathered()
            if not group.cut:
                _add(group, request, preferred, largest_preferred, max_rows)
            seen_count += 1
            if seen_count >= SCAN_LIMIT:
                return list(groups.values())
    return list(groups.values())


def _add(
    group: Gathered, request: InferRequest, preferred: Collection[int], largest_preferred: int, max_rows: int
) -> None:
    grown = group.rows + (request.batch_size or 1)
    if group.requests:
        if grown > largest_preferred and not group.mark:
            group.mark, group.mark_rows = len(group.requests), group.rows
        if grown > max_rows:
            group.cut = "full"
            return
    group.requests.append(request)
    group.rows = grown
    if grown in preferred:
        group.mark, group.mark_rows = len(group.requests), grown
