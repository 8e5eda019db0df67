"""Payloads of the shared-memory control, JSON and protobuf."""

import base64
import json

import pytest

from naiad.core.errors import ErrorCode, InferError
from naiad.core.model import CudaRegionStatus, SystemRegionStatus
from naiad.protocol import service_pb2 as pb
from naiad.protocol.grpc import control as shared_memory_grpc
from naiad.protocol.json.management import control as shared_memory_json

HANDLE = bytes(range(64))
B64 = base64.b64encode(HANDLE).decode()
SYSTEM = [SystemRegionStatus("a", "/k", 4096, 100), SystemRegionStatus("b", "k", 0, 2**40)]
CUDA = [CudaRegionStatus("c", 1, 64)]


def refusal(decode, body):
    with pytest.raises(InferError) as caught:
        decode(body if isinstance(body, bytes) else json.dumps(body).encode())
    return caught.value.triton_code, caught.value.message


class TestJson:
    def test_system_registration(self):
        body = b'{"key":"/k","offset":4096,"byte_size":18446744073709551615}'
        assert shared_memory_json.decode_system_registration(body) == ("/k", 4096, 2**64 - 1)
        assert shared_memory_json.decode_system_registration(b'{"key":"k","byte_size":1}') == ("k", 0, 1)

    @pytest.mark.parametrize(
        ("body", "code", "message"),
        [
            ({"byte_size": 1}, ErrorCode.INVALID_ARG, "Shared memory register request has no 'key' field"),
            ({"key": "k"}, ErrorCode.INVALID_ARG, "Shared memory register request has no 'byte_size' field"),
            ([], ErrorCode.INVALID_ARG, "Shared memory register request has no 'key' field"),
            ({"key": 1, "byte_size": 1}, ErrorCode.INTERNAL, "attempt to access JSON non-string as string"),
            ({"key": "k", "byte_size": "1"}, ErrorCode.INTERNAL, "JSON non-unsigned-integer as unsigned-integer"),
            ({"key": "k", "byte_size": -1}, ErrorCode.INTERNAL, "JSON non-unsigned-integer as unsigned-integer"),
            ({"key": "k", "byte_size": 1, "offset": 0.5}, ErrorCode.INTERNAL, "Unable to parse 'offset'"),
            (b"{bad", ErrorCode.INTERNAL, "failed to parse the request JSON buffer"),
            (b"", ErrorCode.INTERNAL, "failed to parse the request JSON buffer"),
        ],
    )
    def test_bad_system_registrations(self, body, code, message):
        found, text = refusal(shared_memory_json.decode_system_registration, body)
        assert found is code
        assert message in text

    def test_cuda_registration(self):
        body = json.dumps({"raw_handle": {"b64": B64}, "device_id": 1, "byte_size": 64}).encode()
        assert shared_memory_json.decode_cuda_registration(body) == (HANDLE, 1, 64)

    @pytest.mark.parametrize(
        ("changes", "code", "message"),
        [
            ({"raw_handle": None}, ErrorCode.INTERNAL, "non-existing object member 'b64'"),
            ({"raw_handle": {}}, ErrorCode.INTERNAL, "non-existing object member 'b64'"),
            ({"raw_handle": {"b64": 1}}, ErrorCode.INTERNAL, "non-string as string"),
            ({"raw_handle": {"b64": "!!!"}}, ErrorCode.INVALID_ARG, "must be a valid base64 encoded cudaIpcMem"),
            ({"raw_handle": {"b64": "äöü"}}, ErrorCode.INVALID_ARG, "must be a valid base64 encoded cudaIpcMem"),
            ({"raw_handle": {"b64": B64[4:]}}, ErrorCode.INVALID_ARG, "must be a valid base64 encoded cudaIpcMem"),
            ({"device_id": -1}, ErrorCode.INTERNAL, "Unable to parse 'device_id'"),
            ({"byte_size": "1"}, ErrorCode.INTERNAL, "Unable to parse 'byte_size'"),
        ],
    )
    def test_bad_cuda_registrations(self, changes, code, message):
        body = {"raw_handle": {"b64": B64}, "device_id": 1, "byte_size": 64} | changes
        found, text = refusal(shared_memory_json.decode_cuda_registration, body)
        assert found is code
        assert message in text

    @pytest.mark.parametrize("name", ["raw_handle", "device_id", "byte_size"])
    def test_missing_members_of_cuda_registrations(self, name):
        body = {"raw_handle": {"b64": B64}, "device_id": 1, "byte_size": 64}
        del body[name]
        code, text = refusal(shared_memory_json.decode_cuda_registration, body)
        assert code is (ErrorCode.INVALID_ARG if name == "raw_handle" else ErrorCode.INTERNAL)
        assert f"'{name}'" in text

    def test_status(self):
        assert shared_memory_json.encode_system_status(SYSTEM) == (
            b'[{"name":"a","key":"/k","offset":4096,"byte_size":100},'
            b'{"name":"b","key":"k","offset":0,"byte_size":1099511627776}]'
        )
        assert shared_memory_json.encode_cuda_status(CUDA) == b'[{"name":"c","device_id":1,"byte_size":64}]'
        assert shared_memory_json.encode_system_status([]) == shared_memory_json.encode_cuda_status([]) == b"[]"


class TestGrpc:
    def test_registrations(self):
        system = pb.SystemSharedMemoryRegisterRequest(name="a", key="/k", offset=4096, byte_size=100)
        found = shared_memory_grpc.decode_system_registration(system.SerializeToString())
        assert found == ("a", "/k", 4096, 100)
        cuda = pb.CudaSharedMemoryRegisterRequest(name="c", raw_handle=HANDLE, device_id=-1, byte_size=64)
        assert shared_memory_grpc.decode_cuda_registration(cuda.SerializeToString()) == ("c", HANDLE, -1, 64)

    @pytest.mark.parametrize(
        "kind",
        [
            pb.SystemSharedMemoryStatusRequest,
            pb.SystemSharedMemoryUnregisterRequest,
            pb.CudaSharedMemoryStatusRequest,
            pb.CudaSharedMemoryUnregisterRequest,
        ],
    )
    def test_names(self, kind):
        assert shared_memory_grpc.decode_name(kind(name="a").SerializeToString()) == "a"
        assert shared_memory_grpc.decode_name(b"") == ""

    def test_malformed(self):
        for decode in (
            shared_memory_grpc.decode_name,
            shared_memory_grpc.decode_system_registration,
            shared_memory_grpc.decode_cuda_registration,
        ):
            assert refusal(decode, b"\xff")[0] is ErrorCode.INTERNAL

    def test_status(self):
        parsed = pb.SystemSharedMemoryStatusResponse.FromString(shared_memory_grpc.encode_system_status(SYSTEM))
        assert {key: (row.name, row.key, row.offset, row.byte_size) for key, row in parsed.regions.items()} == {
            "a": ("a", "/k", 4096, 100),
            "b": ("b", "k", 0, 2**40),
        }
        other = pb.CudaSharedMemoryStatusResponse.FromString(shared_memory_grpc.encode_cuda_status(CUDA))
        assert {key: (row.name, row.device_id, row.byte_size) for key, row in other.regions.items()} == {
            "c": ("c", 1, 64)
        }
