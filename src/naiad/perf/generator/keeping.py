"""Outputs and times of each request, kept for the profile export within a bound of memory."""

from itertools import accumulate

from naiad.perf.exchange import Exchange
from naiad.perf.records import KeptRequest, Records

MAX_KEPT_BYTES = 256 * 1024 * 1024
"""Of a load, over all processes; requests after it are counted only."""
_REQUEST_BYTES, _RESPONSE_BYTES, _OUTPUT_BYTES = 400, 150, 350
"""What the objects take beside the data of tensors."""


class Keeping:
    """Keeps the requests of one generator process."""

    def __init__(self, processes: int) -> None:
        self._limit = MAX_KEPT_BYTES // processes
        self._size = 0

    def clear(self) -> None:
        """Begin with a new load."""
        self._size = 0

    def keep(self, exchange: Exchange, records: Records) -> None:
        """Add a request without failure to `records`, or count it when the memory is full."""
        if exchange.failure or not exchange.responses:
            return
        body = exchange.body or ()
        size = _REQUEST_BYTES + _RESPONSE_BYTES * exchange.responses
        size += sum(_OUTPUT_BYTES + len(each) for _, data in body for each in data)
        if self._size + size > self._limit:
            self._size = self._limit  # Later requests are left out, too: the export has no holes.
            records.unkept += 1
            return
        self._size += size
        records.kept.append(
            KeptRequest(
                exchange.model_index,
                exchange.template_index,
                exchange.sequence_id,
                exchange.start_ns,
                tuple(accumulate(exchange.gaps_ns or (), initial=exchange.first_ns)),
                # As bytes: a view would keep the whole buffer that it was received in.
                [list(zip(specs, map(bytes, data), strict=True)) for specs, data in body],  # type: ignore[arg-type]
            )
        )
