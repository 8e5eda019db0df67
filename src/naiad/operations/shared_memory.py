"""Operations on the shared-memory regions that clients register."""

from naiad.operations.operation import GrpcForm, Operation, RestForm

_SYSTEM = "/v2/systemsharedmemory[/region/{region}]"
_CUDA = "/v2/cudasharedmemory[/region/{region}]"

SYSTEM_STATUS = Operation(
    name="system_shared_memory_status",
    category="shared-memory",
    kind="query",
    group="Shared memory",
    summary="Registered system regions",
    rest=[RestForm("GET", _SYSTEM + "/status")],
    grpc=GrpcForm("SystemSharedMemoryStatus"),
)
REGISTER_SYSTEM = Operation(
    name="register_system_shared_memory",
    category="shared-memory",
    kind="command",
    group="Shared memory",
    summary="Register a system region",
    rest=[RestForm("POST", _SYSTEM + "/register")],
    grpc=GrpcForm("SystemSharedMemoryRegister"),
)
UNREGISTER_SYSTEM = Operation(
    name="unregister_system_shared_memory",
    category="shared-memory",
    kind="command",
    group="Shared memory",
    summary="Unregister system regions",
    rest=[RestForm("POST", _SYSTEM + "/unregister")],
    grpc=GrpcForm("SystemSharedMemoryUnregister"),
)
CUDA_STATUS = Operation(
    name="cuda_shared_memory_status",
    category="shared-memory",
    kind="query",
    group="Shared memory",
    summary="Registered CUDA regions",
    rest=[RestForm("GET", _CUDA + "/status")],
    grpc=GrpcForm("CudaSharedMemoryStatus"),
)
REGISTER_CUDA = Operation(
    name="register_cuda_shared_memory",
    category="shared-memory",
    kind="command",
    group="Shared memory",
    summary="Register a CUDA region",
    rest=[RestForm("POST", _CUDA + "/register")],
    grpc=GrpcForm("CudaSharedMemoryRegister"),
)
UNREGISTER_CUDA = Operation(
    name="unregister_cuda_shared_memory",
    category="shared-memory",
    kind="command",
    group="Shared memory",
    summary="Unregister CUDA regions",
    rest=[RestForm("POST", _CUDA + "/unregister")],
    grpc=GrpcForm("CudaSharedMemoryUnregister"),
)

OPERATIONS = (SYSTEM_STATUS, REGISTER_SYSTEM, UNREGISTER_SYSTEM, CUDA_STATUS, REGISTER_CUDA, UNREGISTER_CUDA)
