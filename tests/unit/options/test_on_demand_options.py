"""Amounts of memory as --model-memory-budget has them."""

import pytest

from naiad.options.on_demand_options import OnDemandOptions, budget_bytes


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
