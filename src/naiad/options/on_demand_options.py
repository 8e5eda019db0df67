"""Options of models on demand: which models their first request loads, and how much memory they may take."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from naiad.options.flag import option

AT_START = "at-start"
ON_DEMAND = "on-demand"
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}
_AMOUNT = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)\s*(%|(?:[KMGT]I?)?B?)", re.IGNORECASE | re.ASCII)
_GPU = re.compile(r"(\d{1,4})\s*=(.*)", re.ASCII)


def budget_bytes(text: str, memory_bytes: int) -> int:
    """Return an amount of memory: bytes with a unit (`1GiB`) or without, or a share of `memory_bytes` (`50%`).

    0 for an empty text: no limit. Raises ValueError.
    """
    if not text:
        return 0
    found = _AMOUNT.fullmatch(text.strip())
    if found is None:
        raise ValueError(
            f"'{text[:200]}' is not an amount of memory; write bytes such as 1GiB, or a share such as 50%"
        )
    number, unit = float(found[1]), found[2].upper()
    if unit == "%":
        if not 0 < number <= 100:
            raise ValueError(f"'{text[:200]}' is not a share of the memory; write more than 0% and at most 100%")
        return max(1, int(memory_bytes * number / 100))
    return int(number * _UNITS[unit.removesuffix("B")])


def gpu_amounts(text: str) -> dict[int | None, str]:
    """Return the amounts of memory in `50%`, `0=8GB,1=50%` or `50%,1=8GB` by the numbers of GPUs.

    The amount without a number, of None, is that of all others. Raises ValueError.
    """
    found: dict[int | None, str] = {}
    for part in text.split(",") if text else ():
        match = _GPU.fullmatch(part.strip())
        number, amount = (None, part) if match is None else (int(match[1]), match[2])
        if number in found:
            of = "a second budget without a GPU" if number is None else f"two budgets of GPU {number}"
            raise ValueError(f"'{text[:200]}' has {of}; write 50%, 0=8GB,1=50%, or 50%,1=8GB")
        budget_bytes(amount.strip() or " ", 1 << 40)
        found[number] = amount
    return found


def gpu_budget_bytes(text: str, memory_bytes: Mapping[int, int]) -> dict[int, int]:
    """Return the budget of each GPU that has one; see `gpu_amounts`.

    `memory_bytes` has the memory of each GPU, by its number. Raises ValueError, also for a GPU that is not there.
    """
    amounts = gpu_amounts(text)
    missing = [number for number in amounts if number is not None and number not in memory_bytes]
    if missing:
        there = ", ".join(map(str, sorted(memory_bytes))) or "none"
        raise ValueError(f"'{text[:200]}' names GPU {missing[0]}, which was not found; GPUs that were: {there}")
    every = amounts.get(None, "")
    budgets = {number: budget_bytes(amounts.get(number, every), size) for number, size in memory_bytes.items()}
    return {number: amount for number, amount in budgets.items() if amount}


@dataclass(frozen=True, slots=True)
class OnDemandOptions:
    """Which models are loaded by their first request, and the bounds of their memory and of waiting requests."""

    policy: str = option(
        AT_START,
        "model-load-policy",
        "naiad: when models are loaded: at-start, or on-demand: by their first request, which waits for it. A model "
        "can differ with the parameter load_policy.",
        choices=(AT_START, ON_DEMAND),
        summary="at-start, or on-demand: by the first request.",
    )
    memory_budget: str = option(
        "",
        "model-memory-budget",
        "naiad: memory that on-demand models may take together, in bytes (1GiB) or as a share of the memory of the "
        "machine or control group (50%). Above it the least recently used ones are unloaded. Default: no limit.",
        default_text="no limit",
    )
    gpu_memory_budget: str = option(
        "",
        "model-gpu-memory-budget",
        "naiad: memory of each GPU that on-demand models may take together, in bytes (8GB) or as a share (50%); "
        "0=8GB,1=50% for single GPUs, 50%,1=8GB for one and all others. Above it the least recently used models on "
        "that GPU are unloaded. Default: no limit.",
        default_text="no limit",
    )
    min_residence_s: float = option(
        1.0,
        "model-min-residence-secs",
        "naiad: seconds that an on-demand model stays loaded at least, before another one may take its memory.",
        minimum=0,
    )
    idle_unload_s: float = option(
        0.0,
        "model-idle-unload-secs",
        "naiad: seconds without a request after which an on-demand model is unloaded. 0: never.",
        minimum=0,
    )
    hold_s: float = option(
        60.0,
        "max-hold-seconds",
        "naiad: seconds that a request waits at most for its model to be loaded, unless its own timeout is shorter.",
        minimum=0.001,
    )
    max_held: int = option(
        10_000, "max-held-requests", "naiad: maximum of requests that wait for models to be loaded.", minimum=1
    )
    max_held_of_model: int = option(
        2_000,
        "max-held-requests-per-model",
        "naiad: maximum of requests that wait for one model to be loaded.",
        minimum=1,
    )

    @property
    def is_default(self) -> bool:
        """Whether models without a policy of their own are loaded on demand."""
        return self.policy == ON_DEMAND

    @property
    def problem(self) -> str:
        """An error for a budget that cannot be read; empty if it can. Which GPUs there are is not known here."""
        try:
            budget_bytes(self.memory_budget, 1 << 40)
        except ValueError as error:
            return f"--model-memory-budget: {error}"
        try:
            gpu_amounts(self.gpu_memory_budget)
        except ValueError as error:
            return f"--model-gpu-memory-budget: {error}"
        return ""
