"""Thresholds of inputs, as trees have them: `<=` in place of `<` shows at the threshold itself alone.

They are found in the answers of the source, of any format: between two values of a column with different
answers, halves are tried until two neighbouring numbers of FP32 are left. A threshold of something computed, such as
a score, is at other numbers in other rows, where rounding decides; only one that is the same in two rows counts.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from naiad.core.tensor import Array
from naiad.tools.optimize.correctness.boundaries.row_answers import RowAnswers
from naiad.tools.optimize.correctness.coverage import Coverage, InputCoverage
from naiad.tools.optimize.correctness.probes import Probe
from naiad.tools.optimize.correctness.runners.model_runner import Arrays

_TRIES = 48
_NUDGE = 1 + 2.0**-18
"""A change that a network answers with another number, and trees do not."""
_SIGN = 1 << 31


@dataclass(frozen=True, slots=True)
class Jump:
    """Two neighbouring numbers of FP32 with different answers, in one column of a row."""

    input: str
    column: int
    low: float
    high: float
    sample: Mapping[str, Array]

    def with_value(self, value: float, sample: Mapping[str, Array] | None = None) -> Mapping[str, Array]:
        """Return a row, by default its own, with another value in the column."""
        sample = self.sample if sample is None else sample
        row = sample[self.input].copy()
        row[self.column] = value
        return {**sample, self.input: row}


def threshold_probes(rows: RowAnswers, coverage: Coverage, *, are_compared: bool) -> Iterator[Probe]:
    """Yield rows with values at thresholds, those on both sides.

    `are_compared`: the source compares the numbers as they are given, so that every faithful conversion does. Other
    sources may scale them first, and round: a difference is named then. In columns of whole numbers, only whole ones
    are tried, where rounding has no part. Raises RunnerError.
    """
    for jump in jumps(rows, coverage):
        whole = coverage.inputs[jump.input].whole
        is_whole = whole is not None and bool(whole[jump.column])
        for value in (jump.low, jump.high):
            if value.is_integer() or not is_whole:
                what = f"values exactly at thresholds of '{jump.input}'"
                yield Probe(what, jump.with_value(value), is_only_named=not (is_whole or are_compared))


def jumps(rows: RowAnswers, coverage: Coverage) -> list[Jump]:
    """Return thresholds of the inputs. Raises RunnerError."""
    tables = [each for each in coverage.inputs.values() if each.kind == "f" and len(each.varying_columns)]
    if not tables or not _is_stepwise(rows, coverage.kept, tables):
        return []
    tried = list(_tries(coverage, tables))
    found = zip(tried, _differ(rows, tried), strict=True)
    narrow = _narrowed(rows, [each for each, is_different in found if is_different])
    return list(_confirmed(rows, narrow, coverage.kept))


def _is_stepwise(rows: RowAnswers, kept: Sequence[Mapping[str, Array]], tables: Sequence[InputCoverage]) -> bool:
    """Return whether most answers stay the same where all numbers change a little."""
    nudged = [{**each, **{table.name: each[table.name] * _NUDGE for table in tables}} for each in kept]
    nudged = [
        {name: array.astype(each[name].dtype) for name, array in made.items()} for made, each in _pairs(nudged, kept)
    ]
    same = [_content(one) == _content(two) for one, two in _pairs(rows.of(kept), rows.of(nudged))]
    return 2 * sum(same) > len(same)


def _pairs(one: Sequence[Mapping[str, Array]], two: Sequence[Mapping[str, Array]]) -> Iterator[tuple[Arrays, Arrays]]:
    return zip(one, two, strict=True)


def _tries(coverage: Coverage, tables: Sequence[InputCoverage]) -> Iterator[Jump]:
    """Yield a row and a range for columns in turn."""
    places = [(table, int(column)) for table in tables for column in table.varying_columns]
    random = np.random.default_rng(0)
    for number in range(_TRIES):
        table, column = (
            places[number % len(places)] if len(places) <= _TRIES else places[random.integers(len(places))]
        )
        assert table.lows is not None
        assert table.highs is not None
        ends = float(table.lows[column]), float(table.highs[column])
        # Each time from another end, so that several thresholds of a column are found.
        low, high = sorted([float(random.uniform(*ends)), ends[number // len(places) % 2]])
        yield Jump(
            table.name,
            column,
            float(np.float32(low)),
            float(np.float32(high)),
            coverage.kept[number % len(coverage.kept)],
        )


def _differ(rows: RowAnswers, tried: Sequence[Jump]) -> list[bool]:
    low, high = (
        rows.of([each.with_value(value) for each, value in zip(tried, ends, strict=True)])
        for ends in ([each.low for each in tried], [each.high for each in tried])
    )
    return [_content(one) != _content(two) for one, two in _pairs(low, high)]


def _narrowed(rows: RowAnswers, tried: Sequence[Jump]) -> list[Jump]:
    """Halve all ranges until their ends are neighbours."""
    if not tried:
        return []
    answers = [_content(each) for each in rows.of([each.with_value(each.low) for each in tried])]
    current = list(tried)
    while True:
        middles = [_middle(each.low, each.high) for each in current]
        if all(middle == each.low for middle, each in zip(middles, current, strict=True)):
            return current
        made = rows.of([each.with_value(middle) for each, middle in zip(current, middles, strict=True)])
        current = [
            replace(each, low=middle) if _content(answer) == low else replace(each, high=middle)
            for each, middle, answer, low in zip(current, middles, made, answers, strict=True)
        ]


def _confirmed(rows: RowAnswers, found: Sequence[Jump], kept: Sequence[Mapping[str, Array]]) -> Iterator[Jump]:
    """Yield those where another row jumps between the same two numbers."""
    for jump in {(each.input, each.column, each.high): each for each in found}.values():
        others = [each for each in kept if each is not jump.sample]
        low, high = (rows.of([jump.with_value(value, each) for each in others]) for value in (jump.low, jump.high))
        if any(_content(one) != _content(two) for one, two in _pairs(low, high)):
            yield jump


def _content(answer: Arrays) -> bytes:
    return b"".join(
        repr(array.tolist()).encode() if array.dtype == object else array.tobytes()
        for _, array in sorted(answer.items())
    )


def _middle(low: float, high: float) -> float:
    """Return the number of FP32 in the middle of those between two, `low` if they are neighbours."""
    return _number((_place(low) + _place(high)) // 2)


def _place(value: float) -> int:
    """Return the place of a number among all numbers of FP32, in their order."""
    bits = int(np.float32(value).view(np.uint32))
    return bits if bits < _SIGN else _SIGN - bits


def _number(place: int) -> float:
    bits = place if place >= 0 else _SIGN - place
    return float(np.uint32(bits).view(np.float32))
