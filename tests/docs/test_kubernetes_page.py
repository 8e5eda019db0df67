"""The page of Kubernetes lists the values of the chart."""

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "kubernetes.md").read_text()
VALUES = yaml.safe_load((ROOT / "deploy" / "helm" / "naiad" / "values.yaml").read_text())
SECTION = PAGE[PAGE.index("## Models") : PAGE.index("A schema checks")]


@pytest.mark.parametrize("name", VALUES)
def test_every_value_of_the_chart_is_listed(name: str) -> None:
    assert re.search(rf"`{name}[.`]", SECTION)


def test_every_listed_value_exists() -> None:
    listed = re.findall(r"^- `([\w.]+)`", PAGE[PAGE.index("## Values") : PAGE.index("A schema checks")], re.MULTILINE)
    assert len(listed) > 30
    for name in listed:
        value = VALUES
        for part in name.split("."):
            assert part in value, name
            value = value[part]
