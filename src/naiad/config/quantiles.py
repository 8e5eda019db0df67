"""The quantiles of Triton's summaries: `--metrics-config summary_quantiles=`."""

from collections.abc import Sequence

DEFAULT_QUANTILES = "0.5:0.05,0.9:0.01,0.95:0.001,0.99:0.001,0.999:0.001"
"""Triton's `summary_quantiles`: quantile and allowed error. naiad's quantiles are exact, the errors go unused."""


def parse_quantiles(text: str) -> Sequence[float]:
    """Return the quantiles of `0.5:0.05,0.99:0.001`. Raises ValueError for what is no quantile."""
    quantiles = []
    for pair in text.split(","):
        quantile, colon, error = pair.partition(":")
        try:
            numbers = float(quantile), float(error)
        except ValueError:
            numbers = -1.0, -1.0
        if not colon or not all(0.0 <= number <= 1.0 for number in numbers):
            raise ValueError("is not of the form QUANTILE:ERROR,..., each from 0 to 1")
        quantiles.append(numbers[0])
    return quantiles
