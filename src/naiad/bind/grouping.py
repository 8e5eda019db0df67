"""Groups of rows with equal values, and their outputs put together again."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from naiad.bind.exceptions import PyTritonRuntimeError
from naiad.core.datatype import STRING_KINDS
from naiad.core.tensor import Array

PadFunction: TypeAlias = Callable[[Sequence[Mapping[str, Array]]], Sequence[Mapping[str, Array]]]


def group_rows(inputs: Mapping[str, Array], keys: Sequence[str], rows: int) -> list[list[int]]:
    """Return the numbers of the rows that have equal values of the inputs `keys`, in the order of their first row.

    Raises PyTritonRuntimeError for a key that is no input of the batch.
    """
    missing = [key for key in keys if key not in inputs]
    if missing:
        raise PyTritonRuntimeError(
            f"@group_by_values: the requests have no input {', '.join(missing)}; they have {', '.join(inputs)}. Give "
            "optional inputs a value with @fill_optionals"
        )
    groups: dict[tuple[object, ...], list[int]] = {}
    for row in range(rows):
        groups.setdefault(tuple(_value_of(inputs[key][row]) for key in keys), []).append(row)
    return list(groups.values())


def _value_of(value: Any) -> object:
    array = np.asarray(value)
    return tuple(array.ravel().tolist()) if array.dtype.kind in STRING_KINDS else array.tobytes()


def merged(
    results: Sequence[Mapping[str, Array]], groups: Sequence[Sequence[int]], rows: int, pad: PadFunction | None
) -> dict[str, Array]:
    """Put the outputs of groups together, in the order of all rows. Raises ValueError if they do not fit together."""
    if pad is not None:
        results = pad(results)
    names = list(results[0])
    if any(set(result) != set(names) for result in results):
        raise ValueError(
            "the groups of @group_by_values have different outputs: "
            f"{' and '.join(str(sorted(result)) for result in results)}; return the same outputs for all"
        )
    return {name: _merged_output(name, [result[name] for result in results], groups, rows) for name in names}


def _merged_output(name: str, arrays: Sequence[Array], groups: Sequence[Sequence[int]], rows: int) -> Array:
    for array, group in zip(arrays, groups, strict=True):
        if array.shape[:1] != (len(group),):
            raise ValueError(f"output '{name}' of a group of {len(group)} rows has shape {array.shape}")
    tails = {array.shape[1:] for array in arrays}
    if len(tails) > 1:
        raise ValueError(
            f"output '{name}' has different shapes in the groups of @group_by_values: "
            f"{', '.join(map(str, sorted(tails)))}; pad them with pad_fn=ConstantPadder()"
        )
    # Strings get the length of the longest one.
    whole: Array = np.empty((rows, *arrays[0].shape[1:]), dtype=np.result_type(*[array.dtype for array in arrays]))
    for array, group in zip(arrays, groups, strict=True):
        whole[list(group)] = array
    return whole


class ConstantPadder:
    """Fills outputs of different sizes up to the largest: `group_by_values("key", pad_fn=ConstantPadder(0))`."""

    def __init__(self, pad_value: Any = 0) -> None:
        """`pad_value` fills numeric outputs; text is filled with empty strings."""
        self.pad_value = pad_value

    def __call__(self, batches_list: Sequence[Mapping[str, Array]]) -> list[dict[str, Array]]:
        """Return the batches with equal shapes, except for their rows.

        Raises PyTritonRuntimeError for arrays of one name with different dtypes or numbers of dimensions.
        """
        padded: list[dict[str, Array]] = [{} for _ in batches_list]
        for name in dict.fromkeys(name for batch in batches_list for name in batch):
            present = [(index, batch[name]) for index, batch in enumerate(batches_list) if name in batch]
            for (index, _), array in zip(present, self._padded(name, [array for _, array in present]), strict=True):
                padded[index][name] = array
        return padded

    def _padded(self, name: str, arrays: Sequence[Array]) -> list[Array]:
        kinds = {array.dtype if array.dtype.kind not in "SUT" else array.dtype.kind for array in arrays}
        if len(kinds) > 1 or len({array.ndim for array in arrays}) > 1:
            found = ", ".join(f"{array.dtype}{list(array.shape)}" for array in arrays)
            raise PyTritonRuntimeError(
                f"'{name}': arrays to pad must have the same dtype and number of dimensions, got {found}"
            )
        shape = [max(sizes) for sizes in zip(*[array.shape[1:] for array in arrays], strict=True)]
        dtype = np.result_type(*[array.dtype for array in arrays])
        return [self._pad(array.astype(dtype, copy=False), shape) for array in arrays]

    def _pad(self, array: Array, shape: Sequence[int]) -> Array:
        fill = {"S": b"", "O": b"", "U": "", "T": ""}.get(array.dtype.kind, self.pad_value)
        whole: Array = np.full((array.shape[0], *shape), fill, dtype=array.dtype)
        whole[tuple(slice(size) for size in array.shape)] = array
        return whole
