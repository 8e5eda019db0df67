"""A flag, a backend, a format and a candidate are each added in one place, and then used as a user uses them.

Each test inserts text into one module of naiad. A REST route is in tests/unit/operations/test_declaration.py.
"""

import json
import re
import time
from pathlib import Path

import pytest

from support.edited_source import EditedSource
from support.model_repository import write_model
from support.optimize_command import FLAGS, write_files
from support.raw_http1 import HttpPeer, http_request
from support.raw_http2 import DATA, END_STREAM, Http2Peer, frame
from support.server_process import ServerProcess

DOCS = Path(__file__).parents[2] / "docs"
IDENTITY = """
backend: "identity"
max_batch_size: 8
input { name: "INPUT0" data_type: TYPE_FP32 dims: [ 2 ] }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 2 ] }
"""

# --- a flag of HTTP -------------------------------------------------------------------------------------------------

BODY_RATE = """body_rate_bytes_per_s: int = option(
        16384, "http-body-rate", "naiad: least bytes per second.", minimum=1, limit="body_rate_bytes_per_s"
    )
    """
SLOW_BODY = [b"[" + b" " * 1000, b" " * 1000 + b"]"]
"""At 16384 bytes/s a pause of a second behind the first part is too long; at 1 byte/s it is not."""


def test_flag_of_http_is_added_in_one_place(tmp_path):
    edited = EditedSource(
        tmp_path / "source", "options/network/endpoints.py", "idle_timeout_s: float = option(", BODY_RATE
    )
    assert "--http-body-rate <integer>" in edited.run("serve", "--help-all")
    server = ServerProcess(
        tmp_path / "log",
        "--model-control-mode=explicit",
        f"--model-repository={tmp_path}",
        "--http-body-timeout-seconds=0.1",
        "--http-body-rate=1",
        environment=edited.environment,
    )
    try:
        server.wait_ready()
        assert slow_http1(server.http_url.removeprefix("http://")) == 400
        assert slow_http2(server.http_url.removeprefix("http://")) == "400"
    finally:
        server.stop()


def slow_http1(url: str) -> int:
    """Return the status of a slow request; it is 408 for a body that is too slow."""
    with HttpPeer(url) as peer:
        peer.send(http_request("/v2/repository/index", b"".join(SLOW_BODY))[: -len(SLOW_BODY[1])])
        time.sleep(1.0)
        peer.send(SLOW_BODY[1])
        return peer.answer().status


def slow_http2(url: str) -> str:
    with Http2Peer(url) as peer:
        fields = {":method": "POST", ":scheme": "http", ":authority": "test", ":path": "/v2/repository/index"}
        peer.send(peer.headers(1, fields.items()) + frame(DATA, 0, 1, SLOW_BODY[0]))
        time.sleep(1.0)
        peer.send(frame(DATA, END_STREAM, 1, SLOW_BODY[1]))
        return peer.answer(1).fields[":status"]


# --- a backend ------------------------------------------------------------------------------------------------------


def test_backend_is_added_in_one_place(tmp_path):
    row = 'KnownBackend("doubler", {"factor.txt": ""}, module="naiad_doubler:DoublerBackend"),\n    '
    edited = EditedSource(tmp_path / "source", "config/backends.py", 'KnownBackend("identity"', row)
    code, _ = re.findall(r"```python\n(.*?)```", (DOCS / "backends.md").read_text(), re.DOTALL)
    (edited.folder / "naiad_doubler.py").write_text(code)
    isolated = 'parameters { key: "isolation" value { string_value: "process" } }'
    for name, parameters in (("double", ""), ("isolated", isolated)):
        # No `backend`: the name of the file says it.
        configuration = IDENTITY.replace('backend: "identity"\n', "") + parameters
        write_model(tmp_path / "models", name, configuration, {"1/factor.txt": "2.5"})
    (edited.folder / "rows.jsonl").write_text('{"INPUT0": [1, 2]}\n')
    for name in ("double", "isolated"):
        edited.run("predict", tmp_path / "models", name, "--input", "rows.jsonl", "--output", f"{name}.jsonl")
        assert json.loads((edited.folder / f"{name}.jsonl").read_text()) == {"row": 0, "OUTPUT0": [2.5, 5.0]}


# --- a format of predict --------------------------------------------------------------------------------------------

TAB_SINK = """
import numpy as np

from naiad.tools.predict.sinks.sink import TextSink


class TabSink(TextSink):
    def __init__(self, folder, sizes, layout):
        super().__init__(folder, "rows.tab", sizes)

    def append(self, block):
        for column in block.columns.values():
            for row in np.asarray(column.whole):
                self.part.write("\\t".join(f"{value:g}" for value in row).encode() + b"\\n")
"""


def test_format_of_predict_is_added_in_one_place(tmp_path):
    row = '".tab": RowFormat(sink=TabSink),\n    ".txt": RowFormat(JsonLinesSource),\n    '
    edited = EditedSource(tmp_path / "source", "tools/predict/files/row_formats.py", '".csv": RowFormat', f"{row}")
    module = edited.folder / "naiad/tools/predict/files/row_formats.py"
    module.write_text(module.read_text().replace("\nfrom ", "\nfrom tab_sink import TabSink\nfrom ", 1))
    (edited.folder / "tab_sink.py").write_text(TAB_SINK)
    write_model(tmp_path / "models", "same", IDENTITY, {})
    (edited.folder / "rows.txt").write_text('{"INPUT0": [1, 2]}\n{"INPUT0": [3, 4.5]}\n')
    shown = edited.run("predict", tmp_path / "models", "same", "--input", "rows.txt", "--output", "rows.tab")
    assert (edited.folder / "rows.tab").read_text() == "1\t2\n3\t4.5\n"
    assert "next: head -n 3 rows.tab" in shown
    help_text = " ".join(edited.run("predict", "--help").split())
    assert ".jsonl, .tab, .csv" in help_text
    assert ".jsonl, .txt, .csv" in help_text


# --- a candidate of optimize ----------------------------------------------------------------------------------------

WITHOUT_NAMES = """
from pathlib import Path

import onnx


def convert(job):
    model = onnx.load(job.source)
    for node in model.graph.node:
        node.ClearField("name")
    onnx.save(model, Path(job.output, "model.onnx"))
"""


@pytest.mark.long
def test_candidate_of_optimize_is_added_in_one_place(tmp_path):
    row = 'yield onnx("unnamed", _P.FP32, module="without_names")\n    '
    edited = EditedSource(
        tmp_path / "source", "tools/optimize/converters/conversion_plan.py", 'yield onnx("fp16"', row
    )
    (edited.folder / "without_names.py").write_text(WITHOUT_NAMES)
    write_files(edited.folder)
    edited.run("optimize", "digits.onnx", "--data", "samples.npz", "--candidates", "onnx-unnamed", *FLAGS)
    found = json.loads((edited.folder / "optimization/result.json").read_text())
    outcomes = {each["candidate"]["name"]: each for each in found["outcomes"]}
    assert outcomes["onnx-unnamed"]["status"] == "passed"
    assert outcomes["onnx-unnamed"]["served"]["throughput"]["value"] > 0
