import pytest

from naiad.config.autofill import select_versions
from naiad.config.forms.pbtxt.text_format import parse_pbtxt


@pytest.mark.parametrize(
    ("policy", "available", "selected"),
    [
        ("", [1, 3, 2], [3]),
        ("latest { num_versions: 1 }", [10, 9], [10]),
        ("latest { num_versions: 2 }", [3, 1, 2], [2, 3]),
        ("latest { num_versions: 9 }", [3, 1], [1, 3]),
        ("latest { num_versions: 0 }", [3, 1], []),
        ("all { }", [3, 1, 2], [1, 2, 3]),
        ("specific { versions: [ 7, 1 ] }", [1, 2], [1]),
        ("specific { versions: [ 7 ] }", [1, 2], []),
        ("specific { }", [1, 2], []),
        ("all { }", [], []),
        ("", [], []),
        ("", [0], [0]),
    ],
)
def test_selects(policy: str, available: list[int], selected: list[int]):
    config = parse_pbtxt(f"version_policy {{ {policy} }}").config
    assert select_versions(config.version_policy, available) == selected
