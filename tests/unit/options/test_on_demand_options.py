"""Amounts of memory as --model-memory-budget has them."""

import pytest

from naiad.options.on_demand_options import OnDemandOptions, budget_bytes, gpu_budget_bytes


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("", 0),
        ("1000", 1000),
        ("1GiB", 1 << 30),
        ("1.5 gib", 3 << 29),
        ("500MB", 500_000_000),
        ("2k", 2000),
        ("50%", 1 << 29),
        ("100%", 1 << 30),
    ],
)
def test_amount_is_bytes_or_a_share(text: str, amount: int) -> None:
    assert budget_bytes(text, 1 << 30) == amount


@pytest.mark.parametrize("text", ["-1", "much", "0%", "101%", "1GiBs", "1e9", "٣"])
def test_other_texts_are_refused_with_the_flag(text: str) -> None:
    with pytest.raises(ValueError, match="is not a"):
        budget_bytes(text, 1 << 30)
    assert OnDemandOptions(memory_budget=text).problem.startswith("--model-memory-budget: ")


def test_empty_budget_is_no_problem() -> None:
    assert OnDemandOptions().problem == ""


@pytest.mark.parametrize(
    ("text", "budgets"),
    [
        ("", {}),
        ("50%", {0: 500, 1: 1000}),
        ("0=600, 1 = 25%", {0: 600, 1: 500}),
        ("1=600", {1: 600}),
        ("50%,1=1kB", {0: 500, 1: 1000}),
        ("50%,1=0", {0: 500}),
    ],
)
def test_gpus_have_budgets_of_their_own(text: str, budgets: dict[int, int]) -> None:
    assert OnDemandOptions(gpu_memory_budget=text).problem == ""
    assert gpu_budget_bytes(text, {0: 1000, 1: 2000}) == budgets


@pytest.mark.parametrize(
    "text", [",", "0=", "0=8GB,0=9GB", "8GB,9GB", "x=8GB", "-1=8GB", "0=101%", "0=8GB,", "٣=8GB"]
)
def test_other_budgets_of_gpus_are_refused(text: str) -> None:
    assert OnDemandOptions(gpu_memory_budget=text).problem.startswith("--model-gpu-memory-budget: ")


def test_budget_of_a_missing_gpu_is_refused() -> None:
    with pytest.raises(ValueError, match="names GPU 2, which was not found; GPUs that were: 0, 1"):
        gpu_budget_bytes("2=8GB", {0: 1000, 1: 2000})
