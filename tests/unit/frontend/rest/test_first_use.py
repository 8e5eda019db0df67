"""A group of routes is made with the first request for one of its operations, and then stays."""

from collections.abc import Mapping

from naiad.frontend.context import HttpContext
from naiad.frontend.rest.first_use import AtFirstUse
from naiad.frontend.router import Action
from naiad.operations.dashboard import DASHBOARD, DASHBOARD_FILE
from naiad.operations.operation import AnyOperation


class Group:
    made = 0

    def __init__(self) -> None:
        Group.made += 1
        self.calls: list[tuple[str, Mapping[str, str]]] = []

    def actions(self) -> Mapping[AnyOperation, Action]:
        return dict.fromkeys((DASHBOARD, DASHBOARD_FILE), self._act)

    def checks(self) -> Mapping[AnyOperation, Action]:
        return {DASHBOARD: self._check}

    def _act(self, context: HttpContext, arguments: Mapping[str, str]) -> None:
        self.calls.append(("act", arguments))

    def _check(self, context: HttpContext, arguments: Mapping[str, str]) -> None:
        self.calls.append(("check", arguments))


def test_group_is_made_once_and_called(monkeypatch) -> None:
    monkeypatch.setattr(Group, "made", 0)
    lazy = AtFirstUse(Group, (DASHBOARD, DASHBOARD_FILE))
    actions, checks = lazy.actions(), lazy.checks()
    assert Group.made == 0
    checks[DASHBOARD](None, {"a": "1"})
    checks[DASHBOARD_FILE](None, {"b": "2"})
    actions[DASHBOARD_FILE](None, {"c": "3"})
    assert Group.made == 1
    assert lazy.group().calls == [("check", {"a": "1"}), ("act", {"c": "3"})]


def test_failed_import_is_tried_again() -> None:
    attempts: list[int] = []

    def make() -> Group:
        attempts.append(1)
        if len(attempts) == 1:
            raise ImportError("too many open files")
        return Group()

    lazy = AtFirstUse(make, (DASHBOARD,))
    for _ in range(2):
        try:
            lazy.actions()[DASHBOARD](None, {})
        except ImportError:
            continue
    assert lazy.group().calls == [("act", {})]
