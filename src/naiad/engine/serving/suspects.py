"""Requests that kill workers: the requests of a batch are suspects when its worker dies, and rejected after a second
death.

The death of a worker fails all requests of its batch, and clients send them again. To find the request that kills:

- After a death the contents of the batch's requests are suspects, not their ids: a repeated request may have a new
  id.
- A repeated suspect executes in a batch of its own, if the model batches by shape.
- A response clears a suspect. Requests that all clients repeat, which every death finds in some batch, are cleared at
  once by equal requests.
- When a second worker dies, the suspect is rejected for `_REFUSED_S`, with its id in the error (parameter
  `refuse_after_deaths` of the model).

Models with stable workers have no suspects, and then a request costs one check of an empty dictionary.
"""

import hashlib
import logging
import threading
from collections.abc import Sequence

from naiad.core.errors import InferError, invalid_argument
from naiad.core.request import InferRequest, RequestHeader
from naiad.core.tensor import Buffer

_log = logging.getLogger(__name__)

_REFUSED_S = 600.0
"""Time after the last death for which a request is a suspect, or rejected."""
_MOST_SUSPECTS = 256
"""Limit of the suspects; the oldest is removed."""
_DIGEST_BYTES = 24
_SAMPLED_BYTES = 256 << 10
"""Bytes of a larger request in its digest, spread over each tensor: the event loop computes it."""
_PIECES = 16
_SHOWN = 200
"""Limit of an id in messages, in characters."""


class _Suspect:
    """The content of a request that was executing at the death of a worker."""

    __slots__ = ("deaths", "last_ns", "request_id", "shape", "sizes")

    def __init__(self, request: InferRequest) -> None:
        self.request_id = request.id[:_SHOWN]
        self.sizes = _sizes(request)
        self.deaths: list[str] = []
        """The description of each death."""
        self.last_ns = 0
        self.shape: object = object()
        """A key unequal to every shape: the request is alone in its batch."""


class Suspects:
    """The suspects of one served version; used on any thread."""

    def __init__(self, model: str, most_deaths: int = 2) -> None:
        """`most_deaths`: number of deaths after which a request is rejected; 0 for never."""
        self._model = model
        self._most_deaths = most_deaths
        self._lock = threading.Lock()
        self.found: dict[bytes, _Suspect] = {}
        """The one with the latest death last. `examine` and `clear` are called only if it is not empty."""
        self._sizes: set[tuple[int, ...]] = set()
        """Sizes of the data of suspects: most other requests have another size, and need no digest."""

    def note_death(self, requests: Sequence[InferRequest], death: str, now_ns: int) -> None:
        """Note the requests that were executing at the death of a worker."""
        if not self._most_deaths:
            return
        digests = [digest_of(request.header, request.data) for request in requests]
        with self._lock:
            for request, digest in zip(requests, digests, strict=True):
                suspect = self.found.pop(digest, None)
                if suspect is None or now_ns - suspect.last_ns > _REFUSED_S * 1e9:
                    suspect = _Suspect(request)
                suspect.last_ns = now_ns
                suspect.deaths.append(death)
                self.found[digest] = suspect
                self._sizes.add(suspect.sizes)
                if len(suspect.deaths) == self._most_deaths:
                    text = "request '%s' for model '%s' is rejected from now on: workers have died of it (%s)"
                    _log.error(text, request.id[:_SHOWN], self._model, "; ".join(suspect.deaths))
            while len(self.found) > _MOST_SUSPECTS:
                self._forget(next(iter(self.found)))

    def examine(self, request: InferRequest, now_ns: int) -> None:
        """Let a suspect execute alone. Raises InferError(INVALID_ARG) for one that is rejected."""
        with self._lock:
            while self.found and now_ns - next(iter(self.found.values())).last_ns > _REFUSED_S * 1e9:
                self._forget(next(iter(self.found)))
        if _sizes(request) not in self._sizes:
            return
        suspect = self.found.get(digest_of(request.header, request.data))
        if suspect is None:
            return
        if len(suspect.deaths) >= self._most_deaths:
            raise self._refusal(request, suspect, now_ns)
        request.shape_key = suspect.shape

    def clear(self, requests: Sequence[InferRequest]) -> None:
        """Note the requests with a response."""
        for request in requests:
            if _sizes(request) in self._sizes:
                with self._lock:
                    self._forget(digest_of(request.header, request.data))

    def _forget(self, digest: bytes) -> None:
        if self.found.pop(digest, None) is not None:
            self._sizes = {suspect.sizes for suspect in self.found.values()}

    def _refusal(self, request: InferRequest, suspect: _Suspect, now_ns: int) -> InferError:
        left_s = _REFUSED_S - (now_ns - suspect.last_ns) / 1e9
        request_id = request.id[:_SHOWN]
        first = f", first as '{suspect.request_id}'" if suspect.request_id != request_id else ""
        return invalid_argument(
            f"request '{request_id}' for model '{self._model}' is rejected: each time when it was executed{first} "
            f"the worker died ({'; '.join(suspect.deaths)}); it is rejected for another {left_s:.0f} s, or until the "
            "model is loaded again (parameter refuse_after_deaths)"
        )


def digest_of(header: RequestHeader, data: Sequence[Buffer]) -> bytes:
    """Return a digest of the content of a request: tensors, parameters and data, without its id."""
    described = [(spec.name, spec.datatype.value, spec.shape) for spec in header.inputs]
    said = repr((described, sorted(header.parameters.items())))
    digest = hashlib.blake2b(said.encode(), digest_size=_DIGEST_BYTES)
    share_bytes = _SAMPLED_BYTES // max(1, len(data))
    for buffer in data:
        view = memoryview(buffer)
        digest.update(len(view).to_bytes(8, "little"))
        if len(view) <= share_bytes:
            digest.update(view)
            continue
        piece_bytes, stride = share_bytes // _PIECES, len(view) // _PIECES
        for number in range(_PIECES - 1):
            digest.update(view[number * stride : number * stride + piece_bytes])
        digest.update(view[-piece_bytes:])
    return digest.digest()


def _sizes(request: InferRequest) -> tuple[int, ...]:
    return tuple(map(len, request.data))
