"""Groups of routes whose modules are imported with their first request: most servers get none, and start without."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Generic, Protocol, TypeVar

from naiad.frontend.context import HttpContext
from naiad.frontend.router import Action
from naiad.operations.operation import AnyOperation


class RouteGroup(Protocol):
    """The routes of one interface."""

    def actions(self) -> Mapping[AnyOperation, Action]:
        """Return the actions of all operations."""

    def checks(self) -> Mapping[AnyOperation, Action]:
        """Return what rejects requests by their headers."""


_G = TypeVar("_G", bound=RouteGroup)


class AtFirstUse(Generic[_G]):
    """A group that is made with the first request for one of its operations. Used on the event loop.

    The import of one takes 5 ms, once.
    """

    def __init__(self, make: Callable[[], _G], operations: Sequence[AnyOperation]) -> None:
        self._make = make
        self._operations = operations
        self._group: _G | None = None
        self._actions: Mapping[AnyOperation, Action] = {}
        self._checks: Mapping[AnyOperation, Action] = {}

    def group(self) -> _G:
        """Return the group."""
        if self._group is None:
            self._group = self._make()
            self._actions, self._checks = self._group.actions(), self._group.checks()
        return self._group

    def actions(self) -> Mapping[AnyOperation, Action]:
        """Return actions that make the group if need be."""
        return {operation: partial(self._act, operation) for operation in self._operations}

    def checks(self) -> Mapping[AnyOperation, Action]:
        """Return what rejects requests by their headers, and makes the group if need be."""
        return {operation: partial(self._check, operation) for operation in self._operations}

    def _act(self, operation: AnyOperation, context: HttpContext, arguments: Mapping[str, str]) -> None:
        if self._group is None:
            self.group()
        self._actions[operation](context, arguments)

    def _check(self, operation: AnyOperation, context: HttpContext, arguments: Mapping[str, str]) -> None:
        if self._group is None:
            self.group()
        check = self._checks.get(operation)
        if check is not None:
            check(context, arguments)
