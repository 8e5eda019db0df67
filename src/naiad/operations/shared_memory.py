"""Operations on the shared-memory regions that clients register."""

from collections.abc import Mapping

from naiad.core.errors import invalid_argument
from naiad.core.tensor import Buffer
from naiad.engine.engine import Engine
from naiad.operations.operation import (
    GrpcForm,
    Operation,
    RestForm,
    empty_message,
    empty_reply,
    json_reply,
)
from naiad.operations.requests import CommandOrder, CudaRegistration, SystemRegistration
from naiad.protocol.grpc import control as control_grpc
from naiad.protocol.json.management import control as control_json

_SYSTEM = "/v2/systemsharedmemory[/region/{region}]"
_CUDA = "/v2/cudasharedmemory[/region/{region}]"


def _region(parameters: Mapping[str, str], body: Buffer) -> str:
    """Return the name of a region; empty for all."""
    return parameters["region"]


def _required_region(parameters: Mapping[str, str], kind: str) -> str:
    name = parameters["region"]
    if not name:
        raise invalid_argument(f"'region name' is necessary to register {kind} shared memory region")
    return name


def _decode_system(parameters: Mapping[str, str], body: Buffer) -> SystemRegistration:
    return SystemRegistration(_required_region(parameters, "system"), *control_json.decode_system_registration(body))


def _decode_cuda(parameters: Mapping[str, str], body: Buffer) -> CudaRegistration:
    return CudaRegistration(_required_region(parameters, "cuda"), *control_json.decode_cuda_registration(body))


def _register_system(engine: Engine, region: SystemRegistration) -> None:
    engine.shared_memory.register_system(region.name, region.key, region.offset, region.byte_size)


def _register_cuda(engine: Engine, region: CudaRegistration) -> None:
    engine.shared_memory.register_cuda(region.name, region.handle, region.device_id, region.byte_size)


def _unregistration_order(kind: str, name: str) -> CommandOrder:
    """Return the order of what undoes the registration of a region, or without a name of all regions of its kind."""
    return CommandOrder(("region", kind, name) if name else ("region", kind), undoes=True)


SYSTEM_STATUS = Operation(
    name="system_shared_memory_status",
    category="shared-memory",
    kind="query",
    group="Shared memory",
    summary="Registered system regions",
    rest=[RestForm("GET", _SYSTEM + "/status", _region, json_reply(control_json.encode_system_status))],
    grpc=GrpcForm("SystemSharedMemoryStatus", control_grpc.decode_name, control_grpc.encode_system_status),
    call=lambda engine, name: engine.shared_memory.system_status(name),
)
REGISTER_SYSTEM = Operation(
    name="register_system_shared_memory",
    category="shared-memory",
    kind="command",
    group="Shared memory",
    summary="Register a system region",
    rest=[RestForm("POST", _SYSTEM + "/register", _decode_system, empty_reply)],
    grpc=GrpcForm(
        "SystemSharedMemoryRegister",
        lambda message: SystemRegistration(*control_grpc.decode_system_registration(message)),
        empty_message,
        target=control_grpc.region_of_command,
    ),
    call=_register_system,
    order=lambda region: CommandOrder(("region", "system", region.name)),
)
UNREGISTER_SYSTEM = Operation(
    name="unregister_system_shared_memory",
    category="shared-memory",
    kind="command",
    group="Shared memory",
    summary="Unregister system regions",
    rest=[RestForm("POST", _SYSTEM + "/unregister", _region, empty_reply)],
    grpc=GrpcForm(
        "SystemSharedMemoryUnregister",
        control_grpc.decode_name,
        empty_message,
        target=control_grpc.region_of_command,
    ),
    call=lambda engine, name: engine.shared_memory.unregister_system(name),
    order=lambda name: _unregistration_order("system", name),
)
CUDA_STATUS = Operation(
    name="cuda_shared_memory_status",
    category="shared-memory",
    kind="query",
    group="Shared memory",
    summary="Registered CUDA regions",
    rest=[RestForm("GET", _CUDA + "/status", _region, json_reply(control_json.encode_cuda_status))],
    grpc=GrpcForm("CudaSharedMemoryStatus", control_grpc.decode_name, control_grpc.encode_cuda_status),
    call=lambda engine, name: engine.shared_memory.cuda_status(name),
)
REGISTER_CUDA = Operation(
    name="register_cuda_shared_memory",
    category="shared-memory",
    kind="command",
    group="Shared memory",
    summary="Register a CUDA region",
    rest=[RestForm("POST", _CUDA + "/register", _decode_cuda, empty_reply)],
    grpc=GrpcForm(
        "CudaSharedMemoryRegister",
        lambda message: CudaRegistration(*control_grpc.decode_cuda_registration(message)),
        empty_message,
        target=control_grpc.region_of_command,
    ),
    call=_register_cuda,
    order=lambda region: CommandOrder(("region", "cuda", region.name)),
)
UNREGISTER_CUDA = Operation(
    name="unregister_cuda_shared_memory",
    category="shared-memory",
    kind="command",
    group="Shared memory",
    summary="Unregister CUDA regions",
    rest=[RestForm("POST", _CUDA + "/unregister", _region, empty_reply)],
    grpc=GrpcForm(
        "CudaSharedMemoryUnregister",
        control_grpc.decode_name,
        empty_message,
        target=control_grpc.region_of_command,
    ),
    call=lambda engine, name: engine.shared_memory.unregister_cuda(name),
    order=lambda name: _unregistration_order("cuda", name),
)

OPERATIONS = (SYSTEM_STATUS, REGISTER_SYSTEM, UNREGISTER_SYSTEM, CUDA_STATUS, REGISTER_CUDA, UNREGISTER_CUDA)
