"""Log and trace settings with stock tritonclient, over every transport, and that they act."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from support.model_repository import write_identity
from support.server_process import ServerProcess, serving

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

DATA = np.arange(4, dtype=np.float32).reshape(1, 4)


@pytest.fixture(scope="module")
def trace_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("traces") / "trace.json"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, trace_file: Path) -> Iterator[ServerProcess]:
    root = tmp_path_factory.mktemp("models")
    write_identity(root)
    write_identity(root, "other")
    with serving(
        tmp_path_factory.mktemp("log") / "log",
        f"--model-repository={root}",
        f"--trace-config=triton,file={trace_file}",
        "--trace-config=rate=1",
    ) as running:
        yield running


def infer(transport, model="identity", **more):
    return transport.infer(model, {"INPUT0": DATA}, **more)


def failure(call, *arguments, **more) -> str:
    with pytest.raises(InferenceServerException) as caught:
        call(*arguments, **more)
    return str(caught.value)


def plain(settings) -> dict:
    """Log settings as a dictionary, with any protocol."""
    if isinstance(settings, dict):
        return settings
    return {name: getattr(v, v.WhichOneof("parameter_choice")) for name, v in settings.settings.items()}


def values(settings) -> dict:
    """Trace settings as lists of strings, with any protocol."""
    if isinstance(settings, dict):
        return {name: value if isinstance(value, list) else [value] for name, value in settings.items()}
    return {name: list(setting.value) for name, setting in settings.settings.items()}


class TestLog:
    def test_settings(self, transport):
        client = transport.client
        assert plain(client.get_log_settings()) == {
            "log_file": "",
            "log_info": True,
            "log_warning": True,
            "log_error": True,
            "log_verbose_level": 0,
            "log_format": "default",
        }
        changed = plain(client.update_log_settings({"log_verbose_level": 2, "log_format": "ISO8601"}))
        assert (changed["log_verbose_level"], changed["log_format"]) == (2, "ISO8601")
        assert plain(client.get_log_settings()) == changed
        client.update_log_settings({"log_verbose_level": 0, "log_format": "default"})

    def test_they_act(self, transport, server):
        client = transport.client
        model = f"missing_{transport.name}"
        client.update_log_settings({"log_format": "ISO8601", "log_warning": False, "log_info": False})
        failure(infer, transport, f"unheard_{model}")
        client.update_log_settings({"log_warning": True, "log_info": True})
        failure(infer, transport, model)
        server.wait_log(rf"(?m)^\d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\dZ [WI] .*'{model}'")
        assert f"unheard_{model}" not in server.log_text()
        client.update_log_settings({"log_format": "default"})

    def test_wrong_values_change_nothing(self, transport):
        client = transport.client
        before = plain(client.get_log_settings())
        assert "got: iso" in failure(client.update_log_settings, {"log_info": False, "log_format": "iso"})
        text = failure(client.update_log_settings, {"log_file": "x"})
        assert "log file location can not be updated through network protocol" in text
        assert plain(client.get_log_settings()) == before


def traces(trace_file: Path) -> dict[str, list[dict]]:
    """Return the objects of each trace by the id of its request."""
    try:
        entries = json.loads(trace_file.read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return {}  # not written yet, or being written
    found: dict[int, list[dict]] = {}
    for entry in entries:
        found.setdefault(entry["id"], []).append(entry)
    return {group[0].get("request_id", ""): group for group in found.values()}


def wait_trace(trace_file: Path, request_id: str) -> list[dict]:
    while request_id not in traces(trace_file):
        pass
    return traces(trace_file)[request_id]


class TestTrace:
    def test_settings(self, transport, trace_file):
        client = transport.client
        start = {
            "trace_level": ["OFF"],
            "trace_rate": ["1"],
            "trace_count": ["-1"],
            "log_frequency": ["0"],
            "trace_file": [str(trace_file)],
            "trace_mode": ["triton"],
        }
        assert values(client.get_trace_settings()) == start
        changed = values(client.update_trace_settings(settings={"trace_rate": "7", "trace_count": "3"}))
        assert changed == {**start, "trace_rate": ["7"], "trace_count": ["3"]}
        own = values(client.update_trace_settings(model_name="other", settings={"trace_rate": "9"}))
        assert own == {**changed, "trace_rate": ["9"]}
        assert values(client.get_trace_settings(model_name="identity")) == changed
        assert values(client.get_trace_settings(model_name="other")) == own
        assert values(client.update_trace_settings(model_name="other", settings={"trace_rate": None})) == changed
        assert values(client.update_trace_settings(settings={"trace_rate": None, "trace_count": None})) == start

    def test_they_act(self, transport, trace_file):
        client, name = transport.client, "HTTP" if transport.is_http else "GRPC"
        other, first, second = (f"{transport.name}-{each}" for each in ("other", 1, 2))
        client.update_trace_settings(model_name="other", settings={"trace_level": ["OFF"]})
        client.update_trace_settings(settings={"trace_level": ["TIMESTAMPS", "TENSORS"]})
        infer(transport, "other", request_id=other)
        infer(transport, request_id=first)
        header, *entries = wait_trace(trace_file, first)
        assert (header["model_name"], header["model_version"]) == ("identity", 1)
        moments = [entry["timestamps"][0] for entry in entries if "timestamps" in entry]
        names = [moment["name"] for moment in moments]
        assert {"REQUEST_START", "QUEUE_START", "COMPUTE_START", "COMPUTE_END", "REQUEST_END"} <= set(names)
        assert f"{name}_SEND_START" in names
        times = [moment["ns"] for moment in moments]
        assert times == sorted(times)
        tensors = {entry["activity"]: entry["tensor"] for entry in entries if "tensor" in entry}
        expected = {"data": "0.0,1.0,2.0,3.0", "shape": "1,4", "dtype": "FP32"}
        assert tensors["TENSOR_QUEUE_INPUT"] == {"name": "INPUT0", **expected}
        assert tensors["TENSOR_BACKEND_OUTPUT"] == {"name": "OUTPUT0", **expected}
        client.update_trace_settings(settings={"trace_level": ["OFF"]})
        client.update_trace_settings(model_name="other", settings={"trace_level": None})
        infer(transport, request_id=second)
        assert other not in traces(trace_file)
        assert second not in traces(trace_file)

    def test_streams_are_traced(self, transport, server, trace_file):
        transport.client.update_trace_settings(settings={"trace_level": ["TIMESTAMPS"]})
        body = {"id": f"{transport.name}-stream", "INPUT0": [1.0, 2.0]}
        assert server.post("/v2/models/identity/generate_stream", body).status == 200
        assert len(wait_trace(trace_file, f"{transport.name}-stream")) > 5
        transport.client.update_trace_settings(settings={"trace_level": None})

    def test_wrong_values_change_nothing(self, transport):
        client = transport.client
        before = values(client.get_trace_settings())
        for settings, text in (
            ({"trace_rate": "x"}, "Unable to parse 'trace_rate', got: x"),
            ({"trace_rate": "0"}, "sample rate must be non-zero"),
            ({"trace_count": "-2", "trace_rate": "5"}, "Expecting value >= -1, got:-2"),
            ({"trace_level": ["OFF", "TENSORS"]}, "Expect only one trace level 'OFF' is specified"),
            ({"trace_file": "x"}, "trace file location can not be updated through network protocol"),
        ):
            assert text in failure(client.update_trace_settings, settings=settings)
        assert "Request for unknown model : nothing" in failure(client.get_trace_settings, model_name="nothing")
        assert "Request for unknown model : nothing" in failure(
            client.update_trace_settings, model_name="nothing", settings={"trace_rate": "5"}
        )
        assert values(client.get_trace_settings()) == before


def test_extensions_name_them(transport):
    assert {"trace", "logging", "model_repository(unload_dependents)"} <= transport.extensions()
