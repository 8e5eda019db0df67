"""What the client returns, as a notebook shows it: escaped, bounded, without colors of its own."""

import re
from html.parser import HTMLParser

import numpy as np

from naiad.client.client import InferResult
from naiad.client.notebook import StatisticsRows
from naiad.core.datatype import DataType
from naiad.core.model import ModelMetadata, ServerMetadata
from naiad.core.response import InferResponse, ResponseHeader
from naiad.core.tensor import TensorSpec, to_buffer

EVIL = "<script>alert(1)</script>\x1b[2J"


class Page(HTMLParser):
    """The text of each element."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.tags: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def shown(value: object) -> list[str]:
    text = value._repr_html_()  # type: ignore[attr-defined]
    page = Page(text)
    assert page.tags <= {"div", "strong", "table", "tr", "th", "td"}
    assert "\x1b" not in text
    assert not re.search(r"(?:background|[^-]color)\s*:", text)  # they are the page's, light or dark
    return page.texts


def test_metadata_is_a_table_of_tensors() -> None:
    spec = TensorSpec(EVIL, DataType.FP32, (-1, 3))
    metadata = ModelMetadata("m", ["1", "2"], "onnxruntime_onnx", [spec], [spec])
    texts = shown(metadata)
    assert texts.count("? × 3") == 2
    assert "onnxruntime_onnx, versions 1, 2" in texts
    assert any(text.startswith("<script>") for text in texts)
    assert "naiad 1.0" in shown(ServerMetadata("naiad", "1.0", ["statistics"]))


def test_statistics_are_a_list_and_a_table() -> None:
    duration = {"count": 4, "ns": 8_000_000}
    row = {"name": EVIL, "version": "1", "inference_stats": {"success": duration, "queue": duration}}
    rows = StatisticsRows([row])
    assert rows == [row]
    texts = shown(rows)
    assert texts[-6:] == ["4", "0", "0", "0", "2", "2"]
    assert len(shown(StatisticsRows([row] * 1000))) < 2000
    assert "and 800 more rows" in shown(StatisticsRows([row] * 1000))


def test_outputs_show_values_and_their_range() -> None:
    numbers = np.arange(10_000, dtype=np.float32).reshape(100, 100)
    words = np.array([EVIL.encode(), b"\xff"], object)
    specs = [TensorSpec("N", DataType.FP32, (100, 100)), TensorSpec("T", DataType.BYTES, (2,))]
    data = [to_buffer(numbers), to_buffer(words)]
    texts = shown(InferResult("7", InferResponse(ResponseHeader("m", "1", specs), data)))
    assert "0.0, 1.0, 2.0, 3.0, 4.0, 5.0, …" in texts
    assert texts[texts.index("100 × 100") + 2 :][:3] == ["0", "5e+03", "1e+04"]
    assert "request id 7" in texts
