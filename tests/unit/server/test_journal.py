import pytest

from naiad.cluster.member.sharing import broadcast
from naiad.cluster.messages import GrpcControlCall, HttpControlCall
from naiad.cluster.supervisor.control_broadcast import ControlLog
from naiad.core.errors import InferError
from naiad.protocol import service_pb2 as pb


def entries(control_log: ControlLog, number: int = 0) -> list[str]:
    return [entry for _, entry in control_log.after(number)]


def test_calls_are_reported_in_order() -> None:
    control_log = ControlLog()
    control_log.add(("model", "a"), "load a")
    control_log.add(("model", "b"), "load b")
    assert entries(control_log) == ["load a", "load b"]


def test_the_last_call_about_a_thing_counts() -> None:
    control_log = ControlLog()
    control_log.add(("model", "a"), "load a")
    control_log.add(("model", "b"), "load b")
    control_log.add(("model", "a"), "unload a")
    assert entries(control_log) == ["load b", "unload a"]


def test_reader_continues_at_its_position() -> None:
    control_log = ControlLog()
    control_log.add(("model", "a"), "load a")
    (number, _), *_ = control_log.after(0)
    assert entries(control_log, number) == []
    control_log.add(("model", "a"), "unload a")
    assert entries(control_log, number) == ["unload a"]


def test_undone_entry_is_removed_with_covered_ones() -> None:
    control_log = ControlLog()
    control_log.add(("region", "system", "x"), "x")
    control_log.add(("region", "system", "y"), "y")
    control_log.add(("region", "cuda", "x"), "cuda x")
    control_log.undo(("region", "system", "x"))
    assert entries(control_log) == ["y", "cuda x"]
    control_log.undo(("region", "system"))
    assert entries(control_log) == ["cuda x"]


def test_there_is_a_limit() -> None:
    control_log = ControlLog(limit=2)
    for name in "abc":
        control_log.add(("model", name), name)
    assert entries(control_log) == ["b", "c"]


# --- keys -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "key", "undoes"),
    [
        ("/v2/repository/models/m/load", ("model", "m"), False),
        ("/v2/repository/r/models/m/unload", ("model", "m"), False),
        ("/v2/systemsharedmemory/region/x/register", ("region", "system", "x"), False),
        ("/v2/systemsharedmemory/region/x/unregister", ("region", "system", "x"), True),
        ("/v2/systemsharedmemory/unregister", ("region", "system"), True),
        ("/v2/cudasharedmemory/unregister", ("region", "cuda"), True),
        ("/v2/logging", ("http", "/v2/logging", "7b7d"), False),
        ("/v2/models/m/trace/setting", ("http", "/v2/models/m/trace/setting", "7b7d"), False),
    ],
)
def test_key_of_an_http_call(path: str, key: tuple[str, ...], undoes: bool) -> None:
    found = broadcast(HttpControlCall("POST", path, (), b"{}"))
    assert (found.key, found.undoes) == (key, undoes)


SERVICE = "/inference.GRPCInferenceService/"


@pytest.mark.parametrize(
    ("method", "message", "key", "undoes"),
    [
        ("RepositoryModelLoad", pb.RepositoryModelLoadRequest(model_name="m"), ("model", "m"), False),
        ("RepositoryModelUnload", pb.RepositoryModelUnloadRequest(model_name="m"), ("model", "m"), False),
        (
            "CudaSharedMemoryRegister",
            pb.CudaSharedMemoryRegisterRequest(name="x", raw_handle=b"\xff\x00"),
            ("region", "cuda", "x"),
            False,
        ),
        (
            "SystemSharedMemoryUnregister",
            pb.SystemSharedMemoryUnregisterRequest(name="x"),
            ("region", "system", "x"),
            True,
        ),
        ("SystemSharedMemoryUnregister", pb.SystemSharedMemoryUnregisterRequest(), ("region", "system"), True),
        ("LogSettings", pb.RepositoryModelLoadRequest(), ("grpc", SERVICE + "LogSettings", ""), False),
    ],
)
def test_key_of_a_grpc_call(method: str, message: object, key: tuple[str, ...], undoes: bool) -> None:
    encoded = message.SerializeToString()  # type: ignore[attr-defined]
    found = broadcast(GrpcControlCall(SERVICE + method, (), encoded))
    assert (found.key, found.undoes) == (key, undoes)


def test_invalid_message_is_rejected() -> None:
    with pytest.raises(InferError, match="not a valid message"):
        broadcast(GrpcControlCall(SERVICE + "RepositoryModelLoad", (), b"\xff\xff"))
