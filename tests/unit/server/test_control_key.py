"""The key of a control call, as the supervisor uses it."""

import pickle

import pytest

from naiad.cluster.member.sharing import broadcast
from naiad.cluster.messages import GrpcControlCall, HttpControlCall, ModelControl
from naiad.core.model import ModelKey
from naiad.protocol import service_pb2 as pb

_SERVICE = "/inference.GRPCInferenceService/"


def load(name: str) -> GrpcControlCall:
    message = pb.RepositoryModelLoadRequest(model_name=name).SerializeToString()
    return GrpcControlCall(_SERVICE + "RepositoryModelLoad", (), message)


def unload(name: str) -> GrpcControlCall:
    message = pb.RepositoryModelUnloadRequest(model_name=name).SerializeToString()
    return GrpcControlCall(_SERVICE + "RepositoryModelUnload", (), message)


@pytest.mark.parametrize(
    "call",
    [
        load("m"),
        unload("m"),
        HttpControlCall("POST", "/v2/repository/models/m/load", (), b""),
        HttpControlCall("POST", "/v2/repository/models/m/unload", (), b""),
        ModelControl("m", is_load=True, parameters={}),
    ],
)
def test_last_load_or_unload_counts(call: HttpControlCall | GrpcControlCall | ModelControl) -> None:
    assert broadcast(call).key == ("model", "m")


def test_models_of_equal_names_keep_order_separately() -> None:
    keys = [broadcast(load(name)).key for name in ("m", "/a::m", "s3://b/c::m")]
    assert len(set(keys)) == 3
    # Calls with an equal first part of the key wait for each other.
    assert {key[:2] for key in keys} == {("model", "m")}


def test_model_keys_reach_other_processes_unchanged() -> None:
    key = ModelKey("/a", "m")
    arrived = pickle.loads(pickle.dumps(key, pickle.HIGHEST_PROTOCOL))
    assert isinstance(arrived, ModelKey)
    assert (arrived, arrived.namespace, arrived.name) == ("/a::m", "/a", "m")
