"""The served version behind a model's name: it picks a version for each request without one.

A rollout with shadow copies, sticky keys, or sequences needs no other place: metadata, readiness and limits are those
of the stable version, and everything behind the choice (queues, statistics, traces, cancellation, the response cache)
belongs to the version that was picked.
"""

import time
from collections.abc import Callable, Iterable, Sequence

from naiad.config.rollout.guard import RolloutCounts
from naiad.config.rollout.pins import SequencePins
from naiad.config.rollout.rollout_declaration import Rollout
from naiad.config.rollout.splitter import EvenSplit, position_of, salt_of, threshold
from naiad.core.errors import ErrorCode, InferError, UnknownSequenceError
from naiad.core.request import InferRequest
from naiad.core.response import InferResponse
from naiad.engine.rollout.shadow import ShadowCopies
from naiad.engine.rollout.sides import CanaryHeaders, RolloutSide
from naiad.engine.serving.served import ServedProxy

REQUEST_ID = "request_id"
"""The sticky key that is the id of a request, not a parameter."""

_now_ns = time.monotonic_ns


class RolloutModel(ServedProxy):
    """A proxy of the stable version. All methods except the counts are called on the event loop."""

    def __init__(
        self,
        rollout: Rollout,
        era: tuple[str, int],
        stable: RolloutSide,
        canary: RolloutSide | None,
        others: Iterable[RolloutSide],
        *,
        split: EvenSplit,
        pins: SequencePins,
        shadow: ShadowCopies | None,
    ) -> None:
        """`others`: the model's other versions, which may have live sequences."""
        super().__init__(stable.served)
        self._stable = stable
        self._canary = canary
        self._sides = {side.version: side for side in (stable, canary, *others) if side is not None}
        self._share = 0 if canary is None else threshold(rollout.weight)
        self._percent = rollout.weight
        self._sticky = rollout.sticky
        self._salt = salt_of(stable.served.name, rollout.canary)
        self._split = split
        self._pins = pins
        self._canary_headers = CanaryHeaders()
        self._shadow = shadow
        self.era = era

    @property
    def rule(self) -> str:
        """The split in one sentence."""
        text = f"Without a version it goes to version {self.version}, stable of a rollout"
        if self._canary is None or not self._share:
            return text + "."
        by = f", by {self._sticky}" if self._sticky else ""
        return f"{text}; {self._percent:g} % of such requests{by}, to version {self._canary.served.version}."

    @property
    def stable_side(self) -> RolloutSide:
        """The stable version, whose requests may be copied."""
        return self._stable

    def counts(self) -> RolloutCounts:
        """Return the counts of this state of the rollout."""
        canary = self._canary
        shadow = {} if self._shadow is None else dict(self._shadow.results)
        counts = RolloutCounts(self.era, self._stable.counts(), shadow=shadow)
        return counts if canary is None else RolloutCounts(self.era, counts.stable, canary.counts(), shadow)

    # --- called on the event loop -----------------------------------------------------------------------------------

    def submit(self, request: InferRequest) -> None:
        """Submit a request to the version that is picked for it. Raises InferError as that version does.

        Stable gets the requests that the canary rejects at once: clients do not see them fail.
        """
        # hot: every request without a version
        if request.header.sequence_id:
            if not self._stable.served.forwards_choice(request):
                self.submit_sequence(request)
            return
        side = self._stable
        if self._share and self._belongs_to_canary(request):
            canary = self._canary
            assert canary is not None
            if not canary.served.health:
                side = canary
        if side is self._stable:
            _Observed(self, side, request).submit(request)
            return
        header = request.header
        own = self._canary_headers.get(header)
        request.header = made = own or header.for_other_version()
        try:
            _Observed(self, side, request).submit(request)
        except InferError as error:
            request.header = header
            _Observed(self, self._stable, request).submit(request)
            # Stable has accepted it, so the client is not at fault.
            if error.code is not ErrorCode.CANCELLED:
                side.record(0, is_error=True)
        else:
            if own is None:
                self._canary_headers.keep(header, made)

    def _belongs_to_canary(self, request: InferRequest) -> bool:
        if self._sticky:
            key = request.id if self._sticky == REQUEST_ID else request.header.parameters.get(self._sticky, "")
            if key != "":
                return position_of(self._salt, str(key)) < self._share
        return self._split.takes(self._share)

    def cancel(self, request: InferRequest) -> bool:
        """Cancel a request at its version; the engine does so itself."""
        return self._served.cancel(request)

    def is_waiting(self, request: InferRequest) -> bool:
        """Return whether a submitted request waits, as its version knows."""
        return request.model is not self and bool(request.model.is_waiting(request))

    def served_response(self, request: InferRequest, response: InferResponse) -> None:
        """Copy a request that has got its response from stable, if that is wanted."""
        if self._shadow is not None and not request.cancelled:
            self._shadow.offer(request, response)

    # --- sequences --------------------------------------------------------------------------------------------------

    def submit_sequence(self, request: InferRequest) -> None:
        """Submit a request of a sequence in this process to the version of the sequence. Raises InferError.

        A sequence that began before the rollout is found at the version that knows it.
        """
        header, now_ns = request.header, _now_ns()
        pinned = None if header.sequence_start else self._sides.get(self._pins.find(header.sequence_id, now_ns) or 0)
        candidates = [pinned] if pinned is not None else self._candidates(request)
        unknown: UnknownSequenceError | None = None
        for side in candidates:
            # Before the submission, which may already end with the response.
            self._pins.begin(header.sequence_id, side.version, now_ns, is_last=header.sequence_end)
            try:
                _Observed(self, side, request, self._end_sequence).submit(request)
            except InferError as error:
                self._pins.undo(header.sequence_id)
                if not isinstance(error, UnknownSequenceError):
                    raise
                unknown = unknown or error
            else:
                return
        assert unknown is not None
        raise unknown

    def _candidates(self, request: InferRequest) -> Sequence[RolloutSide]:
        chosen, canary = self._stable, self._canary
        if canary is not None and position_of(self._salt, str(request.header.sequence_id)) < self._share:
            chosen = chosen if canary.served.health else canary
        if request.header.sequence_start:
            return (chosen,)
        return (chosen, *(side for side in self._sides.values() if side is not chosen))

    def _end_sequence(self, request: InferRequest) -> None:
        self._pins.end(request.header.sequence_id, _now_ns())


class _Observed:
    """Stands between a request and its caller: it counts the response of one side."""

    __slots__ = ("_has_failed", "_model", "_on_end", "_side", "on_next")

    def __init__(
        self,
        model: RolloutModel,
        side: RolloutSide,
        request: InferRequest,
        on_end: Callable[[InferRequest], None] | None = None,
    ) -> None:
        self._model = model
        self._side = side
        self._on_end = on_end
        self._has_failed = False
        self.on_next: Callable[[InferRequest, InferResponse], object] = request.on_response
        """Takes the responses next."""

    def submit(self, request: InferRequest) -> None:
        """Submit the request to its side. Raises InferError, with the request as it was."""
        request.on_response = self.take
        try:
            self._side.served.submit(request)
        except InferError:
            request.on_response = self.on_next
            raise

    def take(self, request: InferRequest, response: InferResponse) -> None:
        """Count a response and pass it on."""
        # hot: once a response
        error = response.error
        if error is not None:
            self._has_failed = True
        self.on_next(request, response)
        if not response.final:
            return
        if self._on_end is not None:
            self._on_end(request)
        if request.cancelled or (error is not None and error.code is ErrorCode.CANCELLED):
            return  # neither a success nor a failure of the version
        side, model = self._side, self._model
        side.record(_now_ns() - request.arrival_ns, is_error=self._has_failed)
        if error is None and side is model.stable_side:
            model.served_response(request, response)
