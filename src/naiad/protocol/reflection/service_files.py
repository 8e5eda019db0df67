"""The descriptors of the services as clients see them: in the packages of the wire, with the served methods.

`service.proto` has a package of naiad's own and no service, so its descriptors are copied into the package that the
paths of calls have. The files have the names under which clients of Triton know them.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto

from naiad.config import model_config_pb2
from naiad.protocol import service_pb2

V1 = "grpc.reflection.v1"
V1ALPHA = "grpc.reflection.v1alpha"
_OWN_PACKAGE = ".naiad.inference."
_WIRE_PACKAGE = "inference"
_CONFIG_FILE = "model_config.proto"
_TYPES = {
    "bool": FieldDescriptorProto.TYPE_BOOL,
    "bytes": FieldDescriptorProto.TYPE_BYTES,
    "int32": FieldDescriptorProto.TYPE_INT32,
    "string": FieldDescriptorProto.TYPE_STRING,
}


class _Method(NamedTuple):
    """The messages of a method, and whether they are streams."""

    request: str
    response: str
    streams_requests: bool = False
    streams_responses: bool = False


_METHODS = {
    "/inference.GRPCInferenceService/ModelStreamInfer": _Method(
        "ModelInferRequest", "ModelStreamInferResponse", streams_requests=True, streams_responses=True
    ),
    "/grpc.health.v1.Health/Check": _Method("HealthCheckRequest", "HealthCheckResponse"),
    "/grpc.health.v1.Health/Watch": _Method("HealthCheckRequest", "HealthCheckResponse", streams_responses=True),
    **{
        f"/{package}.ServerReflection/ServerReflectionInfo": _Method(
            "ServerReflectionRequest", "ServerReflectionResponse", streams_requests=True, streams_responses=True
        )
        for package in (V1, V1ALPHA)
    },
}
"""All other methods take one message, named for the method, and return one."""


def served_files(paths: Collection[str]) -> Sequence[FileDescriptorProto]:
    """Return the files that describe the methods with these paths; each file comes after those that it imports."""
    files = (
        _on_the_wire(model_config_pb2.DESCRIPTOR.serialized_pb, _CONFIG_FILE),
        _on_the_wire(service_pb2.DESCRIPTOR.serialized_pb, "grpc_service.proto", _CONFIG_FILE),
        _health_file(),
        reflection_file(V1),
        reflection_file(V1ALPHA),
    )
    for path in paths:
        _add_method(files, path)
    return files


def reflection_file(package: str) -> FileDescriptorProto:
    """Return the messages of reflection in one of its two packages, without the service."""
    file = FileDescriptorProto(name=f"{package.replace('.', '/')}/reflection.proto", package=package, syntax="proto3")
    request = file.message_type.add(name="ServerReflectionRequest")
    _add_fields(request, package, {"host": (1, "string")})
    _add_choice(
        request,
        package,
        "message_request",
        {
            "file_by_filename": (3, "string"),
            "file_containing_symbol": (4, "string"),
            "file_containing_extension": (5, "ExtensionRequest"),
            "all_extension_numbers_of_type": (6, "string"),
            "list_services": (7, "string"),
        },
    )
    extension = file.message_type.add(name="ExtensionRequest")
    _add_fields(extension, package, {"containing_type": (1, "string"), "extension_number": (2, "int32")})
    response = file.message_type.add(name="ServerReflectionResponse")
    _add_fields(response, package, {"valid_host": (1, "string"), "original_request": (2, "ServerReflectionRequest")})
    _add_choice(
        response,
        package,
        "message_response",
        {
            "file_descriptor_response": (4, "FileDescriptorResponse"),
            "all_extension_numbers_response": (5, "ExtensionNumberResponse"),
            "list_services_response": (6, "ListServiceResponse"),
            "error_response": (7, "ErrorResponse"),
        },
    )
    parts: Mapping[str, Mapping[str, tuple[int, str]]] = {
        "FileDescriptorResponse": {"file_descriptor_proto": (1, "repeated bytes")},
        "ExtensionNumberResponse": {"base_type_name": (1, "string"), "extension_number": (2, "repeated int32")},
        "ListServiceResponse": {"service": (1, "repeated ServiceResponse")},
        "ServiceResponse": {"name": (1, "string")},
        "ErrorResponse": {"error_code": (1, "int32"), "error_message": (2, "string")},
    }
    for name, fields in parts.items():
        _add_fields(file.message_type.add(name=name), package, fields)
    return file


def _health_file() -> FileDescriptorProto:
    package = "grpc.health.v1"
    file = FileDescriptorProto(name="grpc/health/v1/health.proto", package=package, syntax="proto3")
    _add_fields(file.message_type.add(name="HealthCheckRequest"), package, {"service": (1, "string")})
    response = file.message_type.add(name="HealthCheckResponse")
    status = response.enum_type.add(name="ServingStatus")
    for number, name in enumerate(("UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN")):
        status.value.add(name=name, number=number)
    response.field.add(
        name="status",
        number=1,
        label=FieldDescriptorProto.LABEL_OPTIONAL,
        type=FieldDescriptorProto.TYPE_ENUM,
        type_name=f".{package}.HealthCheckResponse.ServingStatus",
    )
    return file


def _add_fields(message: DescriptorProto, package: str, fields: Mapping[str, tuple[int, str]]) -> None:
    for name, (number, kind) in fields.items():
        repeated, _, element = kind.rpartition(" ")
        field = message.field.add(name=name, number=number)
        field.label = FieldDescriptorProto.LABEL_REPEATED if repeated else FieldDescriptorProto.LABEL_OPTIONAL
        if element in _TYPES:
            field.type = _TYPES[element]
        else:
            field.type = FieldDescriptorProto.TYPE_MESSAGE
            field.type_name = f".{package}.{element}"


def _add_choice(message: DescriptorProto, package: str, choice: str, fields: Mapping[str, tuple[int, str]]) -> None:
    """Add fields of which a message has at most one."""
    index = len(message.oneof_decl)
    message.oneof_decl.add(name=choice)
    known_count = len(message.field)
    _add_fields(message, package, fields)
    for field in message.field[known_count:]:
        field.oneof_index = index


def _on_the_wire(serialized: bytes, name: str, *imports: str) -> FileDescriptorProto:
    """Return a copy of naiad's descriptors in the package of the wire."""
    file = FileDescriptorProto.FromString(serialized)
    file.name = name
    file.package = _WIRE_PACKAGE
    del file.dependency[:]
    file.dependency.extend(imports)
    for message in file.message_type:
        _rename_types(message)
    return file


def _rename_types(message: DescriptorProto) -> None:
    for field in message.field:
        if field.type_name.startswith(_OWN_PACKAGE):
            field.type_name = f".{_WIRE_PACKAGE}.{field.type_name.removeprefix(_OWN_PACKAGE)}"
    for nested in message.nested_type:
        _rename_types(nested)


def _add_method(files: Sequence[FileDescriptorProto], path: str) -> None:
    _, service_name, name = path.split("/")
    package, _, short_name = service_name.rpartition(".")
    method = _METHODS.get(path) or _Method(f"{name}Request", f"{name}Response")
    # The last file of a package has its service: the file before it may be one that it imports.
    file = next(file for file in reversed(files) if file.package == package)
    service = next((each for each in file.service if each.name == short_name), None) or file.service.add(
        name=short_name
    )
    service.method.add(
        name=name,
        input_type=f".{package}.{method.request}",
        output_type=f".{package}.{method.response}",
        client_streaming=method.streams_requests,
        server_streaming=method.streams_responses,
    )
