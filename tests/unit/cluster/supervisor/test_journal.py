import re

import pytest

from naiad.cluster.supervisor.control_broadcast import ControlLog
from naiad.operations.requests import CommandOrder
from naiad.operations.table import BY_GRPC_PATH, BY_NAME, OPERATIONS, operations_of
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


def order_of_request(method: str, path: str, body: bytes = b"{}") -> CommandOrder | None:
    operation = operations_of(path)[method]
    for form in operation.rest:
        match = re.fullmatch(form.path.pattern, path)
        if match is not None and form.method == method and form.decode is not None and operation.order is not None:
            parameters = {name: value or "" for name, value in match.groupdict().items()}
            return operation.order(form.decode(parameters, body))
    raise AssertionError(path)


REGION = b'{"key": "/k", "byte_size": 4}'


@pytest.mark.parametrize(
    ("path", "body", "key", "undoes"),
    [
        ("/v2/repository/models/m/load", b"{}", ("model", "m"), False),
        ("/v2/repository/models/m/unload", b"{}", ("model", "m"), False),
        ("/v2/systemsharedmemory/region/x/register", REGION, ("region", "system", "x"), False),
        ("/v2/systemsharedmemory/region/x/unregister", b"", ("region", "system", "x"), True),
        ("/v2/systemsharedmemory/unregister", b"", ("region", "system"), True),
        ("/v2/cudasharedmemory/unregister", b"", ("region", "cuda"), True),
        ("/v2/logging", b'{"log_info": false}', ("settings", "log", "", "[('info', False)]"), False),
        (
            "/v2/models/m/trace/setting",
            b'{"trace_rate": null}',
            ("settings", "trace", "m", "[('trace_rate', None)]"),
            False,
        ),
    ],
)
def test_order_of_a_rest_command(path: str, body: bytes, key: tuple[str, ...], undoes: bool) -> None:
    found = order_of_request("POST", path, body)
    assert found is not None
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
    ],
)
def test_order_of_a_grpc_command(method: str, message: object, key: tuple[str, ...], undoes: bool) -> None:
    operation = BY_GRPC_PATH[SERVICE + method]
    assert operation.grpc is not None
    assert operation.grpc.decode is not None
    assert operation.order is not None
    found = operation.order(operation.grpc.decode(message.SerializeToString()))  # type: ignore[attr-defined]
    assert found is not None
    assert (found.key, found.undoes) == (key, undoes)


def test_request_that_changes_nothing_has_no_order() -> None:
    assert order_of_request("POST", "/v2/logging") is None
    assert order_of_request("POST", "/v2/models/m/trace/setting") is None


def test_every_command_has_an_order() -> None:
    for operation in OPERATIONS:
        if operation.kind == "command" and operation.call is not None:
            assert operation.order is not None, operation.name
            assert BY_NAME[operation.name] is operation
