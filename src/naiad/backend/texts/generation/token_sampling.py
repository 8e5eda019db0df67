"""From the logits of a row to its next token: greedy, or drawn with a generator of the request's own.

All is done in float32. The largest logits are found by partition: a vocabulary is not sorted.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from naiad.core.errors import internal
from naiad.core.tensor import Array

_FIRST_PART = 64
"""Tokens that are looked at first for `top_p`."""
_GROWTH = 8
_LEAST_REPETITION = 1e-9
"""Smaller penalties choose the same tokens, and are 0 in float32."""
_LARGEST = np.finfo(np.float32).max


class Sampler:
    """Chooses the tokens of one request. The same seed, logits and parameters give the same tokens."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        """`given` are sampling parameters whose values have been checked."""
        self._temperature = float(given.get("temperature", 0))
        self._top_k = max(0, int(given.get("top_k", 0)))
        self._top_p = float(given.get("top_p", 1))
        self._min_p = float(given.get("min_p", 0))
        self._frequency = float(given.get("frequency_penalty", 0))
        self._presence = float(given.get("presence_penalty", 0))
        self._repetition = max(_LEAST_REPETITION, float(given.get("repetition_penalty", 1)) or 1.0)
        self._has_penalties = bool(self._frequency or self._presence or self._repetition != 1)
        self._counts: Counter[int] = Counter()
        # Smaller temperatures are 0 in float32, and nothing can be divided by that.
        self._is_greedy = np.float32(self._temperature) == 0 or self._top_k == 1
        seed = given.get("seed")
        # Any whole number is a seed; numpy takes those from 0 on.
        self._random = None if self._is_greedy else np.random.default_rng(None if seed is None else seed % (1 << 64))

    def pick(self, logits: Array, excluded: Collection[int] = ()) -> int:
        """Return the next token for logits [vocabulary], none of `excluded` unless no other token is possible.

        Raises InferError(INTERNAL) if the logits are no numbers.
        """
        values = np.asarray(logits, np.float32)
        token = int(np.argmax(values))
        if not np.isfinite(values[token]):
            raise internal(f"the model has returned the logit {values[token]} for token {token}; it is damaged")
        if self._has_penalties:
            values = self._penalized(values)
        if excluded:
            allowed = values.copy()
            allowed[list(excluded)] = -np.inf
            # A model may have made all others impossible.
            values = allowed if np.max(allowed) > -np.inf else values
        if self._has_penalties or excluded:
            token = int(np.argmax(values))
        if self._random is not None:
            token = self._draw(values, float(values[token]))
        if self._has_penalties:
            self._counts[token] += 1
        return token

    def _penalized(self, logits: Array) -> Array:
        if not self._counts:
            return logits
        values = logits.copy()
        tokens = np.fromiter(self._counts, np.int64, len(self._counts))
        counts = np.fromiter(self._counts.values(), np.float32, len(self._counts))
        found = values[tokens]
        with np.errstate(over="ignore"):
            found = np.where(found > 0, found / self._repetition, found * self._repetition)
            # A tiny penalty makes logits that float32 does not have.
            values[tokens] = np.clip(found - self._frequency * counts - self._presence, -_LARGEST, _LARGEST)
        return values

    def _draw(self, logits: Array, largest: float) -> int:
        assert self._random is not None
        with np.errstate(under="ignore", over="ignore"):
            weights = np.exp((logits - np.float32(largest)) / np.float32(self._temperature))
        tokens = np.flatnonzero(weights >= self._min_p) if self._min_p else None
        if tokens is not None:
            weights = weights[tokens]
        if 0 < self._top_k < weights.size:
            kept = np.argpartition(weights, weights.size - self._top_k)[-self._top_k :]
            tokens, weights = kept if tokens is None else tokens[kept], weights[kept]
        if self._top_p < 1:
            kept = _nucleus(weights, self._top_p)
            tokens, weights = kept if tokens is None else tokens[kept], weights[kept]
        sums = np.cumsum(weights, dtype=np.float64)
        drawn = int(np.searchsorted(sums, self._random.random() * sums[-1], side="right"))
        drawn = min(drawn, weights.size - 1)
        return drawn if tokens is None else int(tokens[drawn])


def _nucleus(weights: Array, top_p: float) -> Array:
    """Return the positions of the fewest weights that have together this share of the sum, the largest first."""
    wanted = top_p * float(np.sum(weights, dtype=np.float64))
    count = min(_FIRST_PART, weights.size)
    while True:
        part = np.argpartition(weights, weights.size - count)[weights.size - count :]
        part = part[np.argsort(-weights[part], kind="stable")]
        sums = np.cumsum(weights[part], dtype=np.float64)
        if sums[-1] >= wanted or count == weights.size:
            found: Array = part[: int(np.searchsorted(sums, wanted)) + 1]
            return found
        count = min(count * _GROWTH, weights.size)
