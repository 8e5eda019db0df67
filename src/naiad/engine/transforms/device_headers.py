"""Headers of requests whose tensors are in CUDA shared memory, as models on that GPU take them."""

from collections.abc import Set

from naiad.core.request import RequestHeader

_LIMIT = 512


class DeviceHeaders:
    """One copy per header and set of outputs: what is derived from a header is derived once."""

    def __init__(self) -> None:
        self._copies: dict[tuple[RequestHeader, Set[str]], RequestHeader] = {}

    def find(self, header: RequestHeader, staying: frozenset[str]) -> RequestHeader:
        """Return the copy with these outputs on their device."""
        key = (header, staying)
        found = self._copies.get(key)
        if found is None:
            if len(self._copies) >= _LIMIT:
                self._copies.clear()
            found = self._copies[key] = header.on_device(staying)
        return found
