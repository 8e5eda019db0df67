"""The key of a control call, as the supervisor uses it."""

import pickle

import pytest

from naiad.cluster.member.sharing import order_of
from naiad.cluster.messages import ModelControl, OperationCall
from naiad.core.model import ModelKey
from naiad.operations.repository import LOAD, UNLOAD
from naiad.operations.requests import LoadRequest, SystemRegistration, TraceChanges, UnloadRequest
from naiad.operations.settings import CHANGE_TRACE_SETTINGS
from naiad.operations.shared_memory import REGISTER_SYSTEM


def load(name: str) -> OperationCall:
    return OperationCall(LOAD.name, LoadRequest(name, {}))


@pytest.mark.parametrize(
    "call",
    [
        load("m"),
        OperationCall(UNLOAD.name, UnloadRequest("m", {})),
        ModelControl("m", is_load=True, parameters={}),
        ModelControl("m", is_load=False, parameters={}),
    ],
)
def test_last_load_or_unload_counts(call: OperationCall | ModelControl) -> None:
    assert order_of(call).key == ("model", "m")


def test_commands_reach_other_processes_unchanged() -> None:
    for call in (
        OperationCall(LOAD.name, LoadRequest("m", {"config": "{}", "file:1/model.py": b"x", "force": True})),
        OperationCall(REGISTER_SYSTEM.name, SystemRegistration("r", "/k", 0, 4)),
        OperationCall(CHANGE_TRACE_SETTINGS.name, TraceChanges("m", {"trace_rate": None})),
    ):
        assert pickle.loads(pickle.dumps(call, pickle.HIGHEST_PROTOCOL)) == call


def test_models_of_equal_names_keep_order_separately() -> None:
    keys = [order_of(load(name)).key for name in ("m", "/a::m", "s3://b/c::m")]
    assert len(set(keys)) == 3
    # Calls with an equal first part of the key wait for each other.
    assert {key[:2] for key in keys} == {("model", "m")}


def test_model_keys_reach_other_processes_unchanged() -> None:
    key = ModelKey("/a", "m")
    arrived = pickle.loads(pickle.dumps(key, pickle.HIGHEST_PROTOCOL))
    assert isinstance(arrived, ModelKey)
    assert (arrived, arrived.namespace, arrived.name) == ("/a::m", "/a", "m")
