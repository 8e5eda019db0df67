"""The choice of a model for each request, when several models share the load."""

from collections.abc import Callable, Sequence

from naiad.core.errors import invalid_argument


def model_chooser(weights: Sequence[float]) -> Callable[[], int]:
    """Return a function that returns the index of the next model, in proportion to the weights.

    The choice is the smooth weighted round robin of nginx: exact over the long run and evenly spread.

    Raises InferError(INVALID_ARG) unless each weight is over 0.
    """
    for index, weight in enumerate(weights):
        if not 0 < weight < float("inf"):
            raise invalid_argument(f"the weight of model {index} is {weight:g}; expected more than 0")
    if len(weights) == 1:
        return lambda: 0
    total = sum(weights)
    credit = [0.0] * len(weights)

    def choose() -> int:
        for index, weight in enumerate(weights):
            credit[index] += weight
        chosen = max(range(len(credit)), key=credit.__getitem__)
        credit[chosen] -= total
        return chosen

    return choose
