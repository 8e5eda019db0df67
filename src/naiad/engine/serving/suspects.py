"""Requests that kill workers: who was in a batch when a worker died is suspected, and refused after the second death.

A batch that dies fails all its requests, and clients send them again. To find the one that kills:

- After a death the contents of the batch's requests are suspects: one that is sent again may have another id.
- A suspect that comes again is executed in a batch of its own where batches are put together by shape.
- When a worker answers it, it is cleared. Requests that all clients repeat, which any death finds in some batch, are
  cleared at once by their neighbours.
- When a second worker dies of it, it is refused for `_REFUSED_S`, by name. (`refuse_after_deaths` of the model.)

Nothing is remembered of a model whose workers live, and then a request costs one look at an empty dictionary.
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
"""How long after the last death a request is suspected, or refused."""
_MOST_SUSPECTS = 256
"""The one that was suspected first goes when there are more."""
_DIGEST_BYTES = 24
_SAMPLED_BYTES = 256 << 10
"""Of larger requests so much enters the digest, spread over each tensor: it is made on the event loop."""
_PIECES = 16
_SHOWN = 200
"""Characters of an id in messages."""


class _Suspect:
    """The content of a request that was executed when a worker died."""

    __slots__ = ("deaths", "last_ns", "request_id", "shape")

    def __init__(self, request: InferRequest) -> None:
        self.request_id = request.id[:_SHOWN]
        self.deaths: list[str] = []
        """What was said of each."""
        self.last_ns = 0
        self.shape: object = object()
        """Equal to no other shape: the request is alone in its batch."""


class Suspects:
    """The suspects of one served version; used on any thread."""

    def __init__(self, model: str, most_deaths: int = 2) -> None:
        """`most_deaths`: after so many a request is refused; 0 for never."""
        self._model = model
        self._most_deaths = most_deaths
        self._lock = threading.Lock()
        self.found: dict[bytes, _Suspect] = {}
        """Looked at before every request: `examine` and `clear` are called only when it is not empty."""
        self._sizes: set[tuple[int, ...]] = set()
        """Sizes of the data of suspects: most other requests differ in that, and cost no digest."""

    def accuse(self, requests: Sequence[InferRequest], death: str, now_ns: int) -> None:
        """Take note of requests that were executed when a worker died."""
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
                self._sizes.add(_sizes(request))
                if len(suspect.deaths) == self._most_deaths:
                    text = "request '%s' for model '%s' is refused from now on: workers have died of it (%s)"
                    _log.error(text, request.id[:_SHOWN], self._model, "; ".join(suspect.deaths))
            while len(self.found) > _MOST_SUSPECTS:
                del self.found[next(iter(self.found))]

    def examine(self, request: InferRequest, now_ns: int) -> None:
        """Have a suspect executed alone. Raises InferError(INVALID_ARG) for one that workers have died of."""
        if _sizes(request) not in self._sizes:
            return
        digest = digest_of(request.header, request.data)
        with self._lock:
            suspect = self.found.get(digest)
            if suspect is None:
                return
            if now_ns - suspect.last_ns > _REFUSED_S * 1e9:
                self._forget(digest)
                return
        if len(suspect.deaths) >= self._most_deaths:
            raise self._refusal(request, suspect, now_ns)
        request.shape_key = suspect.shape

    def clear(self, requests: Sequence[InferRequest]) -> None:
        """Take note of requests that a worker has answered."""
        for request in requests:
            if _sizes(request) in self._sizes:
                with self._lock:
                    self._forget(digest_of(request.header, request.data))

    def _forget(self, digest: bytes) -> None:
        self.found.pop(digest, None)
        if not self.found:
            self._sizes.clear()

    def _refusal(self, request: InferRequest, suspect: _Suspect, now_ns: int) -> InferError:
        left_s = _REFUSED_S - (now_ns - suspect.last_ns) / 1e9
        request_id = request.id[:_SHOWN]
        first = f", first as '{suspect.request_id}'" if suspect.request_id != request_id else ""
        return invalid_argument(
            f"request '{request_id}' for model '{self._model}' is refused: each time when it was executed{first} the "
            f"worker died ({'; '.join(suspect.deaths)}); it is refused for another {left_s:.0f} s, or until the "
            "model is loaded again (parameter refuse_after_deaths)"
        )


def digest_of(header: RequestHeader, data: Sequence[Buffer]) -> bytes:
    """Return what stands for the content of a request: tensors, parameters and data, without its id."""
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
