"""The memory budgets of models on demand: one of the host and one of each GPU, by their names. Pure."""

from collections.abc import Collection, Mapping

from naiad.config.backends import canonical_name
from naiad.config.model_config_pb2 import ModelConfig, ModelInstanceGroup

HOST = "host"
"""The budget of the memory of the server and its worker processes."""
_GPU = "gpu:"
_BACKENDS_ON_GPUS = frozenset({"pytorch", "huggingface", "tensorrt"})
"""Backends whose instances are expected on GPUs without an instance group that says so."""

Amounts = Mapping[str, int]
"""Bytes by the names of budgets; 0 for those without an entry."""


def gpu_budget(number: int) -> str:
    """Return the name of the budget of a GPU, by CUDA's number of it."""
    return f"{_GPU}{number}"


def gpu_number(budget: str) -> int | None:
    """Return the number of the GPU of a budget; None for the host's."""
    return int(budget.removeprefix(_GPU)) if budget.startswith(_GPU) else None


def flag_of(budget: str) -> str:
    """Return the flag of a budget, with the device that it is of, for messages."""
    number = gpu_number(budget)
    return "--model-memory-budget" if number is None else f"--model-gpu-memory-budget of GPU {number}"


def freed_text(amounts: Amounts) -> str:
    """Return what an unload gives back of each kind of memory, for the log."""
    numbers = {budget: gpu_number(budget) for budget in amounts}
    places = {budget: "the host" if number is None else f"GPU {number}" for budget, number in numbers.items()}
    parts = [f"{size_bytes} bytes of {places[budget]}" for budget, size_bytes in amounts.items() if size_bytes]
    return f"; it has {', '.join(parts)}" if parts else ""


def no_room(limits: Amounts, taken: Amounts, need: Amounts, hold_s: float) -> str:
    """Return why a load was not begun: the budgets that it has waited for, what is taken of them, and its need."""
    flags = " and ".join(
        f"{flag_of(budget)} ({limit_bytes} bytes, {taken.get(budget, 0)} are taken, it needs {need.get(budget, 0)})"
        for budget, limit_bytes in limits.items()
    )
    return f"no room in {flags} within {hold_s:g} s: the models that are loaded are in use"


def too_large(name: str, budget: str, size: str, budget_bytes: int) -> str:
    """Return why a model can never be loaded."""
    return (
        f"model '{name}' does not fit into {flag_of(budget)}: {size} bytes, the budget is {budget_bytes} bytes; "
        'raise the budget, or load the model at start with the parameter load_policy "pinned"'
    )


def total_of(amounts: Collection[Amounts]) -> dict[str, int]:
    """Return the sum of amounts, without the budgets of which it has nothing."""
    total: dict[str, int] = {}
    for each in amounts:
        for budget, size_bytes in each.items():
            if size_bytes:
                total[budget] = total.get(budget, 0) + size_bytes
    return total


def gpu_budgets_of(config: ModelConfig, budgets: Collection[str]) -> frozenset[str]:
    """Return which budgets of GPUs a model is expected to need, complete configurations without doubt.

    A group without `gpus` is on all of them, if it has kind KIND_GPU or its backend takes GPUs where it can.
    """
    every = {budget for budget in budgets if gpu_number(budget) is not None}
    found: set[str] = set()
    takes_gpus = canonical_name(config.backend) in _BACKENDS_ON_GPUS
    for group in config.instance_group or (ModelInstanceGroup(),):
        if group.gpus and group.kind in (ModelInstanceGroup.KIND_GPU, ModelInstanceGroup.KIND_AUTO):
            found.update(map(gpu_budget, group.gpus))
        elif group.kind == ModelInstanceGroup.KIND_GPU or (group.kind == ModelInstanceGroup.KIND_AUTO and takes_gpus):
            found.update(every)
    return frozenset(found & every)
