"""Inputs that the samples do not have, made of them: the source's answers to them are the truth, too."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from naiad.core.datatype import STRING_KINDS
from naiad.core.tensor import Array
from naiad.tools.optimize.candidate import Precision
from naiad.tools.optimize.correctness.coverage import FEW_SAMPLES, Coverage, InputCoverage, variable_lengths

PERTURBED = 8
"""Rows that are made of the samples for batches and for the comparison."""
_NOISE = 0.02
"""Of the range of an input."""
_OWN_NOISE = 0.1
"""Of a value, where samples have no range."""
_LARGER = 3.0
_SMALLER = 0.01
_INCOMPLETE = 3
"""Samples that get missing values or longer strings."""
_SHOWN = 8
"""Columns that are named."""
_TIMES = 4
"""How often a longer string has the text of a sample."""
_WIDE = (Precision.FP32, Precision.TF32, Precision.BF16)
"""Precisions with the range of FP32: others are calibrated on the range of the samples, or end at 65,504."""
FACTORS = {Precision.INT8: 1.5, Precision.INT8_DYNAMIC: 1.5}
"""By which tolerances are wider for probes, which the candidate was not calibrated for."""
FACTOR = 3.0


@dataclass(frozen=True, slots=True)
class Probe:
    """An input that no sample has."""

    what: str
    """What is shown by it, as `a mask with zeros`."""
    sample: Mapping[str, Array]
    is_optional: bool = False
    """A candidate that refuses it is served for the samples' shapes only."""
    only_exact: bool = False
    """Only integers and strings are compared."""
    row_name: str = ""
    """What it is called as a row of batches; empty if it is none."""
    is_beyond: bool = False
    """Its values are beyond the range of the samples."""
    is_only_named: bool = False
    """Whether users send such inputs is not known: a difference is named, and rejects no candidate."""


def perturbed(coverage: Coverage) -> Iterator[Probe]:
    """Yield rows near the samples: mixtures of two with noise, other orders of integers and strings."""
    kept = coverage.kept
    for number in range(PERTURBED):
        random = np.random.default_rng(number)
        first, second = kept[number % len(kept)], kept[(number * 3 + 1) % len(kept)]
        made = {name: _perturbed(array, second[name], coverage.inputs[name], random) for name, array in first.items()}
        yield Probe("inputs near the samples", made, row_name=f"near {number % len(kept)}")


def special(coverage: Coverage, precision: Precision, *, has_exact: bool) -> Iterator[Probe]:
    """Yield inputs for what the samples have in common; `has_exact`: an output has integers or strings."""
    flags = [each for each in coverage.inputs.values() if each.is_flag]
    for each in flags:
        for number, sample in enumerate(coverage.kept[:2]):
            array = sample[each.name].copy()
            _tail(array, 2 + number)[...] = not each.low
            what = f"zeros in '{each.name}'" if each.low else f"ones in '{each.name}'"
            yield Probe(what, {**sample, each.name: array})
    for each in coverage.inputs.values():
        if each.equal_axis is not None:
            sample = coverage.kept[0]
            yield Probe(f"channels of '{each.name}' that differ", {**sample, each.name: _channels(sample, each)})
    floats = [each for each in coverage.inputs.values() if each.kind == "f" and not each.is_flag]
    if floats and precision in _WIDE:
        for number, sample in enumerate(coverage.kept[:2]):
            larger = _scaled(sample, floats, _LARGER)
            row = f"{_LARGER:g} times {number}"
            yield Probe("values beyond the range of the samples", larger, row_name=row, is_beyond=True)
    yield from _other_columns(coverage, floats, precision)
    if floats and has_exact:
        sample = coverage.kept[0]
        flat = {each.name: np.full_like(sample[each.name], _middle(sample[each.name])) for each in floats}
        yield Probe("equal elements, which tie", {**sample, **flat}, only_exact=True)


def _other_columns(coverage: Coverage, floats: Sequence[InputCoverage], precision: Precision) -> Iterator[Probe]:
    """Yield rows with other values in the columns of a table that are equal in all samples."""
    if coverage.samples < FEW_SAMPLES:
        return
    for each in floats:
        columns = each.constant_columns
        if not len(columns):
            continue
        what = f"other values in columns of '{each.name}' that are equal in all samples ({_shown(columns)})"
        for number, sample in enumerate(coverage.kept):
            row = sample[each.name].copy()
            row[columns] = each.low + (each.high - each.low) * (number + 1) / len(coverage.kept)
            yield Probe(what, {**sample, each.name: row}, is_optional=True, is_only_named=precision not in _WIDE)


def _shown(columns: Array) -> str:
    shown = ", ".join(str(column) for column in columns[:_SHOWN])
    return shown + (f" and {len(columns) - _SHOWN} more" if len(columns) > _SHOWN else "")


def _scaled(sample: Mapping[str, Array], inputs: Sequence[InputCoverage], factor: float) -> Mapping[str, Array]:
    return {**sample, **{each.name: sample[each.name] * sample[each.name].dtype.type(factor) for each in inputs}}


def lengths(coverage: Coverage, variable: Mapping[str, Sequence[int]]) -> Iterator[Probe]:
    """Yield samples that are shorter and longer than all samples, along axes that may vary."""
    for (shortest, longest), places in variable_lengths(coverage, variable).items():
        names = ", ".join(sorted({f"'{name}'" for name, _ in places}))
        name, axis = places[0]
        span = str(longest) if shortest == longest else f"{shortest} to {longest}"
        kept = sorted(coverage.kept, key=lambda each: each[name].shape[axis])
        wanted = [] if shortest == 1 else [(kept[0], max(1, shortest // 2))]
        for origin, count in [*wanted, (kept[-1], 2 * longest)]:
            sample = dict(origin)
            for each, place in places:
                sample[each] = sample[each].take(np.arange(count) % sample[each].shape[place], place)
            yield Probe(f"other lengths of {names} than {span}", sample, is_optional=True)


def unusual(coverage: Coverage, precision: Precision) -> Iterator[Probe]:
    """Yield rows with missing values, unless samples have them, and longer strings: services get both some day.

    Also numbers below 0 where samples have none, and numbers near 0, for precisions that are not calibrated on the
    range of the samples.
    """
    floats = [each for each in coverage.inputs.values() if each.kind == "f" and not each.is_flag]
    if floats and precision not in FACTORS:
        yield from _of_other_size(coverage, floats)
    for each in coverage.inputs.values():
        if each.kind == "f" and not each.has_gaps:
            yield from _incomplete(coverage, each.name)
        elif each.kind in STRING_KINDS:
            for sample in coverage.kept[:_INCOMPLETE]:
                yield _named(f"longer strings of '{each.name}'", {**sample, each.name: _longer(sample[each.name])})


def _of_other_size(coverage: Coverage, floats: Sequence[InputCoverage]) -> Iterator[Probe]:
    for each in floats:
        if each.low >= 0 and each.high > 0:
            for sample in coverage.kept[:_INCOMPLETE]:
                yield _named(f"values of '{each.name}' below 0", _scaled(sample, [each], -1.0))
    names = ", ".join(f"'{each.name}'" for each in floats)
    for sample in coverage.kept[:_INCOMPLETE]:
        yield _named(f"values of {names} near 0", _scaled(sample, floats, _SMALLER))


def _incomplete(coverage: Coverage, name: str) -> Iterator[Probe]:
    for number, sample in enumerate(coverage.kept[:_INCOMPLETE]):
        if sample[name].ndim > 1:
            return  # No row of a table.
        array = sample[name].copy()
        array.reshape(-1)[number % 2 :: 2 if array.size > 1 else 1] = np.nan
        yield _named(f"missing values (NaN) in '{name}'", {**sample, name: array})


def _named(what: str, sample: Mapping[str, Array]) -> Probe:
    return Probe(what, sample, is_optional=True, is_only_named=True)


def _longer(array: Array) -> Array:
    made = np.empty(array.shape, object)
    texts = [each if isinstance(each, bytes) else str(each).encode() for each in array.ravel()]
    made.reshape(-1)[:] = [b" ".join([text] * _TIMES) for text in texts]
    return made


def _perturbed(array: Array, other: Array, seen: InputCoverage, random: np.random.Generator) -> Array:
    if seen.kind != "f" or seen.is_flag:
        is_same = array.shape == other.shape and array.dtype == other.dtype
        return array if seen.is_flag or not array.ndim else _reordered(array, other if is_same else array, random)
    wide = np.where(np.isfinite(array), array, 0).astype(np.float64)
    if array.shape == other.shape and seen.high > seen.low:
        share = random.uniform(0.6, 0.9)
        wide = share * wide + (1 - share) * np.where(np.isfinite(other), other, 0)
    size = _NOISE * (seen.high - seen.low) if np.isfinite(seen.high - seen.low) else 0.0
    if len(seen.contents) == 1:  # There is nothing to mix.
        size = max(size, _OWN_NOISE * float(np.abs(wide).mean()))
    made = wide + random.normal(size=array.shape) * (size or _OWN_NOISE)
    if seen.high > seen.low:
        made = np.clip(made, seen.low, seen.high)
    made = np.where(np.isfinite(array), made, array)
    return made.astype(array.dtype)


def _reordered(array: Array, other: Array, random: np.random.Generator) -> Array:
    """Return the elements of two samples in another order along the first axis."""
    if array.ndim and len(array) > 1:
        mixed = np.where(random.random(array.shape) < 0.7, array, other)
        order = random.permutation(len(array))
        return np.ascontiguousarray(mixed[order]).astype(array.dtype)
    return other.copy()


def _tail(array: Array, parts: int) -> Array:
    """Return the last half, or third, along the longest axis."""
    axis = int(np.argmax(array.shape))
    count = max(1, array.shape[axis] // parts)
    place: list[slice] = [slice(None)] * array.ndim
    place[axis] = slice(array.shape[axis] - count, None)
    return array[tuple(place)]


def _channels(sample: Mapping[str, Array], seen: InputCoverage) -> Array:
    array, axis = sample[seen.name], seen.equal_axis
    assert axis is not None
    shape = [1] * array.ndim
    shape[axis] = array.shape[axis]
    factors = 1.0 / (1 + np.arange(array.shape[axis])).reshape(shape)
    return (array * factors).astype(array.dtype)


def _middle(array: Array) -> float:
    finite = array[np.isfinite(array)]
    return float(np.median(finite)) if finite.size else 0.0
