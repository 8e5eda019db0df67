"""The chart on the pages shows the recorded results."""

import json
import xml.etree.ElementTree as ET

import pytest
from bench import chart


@pytest.mark.parametrize("name", chart.FILES)
def test_chart_shows_the_recorded_results(name: str) -> None:
    results = json.loads(chart.RESULTS.read_text())
    drawn = chart.draw(results, chart.FILES[name])
    assert (chart.DOCS / name).read_text(encoding="utf-8") == drawn, "run: python -m bench.chart"
    texts = [element.text for element in ET.fromstring(drawn).iter("{http://www.w3.org/2000/svg}text")]
    assert results["facts"]["date"][:10] in texts[-1]
    assert len([text for text in texts if text.isdigit()]) == 14
