"""The component that has made a request."""

from collections.abc import Callable
from functools import partial


def caller_of(on_response: Callable[..., object]) -> object:
    """Return the object whose method takes the responses of a request; None if it is not a method.

    Frontends have the attributes `protocol` and `transport`, runs of ensembles have `request`.
    """
    function = on_response.func if isinstance(on_response, partial) else on_response
    return getattr(function, "__self__", None)
