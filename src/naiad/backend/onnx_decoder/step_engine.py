"""The thread that computes for all rows of a version, turn after turn: continuous batching.

    instance threads   wait for the end of their row       one for each slot
    this thread        rows -> turn -> logits -> tokens -> responses, and again

An arriving row joins the next turn, one that ends leaves its place at once. Rows of cancelled requests end before the
next turn; rows whose clients do not read are left out of turns, and other rows go on.
"""

import logging
import threading
from collections.abc import Sequence

from naiad.backend.framework import reason
from naiad.backend.onnx.sessions import ort_message
from naiad.backend.onnx_decoder.decoder import Decoder
from naiad.backend.onnx_decoder.decoder_row import DecoderRow
from naiad.backend.onnx_decoder.turns import Turn, TurnPlanner
from naiad.core.errors import InferError, internal, unavailable
from naiad.core.tensor import Array

_log = logging.getLogger(__name__)

_PAUSE_S = 0.01
"""When all rows wait for their clients they are looked at again after this time."""


class StepEngine:
    """Bounded by the instances, of which each has one row at a time."""

    def __init__(self, name: str, decoder: Decoder, planner: TurnPlanner[DecoderRow]) -> None:
        """`name` is the model, for the thread and for errors."""
        self._name = name
        self._decoder = decoder
        self._planner = planner
        self._rows: list[DecoderRow] = []
        self._arrived: list[DecoderRow] = []
        self._is_closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=f"{name} steps", daemon=True)
        self._thread.start()

    def generate(self, row: DecoderRow) -> None:
        """Generate for a row, and return when its last response has been sent. Raises InferError(UNAVAILABLE)."""
        with self._changed:
            if self._is_closed:
                raise unavailable(f"model '{self._name}' is unloaded")
            self._arrived.append(row)
            self._changed.notify()
        row.over.wait()

    def close(self) -> None:
        """End all rows and the thread."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while self._admit():
            try:
                self._take_turn()
            except BaseException as error:  # the thread must go on: other requests wait for it
                _log.error("model '%s': a step has failed", self._name, exc_info=True)
                self._fail(self._rows, error)
        self._fail(self._rows + self._arrived, unavailable(f"model '{self._name}' is unloaded"))

    def _admit(self) -> bool:
        """Take the rows that have arrived; wait while there are none at all. Return False when it is closed."""
        with self._changed:
            while not (self._rows or self._arrived or self._is_closed):
                self._changed.wait()
            self._rows += self._arrived
            self._arrived.clear()
            return not self._is_closed

    def _take_turn(self) -> None:
        for row in self._rows:
            if row.is_cancelled:
                row.end_cancelled()
        self._drop_ended()
        turn = self._planner.next(self._rows)
        if turn is not None:
            self._execute(turn)
            self._drop_ended()
        elif self._rows:
            with self._changed:
                if not self._arrived and not self._is_closed:
                    self._changed.wait(_PAUSE_S)

    def _execute(self, turn: Turn[DecoderRow]) -> None:
        try:
            logits = self._compute(turn)
        except Exception as error:  # ONNX Runtime raises a different class for each status
            self._fail(turn.rows, error)
            return
        for row, values in zip(turn.rows, logits, strict=True):
            if row.prompt_left:
                continue  # there is more of its prompt to read
            try:
                row.take(values)
            except Exception as error:  # of the tokenizer, for one
                self._fail((row,), error)

    def _compute(self, turn: Turn[DecoderRow]) -> Array:
        if turn.prompt_tokens:
            return self._decoder.read([(row.cache, row.next_prompt(turn.prompt_tokens)) for row in turn.rows])
        return self._decoder.step([row.cache for row in turn.rows], [row.last_token for row in turn.rows])

    def _fail(self, rows: Sequence[DecoderRow], error: BaseException) -> None:
        known = error if isinstance(error, InferError) else self._error_of(error)
        for row in rows:
            try:
                row.fail(known)
            except Exception:  # the other rows must end too, and the thread must go on
                _log.error("model '%s': the end of a request was not sent", self._name, exc_info=True)
        self._drop_ended()

    def _error_of(self, error: BaseException) -> InferError:
        is_of_runtime = type(error).__module__.startswith("onnxruntime")
        text = ort_message(error) if isinstance(error, Exception) and is_of_runtime else reason(error)
        return internal(f"model '{self._name}' failed on its tokens: {text}")

    def _drop_ended(self) -> None:
        for row in self._rows:
            if row.over.is_set():
                self._decoder.forget(row.cache)
        self._rows = [row for row in self._rows if not row.over.is_set()]
