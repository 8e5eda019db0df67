"""Tensors of a candidate under the source's names: some formats rename them."""

from collections.abc import Mapping, Sequence

from naiad.core.datatype import DataType
from naiad.core.tensor import TensorSpec
from naiad.tools.optimize.correctness.runners.model_runner import RenamedRunner, Runner, RunnerError

_FLOATS = (DataType.FP16, DataType.BF16, DataType.FP32, DataType.FP64)


def match_names(source: Sequence[TensorSpec], candidate: Sequence[TensorSpec], what: str) -> Mapping[str, str]:
    """Return the candidate's name by the source's name: equal names first, the rest in order.

    A format that renames tensors keeps their order. Where that pairs tensors of other kinds or shapes, and only one
    pairing fits, it is that one; otherwise the values differ and the candidate is rejected. Raises RunnerError if the
    numbers of tensors differ.
    """
    names, found = [spec.name for spec in source], [spec.name for spec in candidate]
    if len(names) != len(found):
        message = f"it has {len(found)} {what} ({', '.join(found)}), the source has {len(names)} ({', '.join(names)})"
        raise RunnerError(message)
    wanted = [spec for spec in source if spec.name not in found]
    given = [spec for spec in candidate if spec.name not in names]
    return {name: name for name in names if name in found} | _renamed(wanted, given)


def with_names_of(
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    runner: Runner,
    own_inputs: Sequence[TensorSpec],
    own_outputs: Sequence[TensorSpec],
) -> Runner:
    """Return the runner under the names of `inputs` and `outputs`. Raises RunnerError if it has other tensors."""
    maps = match_names(inputs, own_inputs, "inputs"), match_names(outputs, own_outputs, "outputs")
    is_same = all(name == own for names in maps for name, own in names.items())
    return runner if is_same else RenamedRunner(runner, *maps)


def _renamed(wanted: Sequence[TensorSpec], given: Sequence[TensorSpec]) -> dict[str, str]:
    in_order = {one.name: other.name for one, other in zip(wanted, given, strict=True)}
    if all(map(_fits, wanted, given)):
        return in_order
    fitting = {one.name: [other.name for other in given if _fits(one, other)] for one in wanted}
    only = {name: others[0] for name, others in fitting.items() if len(others) == 1}
    return only if len(set(only.values())) == len(wanted) else in_order


def _fits(one: TensorSpec, other: TensorSpec) -> bool:
    """Return whether both may be the same tensor, also in another precision."""
    is_of_kind = one.datatype is other.datatype or {one.datatype, other.datatype} <= set(_FLOATS)
    return is_of_kind and len(one.shape) == len(other.shape) and all(map(_fits_length, one.shape, other.shape))


def _fits_length(one: int, other: int) -> bool:
    return one == other or -1 in (one, other)
