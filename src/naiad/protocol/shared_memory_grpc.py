"""Messages of the shared-memory calls: requests to plain values, regions to answers."""

from collections.abc import Sequence

from naiad.core.shared_memory import CudaRegionStatus, SystemRegionStatus
from naiad.core.tensor import Buffer
from naiad.protocol import service_pb2 as pb
from naiad.protocol.control_grpc import parse_control


def decode_name(message: Buffer) -> str:
    """Return the name ("" for all) that a status or unregister call of either kind asks about."""
    # All four messages have the name in field 1 and nothing else.
    return parse_control(pb.SystemSharedMemoryStatusRequest, message).name


def decode_system_registration(message: Buffer) -> tuple[str, str, int, int]:
    """Return name, key, offset and byte size. Raises InferError(INTERNAL)."""
    request = parse_control(pb.SystemSharedMemoryRegisterRequest, message)
    return request.name, request.key, request.offset, request.byte_size


def decode_cuda_registration(message: Buffer) -> tuple[str, bytes, int, int]:
    """Return name, handle, the device's number and the byte size. Raises InferError(INTERNAL)."""
    request = parse_control(pb.CudaSharedMemoryRegisterRequest, message)
    return request.name, request.raw_handle, request.device_id, request.byte_size


def encode_system_status(regions: Sequence[SystemRegionStatus]) -> bytes:
    """Return a SystemSharedMemoryStatusResponse message."""
    response = pb.SystemSharedMemoryStatusResponse()
    for region in regions:
        row = response.regions[region.name]
        row.name, row.key, row.offset, row.byte_size = region.name, region.key, region.offset, region.byte_size
    return response.SerializeToString()


def encode_cuda_status(regions: Sequence[CudaRegionStatus]) -> bytes:
    """Return a CudaSharedMemoryStatusResponse message."""
    response = pb.CudaSharedMemoryStatusResponse()
    for region in regions:
        row = response.regions[region.name]
        row.name, row.device_id, row.byte_size = region.name, region.device_id, region.byte_size
    return response.SerializeToString()
