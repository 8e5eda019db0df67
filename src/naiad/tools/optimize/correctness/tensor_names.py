"""Tensors of a candidate under the source's names: some formats rename them."""

from collections.abc import Mapping, Sequence

from naiad.core.tensor import TensorSpec
from naiad.tools.optimize.correctness.runners.model_runner import RenamedRunner, Runner, RunnerError


def match_names(source: Sequence[TensorSpec], candidate: Sequence[TensorSpec], what: str) -> Mapping[str, str]:
    """Return the candidate's name by the source's name: equal names first, the rest in order.

    A format that renames tensors keeps their order; if it does not, the values differ and the candidate is rejected.
    Raises RunnerError if the numbers of tensors differ.
    """
    names, found = [spec.name for spec in source], [spec.name for spec in candidate]
    if len(names) != len(found):
        message = f"it has {len(found)} {what} ({', '.join(found)}), the source has {len(names)} ({', '.join(names)})"
        raise RunnerError(message)
    rest = iter([name for name in found if name not in names])
    return {name: name if name in found else next(rest) for name in names}


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
